"""Starting from a trained model: `--init RUN_OR_FILE`, for every strategy in both worlds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.runs import real, same_model, simulated
from helpers.tasks import Quadratic, WithBuffers, WithDropout
from safetensors.torch import load_file

from hocket import ASGD, SGD, Constant, KStep, Sequential
from hocket.cli.main import main
from hocket.errors import ConfigError

STILL: dict[str, Any] = {"optimizer": SGD(lr=1e-30), "schedule": Constant(1)}


@pytest.mark.parametrize("strategy", [Sequential(), KStep(), ASGD(servers=2)], ids=lambda s: s.name)
def test_a_run_starts_from_the_model_of_another(strategy: Any, tmp_path: Path) -> None:
    trained = simulated(WithDropout(), Sequential(), 1, out=tmp_path / "a")
    learners = 1 if strategy.max_learners == 1 else 2
    for source in (tmp_path / "a", tmp_path / "a" / "model.safetensors"):
        still = simulated(WithDropout(), strategy, learners, init=str(source), **STILL)
        assert same_model(still, trained)
    assert not same_model(simulated(WithDropout(), strategy, learners, **STILL), trained)


def test_real_learners_start_from_it_too_buffers_included(tmp_path: Path) -> None:
    simulated(WithBuffers(), Sequential(), 1, out=tmp_path / "a")
    saved = load_file(tmp_path / "a" / "model.safetensors")
    result = real(WithBuffers(), KStep(sync_every=4), 2, init=str(tmp_path / "a"), **STILL)
    torch.testing.assert_close(result.model["1.weight"], saved["1.weight"])
    assert result.model["0.num_batches_tracked"] > saved["0.num_batches_tracked"]


def test_a_resumed_run_goes_on_though_the_first_model_has_gone(tmp_path: Path) -> None:
    simulated(Quadratic(), Sequential(), 1, out=tmp_path / "a")
    more: dict[str, Any] = {"init": str(tmp_path / "a"), "out": tmp_path / "b"}
    simulated(Quadratic(), KStep(), 2, schedule=Constant(1), **more)
    (tmp_path / "a" / "model.safetensors").unlink()
    longer = simulated(Quadratic(), KStep(), 2, schedule=Constant(2), resume=True, **more)
    assert longer.epoch == 2


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda p: None, "no trained model can be read"),
        (lambda p: p.write_bytes(b"not a model"), "no trained model can be read"),
    ],
)
def test_what_is_no_model_is_refused_by_name(make: Any, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    make(path)
    with pytest.raises(ConfigError, match=reason):
        simulated(Quadratic(), Sequential(), 1, init=str(path))


def test_a_model_of_another_shape_is_refused_with_both_shapes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["--set", "task.num_frames=500", "--set", "task.dev_frames=100", "--quiet"]
    train = ["simulate", "synthetic", "--epochs", "1", *small, "--out"]
    assert main([*train, str(tmp_path / "a"), "--set", "model.width=8"]) == 0
    ask = [*train, str(tmp_path / "b"), "--init", str(tmp_path / "a")]
    assert main([*ask, "--set", "model.width=16"]) == 2
    assert "is of shape [8] there and of shape [16] here" in capsys.readouterr().err
    assert main([*ask, "--set", "model.width=8"]) == 0
