"""Natural gradient under every strategy: the estimate belongs to the learner, in both worlds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conformance.cases import CASES, SYNCHRONOUS, Case, sparingly
from helpers.runs import keep_only_first_checkpoint, real, same_model, simulated, uneven
from helpers.tasks import Quadratic, WithBuffers, acoustic

from hocket import SGD, Constant, KStep, NaturalSGD, simulate
from hocket.errors import ConfigError

NATURAL = NaturalSGD(lr=0.05, momentum=0.3, rank_in=2, rank_out=2, update_period=2)
# Of each kind one: gradients averaged, models averaged, some learners idle, forked collectives.
KINDS = ("sequential", "allreduce", "kstep-sync_every3", "kaldi-", "delay-by-one")
each_kind = sparingly([c for c in SYNCHRONOUS if c.id.startswith(KINDS)])


@sparingly([c for c in CASES if c.strategy.uses_rate])
def test_it_takes_effect_under_every_strategy(case: Case) -> None:
    more: dict[str, Any] = {"schedule": Constant(epochs=1), "guard_factor": 100.0}
    plain, natural = (
        simulated(WithBuffers(), case, case.learners[0], optimizer=rule, **more)
        for rule in (NaturalSGD(lr=0.05, momentum=0.3, form="none"), NATURAL)
    )
    assert not same_model(plain, natural)
    assert plain.frames == natural.frames


@each_kind
def test_simulator_equals_real_processes_bit_for_bit(case: Case) -> None:
    more: dict[str, Any] = {"optimizer": NATURAL, "schedule": Constant(epochs=2)}
    for task in (acoustic(num_frames=1500), WithBuffers(uneven=True)):
        a = simulated(task, case, case.learners[0], **more)
        b = real(task, case, case.learners[0], **more)
        assert same_model(a, b)
        assert (a.loss, a.frames) == (b.loss, b.frames)


@each_kind
def test_resumed_simulation_equals_the_whole_bit_for_bit(case: Case, tmp_path: Path) -> None:
    more: dict[str, Any] = {
        "strategy": case,
        "cluster": uneven(case.learners[-1], 5),
        "optimizer": NATURAL,
        "schedule": Constant(epochs=3),
        "checkpoint_every": 0.7,
        "keep_checkpoints": 99,
    }
    whole = simulated(WithBuffers(uneven=True), out=tmp_path / "whole", **more)
    keep_only_first_checkpoint(tmp_path / "whole", tmp_path / "part")
    part = simulated(WithBuffers(uneven=True), out=tmp_path / "part", resume=True, **more)
    assert same_model(whole, part)


def test_resumed_real_run_equals_the_whole_bit_for_bit(tmp_path: Path) -> None:
    more: dict[str, Any] = {
        "strategy": KStep(sync_every=3),
        "learners": 2,
        "optimizer": NATURAL,
        "schedule": Constant(epochs=3),
        "checkpoint_every": 0.7,
        "keep_checkpoints": 99,
    }
    whole = real(WithBuffers(uneven=True), out=tmp_path / "whole", **more)
    keep_only_first_checkpoint(tmp_path / "whole", tmp_path / "part")
    part = real(WithBuffers(uneven=True), out=tmp_path / "part", resume=True, **more)
    assert same_model(whole, part)


def test_it_changes_the_result_and_so_do_its_switches() -> None:
    task, strategy = acoustic(num_frames=3000), KStep(sync_every=3)
    rules = [
        SGD(lr=0.1),
        NaturalSGD(lr=0.1),
        NaturalSGD(lr=0.1, form="simple"),
        NaturalSGD(lr=0.1, rank_in=2),
        NaturalSGD(lr=0.1, rank_out=1),
        NaturalSGD(lr=0.1, update_period=1),
        NaturalSGD(lr=0.1, num_samples_history=200.0),
        NaturalSGD(lr=0.1, alpha=1.0),
        NaturalSGD(lr=0.1, max_change=0.01),
        NaturalSGD(lr=0.1, max_change_global=0.01),
    ]
    runs = [
        simulated(task, strategy, 2, optimizer=rule, schedule=Constant(epochs=1)) for rule in rules
    ]
    for i, a in enumerate(runs):
        for b in runs[:i]:
            assert not same_model(a, b), rules[i]


def test_by_configuration_and_in_the_record(tmp_path: Path) -> None:
    result = simulate(
        WithBuffers(),
        strategy="kstep",
        cluster=2,
        optimizer={"name": "ngsgd", "lr": 0.1, "rank_in": 2, "max_change": 0},
        out=tmp_path / "run",
        progress=False,
    )
    assert result.frames > 0
    text = (tmp_path / "run" / "metrics.jsonl").read_text()
    assert "plain SGD for 2 parameters: 0.weight, 0.bias" in text
    assert '"name": "ngsgd"' in (tmp_path / "run" / "config.json").read_text()


def test_a_model_without_linear_layers_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"no trained nn\.Linear"):
        simulated(Quadratic(), KStep(), 2, optimizer=NaturalSGD())
