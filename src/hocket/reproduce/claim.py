"""What an experiment declares: a claim, its paper, what would refute it, the runs, the verdict."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar

from hocket.core.strategy import Strategy
from hocket.core.task import Task
from hocket.experiment import Experiment, RuntimeOptions
from hocket.optim import SGD, Exponential, Optimizer, Schedule
from hocket.reproduce.checks import Check
from hocket.reproduce.outcome import Arm, Found
from hocket.runtime.sim.cost import Cluster
from hocket.strategies import Sequential

Scale: TypeAlias = Literal["smoke", "quick", "full"]
T = TypeVar("T")


@dataclass(frozen=True)
class Run:
    """One training run. Runs of the same arm and setting differ by their seed only."""

    arm: str
    setting: str  # of a grid, for example "lr 0.2": an arm is judged at its best one
    experiment: Experiment
    cluster: Cluster | None  # None: in real processes

    @property
    def seed(self) -> int:
        """The seed of initial model and order of the data."""
        return self.experiment.options.seed

    def describe(self) -> str:
        """A name for messages: arm, setting and seed."""
        return ", ".join(filter(None, (self.arm, self.setting, f"seed {self.seed}")))


@dataclass(frozen=True)
class Bench:
    """What a claim is tried on: the task, the number of epochs, the seeds."""

    scale: Scale
    task: Task
    epochs: int
    seeds: tuple[int, ...]
    lr: float  # a good rate for the sequential run on this task

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
        real: bool = False,
        **runtime: Any,
    ) -> Run:
        """Declare a run: in the simulator, or with `real` in so many processes.

        Unless told otherwise: SGD at the bench's rate, decaying exponentially.
        """
        cluster = Cluster.even(learners) if isinstance(learners, int) else learners
        rule = optimizer or SGD(lr=self.lr)
        options = {"evaluate_every": 0.5, "tensorboard": False} | runtime
        experiment = Experiment(
            task or self.task,
            strategy,
            rule if lr is None else replace(rule, lr=lr),
            schedule or Exponential(epochs=self.epochs, final_factor=0.05),
            options=RuntimeOptions(learners=cluster.num_learners, seed=seed, **options),
        )
        return Run(arm, setting, experiment, None if real else cluster)

    def sequential(self, rates: Sequence[float | None] = (None,), **more: Any) -> list[Run]:
        """Declare the baseline, arm "sequential", at some rates and every seed."""
        return [
            self.run(
                "sequential",
                Sequential(),
                1,
                seed=seed,
                lr=lr,
                setting="" if lr is None else f"lr {lr:g}",
                **more,
            )
            for lr in rates
            for seed in self.seeds
        ]


class Claim(ABC):
    """One published claim, as an experiment: one subclass in a file of its own."""

    name: ClassVar[str]  # of the command: hocket reproduce NAME
    claim: ClassVar[str]  # one sentence, as the paper would say it
    paper: ClassVar[str]
    refuted_by: ClassVar[str]  # what we would have to see to say that it does not hold
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

    def task(self, scale: Scale) -> Task | None:
        """Return this claim's own task, or None for the task that all claims share."""
        return None

    def shown(self, found: Found) -> list[Arm]:
        """Return the rows of the table: every arm at its best setting."""
        return found.best
