"""One bit a gradient value on a slow link: how long is a step, and does the simulator know?"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import ClassVar

import torch

from hocket.codecs import Codec, Float16, Float32, OneBit
from hocket.core.flat import Layout
from hocket.data.synthetic import Synthetic
from hocket.models.dnn import DNN
from hocket.optim import Constant
from hocket.reproduce import checks
from hocket.reproduce.checks import Check
from hocket.reproduce.claim import Bench, Claim, Run
from hocket.reproduce.outcome import Arm, Found
from hocket.reproduce.setups import two_hosts
from hocket.reproduce.tasks import SYNTHETIC, Scale, Size
from hocket.runtime.sim import pays
from hocket.strategies import AllReduceSGD

CODECS: dict[str, Codec] = {"float": Float32(), "half": Float16(), "1-bit": OneBit()}
WITHIN = 0.10  # of the measured step, on limited links
FASTER = 3.6  # the smaller of the published factors
SKIPPED = "simulated stand-in"  # the arm if nothing can be measured


class OneBitSpeed(Claim):
    """Real steps on two hosts joined by a limited link, beside the simulator's prediction."""

    name: ClassVar[str] = "onebit-speed"
    claim: ClassVar[str] = (
        "On a link of 100 Mbit/s a step with 1-bit gradients is 3.6 times as fast as in float or "
        "more, and the simulator predicts the steps of limited links within 10 %"
    )
    paper: ClassVar[str] = "Seide et al., Interspeech 2014"
    published: ClassVar[str] = "3.6 to 6.3 times the speed of one GPU on 8 of one server"
    refuted_by: ClassVar[str] = (
        "a real step in 1-bit takes more than 1 / 3.6 of one in float at 100 Mbit/s, one learner "
        "on each of two hosts; or a prediction is off by more than 10 % at 100 or 1,000 Mbit/s; no "
        "margin on a loss: the seconds of a step are judged"
    )
    figures: ClassVar[tuple[str, ...]] = ("time_s", "frames_per_s", "bytes_sent", "loss")

    def size(self, scale: Scale) -> Size:
        """A network whose columns have 1,024 values, and few minibatches."""
        width = {"smoke": 256, "quick": 1024, "full": 1024}[scale]
        layers = {"smoke": 2, "quick": 2, "full": 6}[scale]
        items = {"smoke": 8, "quick": 48, "full": 80}[scale]
        task = Synthetic(
            num_frames=64 * items,
            dev_frames=64,
            batch_frames=64,
            num_classes=48,
            num_features=16,
            model=DNN(layers=layers, width=width),
        )
        return replace(
            SYNTHETIC[scale], task=task, epochs=1, judges={"smoke": 1, "quick": 2, "full": 3}[scale]
        )

    def links(self, bench: Bench) -> tuple[float, ...]:
        """In Mbit/s; the last has no limit."""
        return bench.pick(smoke=(100.0,), quick=(100.0, 1000.0), full=(100.0, 1000.0, math.inf))

    def runs(self, bench: Bench) -> list[Run]:
        """Every codec over every link; nothing without the privilege to make the links."""
        if not two_hosts.available():
            return [bench.run(SKIPPED, AllReduceSGD(), 2, seed=seed) for seed in bench.judges]
        chosen = bench.pick(smoke=("1-bit",), quick=tuple(CODECS), full=tuple(CODECS))
        return [
            bench.run(
                _arm(name, link),
                AllReduceSGD(),
                2,
                seed=seed,
                codec=CODECS[name],
                link_mbit=link,
                schedule=Constant(epochs=1),
                evaluate_every=99.0,
                checkpoint_every=99.0,
                log_every=99.0,
            )
            for link in self.links(bench)
            for name in chosen
            for seed in bench.judges
        ]

    def judge(self, found: Found, bench: Bench) -> list[Check]:
        """The step in 1-bit against float, and every prediction."""
        if SKIPPED in found.names:
            return [Check("steps on two hosts", "inconclusive", f"skipped: {two_hosts.WHY_NOT}")]
        made = []
        links = self.links(bench)
        if _arm("float", links[0]) in found.names:
            made.append(
                checks.faster(
                    f"1-bit is {FASTER} times as fast as float at 100 Mbit/s",
                    _times(found[_arm("1-bit", links[0])]),
                    _times(found[_arm("float", links[0])]),
                    FASTER,
                )
            )
        for name, link, real_s, told_s in self.predictions(found, bench):
            known = math.isfinite(told_s) and math.isfinite(real_s) and real_s > 0
            off = abs(told_s / real_s - 1) if known else math.inf
            if math.isfinite(link):
                detail = _beside(real_s, told_s)
                made.append(
                    checks.fact(
                        f"{_arm(name, link)} is predicted within 10 %", off <= WITHIN, detail
                    )
                )
        return made

    def predictions(self, found: Found, bench: Bench) -> list[tuple[str, float, float, float]]:
        """Return for each arm: its step as it was, and as the cost model has it.

        The prediction is given the time that computing took in the run itself, and how fast this
        machine copies such a vector; coding and exchanging are the model's.
        """
        layout, made = Layout.of(bench.task.build_model()), []
        memory_gbit = copying_gbit(layout.size)
        steps = len(bench.task.items("train")) / 2
        for link in self.links(bench):
            for name, codec in CODECS.items():
                if _arm(name, link) not in found.names:
                    continue
                arm = found[_arm(name, link)]
                step_s = arm.mean(lambda o: o.time_s).value / steps
                busy_s = arm.mean(lambda o: o.time_s * o.utilisation).value / steps
                told = math.nan
                if math.isfinite(busy_s) and busy_s > 0:
                    gbit = min(link, NO_LIMIT_MBIT) / 1000
                    told = pays.step_of_layout_s(codec, layout, gbit, busy_s, 2, memory_gbit)
                made.append((name, link, step_s, told))
        return made

    def notes(self, found: Found, bench: Bench) -> list[str]:
        """Every step beside its prediction."""
        if SKIPPED in found.names:
            return [f"Skipped: {two_hosts.WHY_NOT}; the one run shown is simulated."]
        if bench.scale == "smoke":
            return []
        told = [
            f"{_arm(name, link)}: {_beside(real, said)}"
            for name, link, real, said in self.predictions(found, bench)
        ]
        return [
            "One learner on each of two network namespaces of one machine, joined by a veth pair "
            "that `tc tbf` limits; one step of allreduce. " + "; ".join(told) + "."
        ]


COPIES = 50  # of a vector, to see how fast the fastest is
NO_LIMIT_MBIT = 40_000.0  # what a veth pair carries, about


def copying_gbit(num_values: int) -> float:
    """Return how fast a core reads and writes a vector of so many values."""
    source, target, spent = torch.zeros(num_values), torch.ones(num_values), []
    for _ in range(COPIES):
        began = time.perf_counter()
        target.copy_(source)
        spent.append(time.perf_counter() - began)
    return 64e-9 * num_values / min(spent)  # whatever else the machine does only adds


def _arm(codec: str, link: float) -> str:
    return f"{codec}, {link:g} Mbit/s" if math.isfinite(link) else f"{codec}, no limit"


def _beside(real_s: float, told_s: float) -> str:
    """Say how long a step was, and how long it was to be."""
    if not math.isfinite(real_s) or not math.isfinite(told_s):
        return "the run failed"
    return f"{1000 * real_s:.1f} ms real, {1000 * told_s:.1f} ms predicted"


def _times(arm: Arm) -> list[float]:
    return arm.values(lambda o: o.time_s)
