"""What every strategy is held to; see docs/architecture.md, 'Conformance'."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conformance.cases import CASES, SYNCHRONOUS, Case
from helpers.runs import (
    keep_only_first_checkpoint,
    real,
    same_model,
    simulated,
    uneven,
)
from helpers.tasks import Quadratic, WithBuffers, WithDropout, acoustic

from hocket import SGD, Constant, Exponential, Newbob
from hocket.experiment import Experiment

each = pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
each_synchronous = pytest.mark.parametrize("case", SYNCHRONOUS, ids=lambda c: c.id)
MOMENTUM = SGD(lr=0.005, momentum=0.9)


# ------------------------------------------------------------------ it learns


@each
def test_converges_on_a_quadratic(case: Case) -> None:
    task = Quadratic()
    for learners in case.learners:
        result = simulated(
            task,
            case.strategy,
            learners,
            optimizer=SGD(lr=0.1),
            schedule=Exponential(epochs=40, final_factor=0.01),
        )
        w = result.model["w"].numpy()
        assert np.abs(w - task.optimum).max() < 0.03, (learners, w, task.optimum)


@each
def test_learns_a_small_acoustic_problem(case: Case) -> None:
    task = acoustic(num_frames=8000)
    bayes = task.bayes_error("dev")
    result = simulated(
        task, case.strategy, case.learners[-1], optimizer=SGD(lr=0.1), schedule=Constant(epochs=4)
    )
    error = 1 - result.accuracy
    assert bayes - 0.03 < error < bayes + 0.08, (bayes, error)


# ------------------------------------------------------------------ it is what it says


def plain_sgd(task: Quadratic, order: list[int], lr: float, momentum: float) -> torch.Tensor:
    """A plain PyTorch loop with torch's own optimizer."""
    torch.manual_seed(0)
    model = task.build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
    for index in order:
        loss = task.loss(model, task.load("train", task.items("train")[index], 0))
        optimizer.zero_grad()
        (loss.total / loss.frames).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return next(model.parameters()).detach()


@each
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_one_learner_is_plain_sgd_to_the_bit(case: Case, momentum: float) -> None:
    if not case.one_learner_is_sgd:
        pytest.skip("not what this method is with one learner")
    task = Quadratic(uneven=True)
    schedule, optimizer = Constant(epochs=3), SGD(lr=0.05, momentum=momentum)
    experiment = Experiment(task, case.strategy, optimizer, schedule)
    pool = experiment.pool()
    order = [int(i) for epoch in range(3) for i in pool.order(epoch)]
    expected = plain_sgd(task, order, 0.05, momentum)
    result = simulated(task, case.strategy, 1, optimizer=optimizer, schedule=schedule)
    assert torch.equal(result.model["w"], expected)


# ------------------------------------------------------------------ determinism


@each
def test_same_seed_same_trace_same_model(case: Case) -> None:
    task = Quadratic(uneven=True)
    for learners in case.learners:
        runs = [
            simulated(task, case.strategy, uneven(learners, 3), optimizer=MOMENTUM)
            for _ in range(2)
        ]
        assert runs[0].trace_digest == runs[1].trace_digest
        assert runs[0].time_s == runs[1].time_s
        assert same_model(*runs)
        other = simulated(task, case.strategy, uneven(learners, 3), optimizer=MOMENTUM, seed=1)
        assert other.trace_digest != runs[0].trace_digest


@each_synchronous
def test_speeds_do_not_change_the_result(case: Case) -> None:
    for task in (Quadratic(uneven=True), WithDropout(), WithBuffers()):
        for learners in case.learners:
            even = simulated(task, case.strategy, learners, optimizer=MOMENTUM)
            for seed in range(3 if case.thorough else 1):
                other = simulated(task, case.strategy, uneven(learners, seed), optimizer=MOMENTUM)
                assert same_model(even, other)


TASKS = [WithBuffers(uneven=True), acoustic(), WithDropout()]


@pytest.mark.parametrize(
    ("case", "task"),
    [(c, t) for c in SYNCHRONOUS for t in (TASKS if c.thorough else TASKS[:1])],
    ids=lambda x: x.id if isinstance(x, Case) else repr(x),
)
def test_simulator_equals_real_processes_to_the_bit(case: Case, task: Quadratic) -> None:
    for learners in case.learners:
        more: dict[str, Any] = {
            "optimizer": MOMENTUM,
            "schedule": Newbob(epochs=3),
            "evaluate_every": 0.5,
        }
        a = simulated(task, case.strategy, learners, **more)
        b = real(task, case.strategy, learners, **more)
        assert same_model(a, b)
        assert (a.loss, a.accuracy, a.frames) == (b.loss, b.accuracy, b.frames)


# ------------------------------------------------------------------ resuming


@each
def test_resumed_simulation_equals_the_whole_to_the_bit(case: Case, tmp_path: Path) -> None:
    for learners in case.learners:
        whole_dir, part_dir = tmp_path / f"whole{learners}", tmp_path / f"part{learners}"
        more: dict[str, Any] = {
            "strategy": case.strategy,
            "cluster": uneven(learners, 5),
            "optimizer": MOMENTUM,
            "schedule": Newbob(epochs=4),
            "checkpoint_every": 0.7,
            "evaluate_every": 1.3,
            "keep_checkpoints": 99,
        }
        whole = simulated(WithBuffers(uneven=True), out=whole_dir, **more)
        keep_only_first_checkpoint(whole_dir, part_dir)
        part = simulated(WithBuffers(uneven=True), out=part_dir, resume=True, **more)
        assert same_model(whole, part)
        assert part.time_s == pytest.approx(whole.time_s, rel=1e-12)
        assert (part.loss, part.frames) == (whole.loss, whole.frames)


@each_synchronous
def test_resumed_real_run_equals_the_whole_to_the_bit(case: Case, tmp_path: Path) -> None:
    learners = case.learners[0]
    more: dict[str, Any] = {
        "strategy": case.strategy,
        "learners": learners,
        "optimizer": MOMENTUM,
        "schedule": Newbob(epochs=3),
        "checkpoint_every": 0.7,
        "keep_checkpoints": 99,
    }
    whole = real(WithBuffers(uneven=True), out=tmp_path / "whole", **more)
    keep_only_first_checkpoint(tmp_path / "whole", tmp_path / "part")
    part = real(WithBuffers(uneven=True), out=tmp_path / "part", resume=True, **more)
    assert same_model(whole, part)


@each
def test_resumes_with_another_number_of_learners(case: Case, tmp_path: Path) -> None:
    if case.strategy.max_learners == 1:
        pytest.skip("runs on one learner only")
    task = Quadratic(uneven=True)
    schedule = Exponential(epochs=10, final_factor=0.02)
    more: dict[str, Any] = {"strategy": case.strategy, "schedule": schedule, "keep_checkpoints": 99}
    more |= {"optimizer": SGD(lr=0.1)}
    first = simulated(task, cluster=4, out=tmp_path / "a", checkpoint_every=0.4, **more)
    for learners in (2, 3, 5):
        part = keep_only_first_checkpoint(tmp_path / "a", tmp_path / f"to{learners}")
        second = simulated(
            task, cluster=learners, out=part, resume=True, checkpoint_every=0.4, **more
        )
        frames = [run.frames + run.discarded_frames for run in (first, second)]
        assert frames[0] == frames[1]
        assert np.abs(second.model["w"].numpy() - task.optimum).max() < 0.2
