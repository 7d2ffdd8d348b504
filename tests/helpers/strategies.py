"""Tiny strategies that prove the vocabulary: stripes, a push/pull pair, items held in hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from hocket.core.accounts import Ticket
from hocket.core.effects import Grad
from hocket.core.flat import Flat
from hocket.core.learner import Learner
from hocket.core.optimizer import Optimizer
from hocket.core.strategy import State, Strategy


@dataclass(frozen=True)
class Striped(Strategy[State]):
    """Synchronous SGD by exchanging stripes of the gradient, as the 1-bit codec will."""

    name: ClassVar[str] = "striped"
    paper: ClassVar[str] = "Seide et al. 2014"
    summary: ClassVar[str] = "test"
    commits_when: ClassVar[str] = "the step is applied"
    synchronous: ClassVar[bool] = True

    def gain(self, num_learners: int) -> float:
        return 1.0 / num_learners

    async def run(self, me: Learner, state: State) -> State:
        while (await me.boundary(state)).go_on:
            grad = await me.gradient(state.params)
            stripes = list(grad.vector.chunk(me.size))
            mine = torch.stack(await me.all_to_all(stripes)).mean(0)
            whole = torch.zeros_like(grad.vector)
            whole.chunk(me.size)[me.rank].copy_(mine)
            mean = await me.allreduce(whole, weight=1.0)
            state.params.add_(mean.value, alpha=-me.lr)
            await me.commit()
        return state


@dataclass(frozen=True)
class Gossip(Strategy[State]):
    """Tells its neighbour of every step before a boundary, and listens only after it."""

    name: ClassVar[str] = "gossip"
    paper: ClassVar[str] = ""
    summary: ClassVar[str] = "test"
    commits_when: ClassVar[str] = "the local step is applied"
    synchronous: ClassVar[bool] = False
    evaluates: ClassVar = "average"

    def gain(self, num_learners: int) -> float:
        return 1.0 / num_learners

    def init(self, params: Flat, optimizer: Optimizer) -> ToldState:
        return ToldState(params, optimizer.init(params))

    async def run(self, me: Learner, state: State) -> State:
        assert isinstance(state, ToldState)
        while (await me.boundary(state)).go_on:
            if state.told:
                heard = await me.recv("n", source=(me.rank + 1) % me.size)
                assert heard.payload == state.told
            grad = await me.gradient(state.params)
            me.step_(state.params, grad, state.optimizer)
            await me.commit()
            state.told += 1
            await me.send((me.rank - 1) % me.size, "n", state.told)
        return state


@dataclass
class ToldState(State):
    """How often the neighbour has been told."""

    told: int = 0


@dataclass
class ServerState(State):
    """Rank 0 holds the served model besides its own copy."""

    local: Flat


@dataclass(frozen=True)
class PushPull(Strategy[State]):
    """Every learner pushes its gradient to a service on rank 0 and pulls the new model."""

    name: ClassVar[str] = "push-pull"
    paper: ClassVar[str] = "Dean et al. 2012"
    summary: ClassVar[str] = "test"
    commits_when: ClassVar[str] = "the server has applied it"
    synchronous: ClassVar[bool] = False
    evaluates: ClassVar = "root"

    def gain(self, num_learners: int) -> float:
        return 1.0

    def init(self, params: Flat, optimizer: Optimizer) -> ServerState:
        return ServerState(params, optimizer.init(params), params.clone())

    async def serve(self, me: Learner, state: ServerState) -> None:
        while True:
            push = await me.recv("push")
            vector, frames, tickets = push.payload
            me.step_(state.params, Grad(vector, frames, 0.0, 0.0), state.optimizer)
            await me.commit(tickets)
            await me.send(push.source, "model", state.params.clone())

    async def run(self, me: Learner, state: State) -> State:
        assert isinstance(state, ServerState)
        if me.rank == 0:
            await me.start(self.serve(me, state))
        while (await me.boundary(state)).go_on:
            grad = await me.gradient(state.local)
            if not grad.frames:
                continue
            await me.send(0, "push", (grad.vector, grad.frames, grad.tickets))
            reply = await me.recv("model", source=0)
            state.local.copy_(reply.payload)
        return state


@dataclass
class AheadState(State):
    """A gradient is always in hand, also over a boundary."""

    held: Flat | None = None
    frames: int = 0
    tickets: tuple[Ticket, ...] = ()


@dataclass(frozen=True)
class Ahead(Strategy[State]):
    """Draws one item ahead: at a quiet point every learner has one that is not settled."""

    name: ClassVar[str] = "ahead"
    paper: ClassVar[str] = ""
    summary: ClassVar[str] = "test"
    commits_when: ClassVar[str] = "the following gradient is there"
    synchronous: ClassVar[bool] = False
    evaluates: ClassVar = "average"

    def gain(self, num_learners: int) -> float:
        return 1.0 / num_learners

    def init(self, params: Flat, optimizer: Optimizer) -> AheadState:
        return AheadState(params, optimizer.init(params))

    def adopt(self, old: Sequence[State], model: Flat, rank: int) -> AheadState:
        """What was in hand has returned to the pool: other learners begin with empty hands."""
        before = old[rank % len(old)]
        assert isinstance(before, AheadState)
        return replace(before, params=model.clone(), held=None, frames=0, tickets=())

    async def run(self, me: Learner, state: State) -> State:
        assert isinstance(state, AheadState)
        while (await me.boundary(state)).go_on:
            grad = await me.gradient(state.params)
            await self.meet(me)
            if state.held is not None:
                me.step_(state.params, Grad(state.held, state.frames, 0.0, 0.0), state.optimizer)
                await me.commit(state.tickets)
            state.held, state.frames, state.tickets = grad.vector, grad.frames, grad.tickets
        return state

    async def meet(self, me: Learner) -> None:
        """Nobody waits for anybody."""


@dataclass(frozen=True)
class AheadTogether(Ahead):
    """The same in rounds."""

    name: ClassVar[str] = "ahead-together"
    synchronous: ClassVar[bool] = True

    async def meet(self, me: Learner) -> None:
        await me.allreduce(torch.zeros(1), weight=1.0)
