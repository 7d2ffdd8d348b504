"""Delay-by-one (D1): the average of all models travels while the gradient is computed.

    w_l(k+1) = mean_l w_l(k) - gamma * g_l(w_l(k))                                         (1)

Reference: X. Cui, W. Zhang, A. Kayi, M. Liu, U. Finkler, B. Kingsbury, G. Saon, D. Kung,
"Asynchronous decentralized distributed training of acoustic models", IEEE/ACM TASLP 2021.

| symbol | here           |                                                     |
|--------|----------------|-----------------------------------------------------|
| w_l    | `state.params` | this learner's model                                |
| mean   | `averaging`    | an allreduce, forked before the gradient is taken   |
| gamma  | `me.lr`        | derived from the sequential rate, gain 1/P          |

It is AD-PSGD with the complete graph, T = 11'/P, and phi = W(k) before mixing. Taking the mean over
learners of (1), the average follows SGD with the mean gradient, each taken at one's own model; the
models differ from it by gamma * (g_l - mean g) of the last step, and by nothing older. Each learner
sees its own gradient at once and the others' one step late.

The reading taken: models are averaged, as W(k) T - gamma g says. A version that buffers gradients,
w(k+1) = w(k) - gamma * mean g(k-1), would be nearly the same and keep replicas alike; the paper's
text does not rule it out.

Differences from the paper: a mean counts every learner alike, also one with a shorter minibatch.
Limits: synchronous in its pace; a slow learner slows everybody. Communication is free as long as it
is faster than a gradient.

When to use it: when learners are equally fast, and the average takes about as long as a gradient:
communication is hidden behind computation. A slow learner still slows down all (`adpsgd` does not
wait).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hocket.core.effects import AllReduce
from hocket.core.learner import Learner
from hocket.core.strategy import MIXES_MODELS, State, Strategy


@dataclass(frozen=True)
class DelayByOne(Strategy[State]):
    """The models' average travels during the gradient."""

    name: ClassVar[str] = "delay-by-one"
    paper: ClassVar[str] = "Cui et al., TASLP 2021"
    summary: ClassVar[str] = "the average of all models travels while the gradient is computed"
    uncoded_because: ClassVar[str] = MIXES_MODELS
    commits_when: ClassVar[str] = "the next average is complete"
    synchronous: ClassVar[bool] = True
    evaluates: ClassVar = "average"

    def gain(self, num_learners: int) -> float:
        """A step of one learner moves the mean of P models by a P-th of it."""
        return 1.0 / num_learners

    async def run(self, me: Learner, state: State) -> State:
        """Fork the average, take the gradient, join, step."""
        while (await me.boundary(state)).go_on:
            averaging = await me.fork(AllReduce(state.params.clone(), weight=1.0, in_place=True))
            grad = await me.gradient(state.params)
            mean = await averaging
            state.params.copy_(mean.value)
            me.step_(state.params, grad, state.optimizer)  # eq. 1
            await me.commit_with_next()  # the next average says who has taken this gradient
        return state
