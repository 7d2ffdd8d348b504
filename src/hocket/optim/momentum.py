"""The velocity that SGD and natural-gradient SGD remember, and what learners do with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from hocket.core.flat import Flat
from hocket.core.optimizer import Optimizer
from hocket.errors import require


@dataclass
class MomentumState:
    """The velocity; None until the first step with momentum."""

    velocity: Flat | None = None


@dataclass(frozen=True)
class WithMomentum(Optimizer):
    """An optimizer whose memory is one velocity, if it has momentum at all."""

    momentum: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            0 <= self.momentum < 1, f"optimizer.momentum must be in [0, 1), not {self.momentum}"
        )

    def init(self, params: Flat) -> MomentumState:
        """Return a state without a velocity."""
        return MomentumState()

    @property
    def has_moments(self) -> bool:
        """True with momentum: there is a velocity to keep, reset or average."""
        return self.momentum > 0

    def moments(self, params: Flat, state: MomentumState) -> list[Flat]:
        """Return the velocity, or zeros before the first step, which means the same."""
        if not self.momentum:
            return []
        return [torch.zeros_like(params) if state.velocity is None else state.velocity]

    def remember_(self, state: MomentumState, moments: Sequence[Flat]) -> None:
        """Copy a velocity, if one is given."""
        for velocity in moments:
            state.velocity = velocity.clone()

    def forget_(self, state: MomentumState) -> None:
        """Drop the velocity: the next step begins as the first one did."""
        state.velocity = None
