"""What every strategy is held to, the rest: accounts that close, adversity, the record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conformance.cases import ROWS, Case, each, sparingly
from helpers.audit import Auditor, check_witnessed
from helpers.runs import real, simulated, simulator, uneven
from helpers.tasks import (
    InLayers,
    InRows,
    Quadratic,
    Witness,
    WitnessInLayers,
    WitnessInRows,
)

from hocket import Cluster, Constant
from hocket.experiment import Experiment, RuntimeOptions

# ------------------------------------------------------------------ the ledger


@sparingly(ROWS)
@pytest.mark.parametrize("sharding", ["pool", "fixed"])
def test_the_ledger_closes_in_both_worlds(case: Case, sharding: str, tmp_path: Path) -> None:
    """Every frame is accounted for, and every item was computed once: the task itself saw it."""
    task = case.quadratic(num_items=23, uneven=True)
    kind = {Quadratic: Witness, InRows: WitnessInRows, InLayers: WitnessInLayers}[case.task_type]
    frames = sum(task.frames_of(i) for i in range(23))
    for learners in case.learners:
        more: dict[str, Any] = {"schedule": Constant(epochs=2), "sharding": sharding}
        a = simulated(task, case, uneven(learners, 1), **more)
        witness = kind(num_items=23, uneven=True, path=str(tmp_path / f"{learners}"))
        b = real(witness, case, learners, **more)
        check_witnessed(witness, b, epochs=2)
        for result in (a, b):
            assert result.frames + result.discarded_frames == 2 * frames
            assert sum(one.frames for one in result.learners) == 2 * frames


@each(ROWS)
def test_every_item_is_computed_exactly_once_per_epoch_before_it_is_settled(case: Case) -> None:
    task, learners = case.quadratic(num_items=23), case.learners[-1]
    experiment = Experiment(
        task,
        case.strategy,
        codec=case.codec,
        schedule=Constant(epochs=2),
        options=RuntimeOptions(learners=learners, **case.options),
    )
    sim = simulator(experiment, uneven(learners, 2))
    auditor = Auditor(sim)
    sim.run()
    auditor.check()
    assert {place: len(auditor.whole(place)) for place in auditor.computed()} == {
        (epoch, item): 1 for epoch in range(2) for item in range(23)
    }


# ------------------------------------------------------------------ adversity


@each(ROWS)
def test_no_deadlock_in_random_clusters(case: Case) -> None:
    task, learners = case.quadratic(num_items=9, uneven=True), case.learners[-1]
    frames = sum(task.frames_of(i) for i in range(9))
    for seed in range(case.seeds):
        experiment = Experiment(
            task,
            case.strategy,
            codec=case.codec,
            schedule=Constant(epochs=1),
            options=RuntimeOptions(learners=learners, seed=seed, **case.options),
        )
        sim = simulator(experiment, uneven(learners, seed))
        sim.run()
        assert sim.context(0).account.frames == frames


# ------------------------------------------------------------------ the record


@sparingly(ROWS)
def test_both_worlds_leave_the_same_kind_of_record(case: Case, tmp_path: Path) -> None:
    learners = case.learners[0]
    more: dict[str, Any] = {"schedule": Constant(epochs=2)}
    simulated(case.quadratic(), case, Cluster.even(learners), out=tmp_path / "sim", **more)
    real(case.quadratic(), case, learners, out=tmp_path / "real", **more)
    kinds = []
    for world in ("sim", "real"):
        rows = [json.loads(x) for x in (tmp_path / world / "metrics.jsonl").open()]
        kinds.append({(r["event"], tuple(sorted(r))) for r in rows})
        assert (tmp_path / world / "model.safetensors").exists()
    assert kinds[0] == kinds[1]
