"""Reading what runs have written: curves, timelines, word error rates."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hocket.errors import ConfigError, UnreadableError
from hocket.record.pushes import Pushes
from hocket.record.results import LearnerReport
from hocket.record.rundir import (
    Event,
    RunDirectory,
    number,
    read_result,
    result_path,
    unreadable_result,
)
from hocket.report.charts import Stretch
from hocket.support.inputs import well_formed

COMPUTE, COMMUNICATE, EVALUATE = "compute", "communicate", "evaluate"
KINDS: Final = {kind: kind for kind in (COMPUTE, EVALUATE)} | dict.fromkeys(
    ("curvature", "arithmetic"), COMPUTE
)


_MEASURED: Final = (
    *("consensus", "staleness", "queue", "pushes_per_s", "passes_max", "products_max"),
)


@dataclass(frozen=True)
class Point:
    """The scores of one evaluation, and when it was made."""

    train_s: float
    frames: int
    loss: float
    accuracy: float
    consensus: float | None = None  # how far models are apart, relative to their mean
    staleness: float | None = None  # of the gradients since the last evaluation
    queue: float | None = None  # pushes that waited at a server since then
    pushes_per_s: float | None = None
    passes: float | None = None  # over the data, if the method does more than a gradient a frame
    products: float | None = None  # with the curvature, by then


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
    strategy: str
    path: Path
    config: dict[str, Any]
    points: list[Point]
    summary: dict[str, Any]
    learners: list[LearnerReport]
    stretches: list[Stretch]
    errors: WordErrors | None
    pushes: Pushes | None  # what its servers saw, if it had any

    @property
    def frames_per_s(self) -> float:
        """Frames per second of training; evaluation is not counted."""
        return float(self.summary["frames_per_s"])

    def passes(self, point: Point) -> float:
        """Return how often the data had been gone through, in gradients' worth of work."""
        if point.passes is not None:
            return point.passes
        return point.frames / (self.points[-1].frames or 1) * int(self.config["schedule"]["epochs"])

    def time_to(self, loss: float) -> float | None:
        """Return the training time until the dev loss first reached `loss`; None: it never did."""
        return next((p.train_s for p in self.points if p.loss <= loss), None)


def read_run(path: Path) -> RunRecord:
    """Read the directory of a finished run."""
    run = RunDirectory(path)
    config, summary, evaluations = run.config(), run.summary(), run.evaluations()
    try:
        with well_formed(run.config_path):
            strategy = str(run.table("strategy")["name"])
            learners = int(run.table("runtime")["learners"])
        with well_formed(run.metrics_path):
            points = [_point(row) for row in evaluations if not math.isnan(row["loss"])]
            pushes = Pushes.of(evaluations, summary)
            reports = [_learner(one) for one in summary["learners"]]
    except UnreadableError as error:
        raise ConfigError(f"{error}: copy {path} again, or leave it out") from error
    name = f"{strategy}, {learners} learner{'s' if learners > 1 else ''}"
    errors = read_errors(run.decode_path)
    stretches = _stretches(run)
    return RunRecord(
        name, strategy, path, config, points, summary, reports, stretches, errors, pushes
    )


def _learner(facts: dict[str, Any]) -> LearnerReport:
    """Return what one learner did, as the summary tells it."""
    figures = {key: number(facts[key]) for key in ("rank", "frames", "bytes_sent", "utilisation")}
    if facts.get("there_s") is not None:
        figures["there_s"] = number(facts["there_s"])
    return LearnerReport(**facts | figures)


def _point(row: Event) -> Point:
    """Return what is drawn of an evaluation."""
    train_s, frames, loss, accuracy = (row[k] for k in ("train_s", "frames", "loss", "accuracy"))
    measured = [None if row.get(key) is None else number(row[key]) for key in _MEASURED]
    return Point(train_s, int(frames), loss, accuracy, *measured)


def read_errors(folder: Path) -> WordErrors | None:
    """Read the word error rate of a decoding (RUN/decode, EXP/gmm); None if there was none."""
    if not result_path(folder).exists():
        return None
    try:
        score = read_result(folder)["score"]
        e = score["errors"]
        counts = [number(e[key]) for key in ("substitutions", "deletions", "insertions", "words")]
        rate, words = sum(counts[:3]) / counts[3], int(counts[3])
        return WordErrors(rate, number(score["low"]), number(score["high"]), words)
    except (KeyError, TypeError, ValueError, ZeroDivisionError, OverflowError) as error:
        raise unreadable_result(folder, repr(error)) from error


def _stretches(run: RunDirectory) -> list[Stretch]:
    """Read the trace, if the run wrote one; draws and events without duration are left out."""
    found = []
    for file in run.traces():
        for span in run.spans(file):
            if span.end_s > span.start_s and span.kind != "draw":
                kind = KINDS.get(span.kind, COMMUNICATE)
                found.append(Stretch(f"rank {span.rank}", kind, span.start_s, span.end_s))
    return found
