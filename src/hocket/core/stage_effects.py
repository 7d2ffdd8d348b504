"""What a strategy asks of a rank that holds one stage of a model, and what it is answered.

They belong to the vocabulary (`hocket.core.effects`); only models in stages use them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hocket.core.accounts import Ticket
from hocket.core.effects import WHOLE, Effect, Grad, Part
from hocket.core.flat import Flat


@dataclass(slots=True)
class Passed:
    """What a stage of a model made of an item: it goes to the next stage, or it is the loss."""

    out: torch.Tensor | None  # None: this was the last stage
    frames: int = 0  # of the last stage, like the sums
    loss_sum: float = 0.0
    correct: float = 0.0

    @property
    def sums(self) -> tuple[int, float, float]:
        """What goes back through the stages, as plain numbers."""
        return self.frames, self.loss_sum, self.correct


@dataclass(slots=True)
class Returned:
    """What a stage gives back: the gradient of its own parameters, and of what came in."""

    grad: Grad
    dx: torch.Tensor | None  # None: this was the first stage


@dataclass(slots=True, eq=False)
class Draw(Effect[Ticket]):
    """Draw one item, which is to go through the stages of a model."""


@dataclass(slots=True, eq=False)
class Forward(Effect[Passed]):
    """Let an item go through this rank's stage, at `params`; what backward needs is kept.

    The first stage loads the item, the others are given `x`, what the stage before has made of it.
    Of a held-out split nothing is kept.
    """

    params: Flat
    ticket: Ticket
    x: torch.Tensor | None = None
    part: Part = WHOLE
    split: str = "train"


@dataclass(slots=True, eq=False)
class Backward(Effect[Returned]):
    """The way back of an item, once for each `Forward`: at `params`, which may be others by now.

    `dy`: from the stage after, with the `sums` of the loss; the last stage has its own.
    """

    params: Flat
    ticket: Ticket
    dy: torch.Tensor | None
    sums: tuple[int, float, float]
    part: Part = WHOLE
