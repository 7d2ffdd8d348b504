"""What an experiment declares: a claim, its paper, what would refute it, the runs, the verdict."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeAlias, TypeVar

from hocket.core.codec import FLOAT32, Codec
from hocket.core.strategy import Strategy
from hocket.core.task import Task
from hocket.experiment import Experiment, RuntimeOptions
from hocket.optim import SGD, Constant, Exponential, Optimizer, Schedule
from hocket.optim.schedules import Warmup
from hocket.reproduce.checks import Check
from hocket.reproduce.outcome import SEQUENTIAL, Arm, Found
from hocket.reproduce.statistics import MARGIN
from hocket.reproduce.tasks import EVALUATIONS, SIZES, Scale, Size
from hocket.runtime.sim.cost import Cluster
from hocket.strategies import Sequential

T = TypeVar("T")
Grid: TypeAlias = Mapping[str, Mapping[str, Any]]  # settings by name: arguments of `Bench.run`


@dataclass(frozen=True)
class Run:
    """One training run. Runs of the same arm and setting differ by seed and budget only."""

    arm: str
    setting: str  # of a grid, for example "lr 0.2": an arm is judged at its best one
    experiment: Experiment
    cluster: Cluster | None  # None: in real processes
    budget: float = 1.0  # frames, as a multiple of what every arm has; more: to time the arm
    tunes: bool = False  # its seed chooses the setting
    judges: bool = True  # its seed counts in the verdict
    link_mbit: float | None = None  # real, on two hosts joined by such a link; inf: no limit
    tuned_as: str = ""  # an arm with the same grid, whose best setting is this one's, too
    work: float = 1.0  # to compute it, in runs of SGD on as many frames: for the expected time

    @property
    def row(self) -> str:
        """The row of the table: its arm; a larger budget has a row of its own."""
        return self.arm if self.budget == 1 else f"{self.arm}, {self.budget:.2f} x frames"

    @property
    def seed(self) -> int:
        """The seed of initial model and order of the data."""
        return self.experiment.options.seed

    def describe(self) -> str:
        """A name for messages: arm, budget, setting and seed."""
        return ", ".join(filter(None, (self.row, self.setting, f"seed {self.seed}")))


@dataclass(frozen=True)
class Bench:
    """What a claim is tried on: the task, the number of epochs, the seeds."""

    scale: Scale
    task: Task
    epochs: int
    seeds: tuple[int, ...]  # the first one tunes, the others judge; a single one does both
    lr: float  # a good rate for the sequential run on this task
    evaluations: int = EVALUATIONS  # in a run

    @property
    def judges(self) -> tuple[int, ...]:
        """The seeds that count in the verdict."""
        return self.seeds[1:] or self.seeds

    def pick(self, *, smoke: T, quick: T, full: T) -> T:
        """Choose by the size of the experiment."""
        return {"smoke": smoke, "quick": quick, "full": full}[self.scale]

    def run(
        self,
        arm: str,
        strategy: Strategy[Any],
        learners: Cluster | int,
        *,
        seed: int,
        lr: float | None = None,
        optimizer: Optimizer | None = None,
        schedule: Schedule | None = None,
        task: Task | None = None,
        setting: str = "",
        budget: float = 1.0,
        real: bool = False,
        codec: Codec = FLOAT32,
        link_mbit: float | None = None,
        tuned_as: str = "",
        work: float = 1.0,
        **runtime: Any,
    ) -> Run:
        """Declare a run: in the simulator, or with `real` in so many processes.

        `link_mbit`: in real processes on two hosts, network namespaces of this one, joined by
        a link of that speed (`setups/two_hosts.py`). `tuned_as`: the arm that is tuned in
        place of this one, where both take the same steps and only their time differs. `work`: see
        `Run`.

        Unless told otherwise: SGD at the bench's rate, decaying exponentially, if the method has
        a rate at all. A `budget` above 1 stretches the schedule, to whole epochs; evaluations are
        as many as without.
        """
        cluster = Cluster.even(learners) if isinstance(learners, int) else learners
        rule = optimizer or SGD(lr=self.lr)
        usual: Schedule = schedule or Exponential(epochs=self.epochs, final_factor=0.05)
        if not strategy.uses_rate:
            rule, usual = SGD(), schedule or Constant(epochs=self.epochs)
        plan = stretched(usual, budget)
        options = {
            "evaluate_every": plan.epochs / self.evaluations,
            "checkpoint_every": max(1.0, plan.epochs / 4),  # all meet there: not too often
            "tensorboard": False,
        } | runtime
        experiment = Experiment(
            task or self.task,
            strategy,
            rule if lr is None else replace(rule, lr=lr),
            plan,
            codec,
            options=RuntimeOptions(learners=cluster.num_learners, seed=seed, **options),
        )
        return Run(
            arm,
            setting,
            experiment,
            None if real or link_mbit is not None else cluster,
            budget,
            tunes=seed == self.seeds[0],
            judges=seed in self.judges,
            link_mbit=link_mbit,
            tuned_as=tuned_as,
            work=work,
        )

    def arm(
        self,
        name: str,
        learners: Cluster | int,
        grid: Grid,
        *,
        budgets: Sequence[float] = (1.0,),
        **more: Any,
    ) -> list[Run]:
        """Declare an arm: every setting of its grid with every seed and budget.

        Not all of them are run: the tuning seed chooses the setting for each budget, and the
        judging seeds run at that setting only (see `execute`).
        """
        return [
            self.run(name, learners=learners, seed=seed, setting=setting, budget=b, **given, **more)
            for setting, given in grid.items()
            for b in budgets
            for seed in self.seeds
        ]

    def grid(
        self, strategies: Mapping[str, Strategy[Any]], factors: Sequence[float]
    ) -> dict[str, dict[str, Any]]:
        """Return a grid: strategies by name ("K 4", or empty) times rates relative to the bench's.

        A setting is named by both: "K 4, lr 0.1".
        """
        return {
            ", ".join(filter(None, (name, f"lr {factor * self.lr:g}"))): {
                "strategy": strategy,
                "lr": factor * self.lr,
            }
            for name, strategy in strategies.items()
            for factor in factors
        }

    def sequential(self, **more: Any) -> list[Run]:
        """Declare the baseline, arm "sequential": in the full form the best of three rates."""
        factors = self.pick(smoke=(1.0,), quick=(1.0,), full=(0.5, 1.0, 2.0))
        return self.arm(SEQUENTIAL, 1, self.grid({"": Sequential()}, factors), **more)


def stretched(schedule: Schedule, budget: float) -> Schedule:
    """Return the same schedule over more epochs, whole ones."""
    if budget == 1.0:
        return schedule
    longer = replace(schedule, epochs=math.ceil(schedule.epochs * budget - 1e-9))
    if not isinstance(longer, Warmup):
        return longer
    ratio = longer.epochs / schedule.epochs
    return replace(
        longer,
        warmup_epochs=longer.warmup_epochs * ratio,
        hold_epochs=longer.hold_epochs * ratio,
        step_factor=longer.step_factor ** (1 / ratio),
    )


def budgets(learners: int, speedup: float, steps: int = 3) -> tuple[float, ...]:
    """Return frames to try, as multiples of the sequential run's: 1 up to P/S, geometrically.

    A paper that reports a speed-up of S on P learners says that they may see P/S times the frames
    of the sequential run until they are as good, if they compute without a pause.
    """
    most = max(1.0, learners / speedup)
    found = [most ** (n / (steps - 1)) for n in range(steps)]
    return tuple(dict.fromkeys(round(b, 4) for b in found))


class Claim(ABC):
    """One published claim, as an experiment: one subclass in a file of its own."""

    name: ClassVar[str]  # of the command: hocket reproduce NAME
    claim: ClassVar[str]  # one sentence, as the paper would say it
    paper: ClassVar[str]
    published: ClassVar[str]  # the figure in the paper, and on what
    refuted_by: ClassVar[str]  # what we would have to see to say that it does not hold
    margin: ClassVar[float] = MARGIN  # "reaches": by how much of the loss it may be above
    figures: ClassVar[tuple[str, ...]] = ("loss", "error", "time_s", "bytes_sent")  # of the table
    keeps_curves: ClassVar[bool] = False  # in docs/results, beside its own plots

    @abstractmethod
    def runs(self, bench: Bench) -> list[Run]:
        """Declare the runs: tiny for a smoke test, a few minutes if quick, and the full form."""

    @abstractmethod
    def judge(self, found: Found, bench: Bench) -> list[Check]:
        """Compute the verdict, check by check (see `hocket.reproduce.checks`)."""

    def plots(self, found: Found, bench: Bench) -> list[str]:
        """Draw what the curves of the loss do not show (`hocket.report.charts`), as SVG."""
        return []

    def notes(self, found: Found, bench: Bench) -> list[str]:
        """Say what a reader of the table must know."""
        return []

    def size(self, scale: Scale) -> Size:
        """Return task, epochs and seeds of this claim, if none are given."""
        return SIZES[scale]

    def shown(self, found: Found) -> list[Arm]:
        """Return the rows of the table: every arm at its best setting."""
        return found.best
