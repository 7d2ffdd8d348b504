"""Adaptive K-AVG, measure by measure."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, ClassVar

from hocket.optim import SGD, Exponential
from hocket.reproduce import checks, statistics
from hocket.reproduce.checks import Check
from hocket.reproduce.claim import Bench, Claim, Run
from hocket.reproduce.outcome import Found
from hocket.reproduce.tasks import STALL
from hocket.strategies import AdaptiveKStep, KStep

FIXED = "fixed K"
MOMENTUM = 0.9


class AdaptiveK(Claim):
    """What helps over a fixed large K with many learners."""

    name: ClassVar[str] = "adaptive-k"
    claim: ClassVar[str] = (
        "With 16 learners and a large K to begin with, letting K follow the held-out loss ends "
        "below the same K kept fixed"
    )
    paper: ClassVar[str] = "Cong et al., MLHPC 2017 (we do not know its rules)"
    published: ClassVar[str] = "adaptive measures let K-AVG scale from 4 to 20 GPUs; no figure each"
    refuted_by: ClassVar[str] = (
        "a dev loss after the same frames that is not below that of the fixed K (no margin)"
    )
    figures: ClassVar[tuple[str, ...]] = (
        "loss",
        "error",
        "bytes_sent",
        "discarded_frames",
    )

    def arms(self, bench: Bench) -> dict[str, dict[str, Any]]:
        """Each measure by itself, then the momentum policies against each other."""
        k = bench.pick(smoke=4, quick=8, full=32)
        halved = Exponential(epochs=bench.epochs, final_factor=0.05, lr_compensation="sqrt")
        off: dict[str, Any] = {"sync_every": k, "stall": STALL, "shrink_sync": False}
        policies = {
            f"momentum: {policy}": {
                "strategy": KStep(sync_every=k, local_momentum=policy),
                "optimizer": SGD(momentum=MOMENTUM),
                "scale": 1 - MOMENTUM,
            }
            for policy in ("keep", "reset", "average")
        }
        shrink = AdaptiveKStep(sync_every=k, stall=STALL)
        return {
            FIXED: {"strategy": KStep(sync_every=k)},
            "K = 1": {"strategy": KStep(sync_every=1)},
            "shrink K": {"strategy": shrink},
            "shrink rate": {"strategy": AdaptiveKStep(shrink_rate=True, **off)},
            "accept": {"strategy": AdaptiveKStep(accept=True, **off)},
            "shrink K, accept": {"strategy": replace(shrink, accept=True)},
            "rate by sqrt P": {"strategy": KStep(sync_every=k), "schedule": halved},
            **policies,
        }

    def runs(self, bench: Bench) -> list[Run]:
        """All arms with one number of learners, tuned alike."""
        learners = bench.pick(smoke=2, quick=16, full=16)
        factors = bench.pick(smoke=(1.0,), quick=(0.25, 0.5), full=(0.125, 0.25, 0.5, 1.0))
        found = bench.sequential()
        for name, given in self.arms(bench).items():
            options = dict(given)
            strategy, scale = options.pop("strategy"), options.pop("scale", 1.0)
            grid = bench.grid({"": strategy}, [scale * factor for factor in factors])
            found += bench.arm(name, learners, grid, **options)
        return found

    def judge(self, found: Found, bench: Bench) -> list[Check]:
        """The one measure that the theory of K-AVG suggests."""
        fixed = found[FIXED].losses
        return [checks.below("shrinking K ends below a fixed K", found["shrink K"].losses, fixed)]

    def notes(self, found: Found, bench: Bench) -> list[str]:
        """What every measure changed by itself."""
        lines = []
        for name in self.arms(bench):
            base = "momentum: keep" if name.startswith("momentum") else FIXED
            if name != base:
                change = statistics.difference(found[name].losses, found[base].losses)
                text = f"{change:+.4f}" if math.isfinite(change.value) else "not known"
                lines.append(f"{name}: dev loss {text} against {base!r}.")
        return lines
