"""The same adversity, thousands of times: `make test-long`."""

from __future__ import annotations

import numpy as np
import pytest
from conformance.cases import CASES, SYNCHRONOUS, Case
from helpers.runs import fault_plan, simulator, uneven
from helpers.tasks import Quadratic

from hocket import Constant
from hocket.experiment import Experiment, RuntimeOptions

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]
MANY = 1000


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_no_deadlock_in_many_random_clusters(case: Case) -> None:
    for seed in range(1000, 1000 + MANY):
        rng = np.random.default_rng(seed)
        items = int(rng.integers(1, 20))
        learners = int(rng.integers(1, 7)) if case.strategy.max_learners != 1 else 1
        task = Quadratic(num_items=items, uneven=True)
        experiment = Experiment(
            task,
            case.strategy,
            schedule=Constant(epochs=2, lr_compensation="none"),
            options=RuntimeOptions(
                learners=learners, seed=seed, sharding="fixed" if seed % 3 == 0 else "pool"
            ),
        )
        sim = simulator(experiment, uneven(learners, seed))
        sim.run()
        assert sim.context(0).account.frames == 2 * sum(task.frames_of(i) for i in range(items))


@pytest.mark.parametrize(
    "case", [c for c in SYNCHRONOUS if c.strategy.max_learners != 1], ids=lambda c: c.id
)
def test_many_random_fault_plans(case: Case) -> None:
    for seed in range(1000, 1000 + MANY):
        learners = 2 + seed % 5
        task = Quadratic(num_items=14, uneven=True)
        deaths = fault_plan(learners, seed)
        experiment = Experiment(
            task,
            case.strategy,
            schedule=Constant(epochs=2, lr_compensation="none"),
            options=RuntimeOptions(learners=learners, seed=seed),
        )
        sim = simulator(experiment, uneven(learners, seed, deaths))
        sim.run()
        assert not case.unfired(sim), "a planned fault did not fire"
        for rank in sim.alive:
            assert sim.context(rank).account.frames == 2 * sum(task.frames_of(i) for i in range(14))
