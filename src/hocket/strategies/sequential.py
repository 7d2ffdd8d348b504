"""Sequential SGD: one learner, the baseline every claim is measured against.

    w(k+1) = w(k) - gamma * g(w(k); item k)                                             (1)

Reference: H. Robbins and S. Monro, "A stochastic approximation method", Annals of Mathematical
Statistics 22 (1951). With momentum, weight decay and clipping as the optimizer has them.

| symbol | here             |                                             |
|--------|------------------|---------------------------------------------|
| w      | `state.params`   | the model                                   |
| g      | `grad`           | mean gradient over the frames of one item   |
| gamma  | `me.lr`          | the rate, by frames committed               |

Differences from the paper: the items of an epoch are drawn without replacement.
Limits: one learner.

When to use it: as the baseline: find a good rate with it first. The rates of all other methods are
derived from that one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hocket.core.learner import Learner
from hocket.core.strategy import State, Strategy


@dataclass(frozen=True)
class Sequential(Strategy[State]):
    """Plain SGD on one learner."""

    name: ClassVar[str] = "sequential"
    paper: ClassVar[str] = "Robbins and Monro, Annals of Mathematical Statistics 22, 1951"
    summary: ClassVar[str] = "one learner; the baseline"
    uncoded_because: ClassVar[str] = "one learner sends nothing."
    commits_when: ClassVar[str] = "the step is applied"
    takes_nobody_in_because: ClassVar[str] = (
        "it runs on one learner; resume it with another strategy"
    )
    synchronous: ClassVar[bool] = True
    max_learners: ClassVar[int | None] = 1

    def gain(self, num_learners: int) -> float:
        """One, by definition."""
        return 1.0

    async def run(self, me: Learner, state: State) -> State:
        """Gradient, step, commit."""
        while (await me.boundary(state)).go_on:
            grad = await me.gradient(state.params)
            me.step_(state.params, grad, state.optimizer)  # eq. 1
            await me.commit()
        return state
