"""Hessian-free optimisation: few, large steps, each by conjugate gradients on all the data.

Iteration t, from the model w, with g over all data of the epoch, L on a fixed slice of them, and
the Gauss-Newton matrix G over a small sample that is drawn anew in every iteration:

    g = sum_j n_j grad_j(w) / sum_j n_j                        one allreduce                (1)
    q(d) = g'd + 1/2 d'(G + lambda I)d                                                      (2)
    d_1, d_2, ..., d_N: conjugate gradients on q from d_0, kept at the steps 1.3^k          (3)
    stop once q(d_i) < 0 and (q(d_i) - q(d_{i-k})) / q(d_i) < 5e-4 k,  k = max(10, i/10)    (4)
    d = the first, from d_N backwards, below L(w), and after which L(w + d_i) gets worse    (5)
    if L(w + d) >= L(w): lambda <- 3/2 lambda, d_0 <- 0, and again from (3)                 (6)
    rho = (L(w + d_N) - L(w)) / q(d_N):   of the last iterate, not of d                     (7)
    lambda <- 3/2 lambda if rho < 1/4,  2/3 lambda if rho > 3/4                             (8)
    w <- w + a d,  a = 1, 0.8, 0.64, ... until L(w + a d) <= L(w) + 0.01 a g'd              (9)
    d_0 <- beta d_N                                                                        (10)

Reference: J. Martens, "Deep learning via Hessian-free optimization", ICML 2010; B. Kingsbury, T.
Sainath, H. Soltau, "Scalable minimum Bayes risk training of deep neural network acoustic models
using distributed Hessian-free optimization", Interspeech 2012; T. Sainath et al., "Accelerating
Hessian-free optimization for deep neural networks by implicit preconditioning and sampling", ASRU
2013; I. Chung et al., "Parallel deep neural network training for big data on Blue Gene/Q", SC 2014.

| symbol | here             |                                                          |
|--------|------------------|----------------------------------------------------------|
| g      | `sample`         | over this share of an epoch; `sample_growth` enlarges it |
| G      | `curvature`      | over this share of an epoch, the first of g's items      |
| N      | `cg_iterations`  | at most; (4) usually ends a run before                   |
| lambda | `damping`        | at the start                                             |
| beta   | `start_decay`    | 0: every run starts from zero                            |
| L      | `held_out_items` | the mean loss over so many minibatches of training data  |

Every learner holds the same vectors and makes the same steps; only gradients, products and L are
shared out, with one allreduce for each product. Items are dealt so that all learners have as many
frames (`balance`), because each product waits for the slowest.

Preconditioners (`preconditioner`): diagonal is Martens' (mean squared gradient + lambda)^0.75;
lbfgs is Sainath's, from pairs of the run before, with flexible conjugate gradients.

Differences from the papers: there is no master: everybody runs (3). The slice of L is part of the
data of g, too; it is never the dev set. Squared gradients are of minibatches, not of frames: the
squared sum over a minibatch, divided by its frames, estimates the same where gradients of frames
are independent. Pairs keep G s, so they follow lambda. (6) uses the same g and G again, 3 times at
most; then the model stays. G's sample does not grow. Frames are drawn in minibatches, as the task
has them.
Limits: up to log(N)/log(1.3) iterates are held at once, 20 models for N = 200. G is as convex as
the loss is in the model's outputs; the loss must call the model once. A learner lost during (3)
takes its part of G's sample with it: the run goes on with the rest, and g keeps what it gave.
Dropout acts on g, not on G or L.

When to use it: on large clusters with few communications, where minibatch SGD has no more
parallelism to offer, or for criteria that need large batches (sequence training). For cross-entropy
on one machine SGD reaches the same loss in a fraction of the passes over the data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal, TypeAlias

import torch

from hocket.core.accounts import Ticket
from hocket.core.effects import Block, Progress
from hocket.core.flat import Flat
from hocket.core.learner import Learner
from hocket.core.optimizer import Optimizer
from hocket.core.strategy import Extent, State, Strategy
from hocket.errors import require
from hocket.strategies.conjugate_gradients import (
    ConjugateGradients,
    Iterate,
    Precondition,
    adjusted,
    diagonal,
    dot,
    identity,
    lbfgs,
    raised,
)

Balance: TypeAlias = Literal["frames", "speed", "none"]
Preconditioner: TypeAlias = Literal["none", "diagonal", "lbfgs"]

ARMIJO: Final = 0.01  # Kingsbury's c, eq. 9
SHORTEN: Final = 0.8  # of the step, eq. 9
MOST_SHORTENED: Final = 30  # a step of 0.001 is none
MOST_TRIES: Final = 3  # of eq. 6: lambda has grown by 3.4 then
USUAL_PAIRS: Final = 8
SCORING_COST: Final = 1 / 3  # of a gradient: forward alone
CG_PASSES: Final = 6  # over a vector in a step: three updates, three inner products


@dataclass
class HessianFreeState(State):
    """Where the next run starts, the damping, pairs of the last run, and what all has cost."""

    start: Flat
    damping: float
    iterations: int = 0
    products: int = 0
    work: float = 0.0  # of all learners: frames that gradients could have been taken on instead
    steps: list[Flat] = field(default_factory=list)
    bends: list[Flat] = field(default_factory=list)


@dataclass
class Evidence:
    """What a pass over the data gave: the same on all learners, but for the tickets."""

    total: torch.Tensor  # of gradients, times their frames; float64
    squares: torch.Tensor | None  # the same of their squares, for the diagonal
    frames: float = 0.0
    tickets: list[Ticket] = field(default_factory=list)  # of the curvature sample: my own

    @property
    def gradient(self) -> Flat:
        """The mean, g of eq. 1."""
        return (self.total / max(self.frames, 1.0)).float()


@dataclass(frozen=True)
class HessianFree(Strategy[HessianFreeState]):
    """Truncated Newton steps; conjugate gradients run alike on every learner."""

    sample: float = 1.0  # share of an epoch that the first gradient is taken on
    sample_growth: float = 1.0  # factor on it from iteration to iteration, up to a whole epoch
    curvature: float = 0.05  # share of an epoch that curvature is taken on, anew every iteration
    cg_iterations: int = 100  # conjugate gradient steps in an iteration, at most
    damping: float = 0.1  # lambda, at the start. 0: never any
    start_decay: float = 0.95  # beta: how much of the last run's end the next one starts from
    preconditioner: Preconditioner = "none"  # none, diagonal (Martens), lbfgs (Sainath)
    pairs: int | None = None  # vectors that lbfgs keeps of a run. None: 8
    held_out_items: int = 20  # minibatches of training data by whose loss steps are chosen
    balance: Balance = "frames"  # deal items by frames, by measured speed, or none: in turn

    name: ClassVar[str] = "hessian-free"
    paper: ClassVar[str] = "Martens, ICML 2010; Kingsbury et al., Interspeech 2012"
    summary: ClassVar[str] = "few large steps: conjugate gradients on curvature, over all data"
    uncoded_because: ClassVar[str] = (
        "conjugate gradients need exact products: what a codec leaves out ruins the directions"
    )
    commits_when: ClassVar[str] = "the mean gradient over all learners is complete"
    synchronous: ClassVar[bool] = True
    takes_products: ClassVar[bool] = True
    compensates: ClassVar[bool] = False
    uses_rate: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for key in ("sample", "curvature"):
            value = getattr(self, key)
            require(0 < value <= 1, f"strategy.{key} must be above 0 and at most 1, not {value}")
        growth = self.sample_growth
        require(growth >= 1, f"strategy.sample_growth must be at least 1, not {growth}")
        require(
            growth == 1 or self.sample < 1,
            "strategy.sample_growth has no effect: the first gradient is over the whole epoch "
            "already; set strategy.sample below 1, or leave it out",
        )
        for key in ("cg_iterations", "held_out_items"):
            value = getattr(self, key)
            require(value >= 1, f"strategy.{key} must be at least 1, not {value}")
        require(self.damping >= 0, f"strategy.damping must be at least 0, not {self.damping}")
        decay = self.start_decay
        require(0 <= decay <= 1, f"strategy.start_decay must be in [0, 1], not {decay}")
        require(
            self.pairs is None or self.preconditioner == "lbfgs",
            "strategy.pairs has no effect: it is for strategy.preconditioner = 'lbfgs'",
        )
        require(
            self.pairs is None or self.pairs >= 1,
            f"strategy.pairs must be at least 1, not {self.pairs}",
        )

    def gain(self, num_learners: int) -> float:
        """It has no rate, so nothing follows from it: P learners make the step of one."""
        return 1.0

    @property
    def needs_scores(self) -> bool:
        """Steps are chosen by loss."""
        return True

    @property
    def evaluate_every(self) -> float:
        """After every iteration: the last one of an epoch may have half a sample only."""
        return self.sample / 2

    def rate_rule(self) -> str:
        """There is none."""
        return "none: the length of a step comes from curvature and damping"

    def remarks(self, extent: Extent) -> list[str]:
        """Say how many learners the curvature sample keeps busy."""
        items = math.ceil(extent.num_items * self.curvature / extent.num_epochs)
        if items >= extent.num_learners:
            return []
        return [
            f"hessian-free: the curvature sample has about {items} minibatches for "
            f"{extent.num_learners} learners, so some stand idle in every product: raise "
            "strategy.curvature, or use fewer learners"
        ]

    def init(self, params: Flat, optimizer: Optimizer) -> HessianFreeState:
        """Start from zero, at the given damping."""
        return HessianFreeState(
            params, optimizer.init(params), torch.zeros_like(params), self.damping
        )

    async def run(self, me: Learner, state: HessianFreeState) -> HessianFreeState:
        """Gradient, conjugate gradients, step."""
        while (verdict := await me.boundary(state)).go_on:
            state.iterations += 1
            evidence = await self.gather(me, state, verdict.progress)
            await self.improve(me, state, evidence)
            me.measure("products", state.products)
            me.measure("passes", state.work / verdict.progress.epoch_frames)
        return state

    # ------------------------------------------------------------------ the pass over the data

    def wanted(self, progress: Progress, iterations: int) -> tuple[int, int]:
        """Return the frames of this iteration's gradient, and those of them that G is taken on."""
        whole = progress.epoch_frames
        left = whole * (progress.epoch + 1) - progress.frames
        share = min(1.0, self.sample * self.sample_growth ** (iterations - 1))
        frames = max(1, round(share * whole))
        if left - frames < frames / 2:  # rather one large sample than a small rest
            frames = left
        return frames, min(frames, max(1, round(self.curvature * whole)))

    async def gather(self, me: Learner, state: HessianFreeState, progress: Progress) -> Evidence:
        """Take the gradient, eq. 1: first on the curvature sample, then on the rest."""
        speeds = await me.speeds() if self.balance == "speed" else None
        squares = torch.zeros_like(state.params).double() if self._diagonal else None
        evidence = Evidence(torch.zeros_like(state.params).double(), squares)
        frames, curved = self.wanted(progress, state.iterations)
        for upto in (curved, frames):
            missing = upto - round(evidence.frames)
            while missing > 0:
                block = await me.deal_block(missing, speeds, balanced=self.balance != "none")
                tickets, reached = await self.take(me, state.params, block, evidence)
                evidence.tickets += tickets if upto == curved else []
                missing = block.frames - reached  # what a lost learner had drawn is dealt again
        state.work += evidence.frames
        return evidence

    @property
    def _diagonal(self) -> bool:
        return self.preconditioner == "diagonal"

    async def take(
        self, me: Learner, params: Flat, block: Block, evidence: Evidence
    ) -> tuple[list[Ticket], int]:
        """Add a block's gradients up; return my tickets, and how many frames came in from all."""
        mine = torch.zeros_like(params)
        squares = torch.zeros_like(mine) if self._diagonal else None
        tickets: list[Ticket] = []
        frames = 0
        for _ in range(block.draws):
            grad = await me.gradient(params)
            if not grad.frames:
                continue
            frames += grad.frames
            tickets += grad.tickets
            mine.add_(grad.vector, alpha=grad.frames)
            if squares is not None:
                summed = grad.vector * grad.frames
                squares.addcmul_(summed, summed)
        mean = await me.allreduce_(mine.div_(max(frames, 1)), weight=frames)
        await me.commit()  # at once: who dies from here on has given its part
        evidence.total.add_(mean.value, alpha=mean.weight)
        evidence.frames += mean.weight
        if squares is not None and evidence.squares is not None:
            second = await me.allreduce_(squares.div_(max(frames, 1)), weight=frames)
            evidence.squares.add_(second.value, alpha=second.weight)
        return tickets, round(mean.weight)

    # ------------------------------------------------------------------ the step

    async def improve(self, me: Learner, state: HessianFreeState, evidence: Evidence) -> None:
        """Make the step of this iteration, eqs. 3 to 10; or none, if nothing is better."""
        before = await self.held_out(me, state, state.params)
        for _ in range(MOST_TRIES):
            run = await self.solve(me, state, evidence)
            iterates = run.iterates()
            state.steps, state.bends = run.pairs.steps, run.pairs.bends
            if iterates and await self.try_out(me, state, run.gradient, iterates, before):
                break
            state.damping = raised(state.damping)  # eq. 6
            state.start.zero_()
            me.measure("rejected", 1.0)

    async def solve(
        self, me: Learner, state: HessianFreeState, evidence: Evidence
    ) -> ConjugateGradients:
        """Run conjugate gradients, eqs. 2 to 4."""
        tickets, flexible = tuple(evidence.tickets), self.preconditioner == "lbfgs"
        run = ConjugateGradients(
            evidence.gradient,
            state.damping,
            self.precondition(state, evidence),
            flexible=flexible,
            most_pairs=(self.pairs or USUAL_PAIRS) if flexible else 0,
        )
        if state.start.any():
            run.start_from(state.start, await product(me, state, state.start, tickets))
        passes = CG_PASSES + 4 * len(state.steps)
        while not run.ended and run.steps < self.cg_iterations:
            run.step_(await product(me, state, run.wanted, tickets))
            await me.spend(passes * state.params.numel())
            me.tell(f"iteration {state.iterations}  CG {run.steps}  damping {state.damping:.3g}")
        me.measure("cg_iterations", run.steps)
        me.measure("damping", state.damping)
        return run

    def precondition(self, state: HessianFreeState, evidence: Evidence) -> Precondition:
        """Return M^-1 of this run."""
        if self.preconditioner == "lbfgs":
            return lbfgs(state.steps, state.bends, state.damping)
        if evidence.squares is not None:
            squares = (evidence.squares / max(evidence.frames, 1.0)).float()
            return diagonal(squares, state.damping)
        return identity

    async def try_out(
        self,
        me: Learner,
        state: HessianFreeState,
        gradient: Flat,
        iterates: list[Iterate],
        before: float,
    ) -> bool:
        """Go back to the best iterate, adjust the damping, step; False: none of them is better."""
        last = iterates[-1]
        at_last = loss = await self.held_out(me, state, state.params + last.direction)
        best = last
        for earlier in reversed(iterates[:-1]):  # eq. 5
            here = await self.held_out(me, state, state.params + earlier.direction)
            if here < loss:
                best, loss = earlier, here
            elif loss < before:  # else go on: one of them may still be better than the model
                break
        if not loss < before:
            return False
        ratio = (at_last - before) / last.value if last.value < 0 else -math.inf  # eq. 7
        state.damping = adjusted(state.damping, ratio)  # eq. 8
        length = await self.line_search(
            lambda a: self.held_out(me, state, state.params.add(best.direction, alpha=a)),
            before,
            loss,
            dot(gradient, best.direction),
        )
        state.params.add_(best.direction, alpha=length)  # eq. 9
        state.start = last.direction * self.start_decay  # eq. 10
        me.measure("ratio", max(ratio, -1e9))
        me.measure("step", length)
        return True

    async def line_search(
        self,
        loss_at: Callable[[float], Coroutine[Any, Any, float]],
        before: float,
        loss: float,
        slope: float,
    ) -> float:
        """Return a of eq. 9; 0 if no step is good enough."""
        length = 1.0
        for _ in range(MOST_SHORTENED):
            if loss <= before + ARMIJO * length * min(slope, 0.0):
                return length
            length *= SHORTEN
            loss = await loss_at(length)
        return 0.0

    async def held_out(self, me: Learner, state: HessianFreeState, params: Flat) -> float:
        """L: the loss on the slice of training data; infinite if it is not a number."""
        while True:
            alive = me.alive
            scores = await me.evaluate(params, "train", self.held_out_items)
            state.work += SCORING_COST * scores.frames
            if me.alive == alive:  # else the slice of a lost learner is missing
                return scores.loss if math.isfinite(scores.loss) else math.inf


async def product(
    me: Learner, state: HessianFreeState, direction: Flat, tickets: tuple[Ticket, ...]
) -> Flat:
    """G times a direction: each learner on its own items, then one mean over all frames."""
    mine = await me.curvature(state.params, direction, tickets)
    mean = await me.allreduce_(mine.vector, weight=mine.frames)
    state.products += 1
    state.work += mine.cost * mean.weight
    return mean.value
