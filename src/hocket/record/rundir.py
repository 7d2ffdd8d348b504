"""The layout of a run directory, and the one reader of it.

RUN/config.json        everything that decided the run, with versions and seed
RUN/metrics.jsonl      one event a line (docs/metrics.md)
RUN/tensorboard/       the same curves for TensorBoard
RUN/status.json        how it stands now, learner by learner (`hocket.record.status`)
RUN/checkpoints/       see hocket.record.checkpoint
RUN/model.safetensors  the evaluated model at the end, by parameter name
RUN/trace*.jsonl       with runtime.trace = true; one file for each learner of a real run
RUN/decode/            what `hocket decode` recognised; result.json: how well
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hocket.errors import ConfigError, UnreadableError
from hocket.support.inputs import TABLE_LIMIT, lines, parse_json, read_table, well_formed

Event = dict[str, Any]  # a line of metrics.jsonl
_EVALUATION: Final = ("train_s", "frames", "loss", "accuracy")  # the numbers of such an event
_SUMMARY: Final = (
    *("train_s", "aside_s", "frames", "discarded_frames", "frames_per_s"),
    *("loss", "accuracy"),
)
_MOST: Final = 1e18  # seconds, frames, a loss: larger ones are damage, and cannot be drawn
_CHECKPOINT: Final = re.compile(r"\d{12}|[1-9]\d{12,17}", re.ASCII)  # frames, in 12 digits or more
_REMEDY: Final = "give the folder that `hocket train` or `hocket simulate` wrote (its --out)"


@dataclass(frozen=True, slots=True)
class Span:
    """One stretch of a learner's time, or an instant if it ends where it starts."""

    rank: int
    kind: str  # compute, allreduce, evaluate, draw, send, lost, ...
    start_s: float
    end_s: float
    detail: str = ""


def result_path(folder: Path) -> Path:
    """Return where a decoding into this folder leaves its error rate: RUN/decode, EXP/gmm."""
    return folder / "result.json"


def read_result(folder: Path) -> dict[str, Any]:
    """Return what a decoding into this folder measured."""
    path = result_path(folder)
    try:
        return read_table(path, TABLE_LIMIT)
    except UnreadableError as error:
        raise unreadable_result(folder, error.reason) from error


def unreadable_result(folder: Path, reason: object) -> ConfigError:
    """Return the error for a result that is missing or damaged."""
    return ConfigError(f"{result_path(folder)}: no result can be read ({reason}): decode again")


@dataclass(frozen=True)
class RunDirectory:
    """Where the parts of a run are. What cannot be read is named, with what to do about it."""

    path: Path

    # ------------------------------------------------------------------ where things are

    @property
    def config_path(self) -> Path:
        """Everything that decided the run; `config` reads it."""
        return self.path / "config.json"

    @property
    def metrics_path(self) -> Path:
        """One event a line; a crash may cut the last one off."""
        return self.path / "metrics.jsonl"

    @property
    def status_path(self) -> Path:
        """How the run stands now; replaced every second or so."""
        return self.path / "status.json"

    @property
    def abandoned_metrics_path(self) -> Path:
        """Events after the checkpoint that the run was resumed from."""
        return self.path / "metrics.abandoned.jsonl"

    @property
    def tensorboard_path(self) -> Path:
        """The folder of TensorBoard's event files."""
        return self.path / "tensorboard"

    @property
    def checkpoints_path(self) -> Path:
        """The folder of all checkpoints."""
        return self.path / "checkpoints"

    @property
    def model_path(self) -> Path:
        """The model at the end; missing while the run is under way."""
        return self.path / "model.safetensors"

    @property
    def decode_path(self) -> Path:
        """The folder of recognised words and their score."""
        return self.path / "decode"

    def trace_path(self, rank: int | None = None) -> Path:
        """The trace of one learner of a real run; without a rank, of a simulation."""
        return self.path / ("trace.jsonl" if rank is None else f"trace-{rank}.jsonl")

    # ------------------------------------------------------------------ what they hold

    def is_run(self) -> bool:
        """True if Hocket made this directory; other programs write a config.json, too."""
        try:
            return "hocket" in self.config()["versions"]
        except (ConfigError, KeyError, TypeError):
            return False

    def config(self) -> dict[str, Any]:
        """Return the tables of config.json."""
        try:
            return read_table(self.config_path)
        except UnreadableError as error:
            raise self._unreadable(self.config_path, error) from error

    def table(self, name: str) -> dict[str, Any]:
        """Return one table of config.json."""
        table = self.config().get(name)
        if not isinstance(table, dict):
            reason = f"it has no table {name!r}"
            raise self._unreadable(self.config_path, UnreadableError.of(self.config_path, reason))
        return table

    def metrics(self) -> list[Event]:
        """Return all events, in the order in which they were written."""
        rows = []
        for number, (_, event) in enumerate(self.metrics_lines(), 1):
            if event is None:
                raise ConfigError(
                    f"{self.metrics_path}: line {number} was cut off in the middle: resume the run "
                    f"(--resume --out {self.path}), which drops it"
                )
            rows.append(event)
        return rows

    def metrics_lines(self) -> Iterator[tuple[str, Event | None]]:
        """Yield each line as it is written, and its event; None if a crash cut the line off."""
        try:
            for line in lines(self.metrics_path):
                yield f"{line}\n", _event(self.metrics_path, line)
        except UnreadableError as error:
            raise self._unreadable(self.metrics_path, error) from error

    def evaluations(self) -> list[Event]:
        """Return the evaluations on dev data; what was not finite is NaN."""
        rows = [row for row in self.metrics() if row["event"] == "eval"]
        return [self._with_numbers(row, _EVALUATION) for row in rows]

    def summary(self) -> Event:
        """Return the event that ends a run."""
        for row in reversed(self.metrics()):
            if row["event"] == "summary":
                return self._with_numbers(row, _SUMMARY)
        raise ConfigError(
            f"{self.path} has not ended yet: finish it with --resume --out {self.path}"
        )

    def _with_numbers(self, row: Event, keys: tuple[str, ...]) -> Event:
        """Return an event in which these are numbers; JSON has null for NaN and infinity."""
        try:
            with well_formed(self.metrics_path):
                return row | {key: number(row[key]) for key in keys}
        except UnreadableError as error:
            raise self._unreadable(self.metrics_path, error) from error

    def checkpoints(self) -> list[Path]:
        """Return the complete checkpoints, oldest first; folders of other names are not ours."""
        if not self.checkpoints_path.is_dir():
            return []
        found = [p for p in self.checkpoints_path.iterdir() if _CHECKPOINT.fullmatch(p.name)]
        return sorted((p for p in found if p.is_dir()), key=lambda p: int(p.name))

    def traces(self) -> list[Path]:
        """Return the traces that were kept; none without runtime.trace = true."""
        return sorted(self.path.glob("trace*.jsonl"))

    def spans(self, path: Path) -> Iterator[Span]:
        """Yield what happened to learners, from one of the traces."""
        count = 0
        try:
            for line in lines(path):
                count += 1
                row = parse_json(path, line)
                with well_formed(path):
                    span = _span(row)
                yield span
        except UnreadableError as error:
            raise ConfigError(
                f"{path}: line {count} is damaged ({error.reason}): copy the file again, or "
                "delete it to do without the timeline"
            ) from error

    def _unreadable(self, path: Path, error: UnreadableError) -> ConfigError:
        if error.missing:
            return ConfigError(
                f"{self.path} is not a run directory: it has no {path.name}; {_REMEDY}"
            )
        return ConfigError(
            f"{self.path} is not a run directory: {path.name} cannot be read ({error.reason}); "
            f"copy it again, or {_REMEDY}"
        )


def number(value: object) -> float:
    """Return a number that was read from JSON; null stands for one that is not finite."""
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{str(value)[:40]!r} is not a number")
    if math.isfinite(value) and abs(value) > _MOST:
        raise ValueError(f"{str(value)[:40]} is too large")
    return value


def _event(path: Path, line: str) -> Event | None:
    """Return the event in a line; None if it was cut off, or is no event."""
    try:
        event = parse_json(path, line)
    except UnreadableError:
        return None
    return event if isinstance(event, dict) and isinstance(event.get("event"), str) else None


def _span(row: dict[str, Any]) -> Span:
    detail, start_s, end_s = str(row.get("detail", "")), float(row["start_s"]), float(row["end_s"])
    if not -_MOST < start_s <= end_s < _MOST:
        raise ValueError(f"it begins at {start_s:g} s and ends at {end_s:g} s")
    return Span(int(row["rank"]), str(row["kind"]), start_s, end_s, detail)
