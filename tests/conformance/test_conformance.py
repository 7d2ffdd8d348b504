"""What every strategy is held to; see docs/architecture.md, 'Conformance'."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conformance.cases import CASES, ROWS, SYNCHRONOUS, Case, each, sparingly, waits
from helpers.runs import (
    keep_only_first_checkpoint,
    point,
    real,
    same_model,
    simulated,
    uneven,
)
from helpers.tasks import Quadratic, WithBuffers, WithDropout, acoustic

from hocket import SGD, Constant, Exponential, Newbob
from hocket.core.codec import Lossy
from hocket.experiment import Experiment
from hocket.strategies import STRATEGIES

MOMENTUM = SGD(lr=0.005, momentum=0.9)


def test_every_strategy_is_held_to_it() -> None:
    assert set(STRATEGIES) <= {case.strategy.name for case in CASES}


# ------------------------------------------------------------------ it learns


@each(ROWS)
def test_converges_on_a_quadratic(case: Case) -> None:
    task = case.quadratic()
    for learners in case.learners:
        result = simulated(
            task,
            case,
            learners,
            optimizer=SGD(lr=0.1),
            schedule=Exponential(epochs=40, final_factor=0.01),
            evaluate_every=40,
            checkpoint_every=40,
        )
        w = point(result).numpy()
        assert np.abs(w - task.optimum).max() < 0.03, (learners, w, task.optimum)


@sparingly(ROWS)
def test_learns_a_small_acoustic_problem(case: Case) -> None:
    task = acoustic(num_frames=8000)
    bayes = task.bayes_error("dev")
    result = simulated(
        task, case, case.learners[-1], optimizer=SGD(lr=0.1), schedule=Constant(epochs=4)
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


@each(ROWS)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_one_learner_is_plain_sgd_bit_for_bit(case: Case, momentum: float) -> None:
    if not case.one_learner_is_sgd:
        pytest.skip("not what this method is with one learner")
    task = case.quadratic(uneven=True)
    schedule, optimizer = Constant(epochs=3), SGD(lr=0.05, momentum=momentum)
    experiment = Experiment(task, case.strategy, optimizer, schedule, case.codec)
    pool = experiment.pool()
    order = [int(i) for epoch in range(3) for i in pool.order(epoch)]
    expected = plain_sgd(task, order, 0.05, momentum)
    result = simulated(task, case, 1, optimizer=optimizer, schedule=schedule)
    assert torch.equal(point(result), expected)


# ------------------------------------------------------------------ determinism


@sparingly(ROWS)
def test_same_seed_same_trace_same_model(case: Case) -> None:
    task = case.quadratic(uneven=True)
    for learners in case.learners:
        runs = [simulated(task, case, uneven(learners, 3), optimizer=MOMENTUM) for _ in range(2)]
        assert runs[0].trace_digest == runs[1].trace_digest
        assert runs[0].time_s == runs[1].time_s
        assert same_model(*runs)
        other = simulated(task, case, uneven(learners, 3), optimizer=MOMENTUM, seed=1)
        assert other.trace_digest != runs[0].trace_digest


@sparingly(SYNCHRONOUS)
def test_speeds_do_not_change_the_result(case: Case) -> None:
    for task in (case.quadratic(uneven=True), WithDropout(), WithBuffers()):
        for learners in case.learners:
            even = simulated(task, case, learners, optimizer=MOMENTUM)
            for seed in range(3 if case.thorough else 1):
                other = simulated(task, case, uneven(learners, seed), optimizer=MOMENTUM)
                assert same_model(even, other)


TASKS = [WithBuffers(uneven=True), acoustic(), WithDropout()]


@pytest.mark.parametrize(
    ("case", "task"),
    [
        pytest.param(c, t, id=f"{c.id}-{t!r}", marks=waits(c))
        for c in SYNCHRONOUS
        for t in (TASKS if c.thorough else TASKS[:1])
    ],
)
def test_simulator_equals_real_processes_bit_for_bit(case: Case, task: Quadratic) -> None:
    for learners in case.learners:
        more: dict[str, Any] = {
            "optimizer": MOMENTUM,
            "schedule": Newbob(epochs=3),
            "evaluate_every": 0.5,
        }
        a = simulated(task, case, learners, **more)
        b = real(task, case, learners, **more)
        assert same_model(a, b)
        assert (a.loss, a.accuracy, a.frames) == (b.loss, b.accuracy, b.frames)


# ------------------------------------------------------------------ resuming


@each(ROWS)
def test_resumed_simulation_equals_the_whole_bit_for_bit(case: Case, tmp_path: Path) -> None:
    for learners in case.learners:
        whole_dir, part_dir = tmp_path / f"whole{learners}", tmp_path / f"part{learners}"
        more: dict[str, Any] = {
            "strategy": case,
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


@sparingly(SYNCHRONOUS)
def test_resumed_real_run_equals_the_whole_bit_for_bit(case: Case, tmp_path: Path) -> None:
    learners = case.learners[0]
    more: dict[str, Any] = {
        "strategy": case,
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


@sparingly(ROWS)
def test_resumes_with_another_number_of_learners(case: Case, tmp_path: Path) -> None:
    if case.strategy.max_learners == 1:
        pytest.skip("runs on one learner only")
    task = case.quadratic(uneven=True)
    schedule = Exponential(epochs=10, final_factor=0.02)
    more: dict[str, Any] = {"strategy": case, "schedule": schedule, "keep_checkpoints": 99}
    more |= {"optimizer": SGD(lr=0.1)}
    first = simulated(task, cluster=4, out=tmp_path / "a", checkpoint_every=2.4, **more)
    for learners in (2, 3, 5):
        part = keep_only_first_checkpoint(tmp_path / "a", tmp_path / f"to{learners}")
        second = simulated(
            task, cluster=learners, out=part, resume=True, checkpoint_every=2.4, **more
        )
        frames = [run.frames + run.discarded_frames for run in (first, second)]
        assert frames[0] == frames[1]
        coarse = isinstance(case.codec, Lossy)  # one bit for each of five values
        away = np.abs(point(second).numpy() - task.optimum).max()
        assert away < (0.3 if coarse else 0.2)  # from 1.1 at the start
