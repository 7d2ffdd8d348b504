"""Reading what runs have written: curves, timelines, word error rates."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hocket.record.rundir import RunDirectory
from hocket.report.charts import Stretch

COMPUTE, COMMUNICATE, EVALUATE = "compute", "communicate", "evaluate"


@dataclass(frozen=True)
class Point:
    """The scores of one evaluation, and when it was made."""

    train_s: float
    frames: int
    loss: float
    accuracy: float
    consensus: float | None = None  # how far models are apart, relative to their mean
    staleness: float | None = None  # of the gradients since the last evaluation


@dataclass(frozen=True)
class WordErrors:
    """A word error rate with its interval."""

    rate: float
    low: float
    high: float
    words: int


@dataclass(frozen=True)
class RunRecord:
    """What the page shows of one run."""

    name: str
    path: Path
    config: dict[str, Any]
    points: list[Point]
    summary: dict[str, Any]
    stretches: list[Stretch]
    errors: WordErrors | None

    @property
    def frames_per_s(self) -> float:
        """Frames per second of training; evaluation is not counted."""
        return float(self.summary["frames_per_s"])

    def time_to(self, loss: float) -> float | None:
        """Return the training time until the dev loss first reached `loss`; None: it never did."""
        return next((p.train_s for p in self.points if p.loss <= loss), None)


def read_run(path: Path) -> RunRecord:
    """Read the directory of a finished run."""
    run = RunDirectory(path)
    config, summary = run.config(), run.summary()
    points = [
        Point(
            row["train_s"],
            row["frames"],
            row["loss"],
            row["accuracy"],
            row.get("consensus"),
            row.get("staleness"),
        )
        for row in run.evaluations()
        if row["loss"] is not None
    ]
    learners = config["runtime"]["learners"]
    name = f"{config['strategy']['name']}, {learners} learner{'s' if learners > 1 else ''}"
    errors = read_errors(run.decode_path / "result.json")
    return RunRecord(name, path, config, points, summary, _stretches(run), errors)


def read_errors(path: Path) -> WordErrors | None:
    """Read the word error rate of a decoded run; None if it was not decoded."""
    if not path.exists():
        return None
    score = json.loads(path.read_text())["score"]
    e = score["errors"]
    total = e["substitutions"] + e["deletions"] + e["insertions"]
    return WordErrors(total / e["words"], score["low"], score["high"], e["words"])


def _stretches(run: RunDirectory) -> list[Stretch]:
    """Read the trace, if the run wrote one; draws and events without duration are left out."""
    found = []
    for file in run.traces():
        for line in file.read_text().splitlines():
            row = json.loads(line)
            if row["end_s"] > row["start_s"] and row["kind"] != "draw":
                kind = row["kind"] if row["kind"] in (COMPUTE, EVALUATE) else COMMUNICATE
                found.append(Stretch(f"rank {row['rank']}", kind, row["start_s"], row["end_s"]))
    return found
