"""Asynchronous SGD: learners push gradients to a pool of servers, which apply what arrives.

    learner m:  g = mean gradient of n minibatches at w_m;  push g;  pull the model into w_m  (1)
    shard s:    tau = clock - stamp;  if tau > max_staleness, drop g; else                   (2)
                w_s <- w_s - lr n damp(tau) (g_s + lambda g_s^2 (w_s - w_bak(m))), clock += 1  (3)

References: J. Dean et al., "Large scale distributed deep networks", NIPS 2012 (Downpour SGD); S.
Zhang, C. Zhang, Z. You, R. Zheng, B. Xu, "Asynchronous stochastic gradient descent for DNN
training", ICASSP 2013; D. Yu and L. Deng, "Automatic speech recognition: a deep learning approach",
Springer 2015, section 7.1.2 (the rules); W. Zhang, S. Gupta, X. Lian, J. Liu, IJCAI 2016
(staleness-aware rates, softsync); S. Zheng et al., ICML 2017 (DC-ASGD).

| symbol        | here                 |                                                           |
|---------------|----------------------|-----------------------------------------------------------|
| w_s           | `state.shard`        | what this rank serves: a part of the model, whole layers  |
| w_m           | `state.params`       | a learner's copy, as it last came in                      |
| n             | `accumulate`         | minibatches in one push; the step is n times a mean's     |
| tau           | `late`               | updates between the pull and the push of a gradient       |
| clock, stamp  | `state.clock`, `state.stamp` | of the first shard, which decides for all         |
| damp          | `damping`            | 1, or 1 / max(tau, 1)                                     |
| lambda        | `delay_compensation` | of DC-ASGD; `adaptive_compensation`: over sqrt(mean g^2)  |
| w_bak(m)      | of `state.sent[m]`   | the shard as it was sent to m, who took its gradient there|

*Servers.* `servers = S` of them are ranks of their own that draw nothing; 0: every learner serves a
shard beside its gradients. One writer per shard: a service takes one push after the other. With
several shards the first decides what becomes of a push and tells the others, who follow in its
order: a minibatch has one fate. A learner may hold shards of different age, as in the literature.

*Overlap.* 0: the learner waits for the new model; alone it is plain SGD, bit for bit. 1: it takes
its next gradient while push and pull are under way; alone it is SGD with a delay of one, or, with
`local_step` (Downpour's own step on its copy), plain SGD.

*Staleness.* P learners that are equally fast see tau = (1 + overlap) P - 1. A threshold below that
discards nearly everything; by default it is four times as much. A dropped gradient is counted as
discarded, and its learner gets the newest model at once.

*Warm start.* The first learner alone, waiting for each reply: plain SGD for `warm_start_frames`, or
for `warm_start_epochs` passes (one in the book). Then the others start, another one every
`ramp_frames`. Stale gradients do most harm at the start.

*Barrier.* Every `barrier_frames` frames all learners meet, and go on from the same model.

*Codecs.* With `[codec]` pushes are coded; what a code does not say stays with the learner and is
part of its next push. A push that is dropped is dropped with its code: what was kept stays. The
model comes back as float32, or with `half_pulls` as float16, while the servers' own stays float32:
rounding does not add up.

*Softsync*: the servers average `softsync` gradients before they make one step: gain 1 / softsync.

The rate: every gradient is applied at the full rate, gain 1. `damping` lowers the rate on purpose
and is not compensated. Clipping is done by the learner, on the whole gradient.

Differences from the papers: gradients travel, not differences of models. Where the book's server
applies gradients by several threads without locks, each shard here has one writer. DC-ASGD keeps
one backup per learner, as its paper does (some implementations keep one for all); with overlap two,
as a gradient is taken at the model before the last reply.
Limits: a server that is lost ends the run (with `servers = 0` any learner is one). Limits on a step
(`ngsgd`) hold for each shard by itself. With `softsync` the last few gradients of a run may be
counted and not applied. A learner that dies after the first shard has got its push
and before another has: that minibatch is applied in part, and counted as `partial`.

When to use it: with few learners (up to 4 or so) of uneven speed on one host or a fast network, and
a rate that is not too high; with a warm start. With many learners stale gradients cost accuracy:
use `adpsgd`, or `bmuf` on a slow network.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch

from hocket.core.accounts import Ticket
from hocket.core.effects import Grad, Verdict
from hocket.core.flat import Flat, Parts
from hocket.core.learner import Learner
from hocket.core.numerics import clip_coefficient
from hocket.core.optimizer import Optimizer
from hocket.core.strategy import Coded, Extent
from hocket.errors import PeerLostError, require
from hocket.strategies.parameter_server import ParameterServers, ServerState


@dataclass
class Push:
    """What a learner hands to the servers."""

    stamp: int  # of the model at which it was taken, not of the one that came in meanwhile
    behind: int  # replies that were under way when it was taken
    shards: list[Flat]  # the mean gradient over `frames`, a part for each server
    count: int = 0  # minibatches in it
    frames: int = 0
    tickets: tuple[Ticket, ...] = ()

    @property
    def head(self) -> tuple[int, int, int, int]:
        """What every server gets beside its part of the gradient."""
        return self.stamp, self.behind, self.count, self.frames


@dataclass
class Servers:
    """The servers as a learner sees them; a resumed run begins with no memory to reuse."""

    parts: list[tuple[int, range]]  # which rank has which range; the first decides
    spares: dict[int, list[Flat]] = field(default_factory=dict)  # replies that have been taken in
    joined: Flat | None = None  # the whole gradient, where its norm is needed

    def memory(self, rank: int, place: range, like: Flat) -> Flat:
        """Return memory for the next push to a server: that of an old reply."""
        spares = self.spares.get(rank)
        return spares.pop() if spares else like.new_empty(len(place))

    def keep(self, rank: int, reply: Flat) -> None:
        """Keep the memory of a reply; two are in use, and a meeting brings more."""
        spares = self.spares.setdefault(rank, [])
        if len(spares) < 2:
            spares.append(reply)


@dataclass(frozen=True)
class ASGD(ParameterServers):
    """Push, apply, pull."""

    overlap: int = 1  # pushes under way while the next gradient is taken: 0 or 1
    local_step: bool = False  # step on the own copy as well while the reply is awaited (Downpour)
    accumulate: int = 1  # minibatches in one push
    warm_start_frames: int = 0  # plain SGD by the first learner alone, until so many frames
    warm_start_epochs: float = 0.0  # the same, in passes over the data
    ramp_frames: int = 0  # after the warm start another learner every so many frames
    barrier_frames: int = 0  # all learners meet every so many frames; 0: never

    name: ClassVar[str] = "asgd"
    paper: ClassVar[str] = "Dean et al., NIPS 2012; Zhang et al., ICASSP 2013; Yu and Deng 2015"
    codes: ClassVar[Coded | None] = "pushes"
    summary: ClassVar[str] = "learners push gradients to a pool of servers and pull the model"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.overlap in (0, 1), f"strategy.overlap must be 0 or 1, not {self.overlap}")
        require(
            self.accumulate >= 1, f"strategy.accumulate must be at least 1, not {self.accumulate}"
        )
        for key in ("warm_start_frames", "warm_start_epochs", "ramp_frames", "barrier_frames"):
            value = getattr(self, key)
            require(value >= 0, f"strategy.{key} must be at least 0, not {value}")
        require(
            not (self.warm_start_frames and self.warm_start_epochs),
            "strategy.warm_start_frames and strategy.warm_start_epochs both say how long the warm "
            "start is: give one of them",
        )
        require(
            not self.local_step or self.overlap == 1 or self.accumulate > 1,
            "strategy.local_step has no effect with overlap = 0 and accumulate = 1: the new model "
            "is there before the next gradient",
        )
        require(
            not self.local_step or not self.delay_compensation,
            "strategy.local_step and strategy.delay_compensation exclude each other: a server does "
            "not know where a learner has stepped to, and compensates from what it sent",
        )

    @property
    def needs_attendance(self) -> bool:
        """True if ranks must wait for others, which a loop of one's own cannot."""
        return bool(self.pool or self.meets_at_times)

    # ------------------------------------------------------------------ settings that follow

    @property
    def copies(self) -> int:
        """The last one sent; with overlap the one before it, too."""
        return 1 + self.overlap

    def usual_staleness(self, num_learners: int) -> float:
        """Return tau of equally fast learners, in updates."""
        return max(0.0, ((1 + self.overlap) * num_learners - 1) / self.softsync)

    def check_world(self, num_learners: int) -> None:
        """Refuse options that need several learners."""
        super().check_world(num_learners)
        require(
            self.ramp_frames == 0 or num_learners > 1,
            "strategy.ramp_frames has no effect with one learner: leave it out",
        )

    def check_optimizer(self, optimizer: Optimizer) -> None:
        """A local step cannot know the server's momentum."""
        require(
            not self.local_step or not optimizer.has_moments,
            f"strategy.local_step needs an optimizer without memory, and {optimizer.name!r} "
            "remembers earlier steps, at the server: use sgd without momentum, or leave it out",
        )

    def remarks(self, extent: Extent) -> list[str]:
        """Name the usual staleness and the threshold; warn of one that is too low."""
        usual, most = self.usual_staleness(extent.num_learners), self.threshold(extent.num_learners)
        line = (
            f"asgd: equally fast learners see a staleness of {usual:g} updates; gradients more "
            f"than {most:g} late are dropped"
        )
        if most < usual:
            line += f": that is nearly all of them; set strategy.max_staleness to {2 * usual:g}"
        return [line]

    # ------------------------------------------------------------------ who works, who meets

    async def run(self, me: Learner, state: ServerState) -> ServerState:
        """Serve, if it is this rank's part; learn, if it is a learner."""
        servers = Servers(self.parts(me.layout, me.size))
        await self.begin_to_serve(me, state, servers.parts)
        while (verdict := await self.boundary(me, state)).go_on:
            state.frames = verdict.progress.frames
            if verdict.met and self.meets_at_times:
                # With fixed shards the first learner may run dry before the warm start is over.
                state.everyone = state.everyone or 0 < state.frames == state.met_at
                state.met_at = state.frames
                await self.refresh(me, state, servers)
            if not self.works(me, state):
                continue
            push = await self.collect(me, state, servers)
            waits = self.overlap == 0 or state.frames < self.turn(me, 1)
            if not waits:
                await self.take_in(me, state, servers)
                if self.local_step and push.behind:
                    self.step_(me, state, push, servers)
            await self.push(me, state, push, servers)
            if waits:
                await self.take_in(me, state, servers)
        return state

    async def boundary(self, me: Learner, state: ServerState) -> Verdict:
        """Pass; or call a meeting when one is due; or wait for one, without work."""
        if not self.works(me, state):
            return await me.attend(state)
        called = any(state.met_at < at <= state.frames for at in self.meetings(me, state))
        return await (me.meet(state) if called else me.boundary(state))

    def works(self, me: Learner, state: ServerState) -> bool:
        """True if this learner's turn has come, as of the last meeting."""
        if me.attends:
            return False
        place = me.alive.index(me.rank)
        return place == 0 or state.everyone or state.met_at >= self.turn(me, place)

    def turn(self, me: Learner, place: int) -> int:
        """Return after how many frames the learner at this place begins; the first begins at 0.

        The second one begins when the warm start is over.
        """
        warm = self.warm_start_frames or round(self.warm_start_epochs * me.epoch_frames)
        return warm + max(0, place - 1) * self.ramp_frames

    @property
    def meets_at_times(self) -> bool:
        """True if learners are called together by the method itself."""
        warm = self.warm_start_frames or self.warm_start_epochs
        return bool(warm or self.ramp_frames or self.barrier_frames)

    def meetings(self, me: Learner, state: ServerState) -> list[int]:
        """Return the frames at which all meet, up to now: when another begins, and barriers."""
        turns = [self.turn(me, place) for place in range(1, len(me.alive))]
        if self.barrier_frames:
            turns.append(state.frames // self.barrier_frames * self.barrier_frames)
        return turns

    # ------------------------------------------------------------------ the learner

    async def collect(self, me: Learner, state: ServerState, servers: Servers) -> Push:
        """Take gradients for one push; its count is 0 if nothing was left to draw."""
        push = Push(state.stamp, state.awaited, [])
        for number in range(self.accumulate):
            grad = await me.gradient(state.params)
            if not grad.frames:
                break
            if not number:
                push.shards = [
                    servers.memory(rank, place, state.params) for rank, place in servers.parts
                ]
            add_(push, grad, servers)
            if self.local_step and (number + 1 < self.accumulate or not push.behind):
                me.step_(state.params, grad, me.optimizer.init(state.params))
        if push.count and me.optimizer.clip_norm is not None:
            clip_(push.shards, me.optimizer.clip_norm, servers)
        return push

    def step_(self, me: Learner, state: ServerState, push: Push, servers: Servers) -> None:
        """Downpour's own step, on the copy, with what is about to be pushed."""
        starts = [place.start for _, place in servers.parts]
        pieces = list(zip(starts, push.shards, strict=bool(push.count)))
        grad = Grad(Parts(state.params.numel(), pieces), push.frames, 0.0, 0.0)
        rule = replace(me.optimizer, clip_norm=None)
        me.step_(state.params, grad, rule.init(state.params), float(push.count), rule)

    async def push(self, me: Learner, state: ServerState, push: Push, servers: Servers) -> None:
        """Hand each server its part; the one that decides comes last, when the others have it."""
        if not push.count:
            return
        codes, share = me.codes(state.frames, state), 1.0
        if codes and state.memory is not None:
            share = state.memory.share_(push.frames)
        for (rank, place), shard in reversed(list(zip(servers.parts, push.shards, strict=True))):
            tickets = push.tickets if rank == servers.parts[0][0] else ()
            sent = shard
            if codes:
                sent = me.coded_push(shard, place, state, push.frames, share)
                servers.keep(rank, shard)
                await me.spend(me.coder.work(len(place), encodes=1) if me.coder else 0)
            await me.send(rank, "push", (*push.head, sent, tickets))
        state.awaited += 1

    async def refresh(self, me: Learner, state: ServerState, servers: Servers) -> None:
        """Take in what is under way, then ask for the newest model; servers have nothing to do."""
        if me.attends:
            return
        await self.take_in(me, state, servers)
        nothing = state.params.new_empty(0)
        await me.send(servers.parts[0][0], "push", (state.stamp, 0, 0, 0, nothing, ()))
        state.awaited += 1
        await self.take_in(me, state, servers)

    async def take_in(self, me: Learner, state: ServerState, servers: Servers) -> None:
        """Wait for the replies that are under way: the model, shard by shard."""
        while state.awaited:
            for rank, place in servers.parts:
                try:
                    clock, shard = (await me.recv("model", source=rank)).payload
                except PeerLostError as error:
                    raise PeerLostError(
                        f"rank {rank} is lost, and with it the part of the model that it served "
                        "(strategy asgd): go on from the last checkpoint with --resume"
                    ) from error
                state.params[place.start : place.stop] = shard
                if shard.dtype == state.params.dtype:
                    servers.keep(rank, shard)
                if rank == servers.parts[0][0]:
                    state.stamp = clock
            state.awaited -= 1


def add_(push: Push, grad: Grad, servers: Servers) -> None:
    """Add a gradient to a push, which holds the mean over all its frames."""
    share = grad.frames / (push.frames + grad.frames)
    for (_, place), shard in zip(servers.parts, push.shards, strict=True):
        part = grad.part(place)
        if not push.count:
            part.write_(shard)
            continue
        for start, piece in part.pieces:
            shard[start : start + piece.numel()].lerp_(piece, share)
    push.count += 1
    push.frames += grad.frames
    push.tickets += grad.tickets


def clip_(shards: list[Flat], max_norm: float, servers: Servers) -> None:
    """Clip the whole gradient, which lies in parts."""
    whole = shards[0]
    if len(shards) > 1:
        servers.joined = whole = torch.cat(shards, out=servers.joined)
    shrink = clip_coefficient(whole, max_norm)
    if shrink < 1.0:
        for shard in shards:
            shard.mul_(shrink)
