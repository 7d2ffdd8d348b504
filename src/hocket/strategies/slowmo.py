"""SlowMo: slow momentum over blocks of local steps, in the units of a gradient.

    u(t+1) = beta u(t) + (x(t,0) - mean_i x_i(t,tau)) / gamma(t)                        (1)
    x(t+1,0) = x(t,0) - alpha gamma(t) u(t+1)                                           (2)

Reference: J. Wang, V. Tantia, N. Ballas, M. Rabbat, "SlowMo: Improving communication-efficient
distributed SGD with slow momentum", ICLR 2020 (arXiv:1910.00643).

| symbol   | here            |                                                                |
|----------|-----------------|----------------------------------------------------------------|
| tau      | `sync_every`    | local steps of a block                                         |
| x(t,0)   | `state.start`   | the model from which all learners start a block                |
| u        | `state.slow`    | the slow momentum                                              |
| alpha    | `slow_lr`       | default 1, as in most of the paper's experiments               |
| beta     | `slow_momentum` | default 0.7                                                    |
| gamma(t) | `me.lr`         | the local rate when the block ends                             |

With a constant rate this is the classical form of `bmuf`, with eta = beta and zeta = alpha
(tested). The difference is (1): u is divided by the rate of its own time and multiplied by the rate
of today. When a schedule lowers the rate, the memory is scaled down with it, while BMUF's Delta
stays at its old size. With `slow_momentum=0` and `slow_lr=1` it is model averaging, bit for bit.

In the steady state the mean of P learners moves alpha / (1 - beta) times as far as one of them on
the data of P: a gain of alpha / (P (1 - beta)).

Differences from the paper: the mean is weighted by frames. The paper has one rate per block; here a
schedule may change it inside one, and gamma is the rate at its end. If a learner is lost in the
average that ends a block, gamma is already the survivors' rate. At a rate of 0 nothing is learnt
and nothing is remembered.
Limits: the base optimizer is the configured one; the paper also puts SGP below it, which averages
models at every step and is not combined with it here.

When to use it: as `bmuf`, for runs whose schedule lowers the rate often. Block momentum of 1 - 1/P
is too much for many learners and few blocks; a fixed 0.4 to 0.8 is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from hocket.core.effects import Mean
from hocket.core.flat import Flat
from hocket.core.learner import Learner
from hocket.core.optimizer import Optimizer
from hocket.core.strategy import State
from hocket.errors import require
from hocket.strategies.periodic import Averaging, LocalMomentum


@dataclass
class SlowState(State):
    """The model that all started the block from, and the slow momentum; both are common."""

    start: Flat
    slow: Flat


@dataclass(frozen=True)
class SlowMo(Averaging[SlowState]):
    """K local steps, the average, a step with slow momentum."""

    slow_momentum: float = 0.7  # beta: how much of the movement is kept from block to block
    slow_lr: float = 1.0  # alpha: the share of the slow step that is taken

    name: ClassVar[str] = "slowmo"
    paper: ClassVar[str] = "Wang et al., ICLR 2020 (arXiv:1910.00643)"
    summary: ClassVar[str] = "K local steps, then the average, with momentum that follows the rate"
    usual_momentum: ClassVar[LocalMomentum] = "reset"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            0 <= self.slow_momentum < 1,
            f"strategy.slow_momentum must be in [0, 1), not {self.slow_momentum}: at 1 a step is "
            "never forgotten and the model diverges",
        )
        require(self.slow_lr > 0, f"strategy.slow_lr must be above 0, not {self.slow_lr}")

    def gain(self, num_learners: int) -> float:
        """alpha / (P (1 - beta))."""
        return self.slow_lr / (num_learners * (1.0 - self.slow_momentum))

    def init(self, params: Flat, optimizer: Optimizer) -> SlowState:
        """Start everywhere from the same model, at rest."""
        return SlowState(params, optimizer.init(params), params.clone(), torch.zeros_like(params))

    def adopt(self, old: Sequence[SlowState], model: Flat, rank: int) -> SlowState:
        """Start from the saved model; the slow momentum is the same on all old learners."""
        return replace(old[rank % len(old)], params=model.clone(), start=model.clone())

    def outer_(self, me: Learner, state: SlowState, mean: Mean) -> None:
        """Take the slow step; a block in which nobody learnt anything moves nothing."""
        if mean.weight and me.lr:
            slow_step_(state, mean.value, me.lr, self.slow_momentum, self.slow_lr)
        state.params.copy_(state.start)


def slow_step_(state: SlowState, mean: Flat, gamma: float, beta: float, alpha: float) -> None:
    """Change the slow momentum and the model to start from."""
    state.slow.mul_(beta).add_(state.start - mean, alpha=1.0 / gamma)  # eq. 1
    if beta == 0.0 and alpha == 1.0:
        state.start.copy_(mean)  # the average itself, without the rounding of eq. 2
    else:
        state.start.sub_(state.slow, alpha=alpha * gamma)  # eq. 2
