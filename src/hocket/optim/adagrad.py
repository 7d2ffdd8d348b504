"""AdaGrad (Duchi, Hazan, Singer, JMLR 2011) on one flat vector, as `torch.optim.Adagrad`.

    g <- g + weight_decay * w
    s <- s + g^2                       s begins at `initial`
    w <- w - lr * g / (sqrt(s) + eps)

Every value has a rate of its own, which falls with what it has seen. With a parameter server the
sums live where the shard lives: no traffic, and stale gradients of large values do less harm (Dean
et al., NIPS 2012; they use rates ten times those of plain SGD and more). As a step does not grow
with the gradient, there is nothing to compensate: the given rate is used unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from hocket.core.flat import Flat
from hocket.core.optimizer import Optimizer
from hocket.errors import require


@dataclass
class AdaGradState:
    """The sum of squares of every value."""

    squares: Flat


@dataclass(frozen=True)
class AdaGrad(Optimizer):
    """SGD with a rate for each value, lr / sqrt(sum of its squared gradients)."""

    lr: float = 0.01
    initial: float = 0.0  # what the sums begin with
    eps: float = 1e-10

    name: ClassVar[str] = "adagrad"
    scales_with_gain: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.initial >= 0, f"optimizer.initial must be at least 0, not {self.initial}")
        require(self.eps > 0, f"optimizer.eps must be above 0, not {self.eps}")

    def init(self, params: Flat) -> AdaGradState:
        """Return sums that have seen nothing."""
        return AdaGradState(torch.full_like(params, self.initial))

    @property
    def has_moments(self) -> bool:
        """Always true: the sums of squares."""
        return True

    def moments(self, params: Flat, state: AdaGradState) -> list[Flat]:
        """Return the sums of squares."""
        return [state.squares]

    def remember_(self, state: AdaGradState, moments: Sequence[Flat]) -> None:
        """Copy sums of squares."""
        for squares in moments:
            state.squares.copy_(squares)

    def forget_(self, state: AdaGradState) -> None:
        """Begin the sums again."""
        state.squares.fill_(self.initial)

    def _step_(self, params: Flat, grad: Flat, state: AdaGradState, lr: float) -> None:
        if self.weight_decay:
            grad = grad.add(params, alpha=self.weight_decay)
        state.squares.addcmul_(grad, grad)
        params.addcdiv_(grad, state.squares.sqrt().add_(self.eps), value=-lr)
