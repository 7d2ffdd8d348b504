"""Checkpoints: written at quiet points, atomically, with checksums, without pickled code.

    RUN/checkpoints/000000123456/       named by frames settled
        run.json                        ledger, clocks, who took part; written last but one
        model.safetensors               the evaluated model, by parameter name
        rank-0.safetensors  rank-0.json each learner's own state
        ...

Everything is written into a hidden directory beside it, which is renamed when complete: a
checkpoint is either complete or not there. Disks and copies go wrong nevertheless: run.json holds
the SHA-256 of itself, of the model and of every rank-N.json, which holds that of its tensors.
Checkpoints of format 1 are read as well; they have no checksums.

Only folders of such names count, and rotation removes only what `Checkpoints` has written.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch

from hocket.core.packing import flatten, unflatten
from hocket.errors import CheckpointError, ContractError, DamagedError, UnreadableError
from hocket.record.rundir import RunDirectory
from hocket.record.tensor_file import Fact, TensorFile, write_tensors
from hocket.support.arrays import read_tensors
from hocket.support.files import move_folder, sync
from hocket.support.inputs import TABLE_LIMIT, open_file, parse_json, read_bytes, well_formed

FORMAT: Final = 2
WITHOUT_CHECKSUMS: Final = 1  # the format before
_OWN_FILE: Final = re.compile(r"run\.json|model\.safetensors|rank-\d+\.(json|safetensors)")
_COUNTS: Final = ("learners", "frames", "committed_frames", "epoch")
_FLAGS: Final = ("finished", "ended_by_schedule")


@dataclass
class Saved:
    """A checkpoint read back. What is read from it is compared with its checksums."""

    path: Path
    run: dict[str, Any]
    model: dict[str, torch.Tensor]
    notes: list[str] = field(default_factory=list)  # what a user should know about it
    staying: int = 0  # of a run that goes on with newcomers: its first so many ranks stay

    @property
    def ranks(self) -> list[int]:
        """The ranks that took part."""
        return list(self.run["ranks"])

    def part(self, rank: int, template: Any, on: torch.device | None = None) -> Any:
        """Read one learner's state back into the shape of `template`, onto a device."""
        path = self.path / f"rank-{rank}.json"
        try:
            skeleton, checksum = self._skeleton(rank)
            tensors = _tensors(path.with_suffix(".safetensors"), checksum)
            with well_formed(path):
                moved = {name: x if on is None else x.to(on) for name, x in tensors.items()}
                return unflatten(skeleton, moved, template)
        except (UnreadableError, ContractError) as error:
            raise DamagedError(f"checkpoint {self.path}: {error}") from error

    def plain(self, rank: int, key: str) -> Any:
        """Read one entry of a learner's part that holds no tensors."""
        path = self.path / f"rank-{rank}.json"
        try:
            skeleton, _ = self._skeleton(rank)
            with well_formed(path):
                return unflatten(dict(skeleton["$dict"])[key], {})
        except UnreadableError as error:
            raise DamagedError(f"checkpoint {self.path}: {error}") from error

    def _skeleton(self, rank: int) -> tuple[Any, str | None]:
        """Return a part without its tensors, and their checksum if it has one."""
        path = self.path / f"rank-{rank}.json"
        found = parse_json(path, _text(path, self.run.get("files", {}).get(path.name)))
        if self.run["format"] == WITHOUT_CHECKSUMS:
            return found, None
        with well_formed(path):
            return found["tree"], str(found["tensors_sha256"])

    def check_parts(self) -> None:
        """Raise unless every learner's part is whole; what it means is seen when it is restored."""
        for rank in self.ranks:
            path = self.path / f"rank-{rank}.safetensors"
            _tensors(path, self._skeleton(rank)[1])


class Checkpoints:
    """The checkpoints of one run directory; `durable`: they survive a power failure.

    A directory that ends with its run need not, and waiting for the disk was two fifths of the
    time of a small run.
    """

    def __init__(self, run_dir: Path, keep: int, *, durable: bool = True) -> None:
        self._run = RunDirectory(run_dir)
        self.dir = self._run.checkpoints_path
        self._keep = keep
        self._durable = durable

    # ------------------------------------------------------------------ writing

    def _staging(self, frames: int) -> Path:
        return self.dir / f".{frames:012d}.partial"

    def write_part(self, frames: int, rank: int, tree: Any) -> None:
        """Write one learner's state into the staging directory."""
        staging = self._staging(frames)
        staging.mkdir(parents=True, exist_ok=True)
        skeleton, tensors = flatten(tree)
        checksum = self._save_tensors(staging / f"rank-{rank}.safetensors", tensors)
        part = {"tree": skeleton, "tensors_sha256": checksum}
        self._save_text(staging / f"rank-{rank}.json", json.dumps(part))

    def open_model(self, frames: int, facts: Sequence[Fact]) -> TensorFile:
        """Begin the model's file, of which no more than one tensor is to be in memory."""
        staging = self._staging(frames)
        staging.mkdir(parents=True, exist_ok=True)
        return TensorFile(staging / "model.safetensors", facts)

    def finish(
        self, frames: int, run: dict[str, Any], model: dict[str, torch.Tensor] | None
    ) -> Path:
        """Write the common part and make the checkpoint visible; without a model: it is there."""
        staging, final = self._staging(frames), self.dir / f"{frames:012d}"
        if final.exists() and not staging.exists():
            return final  # written by a learner that died just afterwards
        if model is None:
            self._settle(staging / "model.safetensors")
            files = {"model.safetensors": _sha256(staging / "model.safetensors")}
        else:
            files = {"model.safetensors": self._save_tensors(staging / "model.safetensors", model)}
        files |= {
            name: _sha256(staging / name) for name in map("rank-{}.json".format, run["ranks"])
        }
        record = {"format": FORMAT, **run, "files": files}
        record["sha256"] = _own_checksum(record)
        self._save_text(staging / "run.json", json.dumps(record, indent=1))
        # one is there if a run resumed and stopped at once
        move_folder(staging, final, durable=self._durable)
        for old in [path for path in self._run.checkpoints() if _is_ours(path)][: -self._keep]:
            shutil.rmtree(old)
        return final

    def _save_tensors(self, path: Path, tensors: dict[str, torch.Tensor]) -> str:
        """Write tensors, and return the file's checksum."""
        write_tensors(path, tensors)
        self._settle(path)
        return _sha256(path)

    def _save_text(self, path: Path, text: str) -> None:
        path.write_text(text, encoding="utf-8")
        self._settle(path)

    def _settle(self, path: Path) -> None:
        """Wait until a file would survive a power failure, if it should."""
        if self._durable:
            sync(path)

    def abandon(self, frames: int) -> None:
        """Remove what was staged; earlier checkpoints are untouched."""
        shutil.rmtree(self._staging(frames), ignore_errors=True)

    # ------------------------------------------------------------------ reading

    def latest(self) -> Saved:
        """Read the newest checkpoint."""
        try:
            return _read(self._names()[-1])
        except UnreadableError as error:
            raise DamagedError(f"checkpoint {error}: start the run again with --resume") from error

    def newest_whole(self) -> Saved:
        """Read the newest checkpoint of which every file is what was written.

        Damaged ones that are newer are set aside, under another name, so that all learners find
        the same one; nothing is removed.
        """
        damaged: list[tuple[Path, str]] = []
        for path in reversed(self._names()):
            try:
                found = _read(path)
                found.check_parts()
            except UnreadableError as error:
                damaged.append((path, str(error)))
                continue
            for other, why in damaged:
                aside = _set_aside(other)
                found.notes.append(
                    f"warning: checkpoint {other.name} is damaged ({why}); it was renamed to "
                    f"{aside.name}, and the run goes on from {path.name}"
                )
            return found
        listed = "; ".join(why for _, why in damaged)
        raise DamagedError(
            f"{self.dir}: not one checkpoint is whole ({listed}): copy one again, or start again "
            "without --resume in another --out"
        )

    def _names(self) -> list[Path]:
        paths = self._run.checkpoints()
        if not paths:
            raise CheckpointError(
                f"{self.dir}: no checkpoint to resume from; start again without --resume"
            )
        return paths


def _read(path: Path) -> Saved:
    """Read what is common to all learners."""
    run = _read_run(path / "run.json")
    if run["frames"] != int(path.name):
        why = f"it belongs to the checkpoint at {run['frames']} frames"
        raise UnreadableError.of(path / "run.json", why)
    checksum = run["files"].get("model.safetensors") if run["format"] == FORMAT else None
    return Saved(path, run, _tensors(path / "model.safetensors", checksum))


def _read_run(path: Path) -> dict[str, Any]:
    run = parse_json(path, _text(path, None))
    with well_formed(path):
        if run["format"] not in (FORMAT, WITHOUT_CHECKSUMS):
            known = f"{WITHOUT_CHECKSUMS} and {FORMAT}"
            raise ValueError(f"format {run['format']!r}, but this version reads {known}")
        if run["format"] == FORMAT and run.pop("sha256") != _own_checksum(run):
            raise UnreadableError.of(path, "it is not what was written (SHA-256)")
        ranks = run["ranks"]
        whole = [*ranks, *(run[key] for key in _COUNTS)]
        flags, time_s = [run[key] for key in _FLAGS], run["time_s"]
        if not (ranks and all(type(n) is int and n >= 0 for n in whole)):
            raise ValueError("a count is not a number from 0")
        if not all(isinstance(flag, bool) for flag in flags):
            raise ValueError("a flag is neither true nor false")
        if type(time_s) not in (int, float) or not 0 <= time_s < math.inf:
            raise ValueError("the time is not a number from 0")
        if not all(isinstance(one, str) for one in dict(run.get("files", {})).values()):
            raise ValueError("a checksum is not text")
    return dict(run)


def _own_checksum(run: dict[str, Any]) -> str:
    as_read = json.loads(json.dumps(run))  # keys that are numbers have become text
    return hashlib.sha256(json.dumps(as_read, sort_keys=True).encode()).hexdigest()


def _text(path: Path, checksum: str | None) -> str:
    data = read_bytes(path, TABLE_LIMIT)
    if checksum is not None and hashlib.sha256(data).hexdigest() != checksum:
        raise UnreadableError.of(path, "it is not what was written (SHA-256)")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise UnreadableError.of(path, "not UTF-8") from error


def _tensors(path: Path, checksum: str | None) -> dict[str, torch.Tensor]:
    if checksum is not None and _sha256(path) != checksum:
        raise UnreadableError.of(path, "it is not what was written (SHA-256)")
    return read_tensors(path)


def _sha256(path: Path) -> str:
    with open_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _is_ours(path: Path) -> bool:
    """True if Hocket wrote this folder, and all that is in it: then rotation may remove it."""
    try:
        if path.is_symlink() or _read_run(path / "run.json")["frames"] != int(path.name):
            return False  # somebody's copy under another name, for example
    except UnreadableError:
        return False
    return all(_OWN_FILE.fullmatch(inner.name) and not inner.is_dir() for inner in path.iterdir())


def _set_aside(path: Path) -> Path:
    """Rename a damaged checkpoint, so that it no longer counts."""
    number, aside = 1, path.with_name(f"{path.name}.damaged")
    while aside.exists():
        number += 1
        aside = path.with_name(f"{path.name}.damaged-{number}")
    return path.rename(aside)
