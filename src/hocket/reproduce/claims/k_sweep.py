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
from hocket.reproduce.outcome import Arm, Found
from hocket.strategies import AdaptiveKStep, KStep


class KSweep(Claim):
    """Communication against accuracy over K, fixed and adaptive."""

    name: ClassVar[str] = "k-sweep"
    claim: ClassVar[str] = (
        "Averaging after K > 1 local steps reaches the dev loss of averaging after every step with "
        "a fraction of the communication, and an adaptive K is as good as the best fixed one"
    )
    paper: ClassVar[str] = "Zhou and Cong, IJCAI 2018 (arXiv:1708.01012); Cong et al., MLHPC 2017"
    refuted_by: ClassVar[str] = (
        "the best K > 1 ends with a dev loss above that of K = 1 by more than twice the spread of "
        "the seeds, or the adaptive K above that of the best fixed one"
    )

    def learners(self, bench: Bench) -> tuple[int, ...]:
        """How many learners it is tried with."""
        return bench.pick(smoke=(2,), quick=(4, 16), full=(4, 16))

    def ks(self, bench: Bench) -> tuple[int, ...]:
        """The numbers of local steps that are tried."""
        return bench.pick(smoke=(1, 4), quick=(1, 4, 16), full=(1, 2, 4, 8, 16, 32, 64))

    def rates(self, bench: Bench) -> tuple[float, ...]:
        """Sequential rates tried for every arm."""
        factors = bench.pick(smoke=(1.0,), quick=(1.0,), full=(0.5, 1.0, 2.0, 4.0))
        return tuple(factor * bench.lr for factor in factors)

    def runs(self, bench: Bench) -> list[Run]:
        """Every K with every number of learners, at every rate; and the sequential run."""
        every = bench.pick(smoke=0.5, quick=0.125, full=0.25)
        arms: list[tuple[str, Strategy[Any], int]] = []
        for p in self.learners(bench):
            arms += [(f"P={p} K={k}", KStep(sync_every=k), p) for k in self.ks(bench)]
            first = max(self.ks(bench))
            arms.append((f"P={p} adaptive", AdaptiveKStep(sync_every=first), p))
        return bench.sequential(self.rates(bench), evaluate_every=every) + [
            bench.run(arm, how, p, seed=seed, lr=lr, setting=f"lr {lr:g}", evaluate_every=every)
            for arm, how, p in arms
            for lr in self.rates(bench)
            for seed in bench.seeds
        ]

    def judge(self, found: Found, bench: Bench) -> list[Check]:
        """The best K > 1 against K = 1, and the adaptive K against the best of all."""
        made = []
        for p in self.learners(bench):
            one = found[f"P={p} K=1"]
            best = _best([found[f"P={p} K={k}"] for k in self.ks(bench) if k > 1])
            made.append(
                checks.reaches(f"{best.name} reaches the dev loss of K=1", best.losses, one.losses)
            )
            share = _sent(best) / _sent(one) if _sent(one) else math.inf
            made.append(checks.fact(f"{best.name} sends less", share < 1, f"{share:.3f} of K=1"))
            fixed = _best([best, one])
            made.append(
                checks.reaches(
                    f"P={p}: the adaptive K reaches the best fixed one ({fixed.name})",
                    found[f"P={p} adaptive"].losses,
                    fixed.losses,
                )
            )
        return made

    def plots(self, found: Found, bench: Bench) -> list[str]:
        """Dev loss over K, and over what was sent."""
        alone = found["sequential"].mean(lambda o: o.loss)
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


def _best(arms: list[Arm]) -> Arm:
    return min(arms, key=lambda arm: arm.mean(lambda o: o.loss).value)


def _sent(arm: Arm) -> float:
    return arm.mean(lambda o: float(o.bytes_sent)).value


def _spread(name: str, arms: list[Arm], at: list[float], colour: int) -> Spread:
    means = [arm.mean(lambda o: o.loss) for arm in arms]
    points = [(x, m.value, m.low, m.high) for x, m in zip(at, means, strict=True)]
    return Spread(name, points, COLOURS[colour])
