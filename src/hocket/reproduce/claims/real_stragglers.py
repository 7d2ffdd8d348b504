"""One slow learner among four real processes: does the simulator's result on stragglers hold?"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from hocket.optim import Exponential
from hocket.reproduce import checks
from hocket.reproduce.checks import Check
from hocket.reproduce.claim import Bench, Claim, Run
from hocket.reproduce.outcome import Found
from hocket.reproduce.setups.paced import Paced
from hocket.reproduce.setups.rings import METHODS, throughput
from hocket.reproduce.tasks import SYNTHETIC, Scale, Size, synthetic
from hocket.strategies import Sequential

LEARNERS = 4
KEPT = 0.95  # of the summed speed of all learners
ALONE = "one learner"


class RealStragglers(Claim):
    """Frames per second of real learners, one of them slowed."""

    name: ClassVar[str] = "real-stragglers"
    claim: ClassVar[str] = (
        "In real processes, too, asynchronous rings keep the summed speed of all learners when one "
        "is slow, where synchronous methods drop to the pace of the slowest"
    )
    paper: ClassVar[str] = "Lian et al., ICML 2018; Cui et al., TASLP 2021"
    published: ClassVar[str] = "rings nearly flat with one learner slowed 2, 10, 100 times"
    refuted_by: ClassVar[str] = "a ring falls below 0.95 of the summed speed of the learners"
    figures: ClassVar[tuple[str, ...]] = ("loss", "error", "time_s", "frames_per_s", "staleness")

    def size(self, scale: Scale) -> Size:
        """Return synthetic frames, so long that the slow one's last minibatch hardly counts."""
        items = {"smoke": 24, "quick": 600, "full": 900}[scale]
        return replace(SYNTHETIC[scale], task=synthetic(items, width=96, dev_frames=4_000))

    def pace_s(self, bench: Bench) -> float:
        """Seconds of a minibatch: far above what it costs to compute, so that two cores suffice.

        At 25 ms four learners on two cores disturb each other: rings kept 0.94 to 0.97.
        """
        return bench.pick(smoke=0.001, quick=0.025, full=0.05)

    def factors(self, bench: Bench) -> tuple[int, ...]:
        """How many times slower the slow learner is; 1 is the base."""
        return bench.pick(smoke=(1, 4), quick=(1, 10), full=(1, 2, 10))

    def runs(self, bench: Bench) -> list[Run]:
        """Every method with every factor; one learner alone says how fast all could be.

        A slow learner does not change what a synchronous method learns: one seed shows its speed.
        """
        pace = self.pace_s(bench)
        schedule = Exponential(epochs=1)
        alone = [
            bench.run(
                ALONE,
                Sequential(),
                1,
                seed=seed,
                task=Paced(bench.task, pace),
                schedule=schedule,
                evaluate_every=99.0,
                real=True,
            )
            for seed in bench.judges[:1]  # it sleeps: they differ by less than 1 %
        ]
        return (
            alone
            + [
                bench.run(
                    _arm(name, factor),
                    how,
                    LEARNERS,
                    seed=seed,
                    task=Paced(bench.task, pace, LEARNERS - 1, factor),
                    schedule=schedule,
                    evaluate_every=99.0,
                    checkpoint_every=99.0,  # all meet there, too
                    real=True,
                )
                for factor in self.factors(bench)
                for name, how in METHODS.items()
                for seed in (bench.judges[:1] if how.synchronous and factor > 1 else bench.judges)
            ]
        )

    def share(self, found: Found, name: str, factor: int) -> float:
        """Return the part of the summed speed of all learners that a method keeps."""
        summed = throughput(found[ALONE]) * (LEARNERS - 1 + 1 / factor)
        return throughput(found[_arm(name, factor)]) / summed if summed else 0.0

    def judge(self, found: Found, bench: Bench) -> list[Check]:
        """The speed of rings against the summed speed of all learners."""
        made = []
        for ring in ("fixed ring", "random ring"):
            for factor in self.factors(bench):
                share = self.share(found, ring, factor)
                statement = f"{_arm(ring, factor)} keeps {KEPT} of the summed speed"
                made.append(checks.fact(statement, share >= KEPT, f"{share:.3f}"))
        return made

    def notes(self, found: Found, bench: Bench) -> list[str]:
        """What the synchronous methods keep, and how minibatches were slowed."""
        lines = [
            f"Every minibatch takes {1000 * self.pace_s(bench):.0f} ms by sleeping, as if each "
            "learner had a machine of its own; the slow one takes so many times longer."
        ]
        for name in ("allreduce", "delay-by-one"):
            kept = [f"{self.share(found, name, f):.3f} at {f} x" for f in self.factors(bench)]
            lines.append(f"{name} keeps {', '.join(kept)} of the summed speed.")
        return lines


def _arm(name: str, factor: int) -> str:
    return f"{name} {factor} x"
