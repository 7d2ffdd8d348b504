"""The real runtime: one learner in its own process.

It advances the strategy's tasks and answers what they await: gradients here, collectives in
`together`, messages in `correspondence`. Where work is done, on the spot or in threads, is `jobs`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from typing import Any

import torch

from hocket.core import device
from hocket.core.accounts import Note, Vitals
from hocket.core.effects import Deliver, Effect, Grad, Gradient, MeanGradient, Recv, Send
from hocket.data.ledger import ReplicatedLedger
from hocket.data.shared_ledger import SharedLedger, save_counters
from hocket.errors import FencedError, PeerLostError, WaitTimeoutError
from hocket.experiment import Experiment
from hocket.record.checkpoint import Checkpoints, Saved
from hocket.runtime.net.exchange import Exchange
from hocket.runtime.net.store import Store, own_address
from hocket.runtime.net.torch_group import DeviceGroup
from hocket.runtime.real.collective_effects import Together
from hocket.runtime.real.connect import meet, messages_come
from hocket.runtime.real.executors import Jobs
from hocket.runtime.real.faults import Fate
from hocket.runtime.real.messages import Correspondence, quiet, unrest
from hocket.runtime.shared.account import Desk
from hocket.runtime.shared.boundary import Meeting, hold
from hocket.runtime.shared.boundary_effects import Quiet
from hocket.runtime.shared.restore import restore, restore_counters
from hocket.runtime.shared.trace import Trace
from hocket.runtime.shared.trampoline import Task, Trampoline
from hocket.runtime.shared.worker import Worker

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
        *,
        local_rank: int | None = None,
        met: Callable[[], None] = lambda: None,
        fate: Fate | None = None,
    ) -> None:
        super().__init__()
        options = experiment.options
        self.rank = rank
        self.size = options.learners
        self.trace = Trace(keep=options.trace)
        self.main: Task | None = None
        self._experiment = experiment
        self._report = report
        self._began = time.monotonic()
        self._earlier_s = saved.run["time_s"] if saved else 0.0
        self._services: list[Task] = []
        self._failure: BaseException | None = None
        self._returned = self._over = False
        self._shown = 0.0
        self._store = store
        self._jobs = Jobs(options.threads, lambda: self.concurrent)
        self._letters = Correspondence(experiment, rank, self._jobs)
        self._fate = fate or Fate((), rank)
        on = device.resolve(options.device, rank if local_rank is None else local_rank)
        self._exchange = self._meet(own_address(host), on) if self.size > 1 else None
        met()
        self._pool = experiment.pool()
        self._worker = Worker(
            experiment.task,
            self._pool,
            options.seed,
            on=on,
            precision=options.precision,
            natural_gradient=experiment.optimizer.natural_gradient,
        )
        self._letters.device = self._worker.device
        self._letters.record = self._record
        self._meeting = Meeting(
            self._worker.layout,
            self._worker.frozen,
            self._now,
            checkpoints,
            self._common_state,
            lambda rank: self._letters.inbox.unread(),
        )
        self._open(saved)
        if rank == 0:
            self._desk.say(self._worker.notes)
        self._began = time.monotonic()  # meeting the others and making data are not training

    def _meet(self, address: str, on: torch.device) -> Exchange:
        """Connect to the others, and agree on how vectors travel."""
        options = self._experiment.options
        self.concurrent = messages_come(self._experiment)
        mesh = meet(
            self._experiment,
            self.rank,
            self._store,
            address,
            self._letters,
            self._fate,
            self._mailbox_failed,
        )
        fence = self._fence if mesh.num_hosts > 1 else lambda lost: None
        vectors = None
        if options.transport == "torch":
            vectors = DeviceGroup(
                self._store,
                self.rank,
                self.size,
                device=on,
                address=address,
                timeout_s=options.timeout_s,
            )
        return Exchange(mesh, self.size, timeout_s=options.timeout_s, agreed=fence, vectors=vectors)

    def _fence(self, lost: tuple[int, ...]) -> None:
        """Declare the lost before going on without them, and see whether it is we who are lost.

        A host that was cut off and comes back must not go on by itself: else there would be two
        runs. If both sides declare each other, both end, and the run can be resumed.
        """
        store = self._store.limited(self._experiment.options.silence_s)
        for rank in lost:
            store.add(f"fence/{rank}", 1)
        if store.add(f"fence/{self.rank}", 0):
            raise FencedError(
                f"rank {self.rank} was declared lost while it was cut off: the others go on "
                "without it, so it ends here"
            )

    def _open(self, saved: Saved | None) -> None:
        """Agree on the first model, and put everything in its place."""
        strategy, everyone = self._experiment.strategy, tuple(range(self.size))
        if saved is None and self._exchange is not None:  # one built without the seed would differ
            self._worker.initial = self._exchange.first_model(self._worker.initial)
        if saved is not None and not strategy.synchronous:
            if self.rank == 0:
                restore_counters(self._ledger_store, saved, everyone)
            if self._exchange is not None:
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
        self._desk.record = self._record
        self._together = Together(self._desk, self._worker, self._exchange, self._jobs, self._span)
        self._together.issuing = self._fate.issuing
        self.state = strategy.init(self._worker.initial.clone(), self._experiment.optimizer)
        if saved is not None:
            self.state, unread = restore(self._desk, self.state, saved, self._worker.layout)
            for message in unread:
                self._letters.inbox.arrive(message)

    @property
    def _ledger_store(self) -> Store:
        return self._store.prefix("ledger")

    def _mailbox_failed(self, value: Any, error: BaseException | None) -> None:
        self._failure = self._failure or error

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
        if self._exchange is None:
            self._over = True
        else:  # services of this rank live until every rank's main task has returned
            wait = self._exchange.wait
            self._together.communicate("the end of all learners", wait, self._all_ended)

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
        self._letters.wait(self._together.attend)

    def _close(self) -> None:
        for service in self._services:
            service.coroutine.close()
        self._jobs.close()
        self._letters.close()
        if self._exchange is not None and self._over:
            self._exchange.close()

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
            self._gradient(effect, deliver)
        elif isinstance(effect, MeanGradient):
            self._gradient(Gradient(effect.params), self._together.then_reduce(effect, deliver))
        elif isinstance(effect, Send):
            self._desk.books.bytes_sent += self._letters.send(effect, deliver)
        elif isinstance(effect, Recv):
            self._letters.receive(effect, deliver, limited=task.name != "service")
        elif isinstance(effect, Quiet):
            self._quiet(deliver)
        else:
            self._together.begin(effect, deliver)

    def _gradient(self, effect: Gradient, deliver: Deliver) -> None:
        ticket = effect.ticket or self._desk.ledger.draw()
        if ticket.dry:
            self._record("dry", "")
            deliver(self._worker.dry(ticket), None)
            return
        if effect.ticket is None:
            self._desk.books.draws += 1
            self._fate.drawn(self._desk.books.draws)

        def compute() -> Grad:
            began = time.monotonic()
            grad = self._worker.gradient(
                effect.params, ticket, self._desk.worker_state, effect.part
            )
            self._desk.books.compute_s += time.monotonic() - began
            self._span("compute", began, ticket.describe(effect.part))
            return grad

        def finish(grad: Grad) -> Grad:
            self._record("took", f"{ticket.epoch}/{ticket.index}")
            self._desk.drew(grad)
            return grad

        self._jobs.compute(compute, deliver, finish)

    # ------------------------------------------------------------------ quiet points

    def _quiet(self, deliver: Deliver) -> None:
        if self._exchange is None:
            self._quiet_alone(deliver)
        elif self._letters.mailbox is None:
            deliver(None, None)  # the gathering that follows brings everybody together
        else:
            wait = self._exchange.wait
            until = time.monotonic() + self._experiment.options.timeout_s
            look = lambda value, error: self._look(deliver, error, None, until)  # noqa: E731
            self._together.communicate("a quiet point", wait, look)

    def _quiet_alone(self, deliver: Deliver) -> None:
        if self._letters.quiet_alone and self._idle():
            deliver(None, None)
        else:  # after what is already waiting in the queue
            self._jobs.post(lambda v, e: self._quiet_alone(deliver))

    def _idle(self) -> bool:
        return all(s.awaiting is None or isinstance(s.awaiting, Recv) for s in self._services)

    def _look(
        self, deliver: Deliver, error: BaseException | None, before: Any, until: float
    ) -> None:
        """Quiet when all that was sent has arrived and services wait; seen twice to be sure."""
        if error is None and time.monotonic() > until:
            error = WaitTimeoutError(
                f"rank {self.rank} waited {self._experiment.options.timeout_s:g} s for a quiet "
                f"point and gave up: {unrest(before or [])}"
            )
        if error is not None:
            deliver(None, error)
            return
        mine = self._letters.traffic(idle=self._idle())

        def job() -> tuple[list[Any], Note]:
            time.sleep(QUIET_POLL_S)
            assert self._exchange is not None
            return self._exchange.gather(mine)

        def decide(traffic: list[Any] | None, error: BaseException | None) -> None:
            if error is None and traffic and quiet(traffic) and traffic == before:
                deliver(None, None)
            else:
                self._look(deliver, error, traffic, until)

        self._together.communicate("a quiet point", job, decide)

    # ------------------------------------------------------------------ the record

    def _now(self) -> float:
        return self._earlier_s + time.monotonic() - self._began

    def _span(self, kind: str, began: float, detail: str = "") -> None:
        offset = self._earlier_s - self._began
        self.trace.note(self.rank, kind, began + offset, time.monotonic() + offset, detail)

    def _record(self, what: str, detail: str) -> None:
        """Note what reached this learner, in its order: a replay needs no more."""
        if not self._experiment.strategy.synchronous:
            seen = f"{detail} {self._desk.frames}"  # the rate depends on how far it knew the run
            self.trace.note(self.rank, what, self._now(), self._now(), seen)

    def _note_event(self, event: dict[str, Any]) -> None:
        self._report({"event": event["event"], "time_s": self._now(), "clock": "wall"} | event)

    def _show_progress(self) -> None:
        now = time.monotonic()
        if self.rank == self._desk.alive[0] and now - self._shown >= PROGRESS_EVERY_S:
            self._shown = now
            self._note_event(self._desk.training("progress"))

    def _common_state(self) -> dict[str, Any]:
        if self._experiment.strategy.synchronous:
            return {}
        return {"counters": save_counters(self._ledger_store)}

    def vitals(self) -> Vitals:
        """Return this learner's signs of life, from any thread."""
        ledger = self._desk.ledger
        return Vitals(self._now(), ledger.committed_frames, ledger.epoch, self._desk.books)

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
