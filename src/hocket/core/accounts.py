"""What is counted, and the records in which counts travel: draws, sums over frames, learners.

Plain data without behaviour of its own, so that every room may speak of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

DRY: Final = -1  # a place in a round for which there is no item

Outcome: TypeAlias = Literal["commit", "discard", "return"]


@dataclass(frozen=True, slots=True)
class Ticket:
    """Proof of one draw. `round` counts a synchronous learner's draws within its epoch.

    A draw from a dry pool gives a ticket too (index DRY, no frames), so that a learner that has run
    out settles the same rounds as the others.
    """

    epoch: int
    index: int  # of the item in items("train")
    frames: int
    round: int = 0
    deal: int = 0  # how often the epoch had been dealt again

    def describe(self, part: tuple[int, int] = (0, 1)) -> str:
        """Name the item for a trace; parts after the first are marked."""
        which, of = part
        return f"{self.epoch}/{self.index}" + (f" part {which + 1} of {of}" if which else "")

    @property
    def dry(self) -> bool:
        """True if there was nothing to draw."""
        return self.index == DRY


@dataclass(slots=True)
class Tally:
    """Sums over frames; added up, never averaged, so nothing depends on who counted."""

    loss_sum: float = 0.0
    frames: int = 0
    correct: float = 0.0

    def add(self, loss_sum: float, frames: int, correct: float) -> None:
        """Count one more item."""
        self.loss_sum += loss_sum
        self.frames += frames
        self.correct += correct

    def take(self) -> Tally:
        """Return what has been counted and start again from zero."""
        taken = Tally(self.loss_sum, self.frames, self.correct)
        self.loss_sum, self.frames, self.correct = 0.0, 0, 0.0
        return taken


@dataclass(frozen=True, slots=True)
class Note:
    """What is piggybacked on a collective of all learners, the same for everybody."""

    members: tuple[int, ...]  # who took part
    tally: Tally  # what they have learnt since the last one
    stop: bool  # does anybody want to stop?
    rode: bool = True  # False: tally and stop did not travel with this collective


@dataclass
class Books:
    """Where a learner's time went, and what it did; kept over a resumption."""

    compute_s: float = 0.0
    bytes_sent: int = 0
    frames: int = 0  # it has taken gradients on
    draws: int = 0
    skipped: int = 0  # steps not made, because the gradient was not finite
    since_s: float = 0.0  # training time of the run when these books were opened


@dataclass(frozen=True)
class Vitals:
    """A learner's signs of life: where the run is, and what it has done itself."""

    time_s: float = 0.0
    frames: int = 0
    epoch: int = 0
    books: Books = field(default_factory=Books)


@dataclass(frozen=True)
class LostLearner:
    """A learner that was lost: when, and how."""

    rank: int
    time_s: float
    reason: str
    books: Books  # at its last sign of life
