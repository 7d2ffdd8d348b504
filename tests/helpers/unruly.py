"""Strategies that break rule 10 of the contract: they settle what nobody can vouch for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from hocket.core.effects import AllReduce, Gradient
from hocket.core.learner import Learner
from hocket.core.strategy import State, Strategy
from hocket.errors import PeerLostError


@dataclass(frozen=True)
class Hearsay(Strategy[State]):
    """Synchronous by messages alone: everybody assumes that the others have done their part.

    It trains, nobody waits for the dead, and the frames add up: each learner counts its own rounds
    and takes it for granted that all others made the same.
    """

    name: ClassVar[str] = "hearsay"
    paper: ClassVar[str] = ""
    summary: ClassVar[str] = "test"
    commits_when: ClassVar[str] = "the local step is applied"
    synchronous: ClassVar[bool] = True
    uses_messages: ClassVar[bool] = True
    evaluates: ClassVar = "average"

    def gain(self, num_learners: int) -> float:
        return 1.0 / num_learners

    async def run(self, me: Learner, state: State) -> State:
        while (await me.boundary(state)).go_on:
            await self.round(me, state)
        return state

    async def round(self, me: Learner, state: State) -> None:
        await me.send((me.rank + 1) % me.size, "model", state.params.clone())
        grad = await me.gradient(state.params)
        try:
            other = await me.recv("model", source=(me.rank - 1) % me.size)
            state.params.lerp_(other.payload, 0.5)
        except PeerLostError:
            pass
        me.step_(state.params, grad, state.optimizer)
        await me.commit()


@dataclass(frozen=True)
class TooEarly(Hearsay):
    """Its collective is over before it draws."""

    async def round(self, me: Learner, state: State) -> None:
        mean = await me.allreduce(state.params, weight=1.0)
        grad = await me.gradient(state.params.copy_(mean.value))
        me.step_(state.params, grad, state.optimizer)
        await me.commit()


@dataclass(frozen=True)
class UnderWay(Hearsay):
    """Its collective was begun before it drew, though it ends afterwards."""

    async def round(self, me: Learner, state: State) -> None:
        averaging = await me.fork(AllReduce(state.params.clone(), weight=1.0))
        grad = await me.gradient(state.params)
        state.params.copy_((await averaging).value)
        me.step_(state.params, grad, state.optimizer)
        await me.commit()


@dataclass(frozen=True)
class Pairwise(Hearsay):
    """Its collectives are of groups: a learner hears nothing of other groups."""

    async def round(self, me: Learner, state: State) -> None:
        grad = await me.gradient(state.params)
        first = me.rank // 2 * 2
        group = tuple(range(first, min(first + 2, me.size)))
        mean = await me.allreduce(state.params, weight=1.0, group=group)
        me.step_(state.params.copy_(mean.value), grad, state.optimizer)
        await me.commit()


@dataclass(frozen=True)
class NeverMind(Hearsay):
    """Leaves it to a collective that never comes."""

    async def round(self, me: Learner, state: State) -> None:
        grad = await me.gradient(state.params)
        me.step_(state.params, grad, state.optimizer)
        await me.commit_with_next()


@dataclass(frozen=True)
class Unfinished(Hearsay):
    """Settles an item whose gradient is still being taken."""

    async def round(self, me: Learner, state: State) -> None:
        taking = await me.fork(Gradient(state.params.clone()))
        await me.allreduce(torch.zeros(1), weight=1.0)
        await me.commit()
        me.step_(state.params, await taking, state.optimizer)


@dataclass(frozen=True)
class HalfDone(Hearsay):
    """Takes the gradient of half of an item, and settles the whole."""

    async def round(self, me: Learner, state: State) -> None:
        grad = await me.gradient_of_part(state.params, (0, 2), None)
        await me.allreduce(torch.zeros(1), weight=1.0)
        me.step_(state.params, grad, state.optimizer)
        await me.commit()


@dataclass(frozen=True)
class HalfDoneByName(Hearsay):
    """The same, by the ticket's name."""

    async def round(self, me: Learner, state: State) -> None:
        grad = await me.gradient_of_part(state.params, (0, 2), None)
        await me.allreduce(torch.zeros(1), weight=1.0)
        await me.commit(grad.tickets)


SETTLE_TOO_SOON = [Hearsay(), TooEarly(), UnderWay(), Pairwise(), NeverMind()]
SETTLE_UNCOMPUTED = [Unfinished(), HalfDone(), HalfDoneByName()]
