"""Adaptive K-AVG: the number of local steps, and the rate, follow the held-out loss.

Reference: G. Cong, B. Kingsbury, S. Gosh, G. Saon, F. Zhou, "Accelerating deep neural network
learning for speech recognition on a cluster of GPUs", MLHPC 2017. It reports that *adaptive
measures* let K-AVG scale to 20 GPUs, with better accuracy than sequential SGD. Which measures these
were is not known to us. The candidates here are those that the theory of K-AVG (`kstep`) suggests:
the bound on the gradient falls with K far from the optimum and rises with it near by. Each can be
switched, and `hocket reproduce adaptive-k` tries them one by one; docs/strategies/adaptive-kstep.md
says what helped.

1. `shrink_sync`: begin with a large K; halve it, down to `min_sync_every`, when the dev loss
   stalls, that is, improves by less than the share `stall` from one evaluation to the next.
2. `shrink_rate`: at a stall, multiply the local rate by `rate_factor`.
3. `accept`: look at the held-out loss of every average before it is taken. One that is worse than
   the last accepted by more than the share `tolerance` is rejected: its items are discarded
   (counted, not drawn again), everybody goes back to the last accepted model with no momentum, and
   K is halved. At `min_sync_every` every average is accepted, so a run cannot stand still.

A larger rate for more learners is `schedule.lr_compensation` (full or sqrt), as everywhere; the
momentum policy is `local_momentum`.

| here                | default |                                                            |
|---------------------|---------|------------------------------------------------------------|
| `sync_every`        | 32      | K at the beginning                                         |
| `min_sync_every`    | 1       | the smallest K                                             |
| `state.k`           |         | K now                                                      |

Differences from the paper: unknown, see above. `accept` uses the dev set, so dev loss is no longer
held out in the strict sense: keep a test set for claims.
Limits: stalls are seen at evaluations only, so `stall` (5 %) belongs together with the interval
between them (`runtime.evaluate_every`): a quarter of an epoch in our experiments. `accept` costs an
evaluation per average, which counts as training time. There is no held-out data under
`hocket.attach`.

When to use it: when K-AVG saves traffic but ends at too high a loss, and you do not know the right
K. In our runs a smaller fixed K (`kstep`) was the cheaper way to a lower loss; this one is for
studying the adaptive measures.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from hocket.core.effects import Mean, Scores
from hocket.core.flat import Flat
from hocket.core.learner import Learner
from hocket.core.optimizer import Optimizer
from hocket.core.strategy import Coded, State
from hocket.errors import require
from hocket.strategies.periodic import Averaging, local_steps, meet_moments


@dataclass
class AdaptiveState(State):
    """What the adaptation remembers."""

    accepted: Flat  # the model all started from
    k: int
    scale: float = 1.0  # on the local rate
    last: float = math.inf  # dev loss of the last evaluation
    held_out: float = math.inf  # loss of the last accepted average


@dataclass(frozen=True)
class AdaptiveKStep(Averaging[AdaptiveState]):
    """K-AVG with K and a rate that follow the held-out loss."""

    sync_every: int = 32  # K at the beginning
    min_sync_every: int = 1  # the smallest K
    shrink_sync: bool = True  # halve K when the dev loss stalls
    shrink_rate: bool = False  # multiply the local rate by `rate_factor` at a stall
    rate_factor: float = 0.5  # what `shrink_rate` multiplies the rate by
    accept: bool = False  # score every average before it is taken; reject a worse one
    stall: float = 0.05  # a stall: the dev loss improves by less than this share per evaluation
    tolerance: float = 0.02  # `accept`: an average may be worse by this share

    name: ClassVar[str] = "adaptive-kstep"
    paper: ClassVar[str] = "Cong et al., MLHPC 2017 (the rules are ours)"
    summary: ClassVar[str] = "K-AVG whose K and rate follow the held-out loss"
    codes: ClassVar[Coded | None] = None
    uncoded_because: ClassVar[str] = (
        "a rejected average would have to take back what learners sent and kept for it; use kstep."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            1 <= self.min_sync_every <= self.sync_every,
            f"strategy.min_sync_every must be from 1 to sync_every = {self.sync_every}, not "
            f"{self.min_sync_every}",
        )
        require(
            self.shrink_sync or self.shrink_rate or self.accept,
            "adaptive-kstep with shrink_sync, shrink_rate and accept all false adapts nothing: use "
            "kstep",
        )
        for key in ("rate_factor", "stall"):
            value = getattr(self, key)
            require(0 < value < 1, f"strategy.{key} must be between 0 and 1, not {value}")
        require(self.tolerance >= 0, f"strategy.tolerance must be at least 0, not {self.tolerance}")

    @property
    def needs_scores(self) -> bool:
        """True: K and the rate follow the held-out loss."""
        return True

    def init(self, params: Flat, optimizer: Optimizer) -> AdaptiveState:
        """Begin with the largest K."""
        return AdaptiveState(params, optimizer.init(params), params.clone(), self.sync_every)

    def adopt(self, old: Sequence[AdaptiveState], model: Flat, rank: int) -> AdaptiveState:
        """Everybody starts from the saved model; what was learnt about K stays."""
        before = old[rank % len(old)]
        return replace(before, params=model.clone(), accepted=model.clone())

    async def run(self, me: Learner, state: AdaptiveState) -> AdaptiveState:
        """Walk, average, look, take it or not."""
        while (verdict := await me.boundary(state)).go_on:
            self.adapt_(state, verdict.scores)
            await local_steps(me, state, state.k, state.scale)
            mean = await me.allreduce(state.params)
            loss = (await me.evaluate(mean.value)).loss if self.accept else state.held_out
            if self.rejects(state, loss):
                self.go_back_(me, state)
                await me.discard()
            else:
                self.take_(state, mean, loss)
                await meet_moments(me, state, self.local_momentum or self.usual_momentum)
                await me.commit()
        return state

    def adapt_(self, state: AdaptiveState, scores: Scores | None) -> None:
        """Shrink what is to shrink when an evaluation shows a stall."""
        if scores is None or scores.loss == state.last:
            return
        stalled = scores.loss > (1.0 - self.stall) * state.last
        state.last = scores.loss
        if stalled and self.shrink_sync:
            self._halve_(state)
        if stalled and self.shrink_rate:
            state.scale *= self.rate_factor

    def _halve_(self, state: AdaptiveState) -> None:
        state.k = max(self.min_sync_every, state.k // 2)

    def rejects(self, state: AdaptiveState, loss: float) -> bool:
        """Return whether an average is so much worse that it is better forgotten."""
        if not self.accept or state.k == self.min_sync_every:
            return False
        return not loss <= (1.0 + self.tolerance) * state.held_out  # NaN is worse, too

    def go_back_(self, me: Learner, state: AdaptiveState) -> None:
        """Forget a block."""
        state.params.copy_(state.accepted)
        me.optimizer.forget_(state.optimizer)
        self._halve_(state)

    def take_(self, state: AdaptiveState, mean: Mean, loss: float) -> None:
        """Go on from an average."""
        state.params.copy_(mean.value)
        state.accepted.copy_(mean.value)
        state.held_out = loss
