"""Results of runs: one `Outcome` per run, kept as JSON; an `Arm` is the same run over its seeds."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Final

from hocket.errors import ConfigError, UnreadableError, nearest
from hocket.record.results import Result
from hocket.record.rundir import Event, RunDirectory
from hocket.report.runs import Point
from hocket.reproduce import statistics
from hocket.reproduce.statistics import MARGIN, Interval
from hocket.support.files import write_atomically
from hocket.support.inputs import read_table, well_formed

SEQUENTIAL: Final = "sequential"  # the arm that all others are timed against


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
    rate_share: float = 1.0  # of the sequential rate's integral; files from before it: 1

    @property
    def error(self) -> float:
        """Frame error on the dev set."""
        return 1.0 - self.accuracy

    @property
    def frames_per_s(self) -> float:
        """Frames that all learners trained on, per second of training."""
        return self.frames / self.time_s if self.time_s else 0.0  # 0 if it diverged

    def time_to(self, loss: float) -> float:
        """Training time until the dev loss was first this low; infinite if it never was."""
        return next((p.train_s for p in self.curve if p.loss <= loss), math.inf)

    def frames_to(self, loss: float) -> float:
        """Frames until the dev loss was first this low; infinite if it never was."""
        return next((float(p.frames) for p in self.curve if p.loss <= loss), math.inf)

    def products_to(self, loss: float) -> float:
        """Curvature products until the dev loss was first this low; infinite if it never was."""
        return next((p.products or 0.0 for p in self.curve if p.loss <= loss), math.inf)


def of_result(result: Result, evaluations: Sequence[Event], wall_s: float) -> Outcome:
    """Return what is kept of a run; its words are not known yet."""
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
        rate_share=result.rate_share,
    )


def of_record(run: RunDirectory, wall_s: float) -> Outcome:
    """Return what is kept of a run that other processes made: their record has it all."""
    summary, evaluations = run.summary(), run.evaluations()
    learners = summary["learners"]
    return Outcome(
        loss=summary["loss"],
        accuracy=summary["accuracy"],
        frames=summary["frames"],
        discarded_frames=summary["discarded_frames"],
        time_s=summary["train_s"],
        bytes_sent=sum(one["bytes_sent"] for one in learners),
        utilisation=fmean(one["utilisation"] for one in learners),
        curve=tuple(curve(evaluations)),
        wall_s=wall_s,
        rate_share=summary["rate_share"],
    )


def of_divergence(reason: str, wall_s: float) -> Outcome:
    """Return what is kept of a run that the guard stopped: that, too, is a result."""
    gone = Outcome(math.inf, 0.0, 0, 0, math.inf, 0, 0.0, (), wall_s, reason)
    return replace(gone, consensus=math.inf, rate_share=math.nan)


def write(path: Path, outcome: Outcome) -> None:
    """Write an outcome, in full or not at all."""
    write_atomically(path, json.dumps(asdict(outcome)) + "\n")


def read(path: Path) -> Outcome:
    """Read an outcome back."""
    try:
        kept = read_table(path)
        with well_formed(path):
            if kept["diverged"] is not None:
                return of_divergence(str(kept["diverged"]), float(kept["wall_s"]))
            return Outcome(**{**kept, "curve": tuple(Point(**p) for p in kept["curve"])})
    except UnreadableError as error:
        raise ConfigError(f"{error}: delete it, and it is computed again") from error


def figures(evaluations: Sequence[Event]) -> dict[str, float]:
    """Return consensus and staleness as of the last evaluation, where the method has them."""
    last = evaluations[-1]
    return {key: last[key] for key in ("consensus", "staleness") if key in last}


def curve(evaluations: Sequence[Event]) -> list[Point]:
    """Return a run's evaluations as points to draw."""
    return [
        Point(
            row["train_s"],
            row["frames"],
            row["loss"],
            row["accuracy"],
            passes=row.get("passes_max"),
            products=row.get("products_max"),
        )
        for row in evaluations
    ]


@dataclass(frozen=True)
class Arm:
    """One method with one setting, over its seeds."""

    name: str
    setting: str  # what was tuned, for example "lr 0.2"; empty if nothing was
    outcomes: tuple[Outcome, ...]  # of the judging seeds, after as many frames as all arms have
    tuned: tuple[Outcome, ...] = ()  # of the tuning seed: it chooses the setting and never judges
    longer: tuple[tuple[Outcome, ...], ...] = ()  # of every judging seed: with larger budgets

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
    def tuning_loss(self) -> float:
        """The final dev loss of the tuning seed; infinite if it has no such run."""
        return fmean(o.loss for o in self.tuned) if self.tuned else math.inf

    @property
    def num_diverged(self) -> int:
        """How many seeds the guard stopped as diverged."""
        return sum(o.diverged is not None for o in self.outcomes)

    def mean(self, of: Callable[[Outcome], float]) -> Interval:
        """Return the mean of a figure over the seeds, with its interval."""
        return statistics.mean(self.values(of))

    def times_to(self, losses: Sequence[float]) -> list[float]:
        """Return every seed's time until its dev loss was as low as given, at its best budget."""
        pairs = zip(self._seeds(), losses, strict=True)
        return [min(o.time_to(loss) for o in seed) for seed, loss in pairs]

    def frames_to(self, losses: Sequence[float]) -> list[float]:
        """Return every seed's frames until its dev loss was as low, at its best budget."""
        pairs = zip(self._seeds(), losses, strict=True)
        return [min(o.frames_to(loss) for o in seed) for seed, loss in pairs]

    def _seeds(self) -> list[tuple[Outcome, ...]]:
        """All runs of each seed, whatever their budget."""
        more = self.longer or ((),) * len(self.outcomes)
        return [(first, *others) for first, others in zip(self.outcomes, more, strict=True)]


class Found:
    """All outcomes of an experiment. `found["bmuf P=4"]` is that arm at its best setting.

    The best setting is the one with which the tuning seed did best; what the other seeds did
    decides nothing but the verdict.
    """

    def __init__(self, arms: Iterable[Arm], margin: float = MARGIN) -> None:
        self.arms = list(arms)
        self.margin = margin

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
        return min(self.settings(name), key=lambda arm: arm.tuning_loss)

    @property
    def has_wer(self) -> bool:
        """True if every run that is shown was decoded; settings that were only tried are not."""
        ended = [o for arm in self.best for o in arm.outcomes if o.diverged is None]
        return bool(ended) and not any(math.isnan(o.wer) for o in ended)

    @property
    def best(self) -> list[Arm]:
        """Every arm at its best setting."""
        return [self[name] for name in self.names]

    # ------------------------------------------------------------------ to the sequential loss

    @property
    def has_sequential(self) -> bool:
        """True if there is a sequential run to compare with."""
        return SEQUENTIAL in self.names and bool(self[SEQUENTIAL].outcomes)

    def targets(self, name: str) -> list[float]:
        """The sequential loss plus the margin, for every seed of an arm: that of the same seed.

        The same seed is the same initial model, and some of them lead to lower losses than others,
        with all methods alike. An arm of fewer seeds is held to the mean of all. Minus infinity,
        which nobody reaches, if the sequential run diverged.
        """
        alone, wanted = self[SEQUENTIAL].losses, len(self[name].outcomes)
        if len(alone) != wanted:
            alone = [statistics.mean(alone).value] * wanted
        return [(1 + self.margin) * x if math.isfinite(x) else -math.inf for x in alone]

    def times(self, name: str) -> list[float]:
        """Return every seed's time to the sequential loss; infinite if it never got there."""
        return self[name].times_to(self.targets(name))

    def frames(self, name: str) -> list[float]:
        """Return every seed's frames to the sequential loss."""
        return self[name].frames_to(self.targets(name))

    def speedup(self, name: str) -> float:
        """Return how much sooner an arm is at the sequential loss; NaN if some seed never is."""
        mine, alone = (statistics.mean(self.times(x)).value for x in (name, SEQUENTIAL))
        return alone / mine if math.isfinite(mine) and math.isfinite(alone) and mine else math.nan
