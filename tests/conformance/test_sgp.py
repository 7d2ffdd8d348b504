"""Stochastic gradient push against its twin, and what pushing alone does to the models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conformance.test_rings import Flat, build, models, scattered
from helpers.runs import simulator, uneven
from helpers.tasks import DIM, Quadratic
from reference.twins import mean_gradient

from hocket import SGD, SGP, Constant, Death
from hocket.experiment import Experiment, RuntimeOptions
from hocket.runtime.sim.simulator import Simulator


def pushing(task: Quadratic, orders: list[Any], learners: int, lr: float) -> np.ndarray[Any, Any]:
    """Every z at the end, from the paper, in float64: x, w and who pushes to whom."""
    x, w, k = np.zeros((learners, DIM)), np.ones(learners), 0
    hops = int(np.ceil(np.log2(learners)))
    for order in orders:
        for first in range(0, len(order), learners):
            for i, item in enumerate(order[first : first + learners]):
                x[i] -= lr * mean_gradient(task, x[i] / w[i], int(item))
            p = 0.5 * np.eye(learners)
            for j in range(learners):
                p[(j + 2 ** (k % hops)) % learners, j] += 0.5
            x, w, k = p @ x, p @ w, k + 1
    return x / w[:, None]


@pytest.mark.parametrize("learners", [2, 4, 5])
def test_sgp_follows_its_twin(learners: int) -> None:
    task = Quadratic(num_items=20, uneven=True)
    sim = build(task, SGP(), learners)
    sim.run()
    orders = [sim._pool.order(epoch) for epoch in range(2)]
    expected = pushing(task, orders, learners, lr=0.05)
    np.testing.assert_allclose(models(sim), expected, rtol=1e-5, atol=1e-6)


def push_only(sim: Simulator, start: np.ndarray[Any, Any]) -> None:
    scattered(sim, start)
    for learner in sim.learners:
        learner.state.pushed.copy_(learner.state.params)  # type: ignore[attr-defined]
    sim.run()


@pytest.mark.parametrize("learners", [2, 4, 8])
def test_a_power_of_two_learners_agree_after_log_rounds(learners: int) -> None:
    """Each round halves what is left to be mixed: log2(P) rounds give the mean."""
    start = np.random.default_rng(5).normal(size=(learners, DIM))
    rounds = int(np.log2(learners))
    sim = build(Flat(num_items=rounds * learners), SGP(), learners)
    push_only(sim, start)
    np.testing.assert_allclose(models(sim), np.tile(start.mean(0), (learners, 1)), atol=1e-6)


@pytest.mark.parametrize("seed", range(20))
def test_after_deaths_every_model_is_still_a_weighted_mean(seed: int) -> None:
    """All models are 1 in one place: whatever was lost, they stay 1 there. The weights do not."""
    rng = np.random.default_rng(seed)
    start = rng.normal(size=(5, DIM))
    start[:, 0] = 1.0
    victims = rng.choice(5, size=2, replace=False)
    deaths = tuple(Death(int(v), at_s=float(rng.uniform(0.0, 0.3))) for v in victims)
    experiment = Experiment(
        Flat(num_items=60),
        SGP(),
        SGD(lr=0.05),
        Constant(epochs=2, lr_compensation="none"),
        options=RuntimeOptions(learners=5),
    )
    sim = simulator(experiment, uneven(5, seed, deaths))
    push_only(sim, start)
    assert len(sim.alive) == 3, "a planned fault did not fire"
    alive = [sim.learners[rank].state for rank in sim.alive]
    assert all(float(state.params[0]) == pytest.approx(1.0, abs=1e-6) for state in alive)
    low, high = start.min(0) - 1e-6, start.max(0) + 1e-6
    for state in alive:
        assert np.all((state.params[:DIM].numpy() > low) & (state.params[:DIM].numpy() < high))


def test_deaths_do_lose_weight() -> None:
    """Without the correction by w the models of the survivors would shrink."""
    weights = []
    for seed in range(20):
        deaths = (Death(1, at_s=0.05),)
        experiment = Experiment(
            Flat(num_items=60), SGP(), SGD(lr=0.05), options=RuntimeOptions(learners=4)
        )
        sim = simulator(experiment, uneven(4, seed, deaths))
        sim.run()
        weights += [sim.learners[r].state.weight for r in sim.alive]  # type: ignore[attr-defined]
    assert min(weights) < 0.99
