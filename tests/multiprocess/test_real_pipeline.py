"""A pipeline in real processes: one of its stages is lost, and the run goes on with others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.pipelines import ITEMS, Layers, layered

from hocket import SGD, Constant, api
from hocket.cli.main import main
from hocket.errors import LearnerFailedError
from hocket.experiment import Experiment, RuntimeOptions
from hocket.runtime.real.faults import Fault

OPTIONS = RuntimeOptions(
    tensorboard=False, timeout_s=60.0, checkpoint_every=1.0, evaluate_every=1.0
)


def experiment(stages: int, **more: Any) -> Experiment:
    schedule = Constant(epochs=4)
    return Experiment(Layers(), layered(stages, **more), SGD(lr=0.1), schedule, options=OPTIONS)


def test_a_lost_stage_ends_the_run_which_is_resumed_with_other_stages(tmp_path: Path) -> None:
    before = experiment(3)
    fault = Fault(1, at_send=4 * ITEMS + 9)  # some minibatches after the first checkpoint
    said = r"(?s)rank 1 \(which held a stage of the model\).*--resume"
    with pytest.raises(LearnerFailedError, match=said):
        api.run_real(before, tmp_path, progress=False, faults=(fault,))
    after = replace(before, strategy=layered(2))
    result = api.run_real(after, tmp_path, resume=True, progress=False)
    assert result.frames == 4 * 8 * ITEMS
    assert len(result.attendants) == 1


def test_the_command_resumes_with_another_number_of_stages(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The cut in the record belongs to the stages before, and is forgotten with them."""
    out = str(tmp_path / "run")
    task = ["--set", "task.num_frames=1000", "--set", "model.width=16", "--quiet"]
    begun = ["simulate", "synthetic", "--strategy", "pipeline", "--epochs", "1", "--out", out]
    assert main([*begun, *task]) == 0
    more = ["simulate", "--resume", "--out", out, "--epochs", "2", "--quiet"]
    assert main([*more, "--set", "strategy.stages=3"]) == 0
    assert "2 (stage)" in capsys.readouterr().out
