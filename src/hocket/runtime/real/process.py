"""A learner of a run of Hocket's own, in its own process.

It advances the strategy to its end, and keeps the record. Collectives, messages and threads are in
`rank`, gradients in `effects`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

import torch

from hocket.core import device
from hocket.core.accounts import Books, Vitals
from hocket.core.effects import Boundary, Deliver
from hocket.data.shared_ledger import open_ledger
from hocket.errors import FencedError
from hocket.experiment import Experiment, Seat
from hocket.record.checkpoint import Checkpoints, Saved
from hocket.runtime.net.addresses import own_address
from hocket.runtime.net.exchange import Exchange
from hocket.runtime.net.store import Store
from hocket.runtime.real.connect import carrier
from hocket.runtime.real.effects.gradients import GradientEffects
from hocket.runtime.real.effects.stages import StageEffects
from hocket.runtime.real.faults import Fate
from hocket.runtime.real.members import RemoteMembers, line_of
from hocket.runtime.real.quiet import QuietPoints
from hocket.runtime.real.rank import RankRuntime
from hocket.runtime.real.timeline import Timeline
from hocket.runtime.shared.boundary import BoundaryServices, at_boundary
from hocket.runtime.shared.boundary_effects import Attend, Quiet, Regroup, Resume
from hocket.runtime.shared.context import RankContext
from hocket.runtime.shared.context.account import Account
from hocket.runtime.shared.dispatch import Fiber, Handlers
from hocket.runtime.shared.restore import restore, restore_counters
from hocket.runtime.shared.stages.making import vectors_on, worker_of
from hocket.runtime.shared.trace import Trace
from hocket.runtime.shared.worker import Worker

PROGRESS_EVERY_S: Final = 0.5  # for the display only; nothing depends on it


@dataclass
class TakenAlong:
    """What a learner takes along from one group to the next."""

    worker: Worker | None = None
    books: Books | None = None
    fate: Fate | None = None
    trace: Trace | None = None
    names: tuple[int, ...] | None = None  # of each rank: its number in the record
    now_s: float | None = None  # the time of the run when it left
    left: float = 0.0  # ... and by the clock of this process


class ProcessRuntime(RankRuntime):
    """Runs one rank of an experiment to its end."""

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
        past: TakenAlong | None = None,
    ) -> None:
        options = experiment.options
        place = rank if local_rank is None else local_rank
        on = vectors_on(experiment, place)
        super().__init__(experiment, rank, on=on, fate=fate)
        past = past or TakenAlong()
        self._names = past.names
        self.regrouped = False  # the group has ended for another one
        self._timeline = self._begin_time(saved, past)
        self._report = report
        self._returned = self._over = False
        self._shown = 0.0
        self._store = store
        address = own_address(host)
        exchange = self._join_others(address, on) if self.size > 1 else None
        members = None if past.worker else self._members(address, place)
        met()
        worker = past.worker or worker_of(
            experiment, place, new=saved is None, rank=rank, members=members
        )
        self._open(worker, exchange, saved)
        self._boundary_services = BoundaryServices(
            worker.layout,
            worker.frozen,
            self._timeline.now,
            checkpoints,
            lambda: {},  # clocks of real learners are not saved
            lambda rank: self._messages.inbox.unread(),
            self.forks.__getitem__,
        )
        if past.books is not None:
            self._context.account.books = past.books
        if rank == 0 and past.names is None:
            placement = experiment.strategy.placement(worker.layout, options.learners)
            sizes = experiment.coded_size(worker.layout)
            self._context.reporter.say([*worker.notes, *placement, *sizes])
        if past.names is None:
            self._timeline.restart()

    def _begin_time(self, saved: Saved | None, past: TakenAlong) -> Timeline:
        """Count from where the run was; in another group, as if nothing had happened."""
        earlier_s = saved.run["time_s"] if saved else 0.0
        if past.now_s is not None:
            earlier_s = past.now_s + time.monotonic() - past.left
        timeline = Timeline(self.rank, earlier_s, keep_trace=self._experiment.options.trace)
        timeline.trace = past.trace or timeline.trace
        timeline.trace.names = past.names
        return timeline

    def past(self) -> TakenAlong:
        """Return what this learner takes along to the next group."""
        return TakenAlong(
            self._worker,
            self._context.account.books,
            self._fate,
            self.trace,
            self._names,
            self._timeline.now(),
            time.monotonic(),
        )

    @property
    def name(self) -> int:
        """This learner's number in the record."""
        return self.rank if self._names is None else self._names[self.rank]

    def _join_others(self, address: str, on: torch.device) -> Exchange:
        """Connect to the others, and agree on how vectors travel."""
        options = self._experiment.options
        mesh = self._connect(self._store, address)
        fence = self._fence if mesh.num_hosts > 1 else lambda lost: None
        vectors = carrier(self._experiment, self.rank, self._store, address, on)
        return Exchange(mesh, self.size, timeout_s=options.timeout_s, agreed=fence, vectors=vectors)

    def _members(self, address: str, local_rank: int) -> RemoteMembers | None:
        """Connect to the other ranks of this learner; None: it is one rank."""
        others = len(self._experiment.others_of(self.rank))
        if not others:
            return None
        line = line_of(self._experiment, self._store, Seat(self.rank, 0), address)
        on = device.resolve(self._experiment.options.device, local_rank)
        return RemoteMembers(line, self.rank, 1 + others, on)

    def dismiss(self) -> None:
        """Let the other ranks of this learner go: it needs no gradient any more."""
        self._worker.close()

    def _fence(self, lost: tuple[int, ...]) -> None:
        """Declare the lost before going on without them; end if this rank was declared lost.

        A host that was cut off and comes back must not go on by itself: there would be two runs.
        If both sides declare each other, both end, and the run can be resumed.
        """
        store = self._store.limited(self._experiment.options.silence_s)
        for rank in lost:
            store.add(f"fence/{rank}", 1)
        if store.add(f"fence/{self.rank}", 0):
            raise FencedError(
                f"rank {self.rank} was declared lost while it was cut off: the others go on "
                "without it, so it ends here"
            )

    def _open(self, worker: Worker, exchange: Exchange | None, saved: Saved | None) -> None:
        """Agree on the first model, open the ledger, and restore a checkpoint if there is one."""
        strategy, everyone = self._experiment.strategy, tuple(range(self.size))
        learners = everyone[: self._experiment.options.learners]
        whole = strategy.evaluates != "stages"
        if (
            saved is None and exchange is not None and whole
        ):  # one built without the seed would differ
            worker.initial = exchange.first_model(worker.initial)
        if saved is not None and not strategy.synchronous:
            if self.rank == 0:
                restore_counters(self._ledger_store, worker.pool, saved, everyone, len(learners))
            if exchange is not None:
                exchange.wait()
        ledger = open_ledger(
            worker.pool,
            self.rank,
            learners,
            self._ledger_store,
            synchronous=strategy.synchronous,
            attendants=self.size - len(learners),
        )
        context = RankContext(
            Account(self._experiment, worker.pool, self.rank, ledger),
            worker.new_state(),
            self._note_event,
            progressed=self._show_progress,
            trace=self._reached,
            queued=self._messages.inbox.queued,
        )
        self._serve(context, worker, exchange, self._timeline.span)
        self.state = self._experiment.first_state(worker.first_params(), worker.layout)
        if saved is not None:
            self.state, unread = restore(context, self.state, saved, worker.layout, worker.place)
            for message in unread:
                self._messages.inbox.arrive(message)

    def _own_handlers(self) -> Handlers:
        quiet = QuietPoints(
            self.rank,
            self._experiment.options.timeout_s,
            self._services,
            self._messages,
            self._collectives,
            self._exchange,
            self._executors,
        )
        return {
            **GradientEffects(
                self._context,
                self._worker,
                self._collectives,
                self._executors,
                self._timeline,
                self._fate,
                self._reached,
            ).handlers,
            **StageEffects(
                self._context, self._worker, self._executors, self._timeline.span, self._fate
            ).handlers,
            Quiet: quiet.begin,
            Attend: self._attend,
            Resume: self._resume,
            Regroup: self._regroup,
        }

    @property
    def _ledger_store(self) -> Store:
        return self._store.prefix("ledger")

    # ------------------------------------------------------------------ running

    def stop(self) -> None:
        """Ask, from any thread, to stop at the next boundary."""
        self._context.agenda.stop_wanted = True

    def meet(self) -> None:
        """Ask, from any thread, that all meet: the group is to go on as another one."""
        self._context.agenda.meet_wanted = True

    def describe(self) -> str:
        """Say what this learner is doing, for the others' error messages."""
        if self._returned:
            return "has returned and waits for the others"
        return f"awaits {self.main.describe()}" if self.main else "is starting"

    def run(self) -> None:
        """Run to the end; `state` then holds the final state."""
        me = self._context.learner(self._worker.layout, self._worker.place)
        coroutine = self._experiment.strategy.run(me, self.state)
        self.main = self.spawn(self.rank, "main", coroutine, self._main_ended)
        try:
            while True:
                self.drain()
                if self._failure is not None:
                    raise self._failure
                if self._over:
                    return
                self._wait()
        finally:
            for service in self._services:
                service.coroutine.close()
            self._disconnect(everybody_left=self._over)

    def _main_ended(self, value: Any, error: BaseException | None) -> None:
        if error is not None:
            self._fail(None, error)
            return
        self.state, self._returned = value, True
        if self._exchange is None:
            self._over = True
        else:  # services of this rank live until every rank's main task has returned
            wait = self._exchange.wait
            self._collectives.communicate("the end of all learners", wait, self._all_ended)

    def _all_ended(self, value: Any, error: BaseException | None) -> None:
        self._fail(None, error)
        self._over = True

    def boundary(self, rank: int, effect: Boundary) -> Coroutine[Any, Any, Any]:
        """Return what happens at a boundary."""
        return at_boundary(self._context, effect.state, self._boundary_services, effect.kind)

    def _attend(self, fiber: Fiber, effect: Attend, deliver: Deliver) -> None:
        self._collectives.await_call(deliver)

    def _resume(self, fiber: Fiber, effect: Resume, deliver: Deliver) -> None:
        self._reached("resumed", "")
        deliver(None, None)

    def _regroup(self, fiber: Fiber, effect: Regroup, deliver: Deliver) -> None:
        def ended(value: Any, error: BaseException | None) -> None:
            self.regrouped = error is None
            self._all_ended(value, error)

        if self._exchange is None:
            ended(None, None)
        else:  # nobody closes its connections before all have what they need
            self._collectives.communicate("the end of the group", self._exchange.wait, ended)

    # ------------------------------------------------------------------ the record

    @property
    def trace(self) -> Trace:
        """What this learner did, and when."""
        return self._timeline.trace

    def _reached(self, what: str, detail: str) -> None:
        """Note what reached this learner and in which order: that is all a replay needs."""
        if not self._experiment.strategy.synchronous:
            known = self._context.account.frames  # its rate depends on the frames it knows of
            self._timeline.instant(what, f"{detail} {known}")

    def _note_event(self, event: dict[str, Any]) -> None:
        now = self._timeline.now()
        if self._names is not None and event.get("rank") is not None:
            event = event | {"rank": self._names[event["rank"]]}
        self._report({"event": event["event"], "time_s": now, "clock": "wall"} | event)

    def _show_progress(self) -> None:
        now = time.monotonic()
        if self.rank == self._context.account.alive[0] and now - self._shown >= PROGRESS_EVERY_S:
            self._shown = now
            self._note_event(self._context.reporter.progress())

    def vitals(self) -> Vitals:
        """Return this learner's signs of life, from any thread."""
        account = self._context.account
        ledger = account.ledger
        now, aside_s = self._timeline.now(), account.aside_s
        return Vitals(now, ledger.committed_frames, ledger.epoch, account.books, aside_s)

    def summary(self) -> dict[str, Any]:
        """Return this learner's part of the run's summary."""
        account, ledger = self._context.account, self._context.account.ledger
        scores = account.scores
        return {
            "rank": self.name,
            "time_s": self._timeline.now(),
            "aside_s": account.aside_s,
            "books": account.books,
            "committed_frames": ledger.committed_frames,
            "discarded_frames": ledger.discarded_frames,
            "epoch": ledger.epoch,
            "closed": ledger.closed(),
            "stopped": self._context.agenda.stop_agreed,
            "scores": None if scores is None else [scores.loss, scores.accuracy],
            "lr": account.rate(),
        }
