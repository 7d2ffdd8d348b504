"""The layout of a run directory, and the one reader of it.

RUN/config.json        everything that decided the run, with versions and seed
RUN/metrics.jsonl      one event a line (docs/metrics.md)
RUN/tensorboard/       the same curves for TensorBoard
RUN/checkpoints/       see hocket.record.checkpoint
RUN/model.safetensors  the evaluated model at the end, by parameter name
RUN/trace*.jsonl       with runtime.trace = true; one file for each learner of a real run
RUN/decode/            what `hocket decode` recognised
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hocket.errors import ConfigError

Event = dict[str, Any]  # a line of metrics.jsonl
_REMEDY = "give the folder that `hocket train` or `hocket simulate` wrote (its --out)"


@dataclass(frozen=True)
class RunDirectory:
    """Where the parts of a run are. What cannot be read is named, with what to do about it."""

    path: Path

    # ------------------------------------------------------------------ where things are

    @property
    def config_path(self) -> Path:
        """The configuration."""
        return self.path / "config.json"

    @property
    def metrics_path(self) -> Path:
        """The events."""
        return self.path / "metrics.jsonl"

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
        text = self._text(self.config_path)
        try:
            tables = json.loads(text)
        except ValueError as error:
            raise self._unreadable(self.config_path, str(error)) from error
        if not isinstance(tables, dict):
            raise self._unreadable(self.config_path, "it holds no tables")
        return tables

    def table(self, name: str) -> dict[str, Any]:
        """Return one table of config.json."""
        table = self.config().get(name)
        if not isinstance(table, dict):
            raise self._unreadable(self.config_path, f"it has no table {name!r}")
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
        for line in self._text(self.metrics_path).splitlines(keepends=True):
            try:
                yield line, json.loads(line)
            except ValueError:
                yield line, None

    def evaluations(self) -> list[Event]:
        """Return the evaluations on dev data."""
        return [row for row in self.metrics() if row["event"] == "eval"]

    def summary(self) -> Event:
        """Return the event that ends a run."""
        for row in reversed(self.metrics()):
            if row["event"] == "summary":
                return row
        raise ConfigError(
            f"{self.path} has not ended yet: finish it with --resume --out {self.path}"
        )

    def checkpoints(self) -> list[Path]:
        """Return the complete checkpoints, oldest first."""
        if not self.checkpoints_path.is_dir():
            return []
        return sorted(p for p in self.checkpoints_path.iterdir() if not p.name.startswith("."))

    def traces(self) -> list[Path]:
        """Return the traces that were kept; none without runtime.trace = true."""
        return sorted(self.path.glob("trace*.jsonl"))

    def _text(self, path: Path) -> str:
        try:
            return path.read_text()
        except FileNotFoundError as error:
            raise ConfigError(
                f"{self.path} is not a run directory: it has no {path.name}; {_REMEDY}"
            ) from error
        except (OSError, UnicodeError) as error:
            raise self._unreadable(path, str(error)) from error

    def _unreadable(self, path: Path, reason: str) -> ConfigError:
        return ConfigError(
            f"{self.path} is not a run directory: {path.name} cannot be read ({reason}); copy it "
            f"again, or {_REMEDY}"
        )
