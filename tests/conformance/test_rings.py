"""Decentralised methods against their twin, and what mixing alone does to the models."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pytest
import torch
from helpers.runs import same_model, simulated, simulator
from helpers.tasks import DIM, Quadratic, acoustic
from reference import ring_twin
from torch import nn

from hocket import ADPSGD, DPSGD, SGD, Cluster, Constant, DelayByOne, Host, Loss, Sequential, Slow
from hocket.core import topology
from hocket.errors import ConfigError
from hocket.experiment import Experiment, RuntimeOptions
from hocket.record.results import LearnerReport, slow_learner
from hocket.report.page import write_page
from hocket.report.runs import read_run
from hocket.runtime.sim.simulator import Simulator

Ring = Literal["fixed", "random"]
Partners = Literal["one", "both"]
PLAIN = Constant(epochs=2, lr_compensation="none")


@dataclass(frozen=True)
class Flat(Quadratic):
    """Nothing to learn: every gradient is zero."""

    def loss(self, model: nn.Module, batch: Any) -> Loss:
        errors = 0.0 * super().loss(model, batch).total
        return Loss(errors, len(batch))


def build(task: Quadratic, strategy: Any, learners: int) -> Simulator:
    experiment = Experiment(
        task,
        strategy,
        SGD(lr=0.05),
        PLAIN,
        options=RuntimeOptions(learners=learners, trace=True, evaluate_every=9.0),
    )
    return simulator(experiment, jittery(learners))


def jittery(learners: int) -> Cluster:
    """No two things happen at the same time."""
    return Cluster(
        (Host(count=1, frames_per_s=400.0, jitter=0.4, bandwidth_gbit=0.001),) * learners
    )


def scattered(sim: Simulator, values: np.ndarray[Any, Any]) -> None:
    for learner, value in zip(sim.learners, values, strict=True):
        learner.state.params[:DIM] = torch.from_numpy(value.astype(np.float32))


def models(sim: Simulator) -> np.ndarray[Any, Any]:
    return np.stack([learner.state.params[:DIM].numpy() for learner in sim.learners])


# ------------------------------------------------------------------ against the twin


@pytest.mark.parametrize("learners", [2, 5, 8])
@pytest.mark.parametrize("ring", ["fixed", "random"])
def test_adpsgd_follows_its_twin(ring: Ring, learners: int) -> None:
    """Every learner's model, from the events of the run alone."""
    sim = build(Quadratic(uneven=True), ADPSGD(ring=ring), learners)
    sim.run()
    expected = ring_twin.adpsgd(Quadratic(uneven=True), sim.trace.spans, learners, lr=0.05)
    assert sum(learner.state.mixes for learner in sim.learners) > 2 * learners  # type: ignore[attr-defined]
    np.testing.assert_allclose(models(sim), expected, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("learners", [2, 4, 8])
@pytest.mark.parametrize("ring", ["fixed", "random"])
def test_adpsgd_with_both_neighbours_follows_its_twin(ring: Ring, learners: int) -> None:
    task = Quadratic(uneven=True)
    sim = build(task, ADPSGD(ring=ring, mixes_with="both"), learners)
    sim.run()
    partners = min(2, learners // 2)
    expected = ring_twin.adpsgd(task, sim.trace.spans, learners, lr=0.05, partners=partners)
    assert sum(learner.state.mixes for learner in sim.learners) > 2 * learners  # type: ignore[attr-defined]
    np.testing.assert_allclose(models(sim), expected, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("mixing", topology.ROUNDS)
def test_dpsgd_follows_its_matrices(mixing: topology.Rounds) -> None:
    """W(k+1) = W(k) T(k) - lr G(W(k)), in float64."""
    task, learners = Quadratic(num_items=20), 5
    sim = build(task, DPSGD(mixing=mixing), learners)
    sim.run()
    w = np.zeros((learners, DIM))
    a2, round_number = task.curvature() ** 2, 0
    for epoch in range(2):
        order = sim._pool.order(epoch)
        for first in range(0, 20, learners):
            drawn = order[first : first + learners]
            g = np.stack(
                [(a2 * (w[i] - task.targets(int(d)))).mean(0) for i, d in enumerate(drawn)]
            )
            w = topology.of_round(mixing, learners, round_number).T @ w - 0.05 * g
            round_number += 1
    np.testing.assert_allclose(models(sim), w, rtol=1e-5, atol=1e-6)


def test_dpsgd_on_the_complete_graph_is_delay_by_one() -> None:
    task = Quadratic(num_items=24)
    a = simulated(task, DPSGD(mixing="complete"), 4, schedule=PLAIN)
    b = simulated(task, DelayByOne(), 4, schedule=PLAIN)
    torch.testing.assert_close(a.model["w"], b.model["w"], rtol=1e-6, atol=1e-7)


# ------------------------------------------------------------------ mixing alone


@pytest.mark.parametrize("learners", [4, 7, 8])
@pytest.mark.parametrize("ring", ["fixed", "random"])
def test_exchanges_alone_keep_the_mean_and_shrink_the_rest(ring: Ring, learners: int) -> None:
    """The disagreement that is left is that of the pairs that met, in their order."""
    start = np.random.default_rng(3).normal(size=(learners, DIM))
    sim = build(Flat(num_items=60), ADPSGD(ring=ring), learners)
    scattered(sim, start)
    sim.run()
    after = models(sim)
    np.testing.assert_allclose(after.mean(0), start.mean(0), rtol=1e-5, atol=1e-6)
    mixed = start.T.copy()
    for _, what, rank, other in ring_twin.events(sim.trace.spans):
        if what == "mix":
            mixed = mixed @ ring_twin.pair(learners, rank, other)
    np.testing.assert_allclose(after.T, mixed, rtol=1e-4, atol=1e-5)
    assert np.std(after) < 0.5 * np.std(start)


def test_both_neighbours_keep_the_mean_and_shrink_the_rest_faster() -> None:
    """One exchange of three, weights 1/3, brings models closer than one of two."""
    start = np.random.default_rng(3).normal(size=(8, DIM))
    left: dict[str, float] = {}
    for how in get_args(Partners):
        sim = build(Flat(num_items=60), ADPSGD(ring="fixed", mixes_with=how), 8)
        scattered(sim, start)
        sim.run()
        np.testing.assert_allclose(models(sim).mean(0), start.mean(0), rtol=1e-5, atol=1e-6)
        left[how] = float(np.std(models(sim) - models(sim).mean(0)))
    assert left["both"] < 0.7 * left["one"]


def test_small_integers_keep_their_mean_bit_for_bit() -> None:
    """Nothing is rounded, so the sum of all models is exactly what it was."""
    start = np.random.default_rng(1).integers(-64, 64, size=(4, DIM)).astype(np.float64)
    sim = build(Flat(num_items=6), ADPSGD(ring="random"), 4)
    scattered(sim, start)
    sim.run()
    assert sum(learner.state.mixes for learner in sim.learners) > 0  # type: ignore[attr-defined]
    np.testing.assert_array_equal(models(sim).sum(0), start.sum(0))


@pytest.mark.parametrize("mixing", topology.ROUNDS)
def test_rounds_alone_shrink_disagreement_at_the_rate_of_their_matrices(
    mixing: topology.Rounds,
) -> None:
    start = np.random.default_rng(5).normal(size=(6, DIM))
    sim = build(Flat(num_items=30), DPSGD(mixing=mixing), 6)
    scattered(sim, start)
    sim.run()
    expected = start.T.copy()
    for number in range(10):
        expected = expected @ topology.of_round(mixing, 6, number)
    np.testing.assert_allclose(models(sim).T, expected, rtol=1e-4, atol=1e-6)


# ------------------------------------------------------------------ switches, limits


def test_the_two_rings_differ_and_both_learn() -> None:
    task = acoustic()
    runs = {r: simulated(task, ADPSGD(ring=r), 8) for r in ("fixed", "random")}
    alone = simulated(task, ADPSGD(), 1)
    assert not same_model(runs["fixed"], runs["random"])
    assert all(run.loss < alone.loss * 1.5 for run in runs.values())


@pytest.mark.parametrize("strategy", [ADPSGD(ring="fixed"), ADPSGD()], ids=lambda s: s.ring)
def test_a_slow_learner_slows_only_itself(strategy: ADPSGD) -> None:
    """Rings keep the summed speed; a synchronous method drops to the slowest."""
    task = Quadratic(num_items=400)
    hosts = tuple(Host(frames_per_s=400.0 if r else 40.0) for r in range(8))
    even = simulated(task, strategy, Cluster((Host(count=8, frames_per_s=400.0),)), schedule=PLAIN)
    slowed = simulated(task, strategy, Cluster(hosts), schedule=PLAIN)
    waiting = simulated(task, DelayByOne(), Cluster(hosts), schedule=PLAIN)
    assert slowed.frames_per_s > 0.9 * even.frames_per_s * 7.1 / 8
    assert waiting.frames_per_s < 0.3 * even.frames_per_s


def test_a_partner_that_is_too_slow_to_answer_is_left_out() -> None:
    """In the simulator only the network can be that slow."""
    cluster = Cluster((Host(frames_per_s=400.0, bandwidth_gbit=1e-6),) * 4)
    task = Quadratic(num_items=40)
    patient = simulated(task, ADPSGD(partner_timeout_s=1e4), cluster, schedule=PLAIN)
    hasty = simulated(task, ADPSGD(partner_timeout_s=1e-4), cluster, schedule=PLAIN)
    assert not same_model(patient, hasty)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ADPSGD(ring="star"), "strategy.ring must be 'fixed' or 'random', not 'star'"),  # type: ignore[arg-type]
        (lambda: ADPSGD(partner_timeout_s=0.0), "partner_timeout_s must be above 0, not 0.0"),
        (lambda: DPSGD(mixing="tree"), "strategy.mixing must be one of ring, .*not 'tree'"),  # type: ignore[arg-type]
    ],
)
def test_bad_settings_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_consensus_and_staleness_are_measured() -> None:
    sim = build(Quadratic(), ADPSGD(), 4)
    rows: list[dict[str, Any]] = []
    sim._report = rows.append
    sim.run()
    last = [row for row in rows if row["event"] == "eval"][-1]
    apart = models(sim) - models(sim).mean(0)
    spread = np.sqrt((apart**2).sum(1).mean()) / np.linalg.norm(models(sim).mean(0))
    assert last["consensus"] == pytest.approx(spread, rel=1e-4)
    assert 0 <= last["staleness"] <= last["staleness_max"]


def test_the_simulator_can_slow_one_learner_for_a_while() -> None:
    """A straggler of a moment: the run is the same length in frames, longer in time."""
    task = Quadratic(num_items=60)
    cluster = Cluster((Host(count=4, frames_per_s=400.0),))
    hit = Cluster((Host(count=4, frames_per_s=400.0),), slow=(Slow(rank=2, factor=10.0),))
    a, b = (simulated(task, ADPSGD(), c, schedule=PLAIN) for c in (cluster, hit))
    assert a.frames == b.frames
    assert b.learners[2].frames < a.learners[2].frames


# ------------------------------------------------------------------ what a user is told


def test_the_slow_learner_is_named() -> None:
    """Where nobody waits for it by its frames, where all do by how busy it is."""
    task = Quadratic(num_items=200)
    slow = Cluster((Host(count=5, frames_per_s=400.0),), slow=(Slow(rank=3, factor=10.0),))
    even = Cluster((Host(count=5, frames_per_s=400.0),))
    apart = slow_learner(simulated(task, ADPSGD(), slow, schedule=PLAIN).learners)
    assert apart is not None
    assert apart.startswith("rank 3 is slow: ")
    assert "do not wait for it" in apart
    together = slow_learner(simulated(task, DelayByOne(), slow, schedule=PLAIN).learners)
    assert together is not None
    assert together.startswith("rank 3 is slow: it computes")
    assert slow_learner(simulated(task, ADPSGD(), even, schedule=PLAIN).learners) is None


def test_a_learner_that_computes_more_of_the_time_is_not_slow_where_nobody_waits() -> None:
    """Learners of `asgd` wait for the servers: three that did as much, one of them busier."""
    learners = [LearnerReport(rank, 5_000, 0, busy) for rank, busy in enumerate((0.06, 0.07, 0.11))]
    assert slow_learner(learners, synchronous=False) is None
    assert slow_learner(learners) is not None


def test_a_learner_that_joined_late_is_not_slow() -> None:
    early = [LearnerReport(rank, 5_000, 0, 0.9, there_s=10.0) for rank in range(3)]
    late = LearnerReport(3, 1_000, 0, 0.9, there_s=2.0)
    assert slow_learner([*early, late], synchronous=False) is None
    assert slow_learner([*early, replace(late, there_s=10.0)], synchronous=False) is not None


def test_the_report_draws_how_far_models_were_apart(tmp_path: Path) -> None:
    for name, strategy in (("ring", ADPSGD()), ("alone", Sequential())):
        learners = 4 if name == "ring" else 1
        simulated(Quadratic(), strategy, learners, out=tmp_path / name)
    for runs, drawn in ((["ring", "alone"], True), (["alone"], False)):
        page = tmp_path / "page.html"
        write_page(page, "rings", [read_run(tmp_path / run) for run in runs])
        assert ("distance from consensus" in page.read_text()) == drawn
