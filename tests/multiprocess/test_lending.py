"""A mean gradient stays in shared memory until the next collective: what may be done with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest
from helpers.runs import real, same_model, simulated
from helpers.tasks import acoustic

from hocket import AllReduceSGD
from hocket.core.effects import AllReduce
from hocket.core.learner import Learner
from hocket.core.strategy import State
from hocket.errors import ContractError


@dataclass(frozen=True)
class Keeps(AllReduceSGD):
    """Holds a mean gradient over other collectives, also forked ones, before it steps."""

    forked: bool = False
    name: ClassVar[str] = "keeps"

    async def run(self, me: Learner, state: State) -> State:
        while (await me.boundary(state)).go_on:
            grad = await me.mean_gradient(state.params)
            if self.forked:
                handles = [await me.fork(AllReduce(state.params * k, weight=1.0)) for k in (1, 2)]
                me.step_(state.params, grad, state.optimizer)
                for handle in handles:
                    await handle
            else:
                await me.allreduce(state.params * 3, weight=1.0)
                await me.allreduce(state.params * 5, weight=1.0)
                me.step_(state.params, grad, state.optimizer)
            await me.commit()
        return state


@dataclass(frozen=True)
class UsesTwice(AllReduceSGD):
    """Looks at a gradient again that it has stepped with, one collective later."""

    name: ClassVar[str] = "uses twice"

    async def run(self, me: Learner, state: State) -> State:
        await me.boundary(state)
        grad = await me.mean_gradient(state.params)
        me.step_(state.params, grad, state.optimizer)
        await me.allreduce(state.params, weight=1.0)
        assert grad.vector is not None
        return state


@dataclass(frozen=True)
class InPlace(AllReduceSGD):
    """Takes the mean of unequal vectors in place and anew; refuses to go on if they differ."""

    name: ClassVar[str] = "in place"

    async def run(self, me: Learner, state: State) -> State:
        while (await me.boundary(state)).go_on:
            grad = await me.gradient(state.params)
            mine = grad.vector * (me.rank + 1)
            fresh = await me.allreduce(mine, weight=1.0)
            mean = await me.allreduce_(mine, weight=1.0)
            assert mean.value is mine
            assert fresh.value.equal(mine)
            moved = not mine.equal(grad.vector * (me.rank + 1))
            assert moved == (me.size > 1 and bool(mine.any()))
            state.params.add_(mine, alpha=-0.1)
            await me.commit()
        return state


@pytest.mark.parametrize("learners", [1, 2, 3])
def test_a_mean_may_take_the_place_of_a_contribution(learners: int) -> None:
    a = simulated(acoustic(), InPlace(), learners)
    assert same_model(a, real(acoustic(), InPlace(), learners))


@pytest.mark.parametrize("forked", [False, True])
@pytest.mark.parametrize("learners", [2, 3])
def test_a_gradient_may_be_kept_over_collectives(forked: bool, learners: int) -> None:
    a = simulated(acoustic(), Keeps(forked=forked), learners)
    b = real(acoustic(), Keeps(forked=forked), learners)
    assert same_model(a, b)


def test_one_that_was_stepped_with_is_spent_in_both_worlds() -> None:
    with pytest.raises(ContractError, match="used again after its step"):
        simulated(acoustic(), UsesTwice(), 2)
    with pytest.raises(ContractError, match="used again after its step"):
        real(acoustic(), UsesTwice(), 2)
