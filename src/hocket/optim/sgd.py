"""Stochastic gradient descent with momentum, bit for bit as `torch.optim.SGD`.

g <- g + weight_decay * w
v <- momentum * v + g
w <- w - lr * v                      (Nesterov: w - lr * (g + momentum * v))
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from hocket.core.flat import Flat, Parts
from hocket.errors import require
from hocket.optim.momentum import MomentumState, WithMomentum

# The fused kernel rounds differently in the values after the last full vector register.
_WHOLE = 64


@dataclass(frozen=True)
class SGD(WithMomentum):
    """SGD with heavy-ball or Nesterov momentum and coupled (L2) weight decay."""

    nesterov: bool = False

    name: ClassVar[str] = "sgd"
    scales_with_gain: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            not (self.nesterov and self.momentum == 0),
            "optimizer.nesterov has no effect without momentum: set optimizer.momentum too",
        )

    def _step_parts_(self, params: Flat, grad: Parts, state: MomentumState, lr: float) -> None:
        if self.momentum and state.velocity is None and self._fuses:
            state.velocity = grad.join()  # it is the first step; no second copy is made
            params.add_(state.velocity, alpha=-lr)
            return
        if self.momentum and not self._fuses:
            self._step_(params, grad.join(), state, lr)
            return
        for first, piece in grad.pieces:
            last = first + piece.numel()
            velocity = None if state.velocity is None else state.velocity[first:last]
            self._one_(params[first:last], piece, velocity, lr)

    @property
    def _fuses(self) -> bool:
        """True if torch's fused kernel can be used: one pass over memory instead of three."""
        return not self.nesterov and not self.weight_decay and hasattr(torch, "_fused_sgd_")

    def _one_(self, params: Flat, grad: Flat, velocity: Flat | None, lr: float) -> None:
        """Make the step on a piece of the vectors; without momentum if velocity is None."""
        if velocity is None:
            if self.weight_decay:
                grad = grad.add(params, alpha=self.weight_decay)
            params.add_(grad, alpha=-lr)
            return
        whole = params.numel() // _WHOLE * _WHOLE if params.device.type == "cpu" else 0
        if whole:
            self._fused_(params[:whole], grad[:whole], velocity[:whole], lr)
        if whole < params.numel():
            velocity[whole:].mul_(self.momentum).add_(grad[whole:])
            params[whole:].add_(velocity[whole:], alpha=-lr)

    def _fused_(self, params: Flat, grad: Flat, velocity: Flat, lr: float) -> None:
        torch._fused_sgd_(
            [params],
            [grad],
            [velocity],
            weight_decay=0.0,
            momentum=self.momentum,
            lr=lr,
            dampening=0.0,
            nesterov=False,
            maximize=False,
            is_first_step=False,
        )

    def _step_(self, params: Flat, grad: Flat, state: MomentumState, lr: float) -> None:
        if self.weight_decay:
            grad = grad.add(params, alpha=self.weight_decay)
        if self.momentum:
            if state.velocity is None:
                state.velocity = grad.clone()
            elif self._fuses:
                self._one_(params, grad, state.velocity, lr)
                return
            else:
                state.velocity.mul_(self.momentum).add_(grad)
            grad = (
                grad.add(state.velocity, alpha=self.momentum) if self.nesterov else state.velocity
            )
        params.add_(grad, alpha=-lr)
