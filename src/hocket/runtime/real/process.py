"""A learner of a run of Hocket's own, in its own process.

It advances the strategy and takes gradients on what it draws from the pool. Collectives, messages
and threads are in `rank`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from typing import Any, Final

import torch

from hocket.core import device
from hocket.core.accounts import Vitals
from hocket.core.effects import Deliver, Grad, Gradient, MeanGradient
from hocket.data.shared_ledger import open_ledger, save_counters
from hocket.errors import FencedError
from hocket.experiment import Experiment
from hocket.record.checkpoint import Checkpoints, Saved
from hocket.runtime.net.exchange import Exchange
from hocket.runtime.net.store import Store, own_address
from hocket.runtime.net.torch_group import DeviceGroup
from hocket.runtime.real.faults import Fate
from hocket.runtime.real.quiet import QuietPoints
from hocket.runtime.real.rank import RankRuntime
from hocket.runtime.real.timeline import Timeline
from hocket.runtime.shared.account import Account
from hocket.runtime.shared.boundary import Meeting, hold
from hocket.runtime.shared.boundary_effects import Quiet
from hocket.runtime.shared.context import RankContext
from hocket.runtime.shared.dispatch import Fiber, Handlers
from hocket.runtime.shared.restore import restore, restore_counters
from hocket.runtime.shared.trace import Trace
from hocket.runtime.shared.worker import Worker

PROGRESS_EVERY_S: Final = 0.5  # for the display only; nothing depends on it


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
    ) -> None:
        options = experiment.options
        on = device.resolve(options.device, rank if local_rank is None else local_rank)
        super().__init__(experiment, rank, on=on, fate=fate)
        earlier_s = saved.run["time_s"] if saved else 0.0
        self._timeline = Timeline(rank, earlier_s, keep_trace=options.trace)
        self._report = report
        self._returned = self._over = False
        self._shown = 0.0
        self._store = store
        exchange = self._join_others(own_address(host), on) if self.size > 1 else None
        met()
        worker = Worker(
            experiment.task,
            experiment.pool(),
            options.seed,
            on=on,
            precision=options.precision,
            natural_gradient=experiment.optimizer.natural_gradient,
        )
        self._open(worker, exchange, saved)
        self._meeting = Meeting(
            worker.layout,
            worker.frozen,
            self._timeline.now,
            checkpoints,
            self._common_state,
            lambda rank: self._messages.inbox.unread(),
            self.forks.__getitem__,
        )
        if rank == 0:
            self._context.reporter.say(worker.notes)
        self._timeline.restart()

    def _join_others(self, address: str, on: torch.device) -> Exchange:
        """Connect to the others, and agree on how vectors travel."""
        options = self._experiment.options
        mesh = self._connect(self._store, address)
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
        if saved is None and exchange is not None:  # one built without the seed would differ
            worker.initial = exchange.first_model(worker.initial)
        if saved is not None and not strategy.synchronous:
            if self.rank == 0:
                restore_counters(self._ledger_store, saved, everyone)
            if exchange is not None:
                exchange.wait()
        ledger = open_ledger(
            worker.pool, self.rank, everyone, self._ledger_store, synchronous=strategy.synchronous
        )
        context = RankContext(
            Account(self._experiment, worker.pool, self.rank, ledger),
            worker.new_state(),
            self._note_event,
            progressed=self._show_progress,
            trace=self._reached,
        )
        self._serve(context, worker, exchange, self._timeline.span)
        self.state = strategy.init(worker.initial.clone(), self._experiment.optimizer)
        if saved is not None:
            self.state, unread = restore(context, self.state, saved, worker.layout)
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
            Gradient: self._gradient,
            MeanGradient: self._mean_gradient,
            Quiet: quiet.begin,
        }

    @property
    def _ledger_store(self) -> Store:
        return self._store.prefix("ledger")

    # ------------------------------------------------------------------ running

    def stop(self) -> None:
        """Ask, from any thread, to stop at the next boundary."""
        self._context.agenda.stop_wanted = True

    def describe(self) -> str:
        """Say what this learner is doing, for the others' error messages."""
        if self._returned:
            return "has returned and waits for the others"
        return f"awaits {self.main.describe()}" if self.main else "is starting"

    def run(self) -> None:
        """Run to the end; `state` then holds the final state."""
        me = self._context.learner(self._worker.layout)
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

    def boundary(self, rank: int, state: Any) -> Coroutine[Any, Any, Any]:
        """Return what happens at a boundary."""
        return hold(self._context, state, self._meeting)

    # ------------------------------------------------------------------ gradients

    def _mean_gradient(self, fiber: Fiber, effect: MeanGradient, deliver: Deliver) -> None:
        reduce = self._collectives.then_reduce(effect, deliver)
        self._gradient(fiber, Gradient(effect.params), reduce)

    def _gradient(self, fiber: Fiber, effect: Gradient, deliver: Deliver) -> None:
        ticket = effect.ticket or self._context.account.ledger.draw()
        if ticket.dry:
            self._reached("dry", "")
            deliver(self._worker.dry(ticket), None)
            return
        books = self._context.account.books
        if effect.ticket is None:
            books.draws += 1
            self._fate.drawn(books.draws)

        def compute() -> Grad:
            began = time.monotonic()
            state = self._context.worker_state
            grad = self._worker.gradient(effect.params, ticket, state, effect.part)
            books.compute_s += time.monotonic() - began
            self._timeline.span("compute", began, ticket.describe(effect.part))
            return grad

        def finish(grad: Grad) -> Grad:
            self._reached("took", f"{ticket.epoch}/{ticket.index}")
            self._context.drew(grad)
            return grad

        self._executors.compute(compute, deliver, finish)

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
        self._report({"event": event["event"], "time_s": now, "clock": "wall"} | event)

    def _show_progress(self) -> None:
        now = time.monotonic()
        if self.rank == self._context.account.alive[0] and now - self._shown >= PROGRESS_EVERY_S:
            self._shown = now
            self._note_event(self._context.reporter.training("progress"))

    def _common_state(self) -> dict[str, Any]:
        if self._experiment.strategy.synchronous:
            return {}
        return {"counters": save_counters(self._ledger_store)}

    def vitals(self) -> Vitals:
        """Return this learner's signs of life, from any thread."""
        account = self._context.account
        ledger = account.ledger
        return Vitals(self._timeline.now(), ledger.committed_frames, ledger.epoch, account.books)

    def summary(self) -> dict[str, Any]:
        """Return this learner's part of the run's summary."""
        account, ledger = self._context.account, self._context.account.ledger
        scores = account.scores
        return {
            "rank": self.rank,
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
