"""How a run ended, in either world."""

from __future__ import annotations

import dataclasses
import shutil
import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from hocket.core.accounts import Books, LostLearner
from hocket.errors import ContractError
from hocket.record.metrics import Recorder
from hocket.record.rundir import RunDirectory
from hocket.support.arrays import read_tensors
from hocket.support.files import atomically


@dataclass(frozen=True)
class LearnerReport:
    """What one learner did."""

    rank: int
    frames: int
    bytes_sent: int
    utilisation: float  # share of the training time spent computing gradients
    lost: bool = False  # died before the end
    lost_s: float | None = None  # when, since the run began
    skipped: int = 0  # steps not taken, because the gradient was not finite
    there_s: float | None = None  # training time while it took part; None: an older record

    @property
    def pace(self) -> float:
        """Frames per second while it took part, so that one who joined late is not called slow."""
        return self.frames / self.there_s if self.there_s else float(self.frames)


@dataclass(frozen=True)
class Result:
    """How a run ended."""

    loss: float
    accuracy: float
    frames: int  # committed
    discarded_frames: int
    epoch: int
    time_s: float  # of training, without evaluation and checkpoints
    aside_s: float  # of evaluation and checkpoints
    clock: str
    learners: list[LearnerReport]
    model: dict[str, torch.Tensor]
    stopped: bool
    run_dir: Path | None
    trace_digest: str | None = None  # of a simulation: the same seed gives the same
    evaluations: tuple[tuple[float, float], ...] = ()  # training seconds, dev loss
    attendants: list[LearnerReport] = field(default_factory=list)  # ranks that drew nothing
    rate_share: float = 1.0  # of the sequential rate's integral, after ramp and limit

    def time_to(self, loss: float) -> float | None:
        """Return the training time until an evaluation first showed a dev loss this low."""
        return next((at for at, reached in self.evaluations if reached <= loss), None)

    @property
    def frames_per_s(self) -> float:
        """Throughput, without the time of evaluation."""
        return self.frames / self.time_s if self.time_s else 0.0


def curve(recorder: Recorder) -> tuple[tuple[float, float], ...]:
    """Return training seconds and dev loss of every evaluation."""
    return tuple((e["train_s"], e["loss"]) for e in recorder.evaluations)


def final_model(path: Path, out: Path | None) -> dict[str, torch.Tensor]:
    """Return the newest model of a run, and put it where the user looks for it."""
    written = RunDirectory(path).checkpoints()
    if not written:
        raise ContractError(
            "the strategy returned before a boundary told it to stop, so there is no model: loop "
            "`while (await me.boundary(state)).go_on:`"
        )
    newest = written[-1] / "model.safetensors"
    if out is not None:
        with atomically(RunDirectory(out).model_path) as partial:
            shutil.copyfile(newest, partial)
    return read_tensors(newest)


def of_real(
    summaries: list[dict[str, Any]],
    losses: list[LostLearner],
    path: Path,
    out: Path | None,
    attending: Collection[int],
) -> Result:
    """Return what the survivors of a real run report."""
    first = summaries[0]
    time_s = first["time_s"] - first["aside_s"]
    reports = sorted(
        [
            *(learner_report(s["rank"], s["books"], time_s) for s in summaries),
            *(learner_report(one.rank, one.books, time_s, one.time_s) for one in losses),
        ],
        key=lambda report: report.rank,
    )
    loss, accuracy = first["scores"] or (float("nan"), float("nan"))
    return Result(
        loss=loss,
        accuracy=accuracy,
        frames=first["committed_frames"],
        discarded_frames=first["discarded_frames"],
        epoch=first["epoch"],
        time_s=time_s,
        aside_s=first["aside_s"],
        clock="wall",
        learners=[one for one in reports if one.rank not in attending],
        attendants=[one for one in reports if one.rank in attending],
        model=final_model(path, out),
        stopped=first["stopped"] and not first["closed"],
        run_dir=out,
    )


def learner_report(
    rank: int, books: Books, time_s: float, lost_s: float | None = None
) -> LearnerReport:
    """Return what one learner did, from its books."""
    there_s = (time_s if lost_s is None else lost_s) - books.since_s
    busy = books.compute_s / there_s if there_s > 0 else 0.0
    lost = lost_s is not None
    counts = (rank, books.frames, books.bytes_sent, busy, lost, lost_s)
    return LearnerReport(*counts, skipped=books.skipped, there_s=max(0.0, there_s))


SLOW = 0.7  # a learner is called slow if it does less than this share of what the median one does


def slow_learner(learners: Sequence[LearnerReport], *, synchronous: bool = True) -> str | None:
    """Name a learner that is much slower than the others, and what that means for them.

    How busy a learner is tells that others wait for it only where they wait for each other: one of
    `asgd` waits for the servers.
    """
    there = [one for one in learners if not one.lost and one.frames]
    if len(there) < 2:
        return None
    last = min(there, key=lambda one: one.pace)
    usual = statistics.median(one.pace for one in there)
    busiest = max(there, key=lambda one: one.utilisation)
    if last.pace < SLOW * usual:
        if last.utilisation < SLOW * busiest.utilisation:
            return None  # it was given less to do (the ramp of `kaldi`)
        share = f"{last.pace / usual:.0%} of the frames per second of the median learner"
        return f"rank {last.rank} is slow: {share}; the others do not wait for it"
    computing = statistics.median(one.utilisation for one in there)
    if synchronous and len(there) > 2 and computing < SLOW * busiest.utilisation:
        return (
            f"rank {busiest.rank} is slow: it computes {busiest.utilisation:.0%} of the time, the "
            f"median learner {computing:.0%}, waiting for it; a ring (adpsgd) would not wait"
        )
    return None


def summary_event(result: Result) -> dict[str, Any]:
    """Return the last line of metrics.jsonl."""
    return {
        "event": "summary",
        "time_s": result.time_s + result.aside_s,
        "clock": result.clock,
        "frames": result.frames,
        "epoch": result.epoch,
        "rank": None,
        "loss": result.loss,
        "accuracy": result.accuracy,
        "train_s": result.time_s,
        "aside_s": result.aside_s,
        "frames_per_s": result.frames_per_s,
        "discarded_frames": result.discarded_frames,
        "rate_share": result.rate_share,
        "stopped": result.stopped,
        "learners": [dataclasses.asdict(one) for one in result.learners],
        "attendants": [dataclasses.asdict(one) for one in result.attendants],
        "trace_digest": result.trace_digest,
    }
