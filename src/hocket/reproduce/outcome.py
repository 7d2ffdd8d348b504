"""Results of runs: one `Outcome` per run, kept as JSON; an `Arm` is the same run over its seeds."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from hocket.errors import ConfigError, nearest
from hocket.record.results import Result
from hocket.record.rundir import Event
from hocket.report.runs import Point
from hocket.reproduce import statistics
from hocket.reproduce.statistics import Interval
from hocket.support.files import write_atomically


@dataclass(frozen=True)
class Outcome:
    """How one run ended. One that diverged has an infinite loss, time and distance, and accuracy 0.

    So it has failed in whichever figure it is compared.
    """

    loss: float
    accuracy: float
    frames: int
    discarded_frames: int
    time_s: float  # virtual, or by the clock; without evaluation
    bytes_sent: int  # by all learners
    utilisation: float  # mean over the learners
    curve: tuple[Point, ...]
    wall_s: float  # what it cost to find out
    diverged: str | None = None
    consensus: float = 0.0  # how far models were apart at the last evaluation, relative to the mean
    staleness: float = 0.0  # of the gradients before it
    wer: float = math.nan  # on test data, of a speech task that can be decoded

    @property
    def error(self) -> float:
        """Frame error on the dev set."""
        return 1.0 - self.accuracy

    @property
    def frames_per_s(self) -> float:
        """Throughput."""
        return self.frames / self.time_s if self.time_s else 0.0  # 0 if it diverged

    def time_to(self, loss: float) -> float:
        """Training time until the dev loss was first this low; infinite if it never was."""
        return next((p.train_s for p in self.curve if p.loss <= loss), math.inf)


def of_result(result: Result, evaluations: Sequence[Event], wall_s: float, wer: float) -> Outcome:
    """Return what is kept of a run."""
    measured = figures(evaluations)
    return Outcome(
        loss=result.loss,
        accuracy=result.accuracy,
        frames=result.frames,
        discarded_frames=result.discarded_frames,
        time_s=result.time_s,
        bytes_sent=sum(one.bytes_sent for one in result.learners),
        utilisation=fmean(one.utilisation for one in result.learners),
        curve=tuple(curve(evaluations)),
        wall_s=wall_s,
        consensus=measured.get("consensus", 0.0),
        staleness=measured.get("staleness", 0.0),
        wer=wer,
    )


def of_divergence(reason: str, wall_s: float) -> Outcome:
    """Return what is kept of a run that the guard stopped: that, too, is a result."""
    return Outcome(math.inf, 0.0, 0, 0, math.inf, 0, 0.0, (), wall_s, reason, consensus=math.inf)


def write(path: Path, outcome: Outcome) -> None:
    """Write an outcome, in full or not at all."""
    write_atomically(path, json.dumps(asdict(outcome)) + "\n")


def read(path: Path) -> Outcome:
    """Read an outcome back."""
    kept: dict[str, Any] = json.loads(path.read_text())
    if kept["diverged"] is not None:
        return of_divergence(kept["diverged"], kept["wall_s"])
    return Outcome(**{**kept, "curve": tuple(Point(**p) for p in kept["curve"])})


def figures(evaluations: Sequence[Event]) -> dict[str, float]:
    """Return consensus and staleness as of the last evaluation, where the method has them."""
    last = evaluations[-1]
    return {key: last[key] for key in ("consensus", "staleness") if key in last}


def curve(evaluations: Sequence[Event]) -> list[Point]:
    """Return a run's evaluations as points to draw."""
    return [
        Point(row["train_s"], row["frames"], row["loss"], row["accuracy"]) for row in evaluations
    ]


@dataclass(frozen=True)
class Arm:
    """One method with one setting, over its seeds."""

    name: str
    setting: str  # what was tuned, for example "lr 0.2"; empty if nothing was
    outcomes: tuple[Outcome, ...]

    def values(self, of: Callable[[Outcome], float]) -> list[float]:
        """Return a figure of every seed."""
        return [of(o) for o in self.outcomes]

    @property
    def losses(self) -> list[float]:
        """The final dev loss of every seed."""
        return self.values(lambda o: o.loss)

    @property
    def errors(self) -> list[float]:
        """The final frame error of every seed."""
        return self.values(lambda o: o.error)

    @property
    def num_diverged(self) -> int:
        """How many seeds the guard stopped as diverged."""
        return sum(o.diverged is not None for o in self.outcomes)

    def mean(self, of: Callable[[Outcome], float]) -> Interval:
        """Return the mean of a figure over the seeds, with its interval."""
        return statistics.mean(self.values(of))


class Found:
    """All outcomes of an experiment. `found["bmuf P=4"]` is that arm at its best setting."""

    def __init__(self, arms: Iterable[Arm]) -> None:
        self.arms = list(arms)

    @property
    def names(self) -> list[str]:
        """The arms, in the order of the runs."""
        return list(dict.fromkeys(arm.name for arm in self.arms))

    def settings(self, name: str) -> list[Arm]:
        """Return an arm at all settings of its grid."""
        found = [arm for arm in self.arms if arm.name == name]
        if not found:
            raise ConfigError(f"no run of arm {name!r}.{nearest(name, self.names)}")
        return found

    def __getitem__(self, name: str) -> Arm:
        grid = self.settings(name)
        most = max(len(arm.outcomes) for arm in grid)  # only the best has seen all seeds
        confirmed = [arm for arm in grid if len(arm.outcomes) == most]
        return min(confirmed, key=lambda arm: fmean(arm.losses))

    @property
    def has_wer(self) -> bool:
        """True if every run that is shown was decoded; settings that were only tried are not."""
        ended = [o for arm in self.best for o in arm.outcomes if o.diverged is None]
        return bool(ended) and not any(math.isnan(o.wer) for o in ended)

    @property
    def best(self) -> list[Arm]:
        """Every arm at its best setting."""
        return [self[name] for name in self.names]
