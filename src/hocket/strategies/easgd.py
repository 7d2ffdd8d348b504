"""EASGD: learners explore around a centre, held to it by elastic forces.

    synchronous, all at once, old values on the right:
        x_i <- x_i - gamma g_i(x_i) - alpha (x_i - c)                                    (1)
        c   <- (1 - beta) c + beta mean_i x_i,    beta = P alpha                         (2)
    asynchronous, learner i by itself:
        e = alpha (x_i - c);   x_i <- x_i - gamma g_i(x_i) - e;   c <- c + e              (3)
    between two exchanges, and always with EAMSGD's momentum delta:
        v <- delta v - gamma g_i(x_i + delta v);   x_i <- x_i + v                        (4)

Reference: S. Zhang, A. Choromanska, Y. LeCun, "Deep learning with elastic averaging SGD", NIPS 2015
(arXiv:1412.6651).

| symbol | here             |                                                            |
|--------|------------------|------------------------------------------------------------|
| c      | `state.centre`   | the centre variable: evaluated and saved                   |
| x_i    | `state.params`   | this learner's model                                       |
| alpha  | `moving_rate`    | gamma rho; default 0.9 / P                                 |
| beta   | P `moving_rate`  | how far the centre goes to the mean; default 0.9           |
| tau    | `sync_every`     | steps between two exchanges; the last of them is elastic   |
| delta  | `momentum`       | above 0: EAMSGD, Nesterov's momentum                       |

The forces of one exchange add up to zero: sum_i x_i + c changes by gradients only. So in the steady
state all P + 1 of them move alike, P (gamma g) / (P + 1) a step: the gain is 1 / (P + 1). EAMSGD's
momentum multiplies it by 1 / (1 - delta), as the optimizer it is compared with has none.

Stability: without gradients d = mean_i x_i - c becomes (1 - alpha - beta) d, so alpha + P alpha
must stay below 2 (synchronous) and alpha below 1 (asynchronous): refused otherwise. Above P alpha
= 1 the centre overshoots the mean: a warning.

*Synchronous* (`easgd`): every learner keeps the centre; one allreduce of models. *Asynchronous*
(`async-easgd`): a service of the first learner keeps it. A learner sends its model, takes its next
gradient meanwhile, and applies both; an exchange is one atomic event at the centre. If the learner
that keeps the centre is lost, the next one goes on from the centre it saw last.

Differences from the paper: learners draw from one pool. The asynchronous exchange is atomic, where
the paper's learner pulls c and pushes e in two messages. The paper evaluates c, as here.
Limits: a large tau with a large rate lets learners settle in different basins. The velocity of (4)
is the strategy's, so EAMSGD needs SGD without momentum and weight decay as its optimizer.

When to use it: to compare with it, or to let learners explore far from each other. `async-easgd`
suits learners of different speed, since no learner waits. `bmuf` and plain averaging reached a
lower loss in our runs.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final

import torch

from hocket.core.effects import Grad
from hocket.core.flat import Flat
from hocket.core.learner import Learner
from hocket.core.optimizer import Optimizer
from hocket.core.strategy import State, Strategy
from hocket.errors import PeerLostError, require

BETA: Final = 0.9  # alpha = beta / P by default, as in the paper's experiments

NEVER_MEET: Final = (
    "the elastic force is the difference of two models that never meet: both ends would have "
    "to keep a copy of what the other has decoded."
)


@dataclass
class ElasticState(State):
    """This learner's model is `params`."""

    centre: Flat
    velocity: Flat | None = None  # of EAMSGD
    keeper: int = 0  # asynchronous: who keeps the centre
    keeps: bool = False  # asynchronous: others have asked this learner


@dataclass(frozen=True)
class Elastic(Strategy[ElasticState]):
    """What both forms share: settings, the local step, the centre as the model."""

    sync_every: int = 4  # tau: steps between two exchanges
    moving_rate: float | None = None  # alpha: the elastic force. None: 0.9 / P
    momentum: float = 0.0  # delta; above 0: EAMSGD, Nesterov's momentum

    def __post_init__(self) -> None:
        require(
            self.sync_every >= 1, f"strategy.sync_every must be at least 1, not {self.sync_every}"
        )
        require(
            self.moving_rate is None or self.moving_rate > 0,
            f"strategy.moving_rate must be above 0, not {self.moving_rate}",
        )
        require(0 <= self.momentum < 1, f"strategy.momentum must be in [0, 1), not {self.momentum}")

    def check_world(self, num_learners: int) -> None:
        """Refuse forces that make the centre diverge, and warn of one that overshoots."""
        super().check_world(num_learners)
        alpha = self.force(num_learners)
        self.check_force(alpha, num_learners)
        if num_learners * alpha > 1:
            warnings.warn(
                f"strategy.moving_rate = {alpha:g} with {num_learners} learners: P * moving_rate "
                f"= {num_learners * alpha:g} is above 1, so the centre overshoots the mean of the "
                f"learners; {BETA / num_learners:.3g} (the default) does not",
                stacklevel=3,
            )

    def check_force(self, alpha: float, num_learners: int) -> None:
        """Refuse a force that is not stable."""
        raise NotImplementedError

    def check_optimizer(self, optimizer: Optimizer) -> None:
        """EAMSGD has a velocity of its own."""
        plain = optimizer.scales_with_gain and not optimizer.has_moments
        require(
            not self.momentum or (plain and not optimizer.weight_decay),
            f"strategy.momentum = {self.momentum} (EAMSGD) needs an optimizer 'sgd' without "
            "momentum and weight decay: the velocity is the strategy's",
        )

    def gain(self, num_learners: int) -> float:
        """P learners and the centre share what P learners' steps move, 1/(1 - delta) gradients."""
        return 1.0 / ((num_learners + 1) * (1.0 - self.momentum))

    def force(self, num_learners: int) -> float:
        """Return alpha, the share of its distance to the centre that a learner moves."""
        return BETA / num_learners if self.moving_rate is None else self.moving_rate

    def init(self, params: Flat, optimizer: Optimizer) -> ElasticState:
        """Everybody at the centre."""
        velocity = torch.zeros_like(params) if self.momentum else None
        return ElasticState(params, optimizer.init(params), params.clone(), velocity)

    def model(self, state: ElasticState) -> Flat:
        """Return the centre, the model that all learners are held to."""
        return state.centre

    def adopt(self, old: Sequence[ElasticState], model: Flat, rank: int) -> ElasticState:
        """Everybody starts from the centre."""
        before = old[rank % len(old)]
        return replace(before, params=model.clone(), centre=model.clone(), keeper=0, keeps=False)

    async def gradient(self, me: Learner, state: ElasticState) -> Grad:
        """Take a gradient where the method wants it: ahead by the velocity with EAMSGD."""
        if state.velocity is None:
            return await me.gradient(state.params)
        return await me.gradient(torch.add(state.params, state.velocity, alpha=self.momentum))

    def step_(self, me: Learner, state: ElasticState, grad: Grad) -> None:
        """Step with a gradient; a dry one moves nothing."""
        if state.velocity is None:
            me.step_(state.params, grad, state.optimizer)
        elif grad.frames:
            state.velocity.mul_(self.momentum)
            me.step_(state.velocity, grad, state.optimizer)  # eq. 4: v <- delta v - gamma g
            state.params.add_(state.velocity)

    async def local_steps(self, me: Learner, state: ElasticState) -> None:
        """Take the steps between two exchanges."""
        for _ in range(self.sync_every - 1):
            self.step_(me, state, await self.gradient(me, state))


@dataclass(frozen=True)
class EASGD(Elastic):
    """Elastic averaging, all learners at once."""

    name: ClassVar[str] = "easgd"
    paper: ClassVar[str] = "Zhang, Choromanska, LeCun, NIPS 2015 (arXiv:1412.6651)"
    summary: ClassVar[str] = "learners held to a centre by elastic forces, all at once"
    uncoded_because: ClassVar[str] = NEVER_MEET
    commits_when: ClassVar[str] = "the elastic step is applied"
    synchronous: ClassVar[bool] = True

    def check_force(self, alpha: float, num_learners: int) -> None:
        """Refuse |1 - alpha - beta| >= 1."""
        total = alpha * (1 + num_learners)
        require(
            total < 2,
            f"strategy.moving_rate = {alpha:g} with {num_learners} learners makes the centre run "
            f"away: alpha + P alpha = {total:g} must stay below 2; leave it out for "
            f"{BETA / num_learners:.3g}",
        )

    async def run(self, me: Learner, state: ElasticState) -> ElasticState:
        """Walk, then one elastic step of all."""
        while (await me.boundary(state)).go_on:
            await self.local_steps(me, state)
            grad = await self.gradient(
                me, state
            )  # before the mean, which vouches for all (rule 10)
            mean = await me.allreduce(state.params, weight=1.0)
            alpha = self.force(len(me.alive))
            pull = pull_of(state.params, state.centre, alpha)
            self.step_(me, state, grad)
            state.params.sub_(pull)  # eq. 1
            state.centre.lerp_(mean.value, mean.contributors * alpha)  # eq. 2
            await me.commit()
        return state


@dataclass(frozen=True)
class AsyncEASGD(Elastic):
    """Elastic averaging, each learner by itself."""

    name: ClassVar[str] = "async-easgd"
    paper: ClassVar[str] = "Zhang, Choromanska, LeCun, NIPS 2015 (arXiv:1412.6651)"
    summary: ClassVar[str] = "learners held to a centre by elastic forces, nobody waits"
    uncoded_because: ClassVar[str] = NEVER_MEET
    commits_when: ClassVar[str] = "the elastic step is applied"
    synchronous: ClassVar[bool] = False
    evaluates: ClassVar = "root"

    def check_force(self, alpha: float, num_learners: int) -> None:
        """Refuse a force with which a learner would overshoot the centre."""
        require(
            alpha < 1,
            f"strategy.moving_rate = {alpha:g} must be below 1: a learner would overshoot the "
            f"centre; leave it out for {BETA / num_learners:.3g}",
        )

    async def serve(self, me: Learner, state: ElasticState) -> None:
        """Keep the centre: answer with it as it was, then let it be pulled (eq. 3)."""
        while True:
            asked = await me.recv("elastic")
            state.keeps = True
            before = state.centre.clone()
            state.centre.add_(pull_of(asked.payload, before, self.force(len(me.alive))))
            await me.send(asked.source, "centre", before)

    async def run(self, me: Learner, state: ElasticState) -> ElasticState:
        """Walk, send the model off, take the gradient meanwhile, apply both."""
        await me.start(self.serve(me, state))
        while (await me.boundary(state)).go_on:
            await self.local_steps(me, state)
            await me.send(state.keeper, "elastic", state.params.clone())
            grad = await self.gradient(me, state)
            centre = await self.answer(me, state)
            pull = pull_of(state.params, centre, self.force(len(me.alive)))
            self.step_(me, state, grad)
            state.params.sub_(pull)  # eq. 3
            if not state.keeps:
                state.centre.copy_(centre.add_(pull))  # as I know it, in case the keeper is lost
            await me.commit()
        return state

    async def answer(self, me: Learner, state: ElasticState) -> Flat:
        """Wait for the centre; if its keeper is lost, turn to the next learner."""
        while True:
            try:
                found: Flat = (await me.recv("centre", source=state.keeper)).payload
            except PeerLostError:
                state.keeper = (state.keeper + 1) % me.size
                await me.send(state.keeper, "elastic", state.params.clone())
            else:
                return found


def pull_of(model: Flat, centre: Flat, alpha: float) -> Flat:
    """Return e = alpha (x - c)."""
    return (model - centre).mul_(alpha)
