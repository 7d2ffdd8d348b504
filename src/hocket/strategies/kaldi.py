"""Kaldi's parallel training: every learner an archive, then the average of the good ones.

Iteration t, from the model w~ on n(t) of the P learners, f(t) = share of all data processed:

    n(t) = round sqrt(s^2 + (e^2 - s^2) f(t))             learners at work                (1)
    w_j = w~, then SGD on an archive of K minibatches, at n(t) times the effective rate    (2)
    l_j = loss per frame of learner j over its archive;   l* = min_j l_j
    w~ <- mean of w_j over {j: l_j - l* <= margin},       weighted by frames              (3)
    w~ <- w_j* with l_j* = l*,                            in the first iteration          (4)

and at the end, over the models w~(T), w~(T-1), ... of the last iterations,

    w~ <- mean of the last m of them,   m = the one with the lowest loss on a fixed set    (5)

Reference: D. Povey, X. Zhang, S. Khudanpur, "Parallel training of DNNs with natural gradient and
parameter averaging", arXiv:1410.7455; constants from Kaldi's nnet3 scripts.

| symbol | here               | Kaldi's default                                             |
|--------|--------------------|-------------------------------------------------------------|
| K      | `sync_every`       | an archive: 400,000 frames, 781 minibatches of 512          |
| s, e   | `initial_learners`, `final_learners` | 1 and 8; here e is all there are          |
| margin | `drop_worse_by`    | 1.0 (nats a frame); 0: nobody is dropped                    |
| -      | `best_first`       | eq. 4: true; while a model changes fast, averages are worse |
| -      | `first_parts`      | 2: minibatches, and steps, are halved in the first iteration|
| -      | `first_max_change` | 1/sqrt(2) of the limits on a step there, if there are any   |
| -      | `effective_lr`     | `optimizer.lr` is the effective rate, eq. 2                 |
| T - m  | `combine_models`   | at most 20 models, and at most half of the iterations       |
| -      | `combine_items`    | minibatches of training data that eq. 5 looks at            |

(1) is Kaldi's linear ramp over iterations as a function of the data processed: a ramp
n(x) = s + (e - s) x has used up the share f = (s x + (e - s) x^2 / 2) / ((s + e) / 2) of the data;
solved for n that is (1). It needs no number of iterations known in advance.

Kaldi's gradients are sums over the frames of a minibatch, so that half a minibatch makes half a
step; here they are means, and a part of 1/2 makes a step at half the rate.

The effective rate decays exponentially with the data processed: `schedule.name = "exponential"`.
The natural gradient is the optimizer's: `optimizer.name = "ngsgd"`. recipes/kaldi has them all.

Differences from Kaldi: the average is weighted by frames, which matters only for the short archive
at the end of an epoch. The estimate of the Fisher matrix stays with a learner over iterations,
where Kaldi's jobs start again; momentum does start again (`local_momentum`). The rate of the last
iteration is that of its beginning, not quite the final one. Kaldi combines the models of the last
half epoch or so, thinned out to 20; (5) looks at the last 20 as they are. Layers are not added
while training goes on. As in Kaldi, the data of a dropped learner count as processed. A learner
whose loss is not finite is left out, too; the run ends if all are.
Limits: an iteration waits for the slowest learner; learners that are not yet at work stand idle; a
schedule that ends the run by itself (newbob) ends it without eq. 5; every learner, and its
checkpoint, holds up to `combine_models` copies of the model.

When to use it: to repeat a training of Kaldi's nnet3 scripts, or with the natural gradient
(`ngsgd`) and very rare averages: once per archive.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch

from hocket.core.accounts import Ticket
from hocket.core.effects import Progress
from hocket.core.flat import Flat
from hocket.core.learner import Learner
from hocket.core.optimizer import Optimizer
from hocket.core.strategy import Coded, Extent, State
from hocket.errors import DivergedError, require
from hocket.strategies.periodic import Averaging, LocalMomentum, meet_moments

MAX_CHANGE_FIRST = 0.5**0.5  # nnet3's, beside the halved minibatch
FIRST_SHARE = 0.1  # of the data in the first iteration: above it, a remark


@dataclass
class KaldiState(State):
    """The common models of the last iterations, oldest first, and how many there were."""

    models: list[Flat] = field(default_factory=list)
    iterations: int = 0


@dataclass(frozen=True)
class Archive:
    """What every learner made of its archive; the same table on all of them."""

    losses: tuple[float, ...]  # per frame, by rank
    frames: tuple[float, ...]  # 0: not at work, or lost

    def kept(self, margin: float, *, best_only: bool) -> tuple[int, ...]:
        """Return the learners whose models count, eqs. 3 and 4."""
        able = [r for r, loss in enumerate(self.losses) if self.frames[r] and math.isfinite(loss)]
        if not able:
            return ()
        best = min(able, key=lambda r: (self.losses[r], r))
        if best_only:
            return (best,)
        good = [r for r in able if not margin or self.losses[r] - self.losses[best] <= margin]
        return tuple(good)


@dataclass(frozen=True)
class Kaldi(Averaging[KaldiState]):
    """Archives, averages without the bad ones, a ramp of learners, a final combination."""

    sync_every: int = 781  # K: minibatches of an archive
    initial_learners: int = 1  # s: learners at work at the beginning
    final_learners: int | None = None  # e: learners at work at the end. None: all
    drop_worse_by: float = 1.0  # leave out learners worse by so many nats a frame. 0: none
    best_first: bool = True  # the first iteration keeps the best learner's model (eq. 4)
    first_parts: int = 2  # divides minibatches and steps in the first iteration
    first_max_change: float | None = None  # limits on a step, first iteration. None: 1/sqrt(2)
    effective_lr: bool = True  # each of n learners at work uses n times optimizer.lr (eq. 2)
    combine_models: int = 20  # combine at most so many of the last models (eq. 5). 0: none
    combine_items: int = 20  # minibatches of training data that eq. 5 looks at

    name: ClassVar[str] = "kaldi"
    paper: ClassVar[str] = "Povey, Zhang and Khudanpur, 2014 (arXiv:1410.7455)"
    summary: ClassVar[str] = (
        "an archive for each learner, then the average of the good ones; more learners with time"
    )
    codes: ClassVar[Coded | None] = None
    uncoded_because: ClassVar[str] = (
        "learners whose job diverged are left out of the average after it was sent, and what they "
        "kept would be lost; use kstep or bmuf."
    )
    compensates: ClassVar[bool] = False  # eq. 2 does it
    drops_diverged: ClassVar[bool] = True  # eq. 3 does
    usual_momentum: ClassVar[LocalMomentum] = "reset"

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("initial_learners", "first_parts", "combine_items"):
            value = getattr(self, key)
            require(value >= 1, f"strategy.{key} must be at least 1, not {value}")
        last = self.final_learners
        require(
            last is None or last >= self.initial_learners,
            f"strategy.final_learners must be at least initial_learners, not {last}",
        )
        for key in ("drop_worse_by", "combine_models"):
            value = getattr(self, key)
            require(value >= 0, f"strategy.{key} must be at least 0, not {value}")
        require(
            self.first_max_change is None or self.first_max_change > 0,
            f"strategy.first_max_change must be above 0, not {self.first_max_change}",
        )

    def check_optimizer(self, optimizer: Optimizer) -> None:
        """Refuse a change of limits where there are none."""
        super().check_optimizer(optimizer)
        require(
            self.first_max_change is None or optimizer.limits_change,
            f"strategy.first_max_change has no effect: optimizer {optimizer.name!r} does not "
            "limit its steps; use ngsgd, or leave it out",
        )

    def check_world(self, num_learners: int) -> None:
        """Refuse a ramp to more learners than there are."""
        super().check_world(num_learners)
        wanted = max(self.initial_learners, self.final_learners or 1)
        require(
            wanted <= num_learners,
            f"strategy.{'final' if self.final_learners else 'initial'}_learners is {wanted}, but "
            f"there are {num_learners}: give --learners {wanted}",
        )

    def rate_rule(self) -> str:
        """The rate is the effective one."""
        return "effective: each of n learners at work uses n times it" if self.effective_lr else ""

    def remarks(self, extent: Extent) -> list[str]:
        """Say how much of the training is over after the first archives."""
        first = min(self.initial_learners, extent.num_learners)
        share = min(1.0, first * self.sync_every / extent.num_items)
        if share < FIRST_SHARE:
            return []
        return [
            f"kaldi: the first iteration takes {share:.0%} of the data and "
            f"{extent.share_of_rate(share):.0%} of the rate's integral, before any average: set "
            f"strategy.sync_every to {max(1, int(FIRST_SHARE * extent.num_items / first))} or less "
            "for this much data"
        ]

    @property
    def needs_scores(self) -> bool:
        """The final combination is chosen by loss."""
        return self.combine_models > 1

    def at_work(self, progress: Progress, num_learners: int) -> int:
        """n(t), eq. 1."""
        last = min(self.final_learners or num_learners, num_learners)
        first = min(self.initial_learners, last)
        done = progress.frames / progress.total_frames
        return round(math.sqrt(first**2 + (last**2 - first**2) * min(1.0, done)))

    def init(self, params: Flat, optimizer: Optimizer) -> KaldiState:
        """Nothing to combine yet."""
        return KaldiState(params, optimizer.init(params))

    async def run(self, me: Learner, state: KaldiState) -> KaldiState:
        """Archive, average, keep, commit; combine after the last."""
        while (verdict := await me.boundary(state)).go_on:
            first = verdict.progress.frames == 0
            working = self.at_work(verdict.progress, len(me.alive))
            await me.deal(working)
            archive = await share(me, *await self.local_steps(me, state, working, first=first))
            kept = self.kept(me, archive, best_only=first and self.best_first)
            mine = archive.frames[me.rank] if me.rank in kept else 0.0
            await me.allreduce_(state.params, weight=mine)  # eqs. 3, 4
            await meet_moments(me, state, self.local_momentum or self.usual_momentum)
            self.remember_(state)
            await me.commit()
            if verdict.progress.frames + sum(archive.frames) >= verdict.progress.total_frames:
                await self.combine(me, state)
        return state

    async def local_steps(
        self, me: Learner, state: State, working: int, *, first: bool
    ) -> tuple[float, int]:
        """Train on an archive (eq. 2); return the loss summed over its frames, and their number."""
        parts = self.first_parts if first else 1
        scale = (working if self.effective_lr else 1) / parts  # the rate of a frame stays
        tighter = MAX_CHANGE_FIRST if self.first_max_change is None else self.first_max_change
        rule = me.optimizer.tightened(tighter) if first else None
        loss_sum, frames = 0.0, 0
        for _ in range(self.sync_every):
            ticket: Ticket | None = None
            for i in range(parts):
                grad = await me.gradient_of_part(state.params, (i, parts), ticket)
                ticket = grad.tickets[0] if grad.tickets else None
                loss_sum, frames = loss_sum + grad.loss_sum, frames + grad.frames
                me.step_(state.params, grad, state.optimizer, scale, rule)
        return loss_sum, frames

    def kept(self, me: Learner, archive: Archive, *, best_only: bool) -> tuple[int, ...]:
        """Return whose models count; how many do not, is logged."""
        kept = archive.kept(self.drop_worse_by, best_only=best_only)
        if not kept and any(archive.frames):
            raise DivergedError(
                f"rank {me.rank}: no learner's loss over its archive is finite: there is no model "
                f"to go on with. The effective rate is {me.lr:.4g}: lower optimizer.lr, or "
                "look for bad values in the data; checkpoints written so far are kept."
            )
        if not best_only:
            me.measure("dropped", float(sum(map(bool, archive.frames)) - len(kept)))
        return kept

    def remember_(self, state: KaldiState) -> None:
        """Keep the models that may be combined."""
        state.iterations += 1
        if self.combine_models > 1:
            state.models = [*state.models, state.params.clone()][-self.combine_models :]

    async def combine(self, me: Learner, state: KaldiState) -> None:
        """Choose how many of the last models to average, eq. 5."""
        candidates = state.models[-max(1, state.iterations // 2) :]
        if self.combine_models <= 1 or len(candidates) < 2:
            return
        best_loss = math.inf
        for mean in means_from_the_end(candidates):
            loss = (await me.evaluate(mean, "train", self.combine_items)).loss
            if loss < best_loss:
                best_loss = loss
                state.params.copy_(mean)


async def share(me: Learner, loss_sum: float, frames: int) -> Archive:
    """Let everybody know everybody's loss, in one small collective."""
    table = torch.zeros(2, me.size)
    table[:, me.rank] = torch.tensor([loss_sum / max(frames, 1), float(frames)])
    mean = await me.allreduce(table.view(-1), weight=1.0)
    losses, counts = (mean.value * mean.contributors).view(2, me.size).tolist()
    return Archive(tuple(losses), tuple(round(n) for n in counts))


def means_from_the_end(models: Sequence[Flat]) -> list[Flat]:
    """Return the newest model, the mean of the two newest, of the three newest, ..."""
    means, total = [], torch.zeros_like(models[0])
    for count, model in enumerate(reversed(models), 1):
        total = total + model
        means.append(total / count)
    return means
