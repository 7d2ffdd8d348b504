"""Synchronous SGD: P learners, one gradient each, the mean of them for everybody.

    g_bar = sum_j n_j g_j(w; item kP+j) / sum_j n_j                                     (1)
    w(k+1) = w(k) - gamma * g_bar                                                       (2)

Reference: J. Chen, X. Pan, R. Monga, S. Bengio, R. Jozefowicz, "Revisiting distributed synchronous
SGD", ICLR workshop 2016; in speech, the baseline (SC-PSGD) of X. Cui et al., IEEE/ACM TASLP 2021.

| symbol | here             |                                             |
|--------|------------------|---------------------------------------------|
| P      | `me.size`        | learners                                    |
| g_j    | of each learner  | mean gradient over the n_j frames it drew   |
| g_bar  | `grad`           | the same on every learner                   |
| gamma  | `me.lr`          | derived from the sequential rate, gain 1/P  |

It equals sequential SGD with minibatches P times as large. Replicas stay identical, because all
apply the same mean to the same model.

Differences from the paper: no backup workers; the mean is weighted by frames, so that unequal items
count as they would in one large minibatch.
Limits: every step waits for the slowest learner.

When to use it: first, whenever learners are equally fast and the network is fast enough for one
gradient per minibatch. It has no parameters to tune, and in our runs it reached a lower loss with
large batches than the rings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hocket.core.learner import Learner
from hocket.core.strategy import State, Strategy


@dataclass(frozen=True)
class AllReduceSGD(Strategy[State]):
    """Synchronous SGD by allreduce of gradients."""

    name: ClassVar[str] = "allreduce"
    paper: ClassVar[str] = "Chen et al., ICLR workshop 2016 (arXiv:1604.00981)"
    summary: ClassVar[str] = "synchronous SGD: the mean gradient of all learners, every minibatch"
    commits_when: ClassVar[str] = "the step is applied"
    synchronous: ClassVar[bool] = True

    def gain(self, num_learners: int) -> float:
        """P minibatches make one step."""
        return 1.0 / num_learners

    async def run(self, me: Learner, state: State) -> State:
        """Mean gradient, step, commit."""
        while (await me.boundary(state)).go_on:
            grad = await me.mean_gradient(state.params)  # eq. 1
            me.step_(state.params, grad, state.optimizer)  # eq. 2
            await me.commit()
        return state
