"""The simulator's own promises: the clock, the contract, errors that explain themselves."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from helpers.runs import (
    keep_only_first_checkpoint,
    same_model,
    simulated,
    simulator,
    uneven,
)
from helpers.strategies import Gossip, PushPull
from helpers.tasks import Broken, Quadratic, acoustic

from hocket import (
    DNN,
    SGD,
    AllReduceSGD,
    Cluster,
    Constant,
    Host,
    KStep,
    Loss,
    Pause,
    Sequential,
    Slow,
    Synthetic,
)
from hocket.core.effects import AllReduce
from hocket.core.learner import Learner
from hocket.core.strategy import State, Strategy
from hocket.errors import (
    ConfigError,
    ContractError,
    DeadlockError,
    DivergedError,
    PeerLostError,
    TaskError,
    WaitTimeoutError,
)
from hocket.experiment import Experiment, RuntimeOptions
from hocket.runtime.sim.cost import CostModel, Death


@dataclass(frozen=True)
class Scripted(Strategy):
    """A strategy made of one function."""

    body: Callable[[Learner, State], Any]
    name: ClassVar[str] = "scripted"
    paper: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    commits_when: ClassVar[str] = ""
    synchronous: ClassVar[bool] = False
    evaluates: ClassVar = "root"

    def gain(self, num_learners: int) -> float:
        return 1.0

    async def run(self, me: Learner, state: State) -> State:
        await self.body(me, state)
        return state


def play(body: Any, learners: int = 2, cluster: Cluster | None = None) -> Any:
    options = RuntimeOptions(learners=learners, trace=True)
    sim = simulator(
        Experiment(Quadratic(), Scripted(body), options=options),
        cluster or Cluster.even(learners),
    )
    sim.run()
    return sim


# ------------------------------------------------------------------ the clock


def test_virtual_time_by_hand() -> None:
    """11 rounds of two learners with 2 frames each at 100 frames/s; the network is free."""
    cluster = Cluster((Host(count=2, frames_per_s=100.0, bandwidth_gbit=1e9),), latency_s=0.0)
    result = simulated(Quadratic(), AllReduceSGD(), cluster, schedule=Constant(epochs=1))
    assert result.time_s == pytest.approx(11 * 2 / 100)
    assert [one.utilisation for one in result.learners] == pytest.approx([1.0, 1.0])
    assert [one.frames for one in result.learners] == [22, 22]


def test_an_allreduce_costs_what_the_real_one_does() -> None:
    """2 L (P-L)/P n bytes through each link, L learners on a host, and 3 latencies."""
    cluster = Cluster((Host(count=4, bandwidth_gbit=8e-6),), latency_s=0.5)  # 1000 bytes/s
    model = CostModel(cluster, seed=0)
    assert model.collective((0, 1, 2, 3), 10.0, 2000, 2.0) == pytest.approx(10 + 3.0 + 1.5)
    assert model.collective((0,), 10.0, 2000, 2.0) == 10.0
    pairs = Cluster((Host(count=2, learners=2, bandwidth_gbit=8e-6, memory_gbit=1e9),), 0.5, 0.0)
    model = CostModel(pairs, seed=0)
    assert model.collective((0, 1, 2, 3), 10.0, 2000, 2.0) == pytest.approx(10 + 4.0 + 1.5)


def test_a_server_cannot_feed_everybody_for_free() -> None:
    """Eight messages out of one host take eight times as long as one."""
    cluster = Cluster((Host(count=9, bandwidth_gbit=8e-6),), latency_s=0.0)
    model = CostModel(cluster, seed=0)
    arrivals = [model.transfer(0, to, 0.0, 1000) for to in range(1, 9)]
    assert arrivals == pytest.approx([1, 2, 3, 4, 5, 6, 7, 8])
    model = CostModel(cluster, seed=0)
    assert [model.transfer(s, 0, 0.0, 1000) for s in (1, 2)] == pytest.approx([1, 2])


def test_stragglers_and_pauses() -> None:
    cluster = Cluster(
        (Host(count=2, frames_per_s=10.0),),
        slow=(Slow(rank=1, factor=3.0, from_s=1.0, until_s=2.0),),
        pauses=(Pause(rank=0, at_s=0.5, for_s=4.0),),
    )
    model = CostModel(cluster, seed=0)
    assert model.compute(1, 0.0, 10) == (0.0, 1.0)
    assert model.compute(1, 1.0, 10) == (1.0, 4.0)
    assert model.compute(1, 4.0, 10) == (4.0, 5.0)
    assert model.compute(0, 0.0, 10) == (0.0, 5.0)
    assert model.compute(0, 2.0, 10) == (5.0, 6.0)  # tasks of one rank share its core


def test_jitter_has_mean_one() -> None:
    model = CostModel(Cluster.even(1, frames_per_s=1.0, jitter=0.5), seed=3)
    spans = [model.compute(0, 0.0, 1) for _ in range(4000)]
    assert sum(b - a for a, b in spans) / 4000 == pytest.approx(1.0, abs=0.03)


def test_synchronous_methods_wait_for_a_straggler() -> None:
    hosts = Cluster.even(4, frames_per_s=100.0).hosts
    even = simulated(Quadratic(), AllReduceSGD(), Cluster(hosts))
    slow = Cluster(hosts, slow=(Slow(rank=2, factor=10.0),))
    late = simulated(Quadratic(), AllReduceSGD(), slow)
    assert 5 < late.time_s / even.time_s < 10.5
    assert late.learners[2].utilisation > 0.9
    assert late.learners[0].utilisation < 0.2


# ------------------------------------------------------------------ scale


def test_1024_learners_with_a_tiny_model() -> None:
    task = Quadratic(num_items=3000)
    result = simulated(
        task, KStep(sync_every=2), 1024, optimizer=SGD(lr=0.001), schedule=Constant(epochs=1)
    )
    assert result.frames == 6000
    assert len(result.learners) == 1024


def test_64_learners_with_the_synthetic_acoustic_model() -> None:
    task = Synthetic(num_frames=20_000, dev_frames=2_000, batch_frames=64, model=DNN())
    result = simulated(
        task,
        KStep(sync_every=2),
        64,
        optimizer=SGD(lr=0.01),
        schedule=Constant(epochs=1),
    )
    assert result.frames == 20_000
    assert result.loss < 3.1  # ln 24 = 3.18


# ------------------------------------------------------------------ the contract


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


# ------------------------------------------------------------------ things that go wrong


def test_divergence_stops_the_run_and_names_the_rate(tmp_path: Path) -> None:
    with pytest.raises(DivergedError) as caught:
        simulated(
            Quadratic(num_items=200),
            AllReduceSGD(),
            4,
            optimizer=SGD(lr=1.0),
            schedule=Constant(epochs=3),
            out=tmp_path / "a",
        )
    text = str(caught.value)
    assert "The local rate is" in text
    assert "optimizer.lr = 1" in text
    assert "compensation of up to 4 for 4 learners" in text


def test_a_nan_stops_the_run_at_once() -> None:
    with pytest.raises(DivergedError, match="the training loss is nan"):
        simulated(Broken(how="nan"), KStep(sync_every=2), 2)


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


def test_ctrl_c_stops_a_simulation_with_a_checkpoint(tmp_path: Path) -> None:
    timer = threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    out, schedule = tmp_path / "a", Constant(epochs=1000)
    result = simulated(Quadratic(), KStep(sync_every=3), 3, out=out, schedule=schedule)
    assert result.stopped
    assert 0 < result.frames < 1000 * 44
    longer = Constant(epochs=result.epoch + 2)
    again = simulated(Quadratic(), KStep(sync_every=3), 3, out=out, schedule=longer, resume=True)
    assert not again.stopped
    assert again.frames == longer.epochs * 44


@pytest.mark.parametrize(("kind", "factor"), [("full", 4.0), ("sqrt", 2.0), ("none", 1.0)])
def test_the_local_rate_is_derived_from_the_gain(kind: Any, factor: float, tmp_path: Path) -> None:
    schedule = Constant(epochs=2, lr_compensation=kind)
    simulated(Quadratic(), AllReduceSGD(), 4, schedule=schedule, out=tmp_path / "a")
    lines = (tmp_path / "a" / "metrics.jsonl").read_text().splitlines()
    rates = [row["lr"] for row in map(json.loads, lines) if row["event"] == "train"]
    assert rates[-1] == pytest.approx(0.1 * factor)
    assert rates[0] == pytest.approx(0.1 * (1 + (factor - 1) * 8 / 44))  # on the ramp


def test_clipping_and_weight_decay_act_in_the_stated_direction() -> None:
    plain = simulated(acoustic(), AllReduceSGD(), 2)
    decayed = simulated(acoustic(), AllReduceSGD(), 2, optimizer=SGD(weight_decay=0.1))
    clipped = simulated(acoustic(), AllReduceSGD(), 2, optimizer=SGD(clip_norm=0.01))
    norms = [
        float(sum(x.square().sum() for k, x in r.model.items() if "2" in k))
        for r in (plain, decayed, clipped)
    ]
    assert norms[1] < 0.7 * norms[0]
    assert norms[2] < 0.2 * norms[0]


def test_evaluation_time_is_left_out_of_the_training_time() -> None:
    often = simulated(Quadratic(), Sequential(), 1, evaluate_every=0.1)
    once = simulated(Quadratic(), Sequential(), 1, evaluate_every=4.0)
    assert often.aside_s > 5 * once.aside_s
    assert often.time_s == pytest.approx(once.time_s)


# ------------------------------------------------------------------ resuming what is not simple


def test_unread_messages_survive_a_checkpoint(tmp_path: Path) -> None:
    more: dict[str, Any] = {"schedule": Constant(epochs=4), "keep_checkpoints": 99}
    cluster = Cluster.even(2, frames_per_s=100.0)
    whole = simulated(Quadratic(), Gossip(), cluster, out=tmp_path / "a", **more)
    part = keep_only_first_checkpoint(tmp_path / "a", tmp_path / "b")
    again = simulated(Quadratic(), Gossip(), cluster, out=part, resume=True, **more)
    assert same_model(whole, again)


def test_a_death_that_has_happened_does_not_happen_again(tmp_path: Path) -> None:
    hosts = Cluster.even(3, frames_per_s=100.0).hosts
    cluster = Cluster(hosts, deaths=(Death(1, at_s=0.05), Death(2, at_draw=15)))
    out, schedule = tmp_path / "a", Constant(epochs=1)
    simulated(Quadratic(), AllReduceSGD(), cluster, out=out, schedule=schedule)
    again = simulated(
        Quadratic(), AllReduceSGD(), cluster, out=out, schedule=Constant(epochs=4), resume=True
    )
    assert again.frames == 4 * 44
    rows = [json.loads(x) for x in (out / "metrics.jsonl").read_text().splitlines()]
    assert [r["rank"] for r in rows if r["event"] == "lost"] == [1, 2]
    times = [r["time_s"] for r in rows]
    assert times == sorted(times)


def test_the_books_go_on_after_a_resumption(tmp_path: Path) -> None:
    more: dict[str, Any] = {"cluster": 2, "out": tmp_path / "a"}
    first = simulated(Quadratic(), KStep(sync_every=2), schedule=Constant(epochs=2), **more)
    longer = simulated(
        Quadratic(), KStep(sync_every=2), schedule=Constant(epochs=4), resume=True, **more
    )
    assert sum(one.frames for one in longer.learners) == longer.frames == 4 * 44
    for a, b in zip(first.learners, longer.learners, strict=True):
        assert b.utilisation == pytest.approx(a.utilisation, rel=0.02)
        assert b.bytes_sent == 2 * a.bytes_sent


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


def test_every_asynchronous_learner_is_heard_and_guarded(tmp_path: Path) -> None:
    simulated(Quadratic(num_items=60), PushPull(), 3, out=tmp_path / "a")
    rows = [json.loads(x) for x in (tmp_path / "a" / "metrics.jsonl").read_text().splitlines()]
    assert {r["rank"] for r in rows if r["event"] == "train"} == {0, 1, 2}
    with pytest.raises(DivergedError, match="nan"):
        simulated(Broken(how="nan"), PushPull(), 3)


@dataclass(frozen=True)
class Frozen(Quadratic):
    """A fixed layer in front, as an LDA transform would be."""

    def build_model(self) -> Any:
        model = torch.nn.Sequential(torch.nn.Linear(5, 5), torch.nn.Linear(5, 1))
        model[0].weight.requires_grad_(False)
        return model

    def loss(self, model: Any, batch: Any) -> Any:
        return Loss((model(batch) ** 2).sum(), len(batch))


def test_frozen_parameters_stay_and_are_saved() -> None:
    result = simulated(Frozen(), KStep(sync_every=2), 2)
    assert set(result.model) == {"0.weight", "0.bias", "1.weight", "1.bias"}
    alone = simulated(Frozen(), Sequential(), 1)
    assert torch.equal(result.model["0.weight"], alone.model["0.weight"])
    assert not torch.equal(result.model["1.weight"], alone.model["1.weight"])


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
