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
class Piggyback:
    """What one learner sends along with a collective."""

    tally: Tally  # what it has learnt since the last one
    stop: bool  # it wants to stop; in a group: to meet all learners
    meet: bool = False  # somebody waits to be let in

    def row(self) -> list[float]:
        """Return it as the numbers that travel."""
        wishes = self.stop + 2 * self.meet
        return [self.tally.loss_sum, float(self.tally.frames), self.tally.correct, float(wishes)]


NOTHING: Final = Piggyback(Tally(), False)


@dataclass(frozen=True, slots=True)
class Note:
    """What all members of a collective sent along, added up: the same for everybody."""

    members: tuple[int, ...]  # who took part
    tally: Tally  # what they have learnt since the last one
    stop: bool  # does anybody want to stop?
    meet: bool = False  # does anybody know of somebody who waits to be let in?
    piggybacked: bool = True  # False: tally and stop did not travel with this collective


@dataclass
class Books:
    """Where a learner's time went, and what it did; kept over a resumption."""

    compute_s: float = 0.0
    bytes_sent: int = 0
    frames: int = 0  # it has taken gradients on
    product_frames: int = 0  # it has taken curvature products on
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
    aside_s: float = 0.0  # of the time: spent evaluating and checkpointing


@dataclass(frozen=True)
class LostLearner:
    """A learner that was lost: when, and how."""

    rank: int
    time_s: float
    reason: str
    books: Books  # at its last sign of life


@dataclass(slots=True, frozen=True)
class Scores:
    """Mean loss and frame accuracy over a held-out set."""

    loss: float
    accuracy: float
    frames: int


@dataclass(slots=True, frozen=True)
class Progress:
    """How far the run is, by frames committed over all learners."""

    frames: int
    epoch: int
    total_frames: int
    epoch_frames: int = 0


@dataclass(slots=True, frozen=True)
class Verdict:
    """The world's answer at a boundary."""

    go_on: bool
    progress: Progress
    scores: Scores | None = None  # of the latest evaluation, if there has been one
    met: bool = False  # all ranks have met here: nothing was under way
