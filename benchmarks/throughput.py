"""Throughput side by side: Hocket, a plain PyTorch loop, and what PyTorch offers for two processes.

    python benchmarks/throughput.py [--repeats 7] [--steps 60] [--only plain hocket-1]
    python benchmarks/throughput.py --averaging

Contenders (see contenders.py) run one after another, in an order that is shuffled again for every
repeat, so that other work of the machine affects all alike. A ratio is taken within a repeat; its
median and its range over the repeats are printed: by the clock, by processor time of the learners,
and by processor time of all processes, servers included.

Goals: one learner >= 1.0 of the plain loop; of two processes that do not communicate, the physical
limit of two: `allreduce` >= 0.95, `kstep` and the other averaging methods with K = 16 >= 0.98,
`adpsgd`, which exchanges models after every minibatch, >= 0.90 (the aim is 0.95); `asgd` >= 0.90 by
processor time of the learners, by the clock >= 0.80 with one server process (it has no core of its
own on a machine with two) and >= 0.88 with learners that serve (`asgd-shared`). `hocket-meet-2`
steps alone and only meets after every minibatch: what is lost there is waiting for each other, not
communication. `meeting.py` measures a meeting every 16 minibatches far more closely, `push_pull.py`
a push with its pull.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.contenders import AVERAGING, CONTENDERS, speed

RATIOS = [
    ("plain", "gemm"),
    ("hocket-1", "gemm"),
    ("hocket-1", "plain"),
    ("apart-2", "plain"),
    ("ddp-2", "apart-2"),
    ("post-local-sgd-2", "apart-2"),
    ("hocket-allreduce-2", "apart-2"),
    ("hocket-kstep-2", "apart-2"),
    ("hocket-meet-2", "apart-2"),
    ("hocket-allreduce-2", "hocket-meet-2"),
    ("hocket-delay-by-one-2", "apart-2"),
    ("hocket-adpsgd-2", "apart-2"),
    ("hocket-asgd-2", "apart-2"),
    ("hocket-asgd-shared-2", "apart-2"),
    ("hocket-allreduce-2", "ddp-2"),
    ("hocket-kstep-2", "post-local-sgd-2"),
    *((name, "apart-2") for name in AVERAGING),
]


Speed = tuple[float, float, float]  # frames/s: by the clock, processor time of a learner, of all


def contend(name: str, steps: int) -> Speed:
    """Run one contender in a process of its own and return its speed."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [sys.executable, __file__, "--contender", name, folder, "--steps", str(steps)],
            check=True,
            env=os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
        )
        return speed(folder)


def compare(names: list[str], repeats: int, steps: int) -> dict[str, list[Speed]]:
    """Measure all contenders so many times, in a shuffled order."""
    speeds: dict[str, list[Speed]] = {name: [] for name in names}
    for repeat in range(repeats):
        order = names[:]
        random.Random(repeat).shuffle(order)
        for name in order:
            speeds[name].append(contend(name, steps))
        row = "  ".join(f"{name} {values[-1][0]:,.0f}" for name, values in speeds.items())
        print(f"repeat {repeat + 1}: {row}", flush=True)
    return speeds


def _spread(values: list[float], digits: int) -> str:
    low, high = min(values), max(values)
    return f"{statistics.median(values):,.{digits}f} ({low:,.{digits}f} to {high:,.{digits}f})"


def show(speeds: dict[str, list[Speed]]) -> None:
    print(f"\n{'frames/s':40} {KINDS}")
    for name, values in speeds.items():
        print(f"{name:40} " + _row(values, 0))
    print(f"\n{'ratio within a repeat':40} {KINDS}")
    for a, b in RATIOS:
        if a in speeds and b in speeds:
            pairs = zip(speeds[a], speeds[b], strict=True)
            ratios = [tuple(x[i] / y[i] for i in range(3)) for x, y in pairs]
            print(f"{a + ' / ' + b:40} " + _row(ratios, 3))


KINDS = "".join(f"{kind:28}" for kind in ("clock", "processor, a learner", "processor, all"))


def _row(values: Sequence[Sequence[float]], digits: int) -> str:
    return "".join(f"{_spread([v[i] for v in values], digits):28}" for i in range(3))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--steps", type=int, default=60, help="minibatches of each process")
    parser.add_argument("--only", nargs="+", help="some contenders")
    parser.add_argument(
        "--averaging", action="store_true", help="the averaging methods against two apart"
    )
    parser.add_argument("--contender", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.contender:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        name, folder = args.contender
        (CONTENDERS | AVERAGING)[name](args.steps, folder)
        return
    family = ["apart-2", "hocket-kstep-2", *AVERAGING] if args.averaging else list(CONTENDERS)
    show(compare(args.only or family, args.repeats, args.steps))


if __name__ == "__main__":
    main()
