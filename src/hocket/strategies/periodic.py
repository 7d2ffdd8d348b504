"""The shape all averaging methods share: local steps, an average, an outer rule.

    inner optimizer   the configured one: how a learner makes a local step
    sync period       K local steps, `sync_every`
    outer rule        what becomes of the mean of the models: `outer_`
    local momentum    what becomes of the optimizer's moments: `local_momentum`

| method           | outer rule                                | local momentum by default |
|------------------|-------------------------------------------|---------------------------|
| kstep, averaging | start from the mean                       | keep                      |
| bmuf             | filter the step of the mean (block momentum) | reset                  |
| diloco           | the same, as an outer Nesterov SGD        | keep                      |
| slowmo           | momentum in units of the gradient         | reset                     |

Local momentum. *keep*: each learner goes on with its own. Heavy-ball SGD is linear in (w, v, g), so
the mean velocity stays right, and private ones only add spread. *reset*: everybody begins the block
with none, which loses about 1/(1 - momentum) steps of acceleration a block. *average*: everybody
begins with the mean, weighted as the models are, at the price of one more vector (two for AdamW).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, TypeAlias, get_args

import torch

from hocket.core.effects import Mean
from hocket.core.flat import Flat
from hocket.core.learner import Learner
from hocket.core.optimizer import Optimizer
from hocket.core.strategy import Coded, S, State, Strategy
from hocket.errors import require

LocalMomentum: TypeAlias = Literal["keep", "reset", "average"]


@dataclass(frozen=True)
class Averaging(Strategy[S]):
    """K local steps, the mean of the models, an outer rule."""

    sync_every: int = 16  # K: minibatches of each learner between two averages
    local_momentum: LocalMomentum | None = None  # momentum at an average. None: the method's usual

    commits_when: ClassVar[str] = "the average is complete"
    synchronous: ClassVar[bool] = True
    usual_momentum: ClassVar[LocalMomentum] = "keep"
    codes: ClassVar[Coded | None] = "steps"

    def __post_init__(self) -> None:
        require(
            self.sync_every >= 1, f"strategy.sync_every must be at least 1, not {self.sync_every}"
        )
        require(
            self.local_momentum is None or self.local_momentum in get_args(LocalMomentum),
            f"strategy.local_momentum must be one of {', '.join(get_args(LocalMomentum))}, not "
            f"{self.local_momentum!r}",
        )

    def check_optimizer(self, optimizer: Optimizer) -> None:
        """Refuse a policy for momentum if the optimizer has no momentum."""
        require(
            self.local_momentum in (None, "keep") or optimizer.has_moments,
            f"strategy.local_momentum = {self.local_momentum!r} has no effect: optimizer "
            f"{optimizer.name!r} remembers nothing from one step to the next; set "
            "optimizer.momentum, or leave it out",
        )

    def gain(self, num_learners: int) -> float:
        """The average moves as far as one learner did, on P times the data."""
        return 1.0 / num_learners

    def block(self, state: S) -> int:
        """Return how many local steps come before the next average."""
        return self.sync_every

    def scale(self, me: Learner, state: S) -> float:
        """Return the factor on the local rate until the next average."""
        return 1.0

    def outer_(self, me: Learner, state: S, mean: Mean) -> None:
        """Turn the mean, which lies in `state.params`, into the model that all start from next.

        `me` has what a rule may need: `me.lr`, `me.alive`, `me.optimizer`.
        """
        state.params.copy_(mean.value)

    async def run(self, me: Learner, state: S) -> S:
        """Local steps, average, outer rule, local momentum, commit."""
        while (verdict := await me.boundary(state)).go_on:
            coded = me.codes(verdict.progress.frames, state)
            start = state.params.clone() if coded else None
            await local_steps(me, state, self.block(state), self.scale(me, state))
            mean = await meet_models(me, state, start)
            self.outer_(me, state, mean)
            await meet_moments(me, state, self.local_momentum or self.usual_momentum)
            await me.commit()
        return state


async def local_steps(me: Learner, state: State, steps: int, scale: float = 1.0) -> None:
    """Take so many local steps, at `scale` times the local rate, or as many as the epoch has left.

    A dry draw with the same ticket twice in a row means that every round has been dealt out; one
    alone may be a gap in this learner's column while others still have an item in the next round.
    """
    last = None
    for _ in range(steps):
        grad = await me.gradient(state.params)
        if not grad.frames and grad.tickets == last:
            break
        last = grad.tickets
        me.step_(state.params, grad, state.optimizer, scale)


async def meet_models(me: Learner, state: State, start: Flat | None) -> Mean:
    """Put the mean of the models into `state.params`.

    If it is coded, the block's step W_i - W_g is what travels: a model is far too large beside its
    steps. All started from the same W_g, so the mean step leads all to the same model again.
    """
    if start is None:
        return await me.allreduce_(state.params)
    step = state.params.sub_(start)
    mean = await me.coded_mean(step, state)
    state.params.add_(start)
    return mean


async def meet_moments(me: Learner, state: State, policy: LocalMomentum) -> None:
    """Keep, forget or average what the optimizer remembers; before the commit, which ends weights.

    A learner that was dry all along has moments of zero and weight 0: it takes part, so that all
    issue the same collectives.
    """
    if policy == "reset":
        me.optimizer.forget_(state.optimizer)
    elif policy == "average":
        moments = me.optimizer.moments(state.params, state.optimizer)
        means = [(await me.allreduce(moment)).value for moment in moments]
        me.optimizer.remember_(state.optimizer, means)


# ---------------------------------------------------------------------------- block momentum


@dataclass
class BlockState(State):
    """The point all started the block from, and the filter's memory."""

    start: Flat  # W_g(t-1)
    delta: Flat  # Delta(t-1)
    momentum: float = 0.0  # eta of the last block, to tell W from W_g
    frames: float = 0.0  # learnt by all so far


@dataclass(frozen=True)
class BlockFilter(Averaging[BlockState]):
    """An outer rule with momentum: SGD on the step that a block made, as if it were a gradient."""

    def filter_of(self, num_learners: int) -> tuple[float, float, bool]:
        """Return eta, zeta and whether the momentum is Nesterov's."""
        raise NotImplementedError

    def init(self, params: Flat, optimizer: Optimizer) -> BlockState:
        """Start everywhere from the same point, the filter at rest."""
        return BlockState(params, optimizer.init(params), params.clone(), torch.zeros_like(params))

    def model(self, state: BlockState) -> Flat:
        """W(t): with Nesterov's momentum learners start a step ahead of it."""
        ahead = state.momentum and self.filter_of(1)[2]
        return state.params - state.momentum * state.delta if ahead else state.params

    def adopt(self, old: Sequence[BlockState], model: Flat, rank: int) -> BlockState:
        """Start from the filter's point: it is the same on all old learners."""
        before = old[rank % len(old)]
        return replace(before, params=before.start.clone())

    def outer_(self, me: Learner, state: BlockState, mean: Mean) -> None:
        """Filter the block's step; a block in which nobody learnt anything moves nothing."""
        state.frames += mean.weight
        if mean.weight:
            eta, zeta, nesterov = self.filter_of(len(me.alive))
            filter_block_(state, mean.value, eta, zeta, nesterov=nesterov)
        state.params.copy_(state.start)


def filter_block_(
    state: BlockState, mean: Flat, eta: float, zeta: float, *, nesterov: bool
) -> None:
    """Change the filter's memory and the point to start from (equations 1 to 3 of `bmuf`)."""
    g = mean - state.start  # eq. 1
    state.delta.mul_(eta).add_(g, alpha=zeta)  # eq. 2
    state.momentum = eta
    if eta == 0.0 and zeta == 1.0:
        state.start.copy_(mean)  # the average itself, without the rounding of eq. 3
    elif nesterov:
        state.start.add_(g, alpha=zeta).add_(state.delta, alpha=eta)  # eq. 3b
    else:
        state.start.add_(state.delta)  # eq. 3a
