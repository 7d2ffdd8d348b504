"""K-AVG: how many local steps between two averages, and should K follow the held-out loss?"""

from __future__ import annotations

import math
from typing import Any, ClassVar

from hocket.core.strategy import Strategy
from hocket.report import charts
from hocket.report.charts import COLOURS, Estimate, Spread
from hocket.reproduce import checks
from hocket.reproduce.checks import Check
from hocket.reproduce.claim import Bench, Claim, Run
from hocket.reproduce.outcome import SEQUENTIAL, Arm, Found
from hocket.reproduce.tasks import STALL
from hocket.strategies import AdaptiveKStep, KStep


class KSweep(Claim):
    """Communication against accuracy over K, fixed and adaptive."""

    name: ClassVar[str] = "k-sweep"
    claim: ClassVar[str] = (
        "Averaging after K > 1 local steps reaches the dev loss of averaging after every step with "
        "a fraction of the communication, and an adaptive K is as good as the best fixed one"
    )
    paper: ClassVar[str] = "Zhou and Cong, IJCAI 2018 (arXiv:1708.01012); Cong et al., MLHPC 2017"
    published: ClassVar[str] = "K = 1 is usually not the best K (theory and image tasks); no figure"
    refuted_by: ClassVar[str] = (
        "after the same frames, the best K > 1 ends with a dev loss more than 1 % above that of "
        "K = 1, or the adaptive K more than 1 % above the best fixed one"
    )

    def learners(self, bench: Bench) -> tuple[int, ...]:
        """How many learners it is tried with."""
        return bench.pick(smoke=(2,), quick=(4, 16), full=(4, 16))

    def ks(self, bench: Bench) -> tuple[int, ...]:
        """The numbers of local steps that are tried."""
        return bench.pick(smoke=(1, 4), quick=(1, 4, 16), full=(1, 2, 4, 8, 16, 32, 64))

    def runs(self, bench: Bench) -> list[Run]:
        """Every K with every number of learners, at every rate; and the sequential run.

        The adaptive K starts in the middle of the grid: not at the worst one.
        """
        factors = bench.pick(smoke=(0.5, 1.0), quick=(0.5, 1.0), full=(0.25, 0.5, 1.0, 2.0))
        ks, found = self.ks(bench), bench.sequential()
        for p in self.learners(bench):
            how: dict[str, Strategy[Any]] = {f"K={k}": KStep(sync_every=k) for k in ks}
            how["adaptive"] = AdaptiveKStep(sync_every=ks[len(ks) // 2], stall=STALL)
            for name, strategy in how.items():
                found += bench.arm(f"P={p} {name}", p, bench.grid({"": strategy}, factors))
        return found

    def best(self, found: Found, bench: Bench, p: int, least: int = 1) -> Arm:
        """Return the best fixed K from some K on, by the tuning seed."""
        arms = [found[f"P={p} K={k}"] for k in self.ks(bench) if k >= least]
        return min(arms, key=lambda arm: arm.tuning_loss)

    def judge(self, found: Found, bench: Bench) -> list[Check]:
        """The best K > 1 against K = 1, and the adaptive K against the best of all."""
        made = []
        for p in self.learners(bench):
            one, best = found[f"P={p} K=1"], self.best(found, bench, p, least=2)
            made.append(
                checks.reaches(f"{best.name} reaches the dev loss of K=1", best.losses, one.losses)
            )
            share = _sent(best) / _sent(one) if _sent(one) else math.inf
            made.append(checks.fact(f"{best.name} sends less", share < 1, f"{share:.3f} of K=1"))
            fixed = self.best(found, bench, p)
            made.append(
                checks.reaches(
                    f"P={p}: the adaptive K reaches the best fixed one ({fixed.name})",
                    found[f"P={p} adaptive"].losses,
                    fixed.losses,
                )
            )
        return made

    def notes(self, found: Found, bench: Bench) -> list[str]:
        """Who reaches the sequential loss after the same frames."""
        alone, lines = found[SEQUENTIAL].losses, []
        for p in self.learners(bench):
            arms = [*(found[f"P={p} K={k}"] for k in self.ks(bench)), found[f"P={p} adaptive"]]
            for arm in arms:
                check = checks.reaches(f"{arm.name} reaches sequential SGD", arm.losses, alone)
                lines.append(f"{check.statement}: {check.judgement} ({check.detail}).")
        return lines

    def plots(self, found: Found, bench: Bench) -> list[str]:
        """Dev loss over K, and over what was sent."""
        alone = found[SEQUENTIAL].mean(lambda o: o.loss)
        level = Estimate("sequential", alone.value, alone.low, alone.high, COLOURS[-1])
        over_k, over_bytes = [], []
        for n, p in enumerate(self.learners(bench)):
            fixed = [found[f"P={p} K={k}"] for k in self.ks(bench)]
            adaptive = found[f"P={p} adaptive"]
            ks = [float(k) for k in self.ks(bench)]
            over_k.append(_spread(f"P={p}", fixed, ks, 2 * n))
            sent = [_sent(arm) / 1e6 for arm in fixed]
            over_bytes.append(_spread(f"P={p}, fixed K", fixed, sent, 2 * n))
            single = _spread(f"P={p}, adaptive", [adaptive], [_sent(adaptive) / 1e6], 2 * n + 1)
            over_bytes.append(single)
        return [
            charts.dots("dev loss over K", "K", over_k, doubling=True, level=level),
            charts.dots("dev loss over MB sent", "MB", over_bytes, doubling=True, level=level),
        ]


def _sent(arm: Arm) -> float:
    return arm.mean(lambda o: float(o.bytes_sent)).value


def _spread(name: str, arms: list[Arm], at: list[float], colour: int) -> Spread:
    means = [arm.mean(lambda o: o.loss) for arm in arms]
    points = [(x, m.value, m.low, m.high) for x, m in zip(at, means, strict=True)]
    return Spread(name, points, COLOURS[colour])
