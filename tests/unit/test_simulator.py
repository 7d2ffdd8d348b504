"""The simulator's clock and its size."""

from __future__ import annotations

import pytest
import torch
from helpers.runs import (
    simulated,
)
from helpers.scripted import play
from helpers.tasks import Quadratic

from hocket import (
    DNN,
    SGD,
    AllReduceSGD,
    Cluster,
    Constant,
    Host,
    KStep,
    Pause,
    Slow,
    Synthetic,
)
from hocket.core.learner import Learner
from hocket.core.strategy import State
from hocket.runtime.sim.cost import CostModel


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


@pytest.mark.long
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


def test_a_small_message_does_not_overtake_a_large_one_within_a_host() -> None:
    """Rule 2 of the contract: messages of one source, destination and tag arrive in order."""

    async def body(me: Learner, state: State) -> None:
        if me.rank == 0:
            for size in (1_000_000, 1, 1000, 1):
                await me.send(1, "n", torch.zeros(size))
            return
        got = [(await me.recv("n", source=0)).payload.numel() for _ in range(4)]
        assert got == [1_000_000, 1, 1000, 1]

    play(body, 2, Cluster((Host(learners=2, memory_gbit=0.1),)))
