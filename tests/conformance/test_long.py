"""The same adversity, thousands of times: `make test-long`."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conformance.cases import CASES, GROUPS, PARALLEL, Case
from conformance.test_faults import ROWS, every_kind_fired
from helpers.faults import resume_after_faults, run_plans
from helpers.runs import same_model, simulated, simulator, uneven
from helpers.tasks import WithBuffers

from hocket import SGD, Cluster, Constant, Host
from hocket.experiment import Experiment, RuntimeOptions

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]
NUM_PLANS = 1000  # fault plans of a row
PLANS_OF_A_TEST = 250  # so that they can be spread over the cores
NUM_CLUSTERS = 1000  # random clusters of a row without faults
NUM_CLUSTERS_ALIKE = 250  # ... whose effects are those of another row
NUM_RESUMED_AFTER_FAULTS = 30  # of a row


@pytest.mark.parametrize("case", [*CASES, *GROUPS], ids=lambda c: c.id)
def test_no_deadlock_in_many_random_clusters(case: Case) -> None:
    most = NUM_CLUSTERS if case.thorough else NUM_CLUSTERS_ALIKE
    for seed in range(1000, 1000 + min(case.many, most)):
        rng = np.random.default_rng(seed)
        items = int(rng.integers(1, 20))
        learners = int(rng.integers(case.fewest, 7)) if case.strategy.max_learners != 1 else 1
        task = case.quadratic(num_items=items, uneven=True)
        experiment = Experiment(
            task,
            case.strategy,
            codec=case.codec,
            schedule=Constant(epochs=2, lr_compensation="none"),
            options=RuntimeOptions(
                learners=learners,
                seed=seed,
                sharding="fixed" if seed % 3 == 0 else "pool",
                **case.options,
            ),
        )
        sim = simulator(experiment, uneven(learners, seed))
        sim.run()
        assert sim.context(0).account.frames == 2 * sum(task.frames_of(i) for i in range(items))


@pytest.mark.parametrize("case", PARALLEL, ids=lambda c: c.id)
def test_every_method_runs_unchanged_on_learners_that_are_groups(case: Case) -> None:
    """Where their ranks exchange at no cost, bit for bit: they take as long as one device."""
    if case.strategy.takes_products:
        pytest.skip("refused: it asks for more than gradients")
    speeds = [Host(frames_per_s=50.0 * (3 + n), jitter=0.3, memory_gbit=math.inf) for n in range(4)]
    cluster = Cluster(tuple(speeds), local_latency_s=0.0)
    more: dict[str, Any] = {"optimizer": SGD(lr=0.005), "evaluate_every": 0.5}
    plain, groups = (
        simulated(WithBuffers(uneven=True), case, cluster, ranks_per_learner=n, **more)
        for n in (1, 2)
    )
    assert same_model(plain, groups)
    assert (plain.loss, plain.frames) == (groups.loss, groups.frames)


@pytest.mark.parametrize("case", ROWS, ids=lambda c: c.id)
@pytest.mark.parametrize("first", range(1000, 1000 + NUM_PLANS, PLANS_OF_A_TEST))
def test_many_fault_plans_of_every_kind(first: int, case: Case) -> None:
    tally = run_plans(case, range(first, first + PLANS_OF_A_TEST))
    every_kind_fired(case, tally, at_least=PLANS_OF_A_TEST // 25)
    alone = case.strategy.max_learners == 1
    least = PLANS_OF_A_TEST // 50
    assert alone or tally.fenced >= least, "frozen learners woke up among the living"
    ends = alone or not case.survives  # ... with the first loss, mostly
    assert ends or tally.repeated, "what the dead had computed in vain was computed again"


@pytest.mark.parametrize("case", ROWS, ids=lambda c: c.id)
def test_many_runs_that_met_faults_are_resumed(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    resumed = [
        resume_after_faults(case, seed, tmp_path / f"{seed}")
        for seed in range(2000, 2000 + NUM_RESUMED_AFTER_FAULTS)
    ]
    least = 0.15 if case.strategy.max_learners == 1 else 0.4  # alone, a death ends it at once
    assert sum(resumed) > least * NUM_RESUMED_AFTER_FAULTS
