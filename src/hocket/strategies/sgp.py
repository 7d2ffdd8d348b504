"""SGP: stochastic gradient push; each learner pushes half of its model to one other per round.

    x_i(k+1/2) = x_i(k) - gamma * g_i(z_i(k))                                           (1)
    x_i(k+1) = sum_j p_ij(k) x_j(k+1/2),   w_i(k+1) = sum_j p_ij(k) w_j(k)                (2)
    z_i(k+1) = x_i(k+1) / w_i(k+1)                                                      (3)

Reference: M. Assran, N. Loizou, N. Ballas, M. Rabbat, "Stochastic gradient push for distributed
deep learning", ICML 2019 (arXiv:1811.10792).

| symbol | here                   |                                                           |
|--------|------------------------|-----------------------------------------------------------|
| x      | `state.pushed`         | numerator of the push-sum                                 |
| w      | `state.weight`         | its denominator, 1 at the beginning                       |
| z      | `state.params`         | the model: where gradients are taken, what is evaluated   |
| p      | `topology.exponential` | half stays, half goes 1, 2, 4, ... places on, in turn     |
| gamma  | `me.lr`                | derived from the sequential rate, gain 1/P                |

Only what is sent must sum to 1 (p is column-stochastic), not what is received: nobody waits for an
answer, and no pair must agree. What is received may then be too much or too little; w counts how
much it is, and (3) corrects it. When everybody lives, each learner gets as much as it gives and w
stays 1. When a learner dies, its share of x and of w is lost together, so every z is still a
weighted mean of models (tested), while plain averaging of what arrives would shrink them.

Differences from the paper: one number is added up over all learners at the end of a round, so that
all know who lives and the account of the data stays common; the paper's learners wait for the one
in-neighbour only. The evaluated model is the mean of all z.
Limits: this is SGP without overlap (the paper's overlapped form, OSGP, hides the push behind
gradients of later rounds). Weight decay and clipping act on x, which is z as long as w is 1.

When to use it: when an allreduce of all learners costs too much, and each learner can afford to
send one model per minibatch to one other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from hocket.core import topology
from hocket.core.flat import Flat
from hocket.core.learner import Learner
from hocket.core.optimizer import Optimizer
from hocket.core.strategy import MIXES_MODELS, State, Strategy
from hocket.errors import PeerLostError


@dataclass
class PushState(State):
    """`params` is z, the model; x and w are what is pushed."""

    pushed: Flat  # x
    weight: float = 1.0  # w
    rounds: int = 0


@dataclass(frozen=True)
class SGP(Strategy[PushState]):
    """Push-sum on the one-peer exponential graph."""

    name: ClassVar[str] = "sgp"
    paper: ClassVar[str] = "Assran et al., ICML 2019 (arXiv:1811.10792)"
    summary: ClassVar[str] = "each learner pushes half of its model to one other, every minibatch"
    uncoded_because: ClassVar[str] = MIXES_MODELS
    commits_when: ClassVar[str] = "the round is over"
    synchronous: ClassVar[bool] = True
    uses_messages: ClassVar[bool] = True
    evaluates: ClassVar = "average"

    def gain(self, num_learners: int) -> float:
        """A step of one learner moves the mean of P models by a P-th of it."""
        return 1.0 / num_learners

    def init(self, params: Flat, optimizer: Optimizer) -> PushState:
        """Return a state in which nothing has been pushed yet, with a weight of 1."""
        return PushState(params, optimizer.init(params), params.clone())

    def adopt(self, old: Sequence[PushState], model: Flat, rank: int) -> PushState:
        """Everybody starts from the saved model, with a weight of 1."""
        before = old[rank % len(old)]
        return replace(before, params=model.clone(), pushed=model.clone(), weight=1.0)

    async def run(self, me: Learner, state: PushState) -> PushState:
        """Step, push, take in what was pushed, commit."""
        present = torch.zeros(1, device=state.params.device)
        while (await me.boundary(state)).go_on:
            grad = await me.gradient(state.params)
            me.step_(state.pushed, grad, state.optimizer)  # eq. 1
            await self.push(me, state)
            await me.allreduce(present, weight=1.0)
            state.rounds += 1
            await me.commit()
        return state

    async def push(self, me: Learner, state: PushState) -> None:
        """Give half away, take in what comes, and correct the model (eqs. 2 and 3)."""
        to, source = neighbours(me, state.rounds)
        if to != me.rank:
            state.pushed.mul_(0.5)
            state.weight *= 0.5
            await me.send(to, "push", (state.pushed.clone(), state.weight))
            try:
                model, weight = (await me.recv("push", source=source)).payload
            except PeerLostError:
                pass  # its half is lost, of x and of w alike
            else:
                state.pushed.add_(model)
                state.weight += weight
        torch.div(state.pushed, state.weight, out=state.params)


def neighbours(me: Learner, round_number: int) -> tuple[int, int]:
    """Return to whom this learner pushes in this round, and who pushes to it; alone: itself."""
    alive, place = me.alive, me.alive.index(me.rank)
    others = topology.exponential(len(alive), round_number)
    others[range(len(alive)), range(len(alive))] = 0.0
    if not others.any():
        return me.rank, me.rank
    return alive[int(others[place].argmax())], alive[int(others[:, place].argmax())]
