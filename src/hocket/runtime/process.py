"""The real runtime: one learner in its own process.

A strategy without services, forks or messages is driven by a plain trampoline with no thread: every
effect is carried out on the spot. Otherwise gradients run in a worker thread and collectives in
another, both posting their results to the one loop that advances tasks; between two awaits nothing
else runs on the rank.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from hocket.data.ledger import ReplicatedLedger
from hocket.data.shared_ledger import SharedLedger, save_counters
from hocket.effects import (
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
from hocket.runtime import collectives
from hocket.runtime.boundary import Meeting, hold
from hocket.runtime.checkpoint import Checkpoints, Saved
from hocket.runtime.desk import Desk
from hocket.runtime.exchange import Exchange, Riding
from hocket.runtime.inbox import Inbox, Waiting
from hocket.runtime.internal import Gather, Quiet
from hocket.runtime.mailbox import Mailbox
from hocket.runtime.packing import from_bytes, to_bytes
from hocket.runtime.restore import restore, restore_counters
from hocket.runtime.trace import Trace
from hocket.runtime.trampoline import Deliver, Task, Trampoline
from hocket.runtime.transport import Store, is_backend_error, own_address
from hocket.worker import Tally, Worker

PROGRESS_EVERY_S = 0.5  # to the user's eyes only; nothing depends on it
QUIET_POLL_S = 0.002  # between two looks at whether messages are still under way


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
        self._inbox = Inbox(rank)
        self._services: list[Task] = []
        self._failure: BaseException | None = None
        self._returned = self._over = False
        self._shown = 0.0
        self._store = store
        self._address = own_address(host)
        self._exchange = Exchange(
            store,
            rank,
            self.size,
            address=self._address,
            timeout_s=options.timeout_s,
            deterministic=options.deterministic,
        )
        self._mailbox: Mailbox | None = None
        self._computing = ThreadPoolExecutor(
            1, "gradient", initializer=torch.set_num_threads, initargs=(options.threads,)
        )
        self._communicating = ThreadPoolExecutor(1, "collective")
        self._pool = experiment.pool()
        self._worker = Worker(experiment.task, self._pool, options.seed)
        self._meeting = Meeting(
            self._worker.layout,
            self._worker.frozen,
            self._now,
            checkpoints,
            self._common_state,
            lambda rank: self._inbox.unread(),
        )
        self._open(saved)
        self._began = time.monotonic()  # meeting the others and making data are not training

    def _open(self, saved: Saved | None) -> None:
        """Meet the others, agree on the first model, and put everything in its place."""
        strategy, everyone = self._experiment.strategy, tuple(range(self.size))
        if self.size > 1:
            if not strategy.synchronous or strategy.uses_messages:
                self._open_mailbox()
            if saved is None:  # a model built without the seed would differ
                self._worker.initial = self._exchange.world.broadcast(self._worker.initial, 0)
        if saved is not None and not strategy.synchronous:
            if self.rank == 0:
                restore_counters(self._ledger_store, saved, everyone)
            if self.size > 1:
                self._exchange.wait()
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
                self._inbox.arrive(message)

    @property
    def _ledger_store(self) -> Store:
        return self._store.prefix("ledger")

    def _open_mailbox(self) -> None:
        self.concurrent = True  # messages come in at any time: the loop must stay free
        token = bytes.fromhex(self._store.get("token"))
        self._mailbox = Mailbox(
            self._store,
            self.rank,
            self._address,
            token,
            arrived=lambda m: self._completions.put((self._arrive, m, None)),
            lost=lambda r: self._completions.put((lambda v, e: self._inbox.lose(r), None, None)),
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
        me = self._desk.learner(self._worker.layout)
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
            self._communicate("the end of all learners", self._exchange.wait, self._all_ended)

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
        waiting = self._inbox.waiting
        deadline = min(
            (w.began_s + w.limit_s for w in waiting if w.limit_s is not None),
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
        for one in list(self._inbox.waiting):
            if one.limit_s is not None and now >= one.began_s + one.limit_s:
                self._inbox.waiting.remove(one)
                one.deliver(None, self._timed_out(one.recv.describe(), one.limit_s))

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
            value = effect.value
            self._communicate("gather", lambda: self._exchange.gather(value), deliver)
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

    def _riding(self, everyone: bool) -> Riding | None:
        """Let the tally and a wish to stop ride along with a collective of all."""
        if not everyone or not self._experiment.strategy.synchronous:
            return None
        desk = self._desk
        return Riding(desk.alive, desk.own_tally.take(), desk.stop_wanted)

    def _all_reduce(self, effect: AllReduce, deliver: Deliver) -> None:
        weight = float(self._pending if effect.weight is None else effect.weight)
        riding = self._riding(effect.group is None)
        size = effect.x.numel() * 4
        self._desk.books.bytes_sent += self._exchange.reduced_bytes(size, effect.group)
        self._communicate(
            "allreduce",
            lambda: self._exchange.all_reduce(effect, weight, riding),
            self._noting(deliver),
        )

    def _then_reduce(self, effect: MeanGradient, deliver: Deliver) -> Deliver:
        def reduce(grad: Grad, error: BaseException | None) -> None:
            if error is not None or self.size == 1:
                deliver(grad, error)
                return
            riding = self._riding(everyone=True)
            coded = effect.codec.coded_bytes(grad.vector.numel())
            self._desk.books.bytes_sent += self._exchange.reduced_bytes(coded)
            self._communicate(
                "mean_gradient",
                lambda: self._exchange.mean_gradient(grad, riding),
                self._noting(deliver),
            )

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
        if effect.root == self.rank:
            self._desk.books.bytes_sent += effect.x.numel() * 4 * (len(members) - 1)
        self._communicate("broadcast", lambda: self._exchange.broadcast(effect, members), deliver)

    def _all_to_all(self, effect: AllToAll, deliver: Deliver) -> None:
        own = effect.stripes[0].numel() * effect.stripes[0].element_size()
        whole = sum(s.numel() * s.element_size() for s in effect.stripes)
        self._desk.books.bytes_sent += whole - own
        self._communicate("all_to_all", lambda: self._exchange.all_to_all(effect), deliver)

    def _evaluate(self, effect: Evaluate, deliver: Deliver) -> None:
        def exchange(tally: Tally | None, error: BaseException | None) -> None:
            if tally is None:
                deliver(None, error)
            else:
                self._communicate("evaluate", lambda: self._exchange.scores(tally), deliver)

        self._do(self._computing, lambda: self._score(effect), lambda tally: tally, exchange)

    # ------------------------------------------------------------------ quiet points

    def _quiet(self, deliver: Deliver) -> None:
        if self.size == 1:
            self._quiet_alone(deliver)
            return
        if self._mailbox is None:
            deliver(None, None)  # the gathering that follows brings everybody together
            return
        self._communicate(
            "a quiet point",
            self._exchange.wait,
            lambda value, error: self._look(deliver, error, None),
        )

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
        mine = (float(self._sent), float(self._arrived), float(self._idle()))

        def job() -> list[list[float]]:
            time.sleep(QUIET_POLL_S)
            return self._exchange.wait(*mine)

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
        self._inbox.arrive(message)

    def _recv(self, effect: Recv, deliver: Deliver, *, limited: bool) -> None:
        limit = effect.timeout_s if effect.timeout_s is not None or not limited else self._timeout_s
        self._inbox.receive(Waiting(effect, deliver, limit, time.monotonic()))

    def _mailbox_failed(self, value: Any, error: BaseException | None) -> None:
        self._failure = self._failure or error

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
