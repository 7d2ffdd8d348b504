"""A run that an earlier version of the code began is resumed: the format of checkpoints is kept.

tests/golden/run is a run of two real learners as it was after its first checkpoint;
tests/golden/run_end.safetensors is the model that it ended with then. If the format must change,
say so in CHANGELOG.md, and write both anew:

    PYTHONPATH=src:tests python tests/unit/test_golden_run.py
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from helpers.runs import keep_only_first_checkpoint, real
from safetensors.torch import load_file

from hocket import BMUF, DNN, Constant, NaturalSGD, Result, Synthetic

RUN = Path(__file__).parents[1] / "golden" / "run"
END = RUN.with_name("run_end.safetensors")
TOLERANCE = 1e-4  # bits differ between machines
TASK = Synthetic(
    num_frames=600,
    dev_frames=100,
    batch_frames=50,
    num_classes=4,
    num_features=4,
    context=0,
    model=DNN(layers=1, width=8),
)


def run(out: Path, **more: Any) -> Result:
    """Run what has much to remember: block momentum, local momentum, estimates of Fisher."""
    return real(
        TASK,
        BMUF(sync_every=2, local_momentum="keep"),
        2,
        optimizer=NaturalSGD(lr=0.1, momentum=0.5, rank_in=2, rank_out=3),
        schedule=Constant(epochs=3),
        keep_checkpoints=99,
        out=out,
        **more,
    )


def check(model: dict[str, torch.Tensor]) -> None:
    """Compare a model with the one that the golden run ended with."""
    expected = load_file(END)
    assert expected.keys() == model.keys()
    for key, value in expected.items():
        torch.testing.assert_close(model[key], value, rtol=0, atol=TOLERANCE)


def test_a_run_of_earlier_code_is_resumed_to_the_same_model(tmp_path: Path) -> None:
    shutil.copytree(RUN, tmp_path / "run")
    begun = load_file(next(RUN.glob("checkpoints/*/model.safetensors")))
    result = run(tmp_path / "run", resume=True)
    assert result.frames == 3 * TASK.num_frames
    check(result.model)
    moved = max(float((result.model[key] - begun[key]).abs().max()) for key in begun)
    assert moved > 100 * TOLERANCE  # the comparison would see what was lost


def test_the_golden_run_is_small() -> None:
    assert sum(p.stat().st_size for p in [END, *RUN.rglob("*")] if p.is_file()) < 40_000


def write() -> None:
    """Write the golden run with the code as it is now."""
    shutil.rmtree(RUN, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "whole"
        run(whole)
        keep_only_first_checkpoint(whole, RUN)
        shutil.copy(whole / "model.safetensors", END)


if __name__ == "__main__":
    write()
