"""What every strategy is held to, the rest: accounts that close, adversity, the record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conformance.cases import CASES, SYNCHRONOUS, Case
from helpers.runs import fault_plan, real, simulated, simulator, uneven
from helpers.tasks import Quadratic

from hocket import Cluster, Constant
from hocket.experiment import Experiment, RuntimeOptions

each = pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)


# ------------------------------------------------------------------ the ledger


@each
@pytest.mark.parametrize("sharding", ["pool", "fixed"])
def test_the_ledger_closes_in_both_worlds(case: Case, sharding: str, tmp_path: Path) -> None:
    task = Quadratic(num_items=23, uneven=True)
    frames = sum(task.frames_of(i) for i in range(23))
    for learners in case.learners:
        more: dict[str, Any] = {"schedule": Constant(epochs=2), "sharding": sharding}
        a = simulated(task, case.strategy, uneven(learners, 1), **more)
        b = real(task, case.strategy, learners, **more)
        for result in (a, b):
            assert result.frames + result.discarded_frames == 2 * frames
            assert sum(one.frames for one in result.learners) == 2 * frames


@each
def test_every_item_is_drawn_exactly_once_per_epoch(case: Case) -> None:
    task, learners = Quadratic(num_items=23), case.learners[-1]
    experiment = Experiment(
        task,
        case.strategy,
        schedule=Constant(epochs=2),
        options=RuntimeOptions(learners=learners, trace=True),
    )
    sim = simulator(experiment, uneven(learners, 2))
    sim.run()
    drawn = sorted(
        s.detail for s in sim.trace.spans if s.kind == "compute" and "part" not in s.detail
    )
    assert drawn == sorted(f"{epoch}/{item}" for epoch in range(2) for item in range(23))


# ------------------------------------------------------------------ adversity


@each
def test_no_deadlock_in_random_clusters(case: Case) -> None:
    task, learners = Quadratic(num_items=9, uneven=True), case.learners[-1]
    frames = sum(task.frames_of(i) for i in range(9))
    for seed in range(case.seeds):
        experiment = Experiment(
            task,
            case.strategy,
            schedule=Constant(epochs=1),
            options=RuntimeOptions(learners=learners, seed=seed),
        )
        sim = simulator(experiment, uneven(learners, seed))
        sim.run()
        assert sim.context(0).account.frames == frames


@pytest.mark.parametrize(
    "case", [c for c in SYNCHRONOUS if c.strategy.max_learners != 1], ids=lambda c: c.id
)
def test_learners_may_die_at_any_time(case: Case) -> None:
    """The fault fires, nobody hangs, and committed + discarded is exact."""
    task, learners = Quadratic(num_items=14, uneven=True), 4
    frames = 2 * sum(task.frames_of(i) for i in range(14))
    for seed in range(case.seeds):
        deaths = fault_plan(learners, seed)
        experiment = Experiment(
            task,
            case.strategy,
            schedule=Constant(epochs=2),
            options=RuntimeOptions(learners=learners, seed=seed, trace=True),
        )
        sim = simulator(experiment, uneven(learners, seed, deaths))
        sim.run()
        assert not case.unfired(sim), "a planned fault did not fire"
        lost = sum(s.kind == "lost" for s in sim.trace.spans)
        assert lost == len(deaths) - len(sim.deaths_to_come()) == learners - len(sim.alive)
        for rank in sim.alive:
            assert sim.context(rank).account.frames == frames


# ------------------------------------------------------------------ the record


@each
def test_both_worlds_leave_the_same_kind_of_record(case: Case, tmp_path: Path) -> None:
    learners = case.learners[0]
    more: dict[str, Any] = {"schedule": Constant(epochs=2)}
    simulated(Quadratic(), case.strategy, Cluster.even(learners), out=tmp_path / "sim", **more)
    real(Quadratic(), case.strategy, learners, out=tmp_path / "real", **more)
    kinds = []
    for world in ("sim", "real"):
        rows = [json.loads(x) for x in (tmp_path / world / "metrics.jsonl").open()]
        kinds.append({(r["event"], tuple(sorted(r))) for r in rows})
        assert (tmp_path / world / "model.safetensors").exists()
    assert kinds[0] == kinds[1]
