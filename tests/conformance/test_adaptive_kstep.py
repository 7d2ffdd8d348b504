"""Adaptive K-AVG: each measure does what it says, and can be switched off."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from helpers.runs import simulated
from helpers.tasks import Quadratic, acoustic
from reference import averaging_twins as twins

from hocket import SGD, AdaptiveKStep, Constant, KStep, Sequential
from hocket.core.effects import Scores
from hocket.experiment import Experiment
from hocket.strategies.adaptive_kstep import AdaptiveState


def scored(loss: float) -> Scores:
    return Scores(loss, 0.5, 10)


def adaptive(**more: Any) -> tuple[AdaptiveKStep, AdaptiveState]:
    strategy = AdaptiveKStep(sync_every=16, min_sync_every=3, **more)
    state = strategy.init(torch.zeros(3), SGD())
    strategy.adapt_(state, scored(1.0))
    return strategy, state


def test_k_and_the_rate_shrink_at_a_stall_and_not_before() -> None:
    strategy, state = adaptive(shrink_rate=True, stall=0.1)
    strategy.adapt_(state, scored(0.8))
    strategy.adapt_(state, scored(0.8))  # the same evaluation, seen again at the next boundary
    assert (state.k, state.scale) == (16, 1.0)
    for loss, k in ((0.75, 8), (0.74, 4), (0.735, 3), (0.73, 3)):
        strategy.adapt_(state, scored(loss))
        assert state.k == k
    assert state.scale == 0.5**4


def test_each_measure_can_be_switched_off() -> None:
    strategy, state = adaptive(shrink_sync=False, shrink_rate=True)
    strategy.adapt_(state, scored(1.0 + 1e-9))
    assert (state.k, state.scale) == (16, 0.5)
    strategy, state = adaptive()
    strategy.adapt_(state, scored(1.0 + 1e-9))
    assert (state.k, state.scale) == (8, 1.0)


def test_an_average_is_rejected_by_held_out_loss() -> None:
    strategy, state = adaptive(accept=True, tolerance=0.1)
    state.held_out = 1.0
    assert not strategy.rejects(state, 1.05)
    assert strategy.rejects(state, 1.2)
    assert strategy.rejects(state, float("nan"))
    state.k = 3  # as small as it may be: a run must not stand still
    assert not strategy.rejects(state, 1.2)


def test_rejected_blocks_are_discarded_and_the_model_goes_back() -> None:
    """A rate that makes things worse: nothing is accepted until K is at its smallest."""
    task = acoustic(num_frames=64 * 32)
    schedule = Constant(epochs=3, lr_compensation="none")
    more: dict[str, Any] = {"optimizer": SGD(lr=3.0), "schedule": schedule, "guard_factor": 100.0}
    strategy = AdaptiveKStep(sync_every=8, accept=True, tolerance=0.0)
    result = simulated(task, strategy, 2, **more)
    assert result.discarded_frames > 0
    assert result.frames + result.discarded_frames == 3 * task.num_frames
    assert result.loss < simulated(task, KStep(sync_every=8), 2, **more).loss


@pytest.mark.parametrize(
    ("lr", "more"),
    [
        (0.02, {}),
        (0.02, {"shrink_rate": True}),
        (0.02, {"shrink_rate": True, "shrink_sync": False}),
        (0.6, {"accept": True, "tolerance": 0.0}),
        (0.6, {"accept": True, "shrink_sync": False}),
    ],
)
@pytest.mark.parametrize(("learners", "k", "least"), [(2, 6, 1), (4, 4, 2)])
def test_a_slow_twin_agrees(
    lr: float, more: dict[str, Any], learners: int, k: int, least: int
) -> None:
    """In float64, along the same order of items; K must really have changed, or the rate."""
    task, epochs = Quadratic(num_items=48), 5
    pool = Experiment(task, Sequential(), schedule=Constant(epochs=epochs)).pool()
    orders = [[int(i) for i in pool.order(e)] for e in range(epochs)]
    expected, ks = twins.adaptive_kstep(task, orders, learners, k, lr, 0.5, least=least, **more)
    assert len(set(ks)) > 1 or not more.get("shrink_sync", True)
    result = simulated(
        task,
        AdaptiveKStep(sync_every=k, min_sync_every=least, **more),
        learners,
        optimizer=SGD(lr=lr, momentum=0.5),
        schedule=Constant(epochs=epochs, lr_compensation="none"),
        evaluate_every=1.0,
        guard_factor=1e6,
    )
    np.testing.assert_allclose(result.model["w"].numpy(), expected, rtol=5e-5)
    if more.get("accept"):
        assert result.discarded_frames > 0
