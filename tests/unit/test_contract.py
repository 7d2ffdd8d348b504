"""The runtime's contract with strategies and tasks: errors that explain themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from helpers.runs import (
    real,
    simulated,
    simulator,
    uneven,
)
from helpers.scripted import Scripted, play
from helpers.tasks import Broken, Quadratic

from hocket import (
    SGP,
    AllReduceSGD,
    Cluster,
    Constant,
    Sequential,
)
from hocket.core.effects import AllReduce
from hocket.core.learner import Learner
from hocket.core.strategy import State
from hocket.errors import (
    ConfigError,
    ContractError,
    DeadlockError,
    PeerLostError,
    TaskError,
    WaitTimeoutError,
)
from hocket.experiment import Experiment, RuntimeOptions
from hocket.runtime.sim.cost import Death


def test_a_deadlock_says_who_awaits_what() -> None:
    async def body(me: Learner, state: State) -> None:
        if me.rank == 1:
            await me.recv("push", source=3)
        else:
            await me.allreduce(state.params)

    with pytest.raises(DeadlockError) as caught:
        play(body, 4)
    assert "rank 1 awaits recv(tag='push', source=3)" in str(caught.value)
    assert "ranks 0, 2, 3 await allreduce #0" in str(caught.value)


def test_a_sent_payload_may_not_be_touched() -> None:
    async def body(me: Learner, state: State) -> None:
        if me.rank == 0:
            await me.send(1, "x", state.params)
            state.params.add_(1.0)
        else:
            await me.recv("x")

    with pytest.raises(ContractError, match="rank 0 wrote to a payload after sending it to rank 1"):
        play(body)


def test_a_shared_gradient_may_not_be_written_to() -> None:
    async def body(me: Learner, state: State) -> None:
        for _ in range(2):
            grad = await me.mean_gradient(state.params)
            grad.vector.mul_(2.0)

    with pytest.raises(ContractError, match="read only"):
        play(body)


def test_collectives_out_of_step_are_named() -> None:
    async def body(me: Learner, state: State) -> None:
        if me.rank == 0:
            await me.allreduce(state.params)
        else:
            await me.broadcast(state.params)

    with pytest.raises(ContractError, match=r"rank 0 issued allreduce, rank 1 issued broadcast"):
        play(body)


def test_forks_must_be_awaited_before_a_boundary() -> None:
    @dataclass(frozen=True)
    class Forgetful(Sequential):
        async def run(self, me: Learner, state: State) -> State:
            handle = await me.fork(AllReduce(state.params))
            while (await me.boundary(state)).go_on:
                await me.gradient(state.params)
                await me.commit()
            await handle
            return state

    experiment = Experiment(Quadratic(num_items=1), Forgetful(), schedule=Constant(epochs=1))
    sim = simulator(experiment, Cluster.even(1))
    sim.forks[0] = 1  # as one that has not come back
    with pytest.raises(ContractError, match="await every handle before `boundary`"):
        sim.run()


def test_messages_of_one_tag_arrive_in_order_and_self_sends_work() -> None:
    got: list[tuple[int, int]] = []

    async def body(me: Learner, state: State) -> None:
        for n in range(5):
            await me.send(0, "n", {"n": n})
        if me.rank == 0:
            for _ in range(10):
                message = await me.recv("n")
                got.append((message.source, message.payload["n"]))

    play(body, 2, uneven(2, 1))
    for source in (0, 1):
        assert [n for s, n in got if s == source] == [0, 1, 2, 3, 4]


def test_receiving_from_the_dead_raises() -> None:
    caught = []

    async def body(me: Learner, state: State) -> None:
        if me.rank == 1:
            await me.gradient(state.params)
            await me.recv("never")
        else:
            try:
                await me.recv("x", source=1)
            except PeerLostError as error:
                caught.append(str(error))

    cluster = Cluster(Cluster.even(2).hosts, deaths=(Death(1, at_s=1.0),))
    play(body, 2, cluster)
    assert caught == ["rank 0 awaits recv(tag='x', source=1), but rank 1 is lost"]


def test_a_receive_may_time_out() -> None:
    async def body(me: Learner, state: State) -> None:
        with pytest.raises(WaitTimeoutError):
            await me.recv("x", timeout_s=2.5)

    assert play(body, 1).now == 2.5


def test_all_to_all_and_groups() -> None:
    seen = {}

    async def body(me: Learner, state: State) -> None:
        stripes = [torch.full((2,), 10.0 * me.rank + s) for s in range(3)]
        seen[me.rank] = [float(x[0]) for x in await me.all_to_all(stripes)]
        if me.rank in (0, 2):
            mean = await me.allreduce(torch.full((4,), float(me.rank)), 1.0, group=(0, 2))
            assert mean.value.tolist() == [1.0] * 4
            assert mean.contributors == 2

    play(body, 3)
    assert seen == {0: [0, 10, 20], 1: [1, 11, 21], 2: [2, 12, 22]}


def test_a_task_that_miscounts_is_named() -> None:
    with pytest.raises(TaskError, match=r"item .* was announced with 2 frames.*counts 3"):
        simulated(Broken(how="miscount"), Sequential())


def test_cluster_and_learners_must_agree() -> None:
    with pytest.raises(
        ConfigError, match=r"the cluster has 3 learners, but runtime\.learners is 2"
    ):
        simulator(
            Experiment(Quadratic(), AllReduceSGD(), options=RuntimeOptions(learners=2)),
            Cluster.even(3),
        )


def test_a_strategy_that_never_commits_is_caught() -> None:
    @dataclass(frozen=True)
    class Careless(AllReduceSGD):
        async def run(self, me: Learner, state: State) -> State:
            while (await me.boundary(state)).go_on:
                await me.mean_gradient(state.params)
            return state

    experiment = Experiment(Quadratic(), Careless(), options=RuntimeOptions(learners=2))
    with pytest.raises(ContractError, match=r"must `await me.commit\(\)`"):
        simulator(experiment, Cluster.even(2)).run()


def test_a_message_may_hold_no_dataclass() -> None:
    async def body(me: Learner, state: State) -> None:
        await me.send(0, "x", state)

    with pytest.raises(ContractError, match="cannot pack State"):
        play(body)


def test_a_strategy_that_never_meets_a_boundary_is_told_so() -> None:
    async def body(me: Learner, state: State) -> None:
        await me.gradient(state.params)

    with pytest.raises(ContractError, match="returned before a boundary"):
        simulated(Quadratic(), Scripted(body), 1)


def test_a_loss_that_is_no_loss_is_named() -> None:
    @dataclass(frozen=True)
    class Bare(Quadratic):
        def loss(self, model: Any, batch: Any) -> Any:
            return torch.zeros(())

    with pytest.raises(TaskError, match=r"loss\(\) returned Tensor: return hocket.Loss"):
        simulated(Bare(), Sequential())


@dataclass(frozen=True)
class Undeclared(SGP):
    """Sends messages and does not say so."""

    uses_messages: ClassVar[bool] = False


@dataclass(frozen=True)
class UndeclaredReceiver(Undeclared):
    """Waits for a message first."""

    async def run(self, me: Learner, state: Any) -> Any:
        await me.recv("never sent")
        return state


@pytest.mark.parametrize("strategy", [Undeclared(), UndeclaredReceiver()])
@pytest.mark.parametrize("world", [simulated, real])
def test_messages_that_are_not_declared_are_refused(world: Any, strategy: Any) -> None:
    """At once: no mailbox is open, so a receive would wait for its time limit."""
    with pytest.raises(ContractError, match=r"'sgp' is synchronous .* `uses_messages = True`"):
        world(Quadratic(), strategy, 2)
