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
from hocket.optim.compensation import ramp
from hocket.optim.schedules import ScheduleState

MAX_IDLE_BOUNDARIES: Final = 10  # a strategy may keep a gradient or two over a boundary


class Account:
    """What one learner knows of the run."""

    def __init__(self, experiment: Experiment, pool: Pool, rank: int, ledger: Ledger) -> None:
        self.rank = rank
        self.experiment = experiment
        self.pool = pool
        self.ledger = ledger
        self.alive: tuple[int, ...] = tuple(range(experiment.options.learners))
        self.books = Books()
        self.tally = Tally()  # this learner's own, since the last collective
        self.scores: Scores | None = None
        self.schedule_state = ScheduleState()
        self.aside_s = 0.0  # spent evaluating and checkpointing
        self.compensation = experiment.lr_factor()  # of the local rate, after the ramp
        self._idle_boundaries = 0

    @property
    def frames(self) -> int:
        """Frames settled by all learners, as far as this one knows."""
        return self.ledger.committed_frames + self.ledger.discarded_frames

    @property
    def speaks(self) -> bool:
        """True if this learner reports on the run: one for all if synchronous, else each."""
        return not self.experiment.strategy.synchronous or self.rank == self.alive[0]

    def rate(self) -> float:
        """Return the local learning rate now."""
        epochs_done = self.frames / self.pool.epoch_frames
        factor = self.experiment.schedule.factor(epochs_done, self.schedule_state)
        return self.experiment.optimizer.rate() * factor * ramp(self.compensation, epochs_done)

    def settle(self, outcome: Outcome, tickets: tuple[Ticket, ...] | None) -> None:
        """Record what became of drawn items."""
        self._idle_boundaries = 0
        self.ledger.settle(outcome, tickets, self.alive)

    def survived_by(self, members: tuple[int, ...]) -> None:
        """Record who took part in a collective; with fewer learners the local rate changes."""
        if members != self.alive:
            self.alive = members
            self.compensation = self.experiment.lr_factor(len(members))

    def evaluated(self, scores: Scores) -> None:
        """Keep the scores of an evaluation, and show them to the schedule."""
        self.scores = scores
        self.experiment.schedule.evaluated(scores.loss, self.schedule_state)

    def verdict(self, go_on: bool) -> Verdict:
        """Return the world's answer at a boundary."""
        progress = Progress(self.ledger.committed_frames, self.ledger.epoch, self.pool.total_frames)
        return Verdict(go_on, progress, self.scores)

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

    def start_over(self, time_s: float) -> None:
        """Drop what belonged to the learner whose part of a checkpoint was taken over."""
        self.tally, self.books = Tally(), Books(since_s=time_s - self.aside_s)
