"""Learners join a running group: every strategy, in the simulator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from conformance.cases import PARALLEL, Case, each
from helpers.joins import check, joined_and_resumed, run_joins
from helpers.runs import keep_only_first_checkpoint, same_model, simulated
from helpers.tasks import Quadratic

from hocket import Cluster, Constant, KStep, Sequential
from hocket.core.strategy import Strategy
from hocket.errors import ConfigError
from hocket.runtime.sim.cost import Host, Joining

NUM_PLANS = 4  # of a row; make test-long has thousands (`test_long_joins.py`)


@each(PARALLEL)
def test_a_joining_is_a_resumption_with_more_learners(case: Case, tmp_path: Path) -> None:
    joined, resumed = joined_and_resumed(case, tmp_path)
    assert joined.alive == resumed.alive
    for rank in joined.alive:
        account, referee = joined.context(rank).account, resumed.context(rank).account
        assert account.frames == referee.frames == account.pool.total_frames
        assert account.compensation == referee.compensation, "the rate is derived anew"
    if _begins_from_the_average(case.strategy):
        for rank in joined.alive:
            assert torch.equal(
                joined.learners[rank].state.params, resumed.learners[rank].state.params
            )


def _begins_from_the_average(strategy: Any) -> bool:
    """True unless the method lets learners keep models of their own."""
    own = type(strategy).welcome is not Strategy.welcome
    return not own or strategy.name == "hadpsgd"


@each(PARALLEL)
def test_joinings_deaths_and_pauses_leave_an_exact_account(case: Case) -> None:
    outcomes = []
    for seed in range(NUM_PLANS):
        outcomes.append(run_joins(case, seed))
        check(case, seed, outcomes[-1])
    assert any(one.joined for one in outcomes)
    again = run_joins(case, 1)
    assert again.digest == outcomes[1].digest, "the same seed, the same trace"


def test_a_newcomer_takes_work_and_the_rate_changes(tmp_path: Path) -> None:
    cluster = Cluster((Host(count=2, frames_per_s=100.0),), joins=(Joining(0.1),))
    result = simulated(Quadratic(), "allreduce", cluster, out=tmp_path, schedule=Constant(epochs=3))
    assert [one.rank for one in result.learners] == [0, 1, 2]
    assert result.frames == 3 * 44
    assert result.learners[2].frames > 0
    assert sum(one.frames for one in result.learners) == result.frames
    alone = simulated(
        Quadratic(),
        "allreduce",
        Cluster((Host(count=2, frames_per_s=100.0),)),
        schedule=Constant(epochs=3),
    )
    assert result.time_s < alone.time_s


def test_a_resumed_run_goes_on_with_those_who_had_joined(tmp_path: Path) -> None:
    """The same run, stopped after the joining and resumed, gives the same model."""
    joins = (Joining(0.1), Joining(0.5))
    cluster = Cluster((Host(count=2, frames_per_s=100.0),), joins=joins)
    options: dict[str, Any] = {"schedule": Constant(epochs=4), "keep_checkpoints": 9}
    whole = simulated(Quadratic(), KStep(sync_every=1), cluster, out=tmp_path / "a", **options)
    copy = keep_only_first_checkpoint(tmp_path / "a", tmp_path / "b")
    resumed = simulated(Quadratic(), KStep(sync_every=1), cluster, out=copy, resume=True, **options)
    assert same_model(whole, resumed)
    assert [one.rank for one in resumed.learners] == [0, 1, 2, 3]


def test_who_cannot_take_anybody_in_says_so() -> None:
    cluster = Cluster((Host(),), joins=(Joining(0.1),))
    with pytest.raises(ConfigError, match="takes nobody in"):
        simulated(Quadratic(), Sequential(), cluster)
    with pytest.raises(ConfigError, match="there are hosts 0 to 1"):
        simulated(
            Quadratic(), "allreduce", Cluster((Host(count=2),), joins=(Joining(0.0, host=7),))
        )


def test_one_of_a_pair_waits_for_the_other() -> None:
    """A strategy of pairs cannot use an odd number: the first newcomer waits for a second."""
    rows = [case for case in PARALLEL if case.strategy.needs_even_world]
    for case in rows:
        cluster = Cluster((Host(count=2, frames_per_s=50.0),), joins=(Joining(0.05), Joining(0.2)))
        result = simulated(Quadratic(), case.strategy, cluster, schedule=Constant(epochs=4))
        assert len(result.learners) == 4
