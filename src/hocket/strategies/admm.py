"""Consensus ADMM: learners minimise alone, multipliers pull them to one model.

    min sum_k J_k(w_k)  subject to  w_k = w,  by the augmented Lagrangian
    L = sum_k J_k(w_k) + lambda_k'(w_k - w) + (rho / 2) |w_k - w|^2

    w_k <- w_k - gamma (g_k(w_k) + lambda_k + rho (w_k - w)),  K times                   (1)
    w  <- mean_k (w_k + lambda_k / rho)                                                 (2)
    lambda_k <- lambda_k + rho (w_k - w)                                                (3)

References: S. Boyd et al., "Distributed optimization and statistical learning via the alternating
direction method of multipliers", Foundations and Trends in Machine Learning 3 (2011), sections 3.4
and 7.1; for acoustic models named as an alternative to averaging by D. Yu and L. Deng, "Automatic
speech recognition: a deep learning approach", Springer 2015, section 7.1.3.

| symbol   | here            |                                                          |
|----------|-----------------|----------------------------------------------------------|
| w        | `state.centre`  | the consensus: evaluated, saved, the same on all learners |
| w_k      | `state.params`  | this learner's model, from which it goes on               |
| lambda_k | `state.dual`    | its multipliers; they sum to zero after every round       |
| rho      | `state.rho`     | the penalty, begins with `rho`                            |
| K        | `sync_every`    | steps of the inexact inner minimisation                   |

Residual balancing (Boyd, section 3.4.1), with `balance`: primal residual r^2 = mean_k |w_k - w|^2,
dual residual s = rho |w - w_old|; r > 10 s doubles rho, s > 10 r halves it, within a factor of 1000
of where it began, and never above 0.1 / gamma: with rates that grow with P the balance would drive
rho up until the local step (1), a factor 1 - gamma rho on w_k - w, is unstable. As multipliers are
kept unscaled, they need not be changed with rho.

The learners' gradients come from one pool, so the J_k differ by chance only. Gain 1/P: for small
rho the consensus moves as the average does.

Differences from the book: its text gives no constants; rho = 0.05 is ours, so that gamma rho is
between 0.001 and 0.1 at usual rates. The inner minimisation is K steps of the configured optimizer,
warm-started. Means are not weighted by frames: only so do the multipliers sum to zero.
Limits: non-convex problems have no guarantee. Momentum in the
inner steps carries the old pull over to the next round. Multipliers are not reset when the rate
drops.

When to use it: to study the method, or to compare with it. Learners that average (`averaging`,
`bmuf`) reached a lower loss in our runs, and with 16 learners this one diverged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final

import torch

from hocket.core.effects import Grad
from hocket.core.flat import Flat
from hocket.core.learner import Learner
from hocket.core.optimizer import Optimizer
from hocket.core.strategy import State, Strategy
from hocket.errors import require

RATIO: Final = 10.0  # Boyd et al. 2011, section 3.4.1: mu
FACTOR: Final = 2.0  # tau
RANGE: Final = 1000.0  # one learner alone has no primal residual, and rho would go to zero
STABLE: Final = 0.1  # most that gamma rho may be: a pull that is over-corrected only beyond 1


@dataclass
class ConsensusState(State):
    """This learner's model is `params`."""

    centre: Flat
    dual: Flat
    rho: float


@dataclass(frozen=True)
class ADMM(Strategy[ConsensusState]):
    """Inexact consensus ADMM with residual balancing."""

    sync_every: int = 16  # K: steps of the inner minimisation
    rho: float = 0.05  # the penalty at the beginning
    balance: bool = True  # double or halve rho when one residual is 10 times the other

    name: ClassVar[str] = "admm"
    paper: ClassVar[str] = "Boyd et al. 2011; Yu and Deng 2015, section 7.1.3"
    summary: ClassVar[str] = "local minimisation, multipliers pull learners to a consensus"
    uncoded_because: ClassVar[str] = (
        "what is averaged is a model and its multipliers, not a step from a common point."
    )
    commits_when: ClassVar[str] = "the consensus is complete"
    synchronous: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require(
            self.sync_every >= 1, f"strategy.sync_every must be at least 1, not {self.sync_every}"
        )
        require(
            self.rho > 0,
            f"strategy.rho must be above 0, not {self.rho}: without a penalty nothing pulls "
            "learners together",
        )

    def gain(self, num_learners: int) -> float:
        """For a small penalty as far as the average."""
        return 1.0 / num_learners

    def init(self, params: Flat, optimizer: Optimizer) -> ConsensusState:
        """Consensus, multipliers at zero."""
        return ConsensusState(
            params, optimizer.init(params), params.clone(), torch.zeros_like(params), self.rho
        )

    def model(self, state: ConsensusState) -> Flat:
        """Return the consensus z, which no single learner holds as its own model."""
        return state.centre

    def adopt(self, old: Sequence[ConsensusState], model: Flat, rank: int) -> ConsensusState:
        """Everybody starts from the consensus; multipliers of others would not sum to zero."""
        before = old[rank % len(old)]
        dual = torch.zeros_like(model)
        return replace(before, params=model.clone(), centre=model.clone(), dual=dual)

    async def run(self, me: Learner, state: ConsensusState) -> ConsensusState:
        """Inner steps, consensus, multipliers, commit."""
        while (await me.boundary(state)).go_on:
            state.rho = min(state.rho, STABLE / me.lr)
            for _ in range(self.sync_every):
                grad = await me.gradient(state.params)
                me.step_(state.params, augmented(grad, state), state.optimizer)  # eq. 1
            proposal = torch.add(state.params, state.dual, alpha=1.0 / state.rho)
            mean = await me.allreduce(proposal, weight=1.0)
            moved = float(torch.linalg.vector_norm(mean.value - state.centre))
            apart = meet_(state, mean.value)
            if self.balance:
                squared = await me.allreduce(state.params.new_tensor([apart**2]), weight=1.0)
                primal, dual = float(squared.value) ** 0.5, state.rho * moved
                state.rho = balanced(state.rho, primal, dual, self.rho / RANGE, self.rho * RANGE)
            await me.commit()
        return state


def augmented(grad: Grad, state: ConsensusState) -> Grad:
    """Add the pull of the consensus to a gradient."""
    if not grad.frames:
        return grad
    pull = (state.params - state.centre).mul_(state.rho).add_(state.dual)
    return Grad(pull.add_(grad.vector), grad.frames, grad.loss_sum, grad.correct, grad.tickets)


def meet_(state: ConsensusState, mean: Flat) -> float:
    """Take the new consensus and change the multipliers; return how far this learner is from it."""
    state.centre.copy_(mean)  # eq. 2
    apart = state.params - state.centre
    state.dual.add_(apart, alpha=state.rho)  # eq. 3
    return float(torch.linalg.vector_norm(apart))


def balanced(rho: float, primal: float, dual: float, lowest: float, highest: float) -> float:
    """Return the penalty of the next round."""
    if primal > RATIO * dual:
        return min(rho * FACTOR, highest)
    return max(rho / FACTOR, lowest) if dual > RATIO * primal else rho
