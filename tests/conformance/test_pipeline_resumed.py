"""A pipeline that loses a stage, or is resumed, also with other stages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.pipelines import Layers, layered, run
from helpers.runs import keep_only_first_checkpoint, same_model, simulated

from hocket import Cluster, Constant, Pipeline, Sequential
from hocket.errors import LearnerFailedError
from hocket.runtime.sim.cost import Death, Host


def test_a_lost_stage_ends_the_run_and_says_how_to_go_on(tmp_path: Path) -> None:
    cluster = Cluster((Host(attendants=2),), deaths=(Death(1, at_s=0.005),))
    said = r"rank 1 \(which held a stage of the model\) was lost .*--resume"
    with pytest.raises(LearnerFailedError, match=said):
        simulated(Layers(), layered(3), cluster, schedule=Constant(epochs=40))


def test_a_resumed_run_equals_the_whole_bit_for_bit(tmp_path: Path) -> None:
    more: dict[str, Any] = {"checkpoint_every": 0.7, "keep_checkpoints": 99, "epochs": 4}
    whole = run(layered(3), out=tmp_path / "whole", **more)
    keep_only_first_checkpoint(tmp_path / "whole", tmp_path / "part")
    part = run(layered(3), out=tmp_path / "part", resume=True, **more)
    assert same_model(whole, part)
    assert (part.loss, part.frames) == (whole.loss, whole.frames)


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_it_is_resumed_with_another_number_of_stages(stages: int, tmp_path: Path) -> None:
    """With a flush it is SGD however many there are: so momentum has gone to the right layers."""
    more: dict[str, Any] = {"checkpoint_every": 0.7, "keep_checkpoints": 99, "epochs": 3}
    run(layered(3, flush=True), out=tmp_path / "3", momentum=0.9, **more)
    part = keep_only_first_checkpoint(tmp_path / "3", tmp_path / "part")
    result = run(layered(stages, flush=True), out=part, resume=True, momentum=0.9, **more)
    plain = run(Sequential(), momentum=0.9, epochs=3)
    for name, value in plain.model.items():
        torch.testing.assert_close(result.model[name], value, rtol=1e-5, atol=1e-6)
    assert result.frames == plain.frames


def test_it_is_resumed_with_another_cut_of_as_many_stages(tmp_path: Path) -> None:
    more: dict[str, Any] = {"checkpoint_every": 0.7, "keep_checkpoints": 99, "epochs": 3}
    run(layered(3, flush=True), out=tmp_path / "a", momentum=0.9, **more)
    part = keep_only_first_checkpoint(tmp_path / "a", tmp_path / "part")
    other = Pipeline(stages=3, cut=(1, 5), flush=True)
    result = run(other, out=part, resume=True, momentum=0.9, **more)
    plain = run(Sequential(), momentum=0.9, epochs=3)
    for name, value in plain.model.items():
        torch.testing.assert_close(result.model[name], value, rtol=1e-5, atol=1e-6)
