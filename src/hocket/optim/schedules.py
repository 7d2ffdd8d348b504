"""Schedules: the learning rate as a function of the frames committed by all learners.

The rate never depends on steps or time: K local steps on P learners and P*K steps on one consume
the same data, so they get the same rate, whatever the strategy. A schedule returns a *factor* on
`optimizer.lr`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

from hocket.errors import require

Compensation: TypeAlias = Literal["full", "sqrt", "none"]


@dataclass
class ScheduleState:
    """What a schedule remembers; only newbob uses it."""

    factor: float = 1.0
    best_loss: float | None = None
    ramping: bool = False  # newbob: has halving begun?
    stop: bool = False


@dataclass(frozen=True)
class Schedule(ABC):
    """How long to train, and with which rate at each time."""

    epochs: int = 4
    lr_compensation: Compensation | None = None  # None: full for SGD-type optimizers
    lr_limit: float | None = None  # the local rate is at most so many times the given one
    lr_ramp_frames: int | None = None  # until the local rate is reached; None: a 20th of the run

    name: ClassVar[str]

    def __post_init__(self) -> None:
        require(self.epochs >= 1, f"schedule.epochs must be at least 1, not {self.epochs}")
        limit, length = self.lr_limit, self.lr_ramp_frames
        require(limit is None or limit >= 1, f"schedule.lr_limit must be at least 1, not {limit}")
        require(
            length is None or length >= 0,
            f"schedule.lr_ramp_frames must be at least 0, not {length}",
        )

    @abstractmethod
    def factor(self, epochs_done: float, state: ScheduleState) -> float:
        """Return the factor on the rate; `epochs_done` counts committed frames, in epochs."""

    def evaluated(self, loss: float, state: ScheduleState) -> None:
        """Record a dev loss."""
        state.best_loss = loss if state.best_loss is None else min(loss, state.best_loss)


@dataclass(frozen=True)
class Constant(Schedule):
    """The given rate from beginning to end."""

    name: ClassVar[str] = "constant"

    def factor(self, epochs_done: float, state: ScheduleState) -> float:
        """Return 1 at any time."""
        return 1.0


@dataclass(frozen=True)
class Exponential(Schedule):
    """From the given rate down to `final_factor` times it, geometrically in frames."""

    final_factor: float = 0.1  # Kaldi's nnet3 default: 3e-4 to 3e-5
    name: ClassVar[str] = "exponential"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            0 < self.final_factor <= 1,
            f"schedule.final_factor must be in (0, 1], not {self.final_factor}",
        )

    def factor(self, epochs_done: float, state: ScheduleState) -> float:
        """Interpolate the rate's logarithm linearly."""
        return float(self.final_factor ** min(1.0, epochs_done / self.epochs))


@dataclass(frozen=True)
class Warmup(Schedule):
    """Linear warm-up, a plateau, then a step down every epoch (IBM's SWB-2000 recipe).

    The recipe there: 10 epochs of warm-up from a tenth of the rate, then 1/sqrt(2) per epoch.
    """

    warmup_epochs: float = 1.0
    warmup_from: float = 0.1
    hold_epochs: float = 0.0
    step_factor: float = 0.5**0.5
    name: ClassVar[str] = "warmup"

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("warmup_epochs", "hold_epochs"):
            require(getattr(self, key) >= 0, f"schedule.{key} must be >= 0")
        require(
            self.warmup_epochs < self.epochs,
            f"schedule.warmup_epochs = {self.warmup_epochs:g} would outlast the training of "
            f"schedule.epochs = {self.epochs}: train longer (--epochs), or warm up for less",
        )
        for key in ("warmup_from", "step_factor"):
            require(
                0 < getattr(self, key) <= 1,
                f"schedule.{key} must be in (0, 1], not {getattr(self, key)}",
            )

    def factor(self, epochs_done: float, state: ScheduleState) -> float:
        """Return the factor of the ramp, of the plateau, or of the steps down."""
        if epochs_done < self.warmup_epochs:
            return self.warmup_from + (1 - self.warmup_from) * epochs_done / self.warmup_epochs
        steps = int(max(0.0, epochs_done - self.warmup_epochs - self.hold_epochs))
        return self.step_factor**steps


@dataclass(frozen=True)
class Newbob(Schedule):
    """Halve the rate when the dev loss stalls (the QuickNet rule; Kaldi's nnet1, kaldi-aslp).

    Keep the rate until the relative improvement between two evaluations falls below
    `start_halving`; from then on halve at every evaluation, and stop below `end_halving`.
    """

    start_halving: float = 0.01
    end_halving: float = 0.001
    halving_factor: float = 0.5
    name: ClassVar[str] = "newbob"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            0 < self.halving_factor < 1,
            f"schedule.halving_factor must be in (0, 1), not {self.halving_factor}",
        )
        require(
            0 <= self.end_halving <= self.start_halving,
            "schedule.end_halving must lie between 0 and schedule.start_halving",
        )

    def factor(self, epochs_done: float, state: ScheduleState) -> float:
        """Return the factor that the dev losses so far have led to."""
        return state.factor

    def evaluated(self, loss: float, state: ScheduleState) -> None:
        """Record a dev loss; begin to halve, halve again, or stop."""
        if state.best_loss is None:
            state.best_loss = loss
            return
        gain = (state.best_loss - loss) / abs(state.best_loss) if state.best_loss else 0.0
        state.best_loss = min(loss, state.best_loss)
        if state.ramping and gain < self.end_halving:
            state.stop = True
        elif state.ramping or gain < self.start_halving:
            state.ramping = True
            state.factor *= self.halving_factor
