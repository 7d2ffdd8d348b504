"""A learner's account of the run: who is alive, what was drawn and settled, how fast it learns.

Both worlds keep one per learner. For synchronous strategies the accounts of all learners agree: the
numbers that a learner cannot count by itself are piggybacked on collectives.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

from hocket.core.accounts import Books, Outcome, Tally, Ticket
from hocket.core.effects import Progress, Scores, Verdict
from hocket.data.ledger import Ledger
from hocket.data.pool import Pool
from hocket.errors import ContractError
from hocket.experiment import Experiment
from hocket.models.gauss_newton import PRODUCT_COST
from hocket.optim.compensation import ramp, ramp_frames
from hocket.optim.schedules import ScheduleState
from hocket.runtime.shared.context.hand import Hand

MAX_IDLE_BOUNDARIES: Final = 10  # a strategy may keep a gradient or two over a boundary


class Account:
    """What one learner knows of the run."""

    def __init__(self, experiment: Experiment, pool: Pool, rank: int, ledger: Ledger) -> None:
        self.rank = rank
        self.experiment = experiment
        self.pool = pool
        self.ledger = ledger
        self.alive: tuple[int, ...] = tuple(range(experiment.num_ranks))  # attendants included
        self.books = Books()
        self.tally = Tally()  # this learner's own, since the last collective
        self.scores: Scores | None = None
        self.schedule_state = ScheduleState()
        self.aside_s = 0.0  # spent evaluating and checkpointing
        self.compensation = experiment.lr_factor()  # of the local rate, after the ramp
        self._ramp_frames = ramp_frames(experiment.schedule, pool.epoch_frames)
        self.resumed = False  # from a checkpoint, and no boundary since
        strategy = experiment.strategy
        self.hand = Hand(rank, strategy.name, synchronous=strategy.synchronous)
        self._held: tuple[Outcome, tuple[Ticket, ...]] | None = None
        self._idle_boundaries = 0

    @property
    def learners(self) -> tuple[int, ...]:
        """The learners that are alive, without ranks that only attend."""
        return tuple(rank for rank in self.alive if rank < self.experiment.options.learners)

    @property
    def attends(self) -> bool:
        """True if this rank draws nothing."""
        return self.rank >= self.experiment.options.learners

    @property
    def frames(self) -> int:
        """Frames settled by all learners, as far as this one knows."""
        return self.ledger.committed_frames + self.ledger.discarded_frames

    @property
    def speaks(self) -> bool:
        """True if this learner reports on the run: one for all if synchronous, else each."""
        return not self.experiment.strategy.synchronous or self.rank == self.alive[0]

    def rate(self, gain: float | None = None) -> float:
        """Return the local learning rate now; `gain`: of a phase that has another one."""
        target = self._target(gain)
        factor = self.experiment.schedule.factor(
            self.frames / self.pool.epoch_frames, self.schedule_state
        )
        ramped = ramp(target, self.frames, self._ramp_frames)
        return self.experiment.optimizer.rate() * factor * ramped

    def _target(self, gain: float | None) -> float:
        """Return the compensation after the ramp."""
        return self.compensation if gain is None else self.experiment.lr_factor(gain=gain)

    def speed(self) -> float:
        """Return the frames this learner takes gradients on in a second; 0 before its first."""
        books = self.books
        done = books.frames + PRODUCT_COST * books.product_frames
        return done / books.compute_s if books.compute_s > 0 else 0.0

    def settle(
        self, outcome: Outcome, tickets: tuple[Ticket, ...] | None, *, with_next: bool = False
    ) -> None:
        """Record what became of drawn items; `with_next`: once the next collective is complete."""
        self._idle_boundaries = 0
        self.settle_held()
        if with_next:
            self._held = outcome, self.hand.computed() if tickets is None else tickets
        else:
            self._settle(outcome, tickets)

    def settle_held(self) -> None:
        """Settle what was left to the next collective of all; by now it must be complete.

        This is done where the strategy settles again, and at a quiet point, not when the collective
        completes: of a forked one that would be another moment on every learner.
        """
        if self._held is not None:
            held, self._held = self._held, None
            self._settle(*held)

    @property
    def held_back(self) -> bool:
        """True if nothing more can be drawn before a settlement that waits for a collective."""
        return self._held is not None and self.ledger.dry()

    def _settle(self, outcome: Outcome, tickets: tuple[Ticket, ...] | None) -> None:
        self.hand.settle(tickets, alone=len(self.alive) == 1)
        self.ledger.settle(outcome, tickets, self.learners)

    def survived_by(self, members: tuple[int, ...]) -> None:
        """Record who took part in a collective; with fewer learners the local rate changes."""
        if members != self.alive:
            self.alive = members
            if self.learners:
                self.compensation = self.experiment.lr_factor(len(self.learners))

    def evaluated(self, scores: Scores) -> None:
        """Keep the scores of an evaluation, and show them to the schedule."""
        self.scores = scores
        self.experiment.schedule.evaluated(scores.loss, self.schedule_state)

    def verdict(self, go_on: bool, *, met: bool = False) -> Verdict:
        """Return the world's answer at a boundary."""
        ledger, pool = self.ledger, self.pool
        progress = Progress(
            ledger.committed_frames, ledger.epoch, pool.total_frames, pool.epoch_frames
        )
        return Verdict(go_on, progress, self.scores, met)

    def check_progress(self) -> None:
        """Catch a strategy that draws everything and never says what became of it."""
        self._idle_boundaries = self._idle_boundaries + 1 if self.ledger.dry() else 0
        if self._idle_boundaries > MAX_IDLE_BOUNDARIES and not self.ledger.closed():
            raise ContractError(
                f"rank {self.rank}: everything has been drawn, but nothing was settled over "
                f"{MAX_IDLE_BOUNDARIES} boundaries: the strategy "
                f"{self.experiment.strategy.name!r} must `await me.commit()` at its commit point"
            )

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs; the ledger is saved by itself."""
        return {
            "schedule": asdict(self.schedule_state),
            "scores": asdict(self.scores) if self.scores else None,
            "own_tally": asdict(self.tally),
            "aside_s": self.aside_s,
            "books": asdict(self.books),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.schedule_state = ScheduleState(**state["schedule"])
        self.scores = Scores(**state["scores"]) if state["scores"] else None
        self.tally = Tally(**state["own_tally"])
        self.aside_s = state["aside_s"]
        self.books = Books(**state["books"])
        self.resumed = True

    def start_over(self, time_s: float) -> None:
        """Drop what belonged to the learner whose part of a checkpoint was taken over."""
        self.tally, self.books = Tally(), Books(since_s=time_s - self.aside_s)
