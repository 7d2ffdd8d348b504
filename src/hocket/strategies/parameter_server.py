"""The servers of `asgd`: each holds a shard of the model and applies the pushes that arrive.

    shard s:    tau = clock - stamp;  if tau > max_staleness, drop g; else                   (2)
                w_s <- w_s - lr n damp(tau) (g_s + lambda g_s^2 (w_s - w_bak(m))), clock += 1  (3)

The page of the method, with its symbols, is in `asgd.py`, which has the learners.

*Memory.* Fresh memory for a model of 27 MB costs ten times as much as writing to it: the kernel
hands it out page by page. So none is made for a push: the reply is written to where the gradient
was, and the learner writes its next gradient to where the model was that it has taken in.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, Literal

import torch

from hocket.core.effects import Grad, Message
from hocket.core.flat import Flat, Layout
from hocket.core.learner import Learner
from hocket.core.optimizer import Optimizer, memory_of
from hocket.core.strategy import State, Strategy
from hocket.errors import PeerLostError, require

PATIENCE: Final = 4.0  # times the staleness of equal learners: what is later is dropped
MEAN_SQUARE: Final = 0.95  # DC-ASGD-a: memory of the mean square (their CIFAR-10 setting)
TINY: Final = 1e-7  # DC-ASGD-a: under the root
APPLY, DROP, SEND = "apply", "drop", "send"  # what the first shard tells the others to do


@dataclass
class ServerState(State):
    """A learner's copy of the model is `params`; a server's part of it is `shard`."""

    shard: Flat  # empty: this rank serves nothing
    clock: int = 0  # updates of the shard
    stamp: int = 0  # learner: the first shard's clock when its copy was sent
    awaited: int = 0  # learner: replies under way
    frames: int = 0  # learnt by all, as last seen
    met_at: int = 0  # frames at the last meeting
    everyone: bool = False  # all begin: those whose turn it was have nothing left to draw
    sent: dict[int, list[Flat]] = field(default_factory=dict)  # DC-ASGD: to each, the last one last
    mean_square: Flat | None = None  # DC-ASGD-a
    sum: Flat | None = None  # softsync: of the gradients collected
    collected: int = 0  # softsync: how many


@dataclass(frozen=True)
class ParameterServers(Strategy[ServerState]):
    """A pool of servers: who serves what, and what becomes of a push."""

    servers: int | None = None  # ranks that only serve. 0: each learner. None: 1, or 0 across hosts
    max_staleness: float | None = None  # drop older gradients. None: 4 times the usual; inf: never
    damping: Literal["none", "staleness"] = "none"  # divide the rate of a gradient by its staleness
    softsync: int = 1  # gradients that are averaged before a step
    delay_compensation: float = 0.0  # lambda of DC-ASGD; 0: off (theirs: 0.04, adaptive 2)
    adaptive_compensation: bool = False  # DC-ASGD-a: lambda over the root of the mean square
    half_pulls: bool = False  # servers send the model as float16; their own stays float32

    commits_when: ClassVar[str] = "the first shard has applied it"
    synchronous: ClassVar[bool] = False
    evaluates: ClassVar = "parts"

    def __post_init__(self) -> None:
        require(
            self.servers is None or self.servers >= 0,
            f"strategy.servers must be at least 0, not {self.servers}",
        )
        require(
            self.max_staleness is None or self.max_staleness >= 0,
            f"strategy.max_staleness must be at least 0, not {self.max_staleness}",
        )
        require(
            self.damping in ("none", "staleness"),
            f"strategy.damping must be 'none' or 'staleness', not {self.damping!r}",
        )
        require(self.softsync >= 1, f"strategy.softsync must be at least 1, not {self.softsync}")
        require(
            self.delay_compensation >= 0,
            f"strategy.delay_compensation must be at least 0, not {self.delay_compensation}",
        )
        require(
            not self.adaptive_compensation or self.delay_compensation > 0,
            "strategy.adaptive_compensation has no effect without strategy.delay_compensation: "
            "set it too (2.0 in the paper)",
        )

    # ------------------------------------------------------------------ who serves what

    @property
    def pool(self) -> int:
        """Ranks that only serve."""
        return 1 if self.servers is None else self.servers

    def attendants(self, num_learners: int) -> int:
        """Servers draw nothing."""
        return self.pool

    def on_hosts(self, num_hosts: int) -> ParameterServers:
        """One server on one host; across hosts every learner serves a shard."""
        if self.servers is not None:
            return self
        return replace(self, servers=1 if num_hosts == 1 else 0)

    def parts(self, layout: Layout, num_learners: int) -> list[tuple[int, range]]:
        """Return each server's rank and its range of the vector; the first decides."""
        first = num_learners if self.pool else 0
        wanted = self.pool or num_learners
        require(
            not self.pool or wanted <= len(layout.entries),
            f"strategy.servers = {wanted}, but the model has {len(layout.entries)} parameters, "
            "and parameters are not divided: use fewer",
        )
        ranges = layout.cut(min(wanted, len(layout.entries)))
        return [(first + n, place) for n, place in enumerate(ranges)]

    def placement(self, layout: Layout, num_learners: int) -> list[str]:
        """Say who serves what."""
        kind = "a rank of its own" if self.pool else "a learner"
        return [
            f"{self.name}: rank {rank} ({kind}) serves {len(place):,} of {layout.size:,} values"
            for rank, place in self.parts(layout, num_learners)
        ]

    # ------------------------------------------------------------------ what becomes of a push

    @abstractmethod
    def usual_staleness(self, num_learners: int) -> float:
        """Return tau of equally fast learners, in updates."""

    @property
    @abstractmethod
    def copies(self) -> int:
        """Of what was sent to a learner: how many it may still take a gradient at."""

    def threshold(self, num_learners: int) -> float:
        """Return the staleness above which a gradient is dropped."""
        if self.max_staleness is not None:
            return self.max_staleness
        return PATIENCE * max(1.0, self.usual_staleness(num_learners))

    def damp(self, late: int) -> float:
        """Return the factor on the rate of a gradient that comes so late."""
        return 1.0 / max(1, late) if self.damping == "staleness" else 1.0

    def gain(self, num_learners: int) -> float:
        """Every gradient is applied in full, unless several are averaged."""
        return 1.0 / self.softsync

    # ------------------------------------------------------------------ state

    def init(self, params: Flat, optimizer: Optimizer) -> ServerState:
        """A copy of the model; shards are cut out when a rank begins to serve."""
        return ServerState(params, optimizer.init(params), params.new_empty(0))

    def model(self, state: ServerState) -> Flat:
        """This rank's part of the model."""
        return state.shard

    def adopt(self, old: Sequence[ServerState], model: Flat, rank: int) -> ServerState:
        """Everybody starts from the saved model; shards are cut anew, and keep their memory."""
        memory = [(one.optimizer, one.shard.numel()) for one in old if one.shard.numel()]
        frames, met_at = (max(getattr(one, key) for one in old) for key in ("frames", "met_at"))
        return ServerState(model.clone(), memory, model.new_empty(0), frames=frames, met_at=met_at)

    def open_shard_(self, me: Learner, state: ServerState, place: range) -> Optimizer:
        """Cut out what this rank serves, unless a checkpoint had it; return its optimizer."""
        rule = replace(me.optimizer, clip_norm=None).fitted(me.layout.part(place))
        if not state.shard.numel():
            state.shard = state.params[place.start : place.stop].clone()
            state.optimizer = cut_memory(rule, state, place)
            if self.delay_compensation:
                state.sent = {
                    rank: [state.shard.clone() for _ in range(self.copies)]
                    for rank in range(me.size)
                }
        return rule

    # ------------------------------------------------------------------ the services

    async def begin_to_serve(
        self, me: Learner, state: ServerState, parts: list[tuple[int, range]]
    ) -> None:
        """Start the service of this rank's shard, if it has one."""
        ranks = [rank for rank, _ in parts]
        if me.rank not in ranks:
            if isinstance(state.optimizer, list):  # of shards that others cut out of it
                state.optimizer = me.optimizer.init(state.params)
            return
        rule = self.open_shard_(me, state, dict(parts)[me.rank])
        if me.rank == ranks[0]:
            await me.start(self.decide(me, state, rule, ranks[1:], dict(parts)[me.rank]))
        else:
            await me.start(self.follow(me, state, rule, ranks[0], dict(parts)[me.rank]))

    async def decide(
        self, me: Learner, state: ServerState, rule: Optimizer, others: list[int], place: range
    ) -> None:
        """Serve the first shard: say what becomes of each push, for all shards."""
        while True:
            pushed = await self.taken_in(me, await me.recv("push"), place)
            me.measure("queue", float(me.queued("push")))
            stamp, _, count, _, _, tickets = pushed.payload
            late, lr = state.clock - stamp, me.lr
            keep = late <= self.threshold(len(me.alive))
            what = SEND if not count else APPLY if keep else DROP
            for rank in others:
                await me.send(rank, "verdict", (what, pushed.source, late, lr))
            if count:
                me.count("staleness", late)
                me.count("pushes", pushed.source)
                me.measure("staleness", float(late))
                me.measure("dropped", float(not keep))
            if what == APPLY:
                self.apply_(me, state, rule, pushed, late, lr)
                await me.commit(tickets)
            elif what == DROP:
                await me.discard(tickets)
            await self.reply(me, state, pushed)

    async def follow(
        self, me: Learner, state: ServerState, rule: Optimizer, first: int, place: range
    ) -> None:
        """Serve another shard: do what the first one decided, in its order."""
        while True:
            what, source, late, lr = (await me.recv("verdict", source=first)).payload
            me.measure("queue", float(max(0, me.queued("push") - int(what != SEND))))
            pushed = Message(source, "push", (0, 0, 0, 0, state.shard.new_empty(0), ()))
            if what != SEND:
                try:
                    pushed = await self.taken_in(me, await me.recv("push", source=source), place)
                except PeerLostError:  # it died between its pushes to two shards
                    me.count("partial", int(what == APPLY))
                    continue
                if what == APPLY:
                    self.apply_(me, state, rule, pushed, late, lr)
            await self.reply(me, state, pushed)

    async def taken_in(self, me: Learner, pushed: Message, place: range) -> Message:
        """Decode a push if it was coded: into a gradient, as others are."""
        stamp, behind, count, frames, sent, tickets = pushed.payload
        if sent.dtype != torch.uint8 or me.coder is None:
            return pushed
        gradient = me.decoded_push(sent, place, frames)
        await me.spend(me.coder.work(len(place), decodes=1))
        taken = (stamp, behind, count, frames, gradient, tickets)
        return Message(pushed.source, pushed.tag, taken)

    async def reply(self, me: Learner, state: ServerState, pushed: Message) -> None:
        """Send the shard as it is now, in the memory in which the gradient came."""
        memory = pushed.payload[4]
        if not memory.numel():  # nothing was pushed: the learner asks for the newest model
            memory = torch.empty_like(state.shard)
        await me.spend(state.shard.numel())
        if self.delay_compensation:
            copies = state.sent[pushed.source]
            copies.append(copies.pop(0).copy_(state.shard))
        model = state.shard.half() if self.half_pulls else memory.copy_(state.shard)
        await me.send(pushed.source, "model", (state.clock, model))

    def apply_(
        self,
        me: Learner,
        state: ServerState,
        rule: Optimizer,
        pushed: Message,
        late: int,
        lr: float,
    ) -> None:
        """Make a step on the shard, or collect until there are enough for one (eq. 3)."""
        _, behind, count, frames, gradient, _ = pushed.payload
        if self.delay_compensation:
            self.compensate_(state, pushed.source, gradient, behind)
        scale = count * self.damp(late)
        if self.softsync > 1:
            state.sum = torch.zeros_like(gradient) if state.sum is None else state.sum
            state.sum.add_(gradient, alpha=scale / self.softsync)
            state.collected += 1
            if state.collected < self.softsync:
                return
            gradient, scale, state.collected = state.sum, 1.0, 0
        me.step_(state.shard, Grad(gradient, frames, 0.0, 0.0), state.optimizer, scale, rule, lr)
        state.clock += 1
        if state.sum is not None:
            state.sum.zero_()

    def compensate_(self, state: ServerState, source: int, g: Flat, behind: int = 0) -> None:
        """Make g into g + lambda g^2 (w - w_bak): what it would be here, to first order.

        `behind`: replies that were under way when g was taken, so w_bak is as many before the last.
        The oldest copy becomes the difference: it is written anew with the reply.
        """
        copies = state.sent[source]
        moved = torch.sub(state.shard, copies[-1 - behind], out=copies[0])
        if not self.adaptive_compensation:
            g.add_(moved.mul_(g).mul_(g), alpha=self.delay_compensation)
            return
        if state.mean_square is None:
            state.mean_square = torch.zeros_like(g)
        state.mean_square.mul_(MEAN_SQUARE).addcmul_(g, g, value=1.0 - MEAN_SQUARE)
        root = (state.mean_square + TINY).sqrt_()
        g.addcdiv_(moved.mul_(g).mul_(g), root, value=self.delay_compensation)


def cut_memory(rule: Optimizer, state: ServerState, place: range) -> Any:
    """Return what an optimizer remembers of a range, from the whole or from other shards."""
    adopted = isinstance(state.optimizer, list)
    olds = state.optimizer if adopted else [(state.optimizer, state.params.numel())]
    return memory_of(rule, olds, state.shard, place)
