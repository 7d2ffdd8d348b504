"""RUN/status.json: how the run stands now, learner by learner; written anew every second or so.

metrics.jsonl says what happened; this file says what is. It is small, replaced as a whole, and
nobody needs it: what cannot be written is left out, and a run without it is the same run.
"""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from hocket.core.accounts import Books
from hocket.errors import UnreadableError
from hocket.record.rundir import RunDirectory, number
from hocket.support.files import write_atomically
from hocket.support.inputs import CONFIG_LIMIT, read_table, well_formed
from hocket.support.progress import Pace

FORMAT: Final = 1
EVERY_S: Final = 1.0
State: TypeAlias = Literal["working", "finished", "lost", "left"]
STATES: Final = ("working", "finished", "lost", "left")


@dataclass(frozen=True)
class LearnerStatus:
    """One learner: what it has done since `since_s`, and how it stands."""

    rank: int
    state: State
    frames: int  # it has taken gradients on
    draws: int
    bytes_sent: int
    compute_s: float
    since_s: float = 0.0  # training time of the run when these counts began
    until_s: float | None = None  # when it was lost or left
    joined_s: float | None = None  # when it joined a running group
    host: str = ""

    @classmethod
    def of(cls, rank: int, state: State, books: Books, **more: Any) -> LearnerStatus:
        """Return it from a learner's books."""
        counts = (books.frames, books.draws, books.bytes_sent, books.compute_s, books.since_s)
        return cls(rank, state, *counts, **more)


@dataclass(frozen=True)
class Status:
    """The whole run."""

    time_s: float
    train_s: float  # without evaluation and checkpoints
    clock: str
    frames: int
    total_frames: int
    epoch: int
    state: Literal["running", "ended"]
    learners: tuple[LearnerStatus, ...]
    written: float = 0.0  # seconds since 1970, by the writer's clock


class StatusFile:
    """Writes the status of a run, now and then."""

    def __init__(self, run_dir: Path) -> None:
        self._path = RunDirectory(run_dir).status_path
        self._pace = Pace(EVERY_S)

    def due(self) -> bool:
        """True if it should be written now."""
        return self._pace.due()

    def write(self, status: Status) -> None:
        """Replace the file; a disk that is full or gone must not end the run."""
        table = {"format": FORMAT, **asdict(status), "written": time.time()}
        with contextlib.suppress(Exception):
            write_atomically(self._path, json.dumps(table) + "\n")


def read_status(run: RunDirectory) -> Status | None:
    """Return how a run stands; None if it never said so. A damaged file is an `UnreadableError`."""
    path = run.status_path
    try:
        table = read_table(path, CONFIG_LIMIT)
    except UnreadableError as error:
        if error.missing:
            return None
        raise
    with well_formed(path):
        if table["format"] != FORMAT:
            raise ValueError(f"format {table['format']!r}, but this version reads {FORMAT}")
        if table["state"] not in ("running", "ended"):
            raise ValueError(f"state {str(table['state'])[:40]!r}")
        return Status(
            time_s=number(table["time_s"]),
            train_s=number(table["train_s"]),
            clock=str(table["clock"])[:20],
            frames=_whole(table["frames"]),
            total_frames=_whole(table["total_frames"]),
            epoch=_whole(table["epoch"]),
            state=table["state"],
            learners=tuple(map(_learner, table["learners"])),
            written=number(table["written"]),
        )


def _whole(value: object) -> int:
    return int(number(value))


def _learner(row: dict[str, Any]) -> LearnerStatus:
    if row["state"] not in STATES:
        raise ValueError(f"a learner's state {str(row['state'])[:40]!r}")
    until_s, joined_s = (
        None if row[k] is None else number(row[k]) for k in ("until_s", "joined_s")
    )
    return LearnerStatus(
        rank=_whole(row["rank"]),
        state=row["state"],
        frames=_whole(row["frames"]),
        draws=_whole(row["draws"]),
        bytes_sent=_whole(row["bytes_sent"]),
        compute_s=number(row["compute_s"]),
        since_s=number(row["since_s"]),
        until_s=until_s,
        joined_s=joined_s,
        host=str(row["host"])[:100],
    )
