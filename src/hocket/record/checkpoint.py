"""Checkpoints: written at quiet points, atomically, without pickled code.

    RUN/checkpoints/000000123456/       named by frames settled
        run.json                        ledger, clocks, who took part; written last but one
        model.safetensors               the evaluated model, by parameter name
        rank-0.safetensors  rank-0.json each learner's own state
        ...

Everything is written into a hidden directory beside it, which is renamed when complete: a
checkpoint is either complete or not there.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from hocket.core.packing import flatten, unflatten
from hocket.errors import CheckpointError
from hocket.record.rundir import RunDirectory
from hocket.support.files import move_folder, sync, write_durably

FORMAT = 1


@dataclass
class Saved:
    """A checkpoint read back."""

    path: Path
    run: dict[str, Any]
    model: dict[str, torch.Tensor]

    @property
    def ranks(self) -> list[int]:
        """The ranks that took part."""
        return list(self.run["ranks"])

    def part(self, rank: int, template: Any, on: torch.device | None = None) -> Any:
        """Read one learner's state back into the shape of `template`, onto a device."""
        stem = self.path / f"rank-{rank}"
        try:
            skeleton = json.loads(stem.with_suffix(".json").read_text())
            tensors = load_file(stem.with_suffix(".safetensors"), device=str(on or "cpu"))
            return unflatten(skeleton, tensors, template)
        except OSError as error:
            raise CheckpointError(f"{stem}.*: cannot be read: {error}") from error

    def plain(self, rank: int, key: str) -> Any:
        """Read one entry of a learner's part that holds no tensors."""
        skeleton = json.loads((self.path / f"rank-{rank}.json").read_text())
        return unflatten(dict(skeleton["$dict"])[key], {})


class Checkpoints:
    """The checkpoints of one run directory."""

    def __init__(self, run_dir: Path, keep: int) -> None:
        self._run = RunDirectory(run_dir)
        self.dir = self._run.checkpoints_path
        self._keep = keep

    def _staging(self, frames: int) -> Path:
        return self.dir / f".{frames:012d}.partial"

    def write_part(self, frames: int, rank: int, tree: Any) -> None:
        """Write one learner's state into the staging directory."""
        staging = self._staging(frames)
        staging.mkdir(parents=True, exist_ok=True)
        skeleton, tensors = flatten(tree)
        _save_tensors(staging / f"rank-{rank}.safetensors", tensors)
        write_durably(staging / f"rank-{rank}.json", json.dumps(skeleton))

    def finish(self, frames: int, run: dict[str, Any], model: dict[str, torch.Tensor]) -> Path:
        """Write the common part and make the checkpoint visible."""
        staging, final = self._staging(frames), self.dir / f"{frames:012d}"
        if final.exists() and not staging.exists():
            return final  # written by a learner that died just afterwards
        _save_tensors(staging / "model.safetensors", model)
        write_durably(staging / "run.json", json.dumps({"format": FORMAT, **run}, indent=1))
        move_folder(staging, final)  # one is there if a run resumed and stopped at once
        for old in self._run.checkpoints()[: -self._keep]:
            shutil.rmtree(old)
        return final

    def abandon(self, frames: int) -> None:
        """Remove what was staged; earlier checkpoints are untouched."""
        shutil.rmtree(self._staging(frames), ignore_errors=True)

    def latest(self) -> Saved:
        """Read the newest checkpoint."""
        paths = self._run.checkpoints()
        if not paths:
            raise CheckpointError(
                f"{self.dir}: no checkpoint to resume from; start again without --resume"
            )
        path = paths[-1]
        try:
            run = json.loads((path / "run.json").read_text())
            model = load_file(path / "model.safetensors")
        except (OSError, ValueError) as error:
            raise CheckpointError(
                f"{path}: cannot be read ({error}); remove it to resume from the one before"
            ) from error
        if run["format"] != FORMAT:
            raise CheckpointError(
                f"{path}: format {run['format']}, but this version reads {FORMAT}"
            )
        return Saved(path, run, model)


def _save_tensors(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    save_file({k: t.contiguous().clone() for k, t in tensors.items()}, path)
    sync(path)
