"""One of four real learners is five times slower: what asynchronous SGD keeps of the speed."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from hocket.core.strategy import Strategy
from hocket.optim import Exponential
from hocket.reproduce import checks
from hocket.reproduce.checks import Check
from hocket.reproduce.claim import Bench, Claim, Run
from hocket.reproduce.outcome import SEQUENTIAL, Found
from hocket.reproduce.setups.paced import Paced
from hocket.reproduce.setups.rings import throughput
from hocket.reproduce.tasks import Scale, Size, synthetic
from hocket.strategies import ASGD, AllReduceSGD, Sequential

LEARNERS: Final = 4
SLOWER: Final = 5
KEPT: Final = 0.95  # of the summed speed of all learners, by asgd
LOST: Final = 0.30  # at most this is left to allreduce; the pace of the slowest gives it 0.25
ASGD_ARM, SHARED, ALLREDUCE = "asgd", "asgd, learners serve", "allreduce"
WATCHED: Final = f"asgd {SLOWER} x, evaluated often"
AT_ITS_END: Final = 99.0  # epochs between evaluations
SHOWN: Final = 2  # seeds of the arms that no check compares
LONGER: Final = 2.0  # times the frames: with as many as sequential SGD neither method gets there
METHODS: Final[dict[str, Strategy[Any]]] = {
    ASGD_ARM: ASGD(servers=1),
    SHARED: ASGD(servers=0),
    ALLREDUCE: AllReduceSGD(),
}


class AsgdStraggler(Claim):
    """Frames per second of real learners, one of them slowed, and when they reach a loss."""

    name: ClassVar[str] = "asgd-straggler"
    claim: ClassVar[str] = (
        "With one of 4 real learners 5 times slower, asynchronous SGD keeps the summed speed of "
        "all, where allreduce drops to the pace of the slowest"
    )
    paper: ClassVar[str] = "Yu and Deng 2015, section 7.1.2 (learners draw from one pool)"
    published: ClassVar[str] = "a slow learner simply does fewer minibatches; no figure"
    refuted_by: ClassVar[str] = (
        "asgd falls below 0.95 of the summed speed of the learners, or allreduce keeps more than "
        "0.30 of it, or allreduce is at the sequential loss plus 1 % no later than asgd, both with "
        "up to twice the frames"
    )
    figures: ClassVar[tuple[str, ...]] = (
        "loss",
        "error",
        "time_s",
        "frames_per_s",
        "staleness",
        "discarded_frames",
    )

    def size(self, scale: Scale) -> Size:
        """Return synthetic frames, so many that the slow one's last minibatch hardly counts."""
        items = {"smoke": 24, "quick": 480, "full": 900}[scale]
        judges = {"smoke": 0, "quick": 2, "full": 5}[scale]
        return Size(synthetic(items, width=96, dev_frames=4_000), epochs=1, judges=judges)

    def pace_s(self, bench: Bench) -> float:
        """Seconds of a minibatch: far above what it costs to compute, so that two cores suffice."""
        return bench.pick(smoke=0.001, quick=0.02, full=0.03)

    def runs(self, bench: Bench) -> list[Run]:
        """Every method with equal learners and with a slow one; and when it gets to a loss.

        All learners meet at an evaluation. Those of asgd wait for the slow one there, so its speed
        is that of runs that are evaluated at their end only. Who is timed to a loss has runs of
        twice the frames, too.
        """
        often = 1 / bench.pick(smoke=2, quick=12, full=20)
        arms: list[tuple[str, Strategy[Any], int, float]] = [
            (SEQUENTIAL, Sequential(), 1, often),
            *(
                (_arm(name, factor), how, factor, often if how.synchronous else AT_ITS_END)
                for name, how in METHODS.items()
                for factor in (1, SLOWER)
            ),
            (WATCHED, METHODS[ASGD_ARM], SLOWER, often),
        ]
        timed = (WATCHED, _arm(ALLREDUCE, SLOWER))
        more = bench.pick(smoke=(1.0,), quick=(1.0, LONGER), full=(1.0, LONGER))
        return [
            run
            for name, how, factor, every in arms
            for budget in (more if name in timed else (1.0,))
            for run in self.arm(bench, name, how, factor, every, budget)
        ]

    def arm(
        self,
        bench: Bench,
        name: str,
        how: Strategy[Any],
        factor: int,
        evaluate_every: float,
        budget: float,
    ) -> list[Run]:
        """Return real runs, the last learner of which is so many times slower.

        Equal learners are shown beside, and their speed does not hang on the seed: two of them.
        """
        judged = name == SEQUENTIAL or factor == SLOWER
        return [
            bench.run(
                name,
                how,
                1 if name == SEQUENTIAL else LEARNERS,
                seed=seed,
                task=Paced(bench.task, self.pace_s(bench), LEARNERS - 1, float(factor)),
                schedule=Exponential(epochs=1),
                budget=budget,
                evaluate_every=evaluate_every * budget,
                checkpoint_every=AT_ITS_END,  # all meet there, too
                real=True,
            )
            for seed in (bench.judges if judged else bench.judges[:SHOWN])
        ]

    def share(self, found: Found, name: str, factor: int) -> float:
        """Return the part of the summed speed of all learners that a method keeps."""
        summed = throughput(found[SEQUENTIAL]) * (LEARNERS - 1 + 1 / factor)
        return throughput(found[_arm(name, factor)]) / summed if summed else 0.0

    def judge(self, found: Found, bench: Bench) -> list[Check]:
        """The speed against the summed speed of all learners; who is at the loss first."""
        kept = {name: self.share(found, name, SLOWER) for name in METHODS}
        slow = kept[ALLREDUCE]
        return [
            *(
                checks.fact(
                    f"{_arm(name, SLOWER)} keeps {KEPT} of the summed speed",
                    kept[name] >= KEPT,
                    f"{kept[name]:.3f}",
                )
                for name in (ASGD_ARM, SHARED)
            ),
            checks.fact(
                f"{_arm(ALLREDUCE, SLOWER)} keeps at most {LOST}", 0 < slow <= LOST, f"{slow:.3f}"
            ),
            checks.sooner(
                "with a slow learner, asgd is at the sequential loss before allreduce",
                found.times(WATCHED),
                found.times(_arm(ALLREDUCE, SLOWER)),
            ),
        ]

    def notes(self, found: Found, bench: Bench) -> list[str]:
        """What every method keeps, and how minibatches were slowed."""
        lines = [
            f"Every minibatch takes {1000 * self.pace_s(bench):.0f} ms by sleeping, as if each "
            f"learner had a machine of its own; the slow one takes {SLOWER} times longer. "
            "`benchmarks/straggler.py` has torch's DistributedDataParallel beside them."
        ]
        for name in METHODS:
            kept = [f"{self.share(found, name, f):.3f} at {f} x" for f in (1, SLOWER)]
            lines.append(f"{name} keeps {', '.join(kept)} of the summed speed.")
        return lines


def _arm(name: str, factor: int) -> str:
    return f"{name} {factor} x"
