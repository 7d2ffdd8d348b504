"""Making a run directory, and reopening one to resume its run."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from hocket.errors import ConfigError, HocketError
from hocket.record.checkpoint import Checkpoints, Saved
from hocket.record.metrics import rewind
from hocket.record.rundir import RunDirectory
from hocket.support import ownership
from hocket.support.files import put_back_replaced, write_atomically

_OWN_NAME: Final = re.compile(r"\.\d{12,18}\.(partial|replaced)", re.ASCII)
# What may differ when a run is resumed; anything else would make it another run.
FREE_ON_RESUME = {
    "strategy.stages",
    "strategy.cut",
    "runtime.cut",
    "runtime.device",
    "runtime.learners",
    "runtime.listen",
    "runtime.micro_batches",
    "runtime.threads",
    "runtime.on_loss",
    "runtime.ranks_per_learner",
    "runtime.silence_s",
    "runtime.timeout_s",
    "runtime.transport",
    "runtime.keep_checkpoints",
    "runtime.trace",
    "runtime.tensorboard",
    "schedule.epochs",
    "strategy.servers",
}


@contextmanager
def claimed(path: Path, *, resume: bool, doing: str, warn: Callable[[str], None]) -> Iterator[None]:
    """Own the directory of a new run, or of one to resume.

    What is not a run directory is refused before anything in it is touched; `create` and `reopen`
    look once more, when nobody else can change it.
    """
    run = RunDirectory(path)
    with ExitStack() as until_the_end:
        with _usable(path):
            if resume:
                run.config()
            else:
                refuse_to_overwrite(run)
                path.mkdir(parents=True, exist_ok=True)
            until_the_end.enter_context(ownership.owned(path, doing, warn))
        yield


@contextmanager
def _usable(path: Path) -> Iterator[None]:
    """Name the directory, and the way out, if the system does not let us use it."""
    try:
        yield
    except HocketError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"{path}: cannot be made the run directory ({reason}); choose another --out"
        ) from error


def create(path: Path, record: dict[str, Any]) -> None:
    """Make a new run directory; a run that has a checkpoint is never overwritten."""
    run = RunDirectory(path)
    refuse_to_overwrite(run)
    with _usable(path):
        _clear_up(run.checkpoints_path)
        rewind(path, -1)  # of an attempt that died before its first checkpoint
        _write_config(run, record)


def refuse_to_overwrite(run: RunDirectory) -> None:
    """Refuse a directory that holds a run, or what is none of ours."""
    path = run.path
    if run.checkpoints():
        raise ConfigError(
            f"{path} already holds a run: continue it with --resume, or choose another --out"
        )
    foreign = path.is_dir() and any(p.name not in ownership.NAMES for p in path.iterdir())
    if foreign and not run.is_run():
        raise ConfigError(
            f"{path} is not empty and holds no run: nothing in it is touched; choose another --out"
        )


def reopen(path: Path, record: dict[str, Any], keep: int) -> Saved:
    """Open a run to continue it, and refuse changes that would make it another run."""
    run = RunDirectory(path)
    before = run.config()
    if ("cluster" in before) != ("cluster" in record):
        worlds = ("`hocket simulate`", "`hocket train`")
        began, now = worlds if "cluster" in before else worlds[::-1]
        raise ConfigError(f"the run in {path} was begun by {began}; {now} cannot continue it")
    for key, old, new in _differences(before, record):
        if key not in FREE_ON_RESUME and not key.startswith(("versions.", "cluster", "facts")):
            raise ConfigError(
                f"{key} is {new!r} but the run in {path} was begun with {old!r}: a resumed run "
                f"keeps its configuration (only {', '.join(sorted(FREE_ON_RESUME))} may change)"
            )
    _clear_up(run.checkpoints_path)
    saved = Checkpoints(path, keep).newest_whole()
    _check_epochs(path, saved.run, record["schedule"]["epochs"])
    rewind(path, saved.run["committed_frames"])
    _write_config(run, record)
    return saved


def _clear_up(checkpoints: Path) -> None:
    """Remove what an interrupted checkpoint left behind; put back what it was about to replace."""
    put_back_replaced(checkpoints, _OWN_NAME)
    for stale in checkpoints.glob(".*.partial"):
        if _OWN_NAME.fullmatch(stale.name):
            shutil.rmtree(stale)


def _check_epochs(path: Path, run: dict[str, Any], epochs: int) -> None:
    if run["ended_by_schedule"]:
        raise ConfigError(
            f"the run in {path} was ended by its schedule (the dev loss no longer improved); "
            "there is nothing to resume"
        )
    if run["finished"] and epochs <= run["epoch"]:
        raise ConfigError(
            f"the run in {path} is finished; to train on, raise schedule.epochs above "
            f"{run['epoch']}"
        )
    if epochs < run["epoch"] + (not run["finished"]):
        raise ConfigError(
            f"schedule.epochs is {epochs}, but the run in {path} is in epoch {run['epoch'] + 1} "
            "already"
        )


def _differences(a: dict[str, Any], b: dict[str, Any], prefix: str = "") -> list[Any]:
    found = []
    for key in sorted({*a, *b}):
        old, new = a.get(key), b.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            found += _differences(old, new, f"{prefix}{key}.")
        elif old != new:
            found.append((prefix + key, old, new))
    return found


def _write_config(run: RunDirectory, record: dict[str, Any]) -> None:
    write_atomically(run.config_path, json.dumps(record, indent=1) + "\n")
