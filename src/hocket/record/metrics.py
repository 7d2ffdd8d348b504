"""Events of a run: written to `metrics.jsonl` and TensorBoard, and shown to the user.

The schema of `metrics.jsonl` is described in docs/metrics.md and checked by a test.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hocket.record.pushes import BY_RANK, HISTOGRAM, with_rate
from hocket.record.rundir import RunDirectory
from hocket.record.tensorboard import EventFile
from hocket.support.files import open_to_append, write_atomically

EVENTS = ("train", "eval", "lost", "joined", "left", "checkpoint", "note", "summary")
HEAD = ("event", "time_s", "clock", "frames", "epoch", "rank")


class MetricsFile:
    """Appends one JSON object a line; each line is in the file when the call returns."""

    def __init__(self, path: Path) -> None:
        self._file = open_to_append(path)

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
        elif event["event"] == "summary" or frames_of(event) > frames:
            dropped.append(line)
        else:
            kept.append(line)
    if dropped:
        with open_to_append(run.abandoned_metrics_path) as file:
            file.writelines(dropped)
        write_atomically(run.metrics_path, "".join(kept))


def frames_of(event: dict[str, Any]) -> float:
    """Return how far the run was at an event; 0 if it does not say."""
    frames = event.get("frames")
    return frames if isinstance(frames, int | float) else 0


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
        if event["event"] == "eval":
            before_s = self.evaluations[-1]["train_s"] if self.evaluations else 0.0
            event = with_rate(event, before_s)
            self.evaluations.append(event)
        self._show(event)
        if event["event"] == "progress":
            return
        if self._metrics:
            self._metrics.write(event)
        if self._board and event["event"] in ("train", "eval"):
            self._draw(self._board, event)

    def _draw(self, board: EventFile, event: dict[str, Any]) -> None:
        """Put figures and histograms on TensorBoard; what is counted by rank gets a curve each."""
        prefix = event["event"] if event["rank"] is None else f"train/rank-{event['rank']}"
        step = int(event["frames"])
        for key, value in event.items():
            if key == BY_RANK + HISTOGRAM:
                for rank, count in value.items():
                    board.scalar(f"{prefix}/{BY_RANK}/rank-{rank}", float(count), step)
            elif key.endswith(HISTOGRAM):
                counts = {int(v): n for v, n in value.items()}
                board.histogram(f"{prefix}/{key.removesuffix(HISTOGRAM)}", counts, step)
            elif key not in HEAD and isinstance(value, int | float):
                board.scalar(f"{prefix}/{key}", float(value), step)

    def close(self) -> None:
        """Close metrics.jsonl and the file of TensorBoard; nothing can be recorded after it."""
        for file in (self._metrics, self._board):
            if file:
                file.close()
