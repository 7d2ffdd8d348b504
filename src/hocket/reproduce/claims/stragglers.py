"""One slow learner: which methods wait for it, and do those that do not lose accuracy?"""

from __future__ import annotations

from typing import ClassVar

from hocket.report import charts
from hocket.report.charts import COLOURS, Spread
from hocket.reproduce import checks
from hocket.reproduce.checks import Check
from hocket.reproduce.claim import Bench, Claim, Run
from hocket.reproduce.outcome import Found
from hocket.reproduce.setups.rings import FRAMES_PER_S, METHODS, throughput
from hocket.runtime.sim.cost import Cluster, Host, Slow

KEPT = 0.95  # of the summed speed of all learners


class Stragglers(Claim):
    """Time per epoch and accuracy with one learner slowed 2, 10 and 100 times."""

    name: ClassVar[str] = "stragglers"
    claim: ClassVar[str] = (
        "With one learner slowed, asynchronous rings keep the summed speed of all learners and "
        "their accuracy, where synchronous methods drop to the pace of the slowest"
    )
    paper: ClassVar[str] = "Lian et al., ICML 2018; Cui et al., TASLP 2021"
    published: ClassVar[str] = (
        "with one learner slowed 2, 10 and 100 times, the time of rings stays nearly the same and "
        "convergence changes little"
    )
    refuted_by: ClassVar[str] = (
        "a ring falls below 0.95 of the summed speed, or ends with a dev loss more than 1 % above "
        "its own without a slow learner, after the same frames"
    )
    figures: ClassVar[tuple[str, ...]] = ("loss", "error", "time_s", "frames_per_s", "staleness")

    def learners(self, bench: Bench) -> tuple[int, ...]:
        """The numbers of learners that are tried; one of them is slow."""
        return bench.pick(smoke=(4,), quick=(8,), full=(8, 16))

    def factors(self, bench: Bench) -> tuple[int, ...]:
        """How many times slower the slow learner is; 1 is the base."""
        return bench.pick(smoke=(1, 10), quick=(1, 10), full=(1, 2, 10, 100))

    def runs(self, bench: Bench) -> list[Run]:
        """Every method with every factor; so long that the slow one's last minibatch hardly counts.

        A slow learner does not change what a synchronous method learns (a conformance test, bit for
        bit), so one seed shows its speed.
        """
        rate = bench.lr * bench.pick(smoke=1.0, quick=0.5, full=0.5)  # 16 learners bear it
        return [
            bench.run(
                _arm(name, p, factor),
                how,
                _cluster(p, factor),
                seed=seed,
                lr=rate,
                evaluate_every=999.0,  # all meet there: as long as the slow one's minibatch
                checkpoint_every=999.0,
            )
            for p in self.learners(bench)
            for name, how in METHODS.items()
            for factor in self.factors(bench)
            for seed in (bench.judges[:1] if how.synchronous and factor > 1 else bench.judges)
        ]

    def judge(self, found: Found, bench: Bench) -> list[Check]:
        """Speed against the sum; loss against the same method without a slow learner."""
        made = []
        for p in self.learners(bench):
            for ring in ("fixed ring", "random ring"):
                base = found[_arm(ring, p, 1)]
                for factor in self.factors(bench)[1:]:
                    arm = found[_arm(ring, p, factor)]
                    share = throughput(arm) / _summed(p, factor)
                    statement = f"{arm.name} keeps {KEPT} of the summed speed"
                    made.append(checks.fact(statement, share >= KEPT, f"{share:.3f}"))
                    made.append(
                        checks.reaches(
                            f"{arm.name} ends as without a slow learner", arm.losses, base.losses
                        )
                    )
        return made

    def notes(self, found: Found, bench: Bench) -> list[str]:
        """What the synchronous methods keep."""
        lines = ["All at half of the usual rate, which 16 learners bear."]
        for p in self.learners(bench):
            for name in ("allreduce", "delay-by-one"):
                kept = [
                    f"{throughput(found[_arm(name, p, f)]) / _summed(p, f):.3f} at {f} x"
                    for f in self.factors(bench)
                ]
                lines.append(f"{name} P={p} keeps {', '.join(kept)} of the summed speed.")
        return lines

    def plots(self, found: Found, bench: Bench) -> list[str]:
        """Training time over the factor."""
        drawn = []
        for p in self.learners(bench):
            series = []
            for n, name in enumerate(METHODS):
                arms = {f: found[_arm(name, p, f)] for f in self.factors(bench)}
                times = {f: arm.mean(lambda o: o.time_s) for f, arm in arms.items()}
                points = [(float(f), t.value, t.low, t.high) for f, t in times.items()]
                series.append(Spread(name, points, COLOURS[n]))
            title = f"time over slowness of one of {p}"
            drawn.append(charts.dots(title, "x slower", series, doubling=True))
        return drawn


def _arm(name: str, p: int, factor: int) -> str:
    return f"{name} P={p} {factor} x"


def _cluster(p: int, factor: int) -> Cluster:
    slow = (Slow(rank=p - 1, factor=float(factor)),) if factor > 1 else ()
    return Cluster((Host(count=p, frames_per_s=FRAMES_PER_S, jitter=0.1),), slow=slow)


def _summed(p: int, factor: int) -> float:
    return FRAMES_PER_S * (p - 1 + 1 / factor)
