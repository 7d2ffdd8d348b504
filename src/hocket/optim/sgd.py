"""Stochastic gradient descent with momentum, to the bit as `torch.optim.SGD`.

g <- g + weight_decay * w
v <- momentum * v + g
w <- w - lr * v                      (Nesterov: w - lr * (g + momentum * v))
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hocket.errors import require
from hocket.flat import Flat
from hocket.optim.optimizer import Optimizer


@dataclass
class SGDState:
    """The velocity; None until the first step with momentum."""

    velocity: Flat | None = None


@dataclass(frozen=True)
class SGD(Optimizer):
    """SGD, heavy-ball or Nesterov momentum, decoupled from nothing: decay is in the gradient."""

    momentum: float = 0.0
    nesterov: bool = False

    name: ClassVar[str] = "sgd"
    scales_with_gain: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            0 <= self.momentum < 1, f"optimizer.momentum must be in [0, 1), not {self.momentum}"
        )
        require(
            not (self.nesterov and self.momentum == 0),
            "optimizer.nesterov has no effect without momentum: set optimizer.momentum too",
        )

    def init(self, params: Flat) -> SGDState:
        """No velocity yet."""
        return SGDState()

    def _step_(self, params: Flat, grad: Flat, state: SGDState, lr: float) -> None:
        if self.weight_decay:
            grad = grad.add(params, alpha=self.weight_decay)
        if self.momentum:
            if state.velocity is None:
                state.velocity = grad.clone()
            else:
                state.velocity.mul_(self.momentum).add_(grad)
            grad = (
                grad.add(state.velocity, alpha=self.momentum) if self.nesterov else state.velocity
            )
        params.add_(grad, alpha=-lr)
