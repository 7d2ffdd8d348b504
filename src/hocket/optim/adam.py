"""AdamW (Loshchilov and Hutter, ICLR 2019) on one flat vector.

    w <- (1 - lr * weight_decay) * w
    m <- beta1 * m + (1 - beta1) * g
    v <- beta2 * v + (1 - beta2) * g^2
    w <- w - lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps)

The size of a step does not grow with the gradient, so averaging over learners does not shrink it as
it shrinks SGD's. There is nothing to compensate: the given rate is used unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from hocket.core.flat import Flat
from hocket.core.optimizer import Optimizer
from hocket.errors import require


@dataclass
class AdamWState:
    """First and second moment, and the number of steps in them."""

    m: Flat
    v: Flat
    steps: int = 0


@dataclass(frozen=True)
class AdamW(Optimizer):
    """Adam with decoupled weight decay."""

    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8

    name: ClassVar[str] = "adamw"
    scales_with_gain: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.beta1 < 1, f"optimizer.beta1 must be in [0, 1), not {self.beta1}")
        require(0 <= self.beta2 < 1, f"optimizer.beta2 must be in [0, 1), not {self.beta2}")
        require(self.eps > 0, f"optimizer.eps must be above 0, not {self.eps}")

    def init(self, params: Flat) -> AdamWState:
        """Return a state with both moments at zero."""
        return AdamWState(torch.zeros_like(params), torch.zeros_like(params))

    @property
    def has_moments(self) -> bool:
        """Always true: AdamW has moments with any options."""
        return True

    def moments(self, params: Flat, state: AdamWState) -> list[Flat]:
        """Return the means of the gradients and of their squares, as they are: no copies."""
        return [state.m, state.v]

    def remember_(self, state: AdamWState, moments: Sequence[Flat]) -> None:
        """Copy both moments; the number of steps stays this learner's own."""
        for mine, other in zip((state.m, state.v), moments, strict=True):
            mine.copy_(other)

    def forget_(self, state: AdamWState) -> None:
        """Reset moments and steps, so that the bias correction begins again."""
        state.m.zero_()
        state.v.zero_()
        state.steps = 0

    def _step_(self, params: Flat, grad: Flat, state: AdamWState, lr: float) -> None:
        state.steps += 1
        params.mul_(1 - lr * self.weight_decay)
        state.m.lerp_(grad, 1 - self.beta1)
        state.v.mul_(self.beta2).addcmul_(grad, grad, value=1 - self.beta2)
        correction1 = 1 - self.beta1**state.steps
        correction2 = 1 - self.beta2**state.steps
        denominator = (state.v.sqrt() / math.sqrt(correction2)).add_(self.eps)
        params.addcdiv_(state.m, denominator, value=-lr / correction1)
