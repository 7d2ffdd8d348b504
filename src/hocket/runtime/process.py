"""The real runtime: one learner in its own process.

A strategy without services or forks is driven by a plain trampoline with no thread: every effect is
carried out on the spot. As soon as a strategy forks or starts a service, gradients run in a worker
thread and collectives in another, both posting their results to the one loop that advances tasks;
between two awaits nothing else runs on the rank.
"""

from __future__ import annotations

import queue
import time
from collections import defaultdict, deque
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch

from hocket.data.ledger import ReplicatedLedger, SharedLedger, save_counters
from hocket.effects import (
    ANYONE,
    AllReduce,
    AllToAll,
    Broadcast,
    Effect,
    Evaluate,
    Grad,
    Gradient,
    Mean,
    MeanGradient,
    Message,
    Recv,
    Send,
)
from hocket.errors import (
    ContractError,
    HocketError,
    LearnerFailedError,
    PeerLostError,
    WaitTimeoutError,
    require,
)
from hocket.experiment import Experiment
from hocket.learner import Learner
from hocket.numerics import shares
from hocket.runtime import collectives
from hocket.runtime.boundary import Meeting, hold
from hocket.runtime.checkpoint import Checkpoints, Saved
from hocket.runtime.desk import Desk, Note
from hocket.runtime.internal import Gather, Quiet
from hocket.runtime.mailbox import Mailbox
from hocket.runtime.packing import from_bytes, to_bytes
from hocket.runtime.restore import restore, restore_counters
from hocket.runtime.trace import Trace
from hocket.runtime.trampoline import Deliver, Task, Trampoline
from hocket.runtime.transport import Group, Store, is_backend_error, own_address
from hocket.worker import Tally, Worker

PROGRESS_EVERY_S = 0.5  # to the user's eyes only; nothing depends on it
QUIET_POLL_S = 0.002  # between two looks at whether messages are still under way
_KINDS: tuple[type[Effect[Any]], ...] = (
    AllReduce,
    MeanGradient,
    Broadcast,
    AllToAll,
    Evaluate,
    Gather,
    Quiet,
)


@dataclass(eq=False)
class Waiting:
    """A receive that nothing has answered yet."""

    recv: Recv
    deliver: Deliver
    limit_s: float | None
    began: float = field(default_factory=time.monotonic)


class ProcessRuntime(Trampoline):
    """Runs one rank of an experiment."""

    def __init__(
        self,
        experiment: Experiment,
        rank: int,
        store: Store,
        host: str,
        report: Callable[[dict[str, Any]], None],
        checkpoints: Checkpoints | None = None,
        saved: Saved | None = None,
    ) -> None:
        super().__init__()
        options = experiment.options
        self.rank = rank
        self.size = options.learners
        self._sent = self._arrived = 0  # messages
        self.trace = Trace(keep=options.trace)
        self.main: Task | None = None
        self.issued = 0  # collectives of all learners
        self._experiment = experiment
        self._timeout_s = options.timeout_s
        self._report = report
        self._began = time.monotonic()
        self._earlier_s = saved.run["time_s"] if saved else 0.0
        self._completions: queue.SimpleQueue[tuple[Deliver, Any, BaseException | None]] = (
            queue.SimpleQueue()
        )
        self._inbox: dict[str, deque[Message]] = defaultdict(deque)
        self._waiting: list[Waiting] = []
        self._services: list[Task] = []
        self._lost_peers: set[int] = set()
        self._failure: BaseException | None = None
        self._returned = self._over = False
        self._shown = 0.0
        self._store = store
        self._address = own_address(host)
        self._groups: dict[tuple[int, ...] | None, Group] = {}
        self._mailbox: Mailbox | None = None
        self._computing = ThreadPoolExecutor(
            1, "gradient", initializer=torch.set_num_threads, initargs=(options.threads,)
        )
        self._communicating = ThreadPoolExecutor(1, "collective")
        self._pool = experiment.pool()
        self._worker = Worker(experiment.task, self._pool, options.seed)
        self._meeting = Meeting(
            self._worker.layout, self._now, checkpoints, self._common_state, self._unread
        )
        self._open(saved)
        self._began = time.monotonic()  # meeting the others and making data are not training

    def _open(self, saved: Saved | None) -> None:
        """Meet the others, agree on the first model, and put everything in its place."""
        strategy, everyone = self._experiment.strategy, tuple(range(self.size))
        if self.size > 1:
            self._groups[None] = self._group(everyone, "all")
            if not strategy.synchronous or strategy.uses_messages:
                self._open_mailbox()
            if saved is None:  # a model built without the seed would differ
                self._worker.initial = self._world.broadcast(self._worker.initial, 0)
        if saved is not None and not strategy.synchronous:
            if self.rank == 0:
                restore_counters(self._ledger_store, saved, everyone)
            if self.size > 1:
                self._world.all_gather_numbers([0.0])
        ledger = (
            ReplicatedLedger(self._pool, self.rank, everyone)
            if strategy.synchronous
            else SharedLedger(self._pool, self.rank, everyone, self._ledger_store)
        )
        self._desk = Desk(
            self._experiment,
            self._pool,
            self.rank,
            ledger,
            self._worker.new_state(),
            self._note_event,
        )
        self._desk.tick = self._show_progress
        self.state = strategy.init(self._worker.initial.clone(), self._experiment.optimizer)
        if saved is not None:
            self.state, unread = restore(self._desk, self.state, saved, self._worker.layout)
            for message in unread:
                self._inbox[message.tag].append(message)

    @property
    def _world(self) -> Group:
        return self._groups[None]

    @property
    def _ledger_store(self) -> Store:
        return self._store.prefix("ledger")

    def _group(self, members: tuple[int, ...], name: str) -> Group:
        return Group(
            self._store.prefix(f"group/{name}"),
            members.index(self.rank),
            len(members),
            address=self._address,
            timeout_s=self._timeout_s,
        )

    def _group_of(self, members: tuple[int, ...] | None) -> Group:
        if members not in self._groups:
            assert members is not None
            require(
                self.rank in members, f"rank {self.rank} issued a collective of group {members}"
            )
            self._groups[members] = self._group(members, "-".join(map(str, members)))
        return self._groups[members]

    def _open_mailbox(self) -> None:
        self.concurrent = True  # messages come in at any time: the loop must stay free
        token = bytes.fromhex(self._store.get("token"))
        self._mailbox = Mailbox(
            self._store,
            self.rank,
            self._address,
            token,
            arrived=lambda m: self._completions.put((self._arrive, m, None)),
            lost=lambda r: self._completions.put((self._peer_lost, r, None)),
            failed=lambda e: self._completions.put((self._mailbox_failed, None, e)),
            timeout_s=self._timeout_s,
        )

    # ------------------------------------------------------------------ running

    def stop(self) -> None:
        """Ask, from any thread, to stop at the next boundary."""
        self._desk.stop_wanted = True

    def describe(self) -> str:
        """Say what this learner is doing, for the others' error messages."""
        if self._returned:
            return "has returned and waits for the others"
        return f"awaits {self.main.describe()}" if self.main else "is starting"

    def run(self) -> None:
        """Run to the end; `state` then holds the final state."""
        me = Learner(
            self.rank,
            self.size,
            layout=self._worker.layout,
            optimizer=self._experiment.optimizer,
            rate=self._desk.rate,
            rng=self._desk.rng,
            codec=self._experiment.codec,
        )
        coroutine = self._experiment.strategy.run(me, self.state)
        self.main = self.spawn(self.rank, "main", coroutine, self._main_ended)
        try:
            while True:
                self.drain()
                if self._failure is not None:
                    raise self._failure
                if self._over:
                    return
                self._take_completion()
        finally:
            self._close()

    def _main_ended(self, value: Any, error: BaseException | None) -> None:
        if error is not None:
            self._failure = self._failure or error
            return
        self.state, self._returned = value, True
        if self.size == 1:
            self._over = True
        else:  # services of this rank live until every rank's main task has returned
            self._communicate("the end of all learners", self._barrier, self._all_ended)

    def _barrier(self) -> None:
        self._world.all_gather_numbers([0.0])

    def _all_ended(self, value: Any, error: BaseException | None) -> None:
        self._failure = self._failure or error
        self._over = True

    def service_ended(self, value: Any, error: BaseException | None) -> None:
        """Take note if a service failed."""
        if error is not None and not isinstance(error, PeerLostError):
            self._failure = self._failure or error

    def started(self, service: Task) -> None:
        """Remember a service, to know when it is idle."""
        self._services.append(service)

    def _take_completion(self) -> None:
        """Wait until something happens: a result, a message, or a limit."""
        deadline = min(
            (w.began + w.limit_s for w in self._waiting if w.limit_s is not None),
            default=time.monotonic() + self._timeout_s,
        )
        try:
            deliver, value, error = self._completions.get(
                timeout=max(0.0, deadline - time.monotonic())
            )
        except queue.Empty:
            self._expire()
        else:
            deliver(value, error)

    def _expire(self) -> None:
        now = time.monotonic()
        for waiting in list(self._waiting):
            if waiting.limit_s is not None and now >= waiting.began + waiting.limit_s:
                self._waiting.remove(waiting)
                waiting.deliver(None, self._timed_out(waiting.recv.describe(), waiting.limit_s))

    def _close(self) -> None:
        for service in self._services:
            service.coroutine.close()
        self._computing.shutdown(wait=False, cancel_futures=True)
        self._communicating.shutdown(wait=False, cancel_futures=True)
        if self._mailbox is not None:
            self._mailbox.close()

    # ------------------------------------------------------------------ the trampoline's questions

    def desk(self, rank: int) -> Desk:
        """Return the only desk there is."""
        return self._desk

    def boundary(self, rank: int, state: Any) -> Coroutine[Any, Any, Any]:
        """Return what happens at a boundary."""
        return hold(self._desk, state, self._meeting)

    def begin(self, task: Task, effect: Effect[Any], deliver: Deliver) -> None:
        """Begin an effect of any kind."""
        if isinstance(effect, Gradient):
            self._gradient(effect.params, deliver)
        elif isinstance(effect, MeanGradient):
            self._gradient(effect.params, self._then_reduce(effect, deliver))
        elif isinstance(effect, Send):
            self._send(effect, deliver)
        elif isinstance(effect, Recv):
            self._recv(effect, deliver, limited=task.name != "service")
        elif isinstance(effect, Quiet):
            self._quiet(deliver)
        elif self.size == 1:
            self._alone(effect, deliver)
        elif isinstance(effect, AllReduce):
            self._all_reduce(effect, deliver)
        elif isinstance(effect, Broadcast):
            self._broadcast(effect, deliver)
        elif isinstance(effect, AllToAll):
            self._all_to_all(effect, deliver)
        elif isinstance(effect, Evaluate):
            self._evaluate(effect, deliver)
        elif isinstance(effect, Gather):
            self._gather(effect, deliver)
        else:
            raise ContractError(f"rank {self.rank} awaited {effect!r}, which is not an effect")

    def _alone(self, effect: Effect[Any], deliver: Deliver) -> None:
        """Answer a collective of one."""
        if isinstance(effect, AllReduce):
            weight = effect.weight if effect.weight is not None else self._pending
            deliver(Mean(effect.x.clone(), 1, float(weight)), None)
        elif isinstance(effect, Broadcast):
            deliver(effect.x.clone(), None)
        elif isinstance(effect, AllToAll):
            deliver([s.clone() for s in effect.stripes], None)
        elif isinstance(effect, Gather):
            deliver([effect.value], None)
        elif isinstance(effect, Evaluate):
            deliver(collectives.scores([self._score(effect)]), None)
        else:
            raise ContractError(f"rank {self.rank} awaited {effect!r}, which is not an effect")

    # ------------------------------------------------------------------ doing things, here or there

    def _do(
        self,
        executor: ThreadPoolExecutor,
        job: Callable[[], Any],
        finish: Callable[[Any], Any],
        deliver: Deliver,
    ) -> None:
        """Run a job, on the spot or in a thread; `finish` its result on the loop."""

        def settle(value: Any, error: BaseException | None) -> None:
            if error is None:
                try:
                    value = finish(value)
                except Exception as failure:
                    value, error = None, failure
            deliver(value, error)

        def attempt() -> tuple[Any, BaseException | None]:
            try:
                return job(), None
            except Exception as failure:
                return None, failure

        if self.concurrent:
            executor.submit(lambda: self._completions.put((settle, *attempt())))
        else:
            settle(*attempt())

    def _communicate(self, what: str, job: Callable[[], Any], deliver: Deliver) -> None:
        """Run a blocking exchange with the others, in the order in which they are issued."""
        self.issued += 1
        what = f"{what} (collective #{self.issued} of this learner)"

        def guarded() -> Any:
            began = time.monotonic()
            try:
                return job()
            except RuntimeError as error:
                if not is_backend_error(error):
                    raise
                raise self._explain(what, error, time.monotonic() - began) from error
            finally:
                self._desk.books.communicate_s += time.monotonic() - began
                self._span(what.split(" (")[0], began)

        self._do(self._communicating, guarded, lambda value: value, deliver)

    def _explain(self, what: str, error: RuntimeError, waited_s: float) -> HocketError:
        if "imed out" in str(error) or waited_s >= self._timeout_s:
            return self._timed_out(what, waited_s)
        return LearnerFailedError(
            f"rank {self.rank}: {what} failed after {waited_s:.1f} s because another learner "
            f"closed its connection: it has died or stopped. ({str(error).splitlines()[0]})"
        )

    def _timed_out(self, what: str, waited_s: float) -> WaitTimeoutError:
        return WaitTimeoutError(
            f"rank {self.rank} waited {waited_s:.1f} s for {what} and gave up. Another learner is "
            "stuck, paused or much slower: see what each was doing below; if it is only slow, "
            f"raise runtime.timeout_s (now {self._timeout_s:g})"
        )

    def _now(self) -> float:
        return self._earlier_s + time.monotonic() - self._began

    def _span(self, kind: str, began: float) -> None:
        offset = self._earlier_s - self._began
        self.trace.note(self.rank, kind, began + offset, time.monotonic() + offset)

    # ------------------------------------------------------------------ computing

    def _gradient(self, params: torch.Tensor, deliver: Deliver) -> None:
        ticket = self._desk.ledger.draw()
        if ticket.dry:
            grad = self._worker.dry()
            grad.tickets = (ticket,)
            deliver(grad, None)
            return

        def compute() -> Grad:
            began = time.monotonic()
            grad = self._worker.gradient(params, ticket, self._desk.worker_state)
            self._desk.books.compute_s += time.monotonic() - began
            offset = self._earlier_s - self._began
            place = f"{ticket.epoch}/{ticket.index}"
            end = time.monotonic() + offset
            self.trace.note(self.rank, "compute", began + offset, end, place)
            return grad

        def finish(grad: Grad) -> Grad:
            self._desk.drew(grad)
            return grad

        self._do(self._computing, compute, finish, deliver)

    def _score(self, effect: Evaluate) -> Tally:
        items = collectives.slice_of(len(self._pool.items(effect.which)), self.rank, self.size)
        state = self._desk.scoring_state or self._desk.worker_state
        return self._worker.score(effect.params, state, effect.which, items)

    # ------------------------------------------------------------------ collectives

    @property
    def _pending(self) -> int:
        return self._desk.ledger.pending_frames

    def _exchange_notes(
        self, group: Group, kind: type[Effect[Any]], size: int, weight: float, riding: Tally | None
    ) -> tuple[list[float], Note | None]:
        """Gather everybody's weight and, if all take part, what rides along."""
        tally, stop = riding or Tally(), self._desk.stop_wanted and riding is not None
        rows = group.all_gather_numbers(
            [
                float(_KINDS.index(kind)),
                float(size),
                weight,
                tally.loss_sum,
                float(tally.frames),
                tally.correct,
                float(stop),
            ]
        )
        mine = rows[group.member]
        for member, row in enumerate(rows):
            if row[:2] != mine[:2]:
                raise ContractError(
                    f"rank {self.rank} issued {kind.__name__} of {size} values while member "
                    f"{member} issued {_KINDS[int(row[0])].__name__} of {int(row[1])}: a group's "
                    "collectives must come in the same order on all members (contract rule 7)"
                )
        note = None
        if riding is not None:
            together = collectives.total([Tally(r[3], int(r[4]), r[5]) for r in rows])
            note = Note(self._desk.alive, together, any(r[6] for r in rows))
        return [r[2] for r in rows], note

    def _reduced_bytes(self, num_bytes: int, size: int) -> int:
        """What a learner sends: everybody's vector goes to everybody, or around a ring twice."""
        if self._experiment.options.deterministic:
            return num_bytes * (size - 1)
        return 2 * num_bytes * (size - 1) // size

    def _take_riding(self, everyone: bool) -> Tally | None:
        if everyone and self._experiment.strategy.synchronous:
            return self._desk.own_tally.take()
        return None

    def _all_reduce(self, effect: AllReduce, deliver: Deliver) -> None:
        group = self._group_of(effect.group)
        weight = float(self._pending if effect.weight is None else effect.weight)
        riding = self._take_riding(effect.group is None)
        deterministic = self._experiment.options.deterministic

        def job() -> tuple[Mean, Note | None]:
            weights, note = self._exchange_notes(group, AllReduce, effect.x.numel(), weight, riding)
            value = group.weighted_sum(effect.x, shares(weights), deterministic=deterministic)
            contributors = sum(w > 0 for w in weights) or len(weights)
            return Mean(value, contributors, float(sum(weights))), note

        self._desk.books.bytes_sent += self._reduced_bytes(effect.x.numel() * 4, group.size)
        self._communicate("allreduce", job, self._noting(deliver))

    def _then_reduce(self, effect: MeanGradient, deliver: Deliver) -> Deliver:
        def reduce(grad: Grad, error: BaseException | None) -> None:
            if error is not None or self.size == 1:
                deliver(grad, error)
                return
            riding = self._take_riding(everyone=True)
            deterministic = self._experiment.options.deterministic

            def job() -> tuple[Grad, Note | None]:
                group, size = self._world, grad.vector.numel()
                weights, note = self._exchange_notes(
                    group, MeanGradient, size, float(grad.frames), riding
                )
                vector = group.weighted_sum(
                    grad.vector, shares(weights), deterministic=deterministic
                )
                tally = note.tally if note is not None else Tally()
                frames = int(sum(weights))
                return Grad(vector, frames, tally.loss_sum, tally.correct, grad.tickets), note

            coded = effect.codec.coded_bytes(grad.vector.numel())
            self._desk.books.bytes_sent += self._reduced_bytes(coded, self.size)
            self._communicate("mean_gradient", job, self._noting(deliver))

        return reduce

    def _noting(self, deliver: Deliver) -> Deliver:
        """Enter what rode along, on the loop, when the answer is handed to the strategy."""

        def arrive(result: Any, error: BaseException | None) -> None:
            if error is not None:
                deliver(None, error)
                return
            answer, note = result
            try:
                if note is not None:
                    self._desk.took_part(note)
            except HocketError as failure:
                deliver(None, failure)
            else:
                deliver(answer, None)

        return arrive

    def _broadcast(self, effect: Broadcast, deliver: Deliver) -> None:
        members = effect.group or self._desk.alive
        require(effect.root in members, f"broadcast from rank {effect.root}, not in {members}")
        group, root = self._group_of(effect.group), members.index(effect.root)

        def job() -> torch.Tensor:
            self._exchange_notes(group, Broadcast, effect.x.numel(), 0.0, None)
            return group.broadcast(effect.x, root)

        self._desk.books.bytes_sent += effect.x.numel() * 4 * (group.size - 1) // group.size
        self._communicate("broadcast", job, deliver)

    def _all_to_all(self, effect: AllToAll, deliver: Deliver) -> None:
        group = self._group_of(effect.group)
        size = sum(s.numel() for s in effect.stripes)

        def job() -> list[torch.Tensor]:
            self._exchange_notes(group, AllToAll, size, 0.0, None)
            return group.all_to_all(effect.stripes)

        self._desk.books.bytes_sent += sum(s.numel() * s.element_size() for s in effect.stripes)
        self._communicate("all_to_all", job, deliver)

    def _evaluate(self, effect: Evaluate, deliver: Deliver) -> None:
        def exchange(tally: Tally | None, error: BaseException | None) -> None:
            if tally is None:
                deliver(None, error)
                return

            def job() -> Any:
                rows = self._world.all_gather_numbers(
                    [tally.loss_sum, float(tally.frames), tally.correct]
                )
                return collectives.scores([Tally(r[0], int(r[1]), r[2]) for r in rows])

            self._communicate("evaluate", job, deliver)

        self._do(self._computing, lambda: self._score(effect), lambda tally: tally, exchange)

    def _gather(self, effect: Gather, deliver: Deliver) -> None:
        data = to_bytes(effect.value)

        def job() -> list[Any]:
            return [from_bytes(row) for row in self._world.all_gather_bytes(data)]

        self._communicate("gather", job, deliver)

    # ------------------------------------------------------------------ quiet points

    def _quiet(self, deliver: Deliver) -> None:
        if self.size == 1:
            self._quiet_alone(deliver)
            return
        if self._mailbox is None:
            deliver(None, None)  # the gathering that follows brings everybody together
            return
        self._communicate("a quiet point", self._barrier, lambda v, e: self._look(deliver, e, None))

    def _quiet_alone(self, deliver: Deliver) -> None:
        if self._sent == self._arrived and self._idle():
            deliver(None, None)
        else:  # after what is already waiting in the queue
            self._completions.put((lambda v, e: self._quiet_alone(deliver), None, None))

    def _idle(self) -> bool:
        return all(s.awaiting is None or isinstance(s.awaiting, Recv) for s in self._services)

    def _look(
        self, deliver: Deliver, error: BaseException | None, before: list[list[float]] | None
    ) -> None:
        """Quiet when all that was sent has arrived and services wait; seen twice to be sure."""
        if error is not None:
            deliver(None, error)
            return
        mine = [float(self._sent), float(self._arrived), float(self._idle())]

        def job() -> list[list[float]]:
            time.sleep(QUIET_POLL_S)
            return self._world.all_gather_numbers(mine)

        def decide(rows: list[list[float]] | None, error: BaseException | None) -> None:
            rows = rows or []
            still = sum(r[0] for r in rows) == sum(r[1] for r in rows) and all(r[2] for r in rows)
            if error is None and still and rows == before:
                deliver(None, None)
            else:
                self._look(deliver, error, rows)

        self._communicate("a quiet point", job, decide)

    # ------------------------------------------------------------------ messages

    def _send(self, effect: Send, deliver: Deliver) -> None:
        require(
            0 <= effect.to < self.size,
            f"rank {self.rank} sends to rank {effect.to}, which does not exist",
        )
        self._sent += 1
        if effect.to == self.rank:
            data = to_bytes(effect.payload)
            message = Message(self.rank, effect.tag, from_bytes(data))
            self._completions.put((self._arrive, message, None))
        else:
            self._desk.books.bytes_sent += self._post_office.send(
                effect.to, effect.tag, effect.payload
            )
        deliver(None, None)

    @property
    def _post_office(self) -> Mailbox:
        if self._mailbox is None:
            raise ContractError(
                f"strategy {self._experiment.strategy.name!r} is synchronous and sends messages: "
                "declare `uses_messages = True` on it"
            )
        return self._mailbox

    def _arrive(self, message: Message, error: BaseException | None) -> None:
        self._arrived += 1
        for waiting in self._waiting:
            if _matches(waiting.recv, message):
                self._waiting.remove(waiting)
                waiting.deliver(message, None)
                return
        self._inbox[message.tag].append(message)

    def _unread(self, rank: int) -> list[Any]:
        return [(m.source, m.tag, m.payload) for box in self._inbox.values() for m in box]

    def _recv(self, effect: Recv, deliver: Deliver, *, limited: bool) -> None:
        inbox = self._inbox[effect.tag]
        for message in inbox:
            if _matches(effect, message):
                inbox.remove(message)
                deliver(message, None)
                return
        if effect.source in self._lost_peers:
            deliver(None, self._lost(effect))
            return
        limit = effect.timeout_s if effect.timeout_s is not None or not limited else self._timeout_s
        self._waiting.append(Waiting(effect, deliver, limit))

    def _peer_lost(self, rank: int, error: BaseException | None) -> None:
        self._lost_peers.add(rank)
        for waiting in list(self._waiting):
            if waiting.recv.source == rank:
                self._waiting.remove(waiting)
                waiting.deliver(None, self._lost(waiting.recv))

    def _mailbox_failed(self, value: Any, error: BaseException | None) -> None:
        self._failure = self._failure or error

    def _lost(self, effect: Recv) -> PeerLostError:
        return PeerLostError(
            f"rank {self.rank} awaits {effect.describe()}, but rank {effect.source} is lost"
        )

    # ------------------------------------------------------------------ the record

    def _note_event(self, event: dict[str, Any]) -> None:
        self._report({"event": event["event"], "time_s": self._now(), "clock": "wall"} | event)

    def _show_progress(self) -> None:
        now = time.monotonic()
        if self.rank == 0 and now - self._shown >= PROGRESS_EVERY_S:
            self._shown = now
            self._note_event(self._desk.training("progress"))

    def _common_state(self) -> dict[str, Any]:
        if self._experiment.strategy.synchronous:
            return {}
        return {"counters": save_counters(self._ledger_store)}

    def summary(self) -> dict[str, Any]:
        """Return this learner's part of the run's summary."""
        desk = self._desk
        return {
            "rank": self.rank,
            "time_s": self._now(),
            "aside_s": desk.aside_s,
            "books": desk.books,
            "committed_frames": desk.ledger.committed_frames,
            "discarded_frames": desk.ledger.discarded_frames,
            "epoch": desk.ledger.epoch,
            "closed": desk.ledger.closed(),
            "stopped": desk.stop_agreed,
            "scores": None if desk.scores is None else [desk.scores.loss, desk.scores.accuracy],
            "lr": desk.rate(),
        }


def _matches(recv: Recv, message: Message) -> bool:
    return recv.tag == message.tag and recv.source in (ANYONE, message.source)
