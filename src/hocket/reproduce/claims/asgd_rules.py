"""The rules of asynchronous SGD, one by one: where it breaks, and what repairs it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, ClassVar, Final

from hocket.data.stream import Stream
from hocket.optim import AdaGrad
from hocket.reproduce import checks, statistics
from hocket.reproduce.checks import Check
from hocket.reproduce.claim import Bench, Claim, Run
from hocket.reproduce.outcome import SEQUENTIAL, Found
from hocket.reproduce.tasks import SIZES, Scale, Size
from hocket.runtime.sim.cost import Cluster, Host
from hocket.strategies import ASGD

NONE, ALL, ADAGRAD = "no rule", "all rules", "AdaGrad"
ADAGRAD_RATES = (0.01, 0.02, 0.05)  # of its own: a step is about as long as the rate
WORK: Final = 1.25  # of the simulator, for each minibatch of these: messages
LONGER: Final = 2.0  # times the frames: after as many as sequential SGD few arms are at its loss
SHOWN: Final = 3  # seeds of the arms that no check compares, beside the one that tunes


def rules(warm: int, learners: int) -> dict[str, dict[str, Any]]:
    """Each rule by itself, then those that do not exclude each other together."""
    together = {"warm_start_frames": warm, "ramp_frames": warm // 8, "overlap": 0}
    return {
        NONE: {},
        # Learners are about equally fast here: the usual threshold would drop nothing.
        "drop what is late": {"max_staleness": ASGD().usual_staleness(learners)},
        "no overlap": {"overlap": 0},
        "warm start": {"warm_start_frames": warm},
        "warm start, ramp": {"warm_start_frames": warm, "ramp_frames": warm // 8},
        "local step": {"local_step": True},
        "rate by staleness": {"damping": "staleness"},
        "softsync of 4": {"softsync": 4},
        "delay compensation": {"delay_compensation": 0.04},
        "adaptive compensation": {"delay_compensation": 2.0, "adaptive_compensation": True},
        "barrier": {"barrier_frames": max(1, warm // 4)},
        "accumulate 3": {"accumulate": 3},
        ALL: together | {"delay_compensation": 2.0, "adaptive_compensation": True},
    }


class AsgdRules(Claim):
    """4 and 16 learners at rates tuned alike."""

    name: ClassVar[str] = "asgd-rules"
    claim: ClassVar[str] = (
        "Without its rules asynchronous SGD reaches the sequential loss with 4 learners and not "
        "with 16, where warm start, fresh models and delay compensation repair some of it"
    )
    paper: ClassVar[str] = (
        "Yu and Deng 2015, section 7.1.2; Zhang et al., ICASSP 2013; Cong et al., MLHPC 2017"
    )
    published: ClassVar[str] = "4 GPUs: no loss (Zhang et al.); poor accuracy with 4 (Cong et al.)"
    refuted_by: ClassVar[str] = (
        "after the same frames and at the best rate, 4 learners without rules end more than 1 % "
        "above the sequential loss; or 16 do not; or all rules together end no lower with 16"
    )
    figures: ClassVar[tuple[str, ...]] = ("loss", "error", "staleness", "discarded_frames")

    def size(self, scale: Scale) -> Size:
        """Return the usual stream; in full shorter than others', because there are many arms.

        16 learners make 1,248 updates each, and a pass is a thirteenth of the run.
        """
        if scale != "full":
            return SIZES[scale]
        return Size(Stream(epoch_frames=24_576, dev_frames=16_384), epochs=13, judges=5)

    def sizes(self, bench: Bench) -> tuple[int, ...]:
        """The numbers of learners that are tried; the largest is where it is to break."""
        return bench.pick(smoke=(3,), quick=(4, 16), full=(4, 16))

    def runs(self, bench: Bench) -> list[Run]:
        """Every rule with every number of learners, at a grid of rates; quick: three rules.

        No rule and all rules train on twice the frames, too: when are they at the sequential loss?
        """
        warm = sum(item.frames for item in bench.task.items("train"))
        fewer = replace(bench, seeds=bench.seeds[: 1 + SHOWN])
        judged, longer = (NONE, ALL), bench.pick(smoke=(1.0,), quick=(1.0,), full=(1.0, LONGER))
        quick = (NONE, "warm start", ALL)
        runs = bench.sequential()
        for p in self.sizes(bench):
            cluster = Cluster((Host(learners=p, jitter=0.1),))
            for name, options in rules(warm, p).items():
                if name in quick or bench.scale != "quick":
                    how = ASGD(servers=1, **({"max_staleness": math.inf} | options))
                    seeds, budgets = (bench, longer) if name in judged else (fewer, (1.0,))
                    grid = bench.grid({"": how}, self.factors(bench, p))
                    runs += seeds.arm(f"{name} P={p}", cluster, grid, budgets=budgets, work=WORK)
            if bench.scale != "quick":
                rates = bench.pick(smoke=(0.02,), quick=(), full=ADAGRAD_RATES)
                runs += fewer.arm(f"{ADAGRAD} P={p}", cluster, _adagrad(rates), work=WORK)
        return runs

    def factors(self, bench: Bench, learners: int) -> tuple[float, ...]:
        """The rates to try: the same for every rule; with more learners lower ones, too."""
        full = (0.5, 1.0, 2.0) if learners < max(self.sizes(bench)) else (0.25, 0.5, 1.0, 2.0)
        return bench.pick(smoke=(0.5,), quick=(0.5, 1.0), full=full)

    def judge(self, found: Found, bench: Bench) -> list[Check]:
        """No rule against sequential SGD, and all rules against none where it breaks."""
        few, many = min(self.sizes(bench)), max(self.sizes(bench))
        alone = found[SEQUENTIAL].losses
        none = {p: found[f"{NONE} P={p}"].losses for p in (few, many)}
        allowed = [loss * (1 + self.margin) for loss in alone]
        return [
            checks.reaches(f"P={few} without rules reaches sequential SGD", none[few], alone),
            checks.below(f"P={many} without rules does not", allowed, none[many]),
            checks.below(
                f"P={many}: all rules end below none", found[f"{ALL} P={many}"].losses, none[many]
            ),
        ]

    def notes(self, found: Found, bench: Bench) -> list[str]:
        """Which rules help by themselves."""
        lines = []
        for p in self.sizes(bench):
            base = found[f"{NONE} P={p}"]
            names = [n for n in found.names if n.endswith(f" P={p}") and n != base.name]
            changes = [
                f"{name.removesuffix(f' P={p}')} {_change(found[name].losses, base.losses)}"
                for name in names
            ]
            lines.append(f"P={p}, dev loss against {NONE!r}: " + ", ".join(changes) + ".")
        return lines


def _adagrad(rates: tuple[float, ...]) -> dict[str, dict[str, Any]]:
    """Return a grid of AdaGrad's rates, at the servers."""
    how = ASGD(servers=1, max_staleness=math.inf)
    return {f"lr {rate:g}": {"strategy": how, "optimizer": AdaGrad(lr=rate)} for rate in rates}


def _change(losses: list[float], base: list[float]) -> str:
    """Return how much higher the mean loss is, over the seeds of both.

    A run that diverged has no loss.
    """
    change = statistics.difference(losses, base[: len(losses)]).value
    return f"{change:+.3f}" if math.isfinite(change) else "not known"
