"""Events of a run: written to `metrics.jsonl` and TensorBoard, and shown to the user.

The schema of `metrics.jsonl` is described in docs/metrics.md and checked by a test.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hocket.record.rundir import RunDirectory
from hocket.record.tensorboard import EventFile
from hocket.support.files import write_atomically

EVENTS = ("train", "eval", "lost", "joined", "checkpoint", "note", "summary")
HEAD = ("event", "time_s", "clock", "frames", "epoch", "rank")


class MetricsFile:
    """Appends one JSON object a line; each line is in the file when the call returns."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a")

    def write(self, event: dict[str, Any]) -> None:
        """Append an event, its common fields first."""
        row = {key: event.get(key) for key in HEAD} | event
        self._file.write(json.dumps(_finite(row), allow_nan=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file; all lines are on disk already."""
        self._file.close()


def _finite(value: Any) -> Any:
    """Replace NaN and infinity, which JSON does not have, by null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return value


def rewind(run_dir: Path, frames: int) -> None:
    """Drop what was recorded after a checkpoint that is about to be resumed.

    `metrics.jsonl` then reads as one run; the dropped lines go to metrics.abandoned.jsonl.
    """
    run = RunDirectory(run_dir)
    if not run.metrics_path.exists():
        return
    kept: list[str] = []
    dropped: list[str] = []
    for line, event in run.metrics_lines():
        if event is None:  # cut off in the middle by a crash
            dropped.append(line.rstrip("\n") + "\n")
        elif event["event"] == "summary" or (event["frames"] or 0) > frames:
            dropped.append(line)
        else:
            kept.append(line)
    if dropped:
        with run.abandoned_metrics_path.open("a") as file:
            file.writelines(dropped)
        write_atomically(run.metrics_path, "".join(kept))


class Recorder:
    """Sends every event to the metrics file, to TensorBoard, and to the display."""

    def __init__(
        self, run_dir: Path | None, *, tensorboard: bool, show: Callable[[dict[str, Any]], None]
    ) -> None:
        run = RunDirectory(run_dir) if run_dir else None
        resumed = run is not None and run.metrics_path.exists()
        self.evaluations = run.evaluations() if run and resumed else []
        self._metrics = MetricsFile(run.metrics_path) if run else None
        self._board = EventFile(run.tensorboard_path) if run and tensorboard else None
        self._show = show

    def __call__(self, event: dict[str, Any]) -> None:
        """Record and show one event; a `progress` event is only shown."""
        self._show(event)
        if event["event"] == "progress":
            return
        if event["event"] == "eval":
            self.evaluations.append(event)
        if self._metrics:
            self._metrics.write(event)
        if self._board and event["event"] in ("train", "eval"):
            prefix = event["event"] if event["rank"] is None else f"train/rank-{event['rank']}"
            for key, value in event.items():
                if key not in HEAD and isinstance(value, int | float):
                    self._board.scalar(f"{prefix}/{key}", float(value), int(event["frames"]))

    def close(self) -> None:
        """Close the files."""
        for file in (self._metrics, self._board):
            if file:
                file.close()
