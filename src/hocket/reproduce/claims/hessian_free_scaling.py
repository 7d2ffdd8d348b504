"""From 1 to 1,024 learners in one iteration of Hessian-free, with and without balanced items."""

from __future__ import annotations

import math
from typing import ClassVar

from hocket.models.gauss_newton import PRODUCT_COST
from hocket.optim import Constant
from hocket.report import charts
from hocket.report.charts import COLOURS, Spread
from hocket.reproduce import checks
from hocket.reproduce.checks import Check
from hocket.reproduce.claim import Bench, Claim, Run
from hocket.reproduce.outcome import Arm, Found
from hocket.reproduce.setups.newton import AT, FRAMES_PER_S, RATIO, cluster, utterances
from hocket.reproduce.tasks import Scale, Size
from hocket.strategies import HessianFree
from hocket.strategies.hessian_free import Balance

CURVATURE = 0.5  # large, so that 1,024 learners have utterances to share
EFFICIENCY = 0.5  # of linear, with the most learners: ours, fixed before the runs
BALANCES: dict[str, Balance] = {"balanced": "frames", "in turn": "none"}


class HessianFreeScaling(Claim):
    """Time of the same work on more and more learners: a result of the cost model."""

    name: ClassVar[str] = "hessian-free-scaling"
    claim: ClassVar[str] = (
        "An iteration of Hessian-free scales almost linearly to 1,024 learners, if utterances are "
        "dealt by their frames"
    )
    paper: ClassVar[str] = "Chung et al., SC 2014"
    published: ClassVar[str] = "linear up to 4,096 processes of a Blue Gene/Q, load balanced"
    refuted_by: ClassVar[str] = (
        "with the most learners, less than half of the linear speed-up; or dealing in turn takes "
        "no longer than dealing by frames (no margin)"
    )
    figures: ClassVar[tuple[str, ...]] = ("time_s", "frames_per_s", "bytes_sent", "utilisation")

    def size(self, scale: Scale) -> Size:
        """Return utterances of 80 to 320 frames: minibatches of frames are all alike."""
        frames = {"smoke": 4_000, "quick": 60_000, "full": 800_000}[scale]
        return Size(utterances(frames), epochs=1, judges={"smoke": 0, "quick": 3, "full": 3}[scale])

    def learners(self, bench: Bench) -> tuple[int, ...]:
        """The numbers of learners that are tried."""
        return bench.pick(smoke=(1, 4), quick=(1, 16, 64), full=(1, 16, 64, 256, 1024))

    def networks(self, bench: Bench) -> tuple[float, ...]:
        """Bandwidths as multiples of the stated one; the others are shown, not judged."""
        return bench.pick(smoke=(1.0,), quick=(1.0,), full=(0.1, 1.0, 10.0))

    def runs(self, bench: Bench) -> list[Run]:
        """One iteration of ten steps, whatever they are good for: the same work for all."""
        steps = bench.pick(smoke=2, quick=5, full=10)
        found = []
        for net in self.networks(bench):
            for p in self.learners(bench):
                for name, balance in BALANCES.items():
                    if (net != 1.0 and balance == "none") or (p == 1 and balance == "none"):
                        continue
                    how = HessianFree(
                        curvature=CURVATURE, cg_iterations=steps, damping=1.0, balance=balance
                    )
                    found += bench.arm(
                        _arm(name, p, net),
                        cluster(bench.task, p, CURVATURE, net),
                        {"": {"strategy": how}},
                        schedule=Constant(epochs=1),
                        evaluate_every=1.0,
                        work=1 + steps * CURVATURE * PRODUCT_COST,
                    )
        return found

    def judge(self, found: Found, bench: Bench) -> list[Check]:
        """Half of linear at the stated ratio; balanced is faster."""
        most = max(self.learners(bench))
        many, one = (_times(found[_arm("balanced", p)]) for p in (most, 1))
        unbalanced = _times(found[_arm("in turn", most)])
        return [
            checks.faster(f"P={most}: half of linear", many, one, EFFICIENCY * most),
            checks.below(f"P={most}: balanced is faster than in turn", many, unbalanced),
        ]

    def speedup(self, found: Found, name: str, p: int, net: float = 1.0) -> float:
        """Return the time on one learner, divided by that on P."""
        alone = found[_arm("balanced", 1, net)].mean(lambda o: o.time_s).value
        mine = found[_arm(name, p, net)].mean(lambda o: o.time_s).value
        return alone / mine if math.isfinite(alone) and math.isfinite(mine) and mine else math.nan

    def notes(self, found: Found, bench: Bench) -> list[str]:
        """The ratio, and the speed-ups of all networks."""
        lines = [
            f"One learner takes gradients on {FRAMES_PER_S:,.0f} frames a second. With {AT:,} "
            f"learners a product on a learner's share of the curvature sample lasts {RATIO:g} "
            "times as long as an allreduce of the model; the vectors of conjugate gradients are "
            "charged on every learner. All of it is the simulator's cost model.",
        ]
        for net in self.networks(bench):
            for p in self.learners(bench):
                ups = [f"balanced {_told(self.speedup(found, 'balanced', p, net))}"]
                if net == 1.0 and p > 1:
                    ups.append(f"in turn {_told(self.speedup(found, 'in turn', p))}")
                lines.append(f"network x {net:g}, P={p}: speed-up {', '.join(ups)}.")
        return lines

    def plots(self, found: Found, bench: Bench) -> list[str]:
        """Speed-up over learners."""
        series = []
        for n, name in enumerate(BALANCES):
            sizes = [p for p in self.learners(bench) if p > 1 or name == "balanced"]
            ups = [(float(p), self.speedup(found, name, p)) for p in sizes]
            points = [(p, up, up, up) for p, up in ups if math.isfinite(up)]
            series.append(Spread(name, points, COLOURS[n]))
        return [charts.dots("speed-up of an iteration", "learners", series, doubling=True)]


def _told(speedup: float) -> str:
    return f"{speedup:.1f}" if math.isfinite(speedup) else "unknown"


def _times(arm: Arm) -> list[float]:
    return arm.values(lambda o: o.time_s)


def _arm(name: str, p: int, net: float = 1.0) -> str:
    return f"{name} P={p}" + ("" if net == 1.0 else f" net x {net:g}")
