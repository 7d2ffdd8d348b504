"""What natural gradient costs: a step of `NGSGD` against a step of `torch.optim.SGD`.

    python benchmarks/natural_gradient.py [--batches 256 512] [--repeats 20] [--profile]

The network and the data of `throughput.py` (440-5x1024-2000, sigmoid), one thread, ranks 20 and 80,
update period 4. In one process, contenders take turns of four minibatches (one update of the
estimate each), in an order shuffled anew for every repeat; ratios are taken within a repeat. Median
and range over the repeats are printed, by the clock and by processor time. The last row is a lower
bound: plain SGD and the products with the 20 and 80 directions (eqs. 5 and 10 of
`hocket.optim.natural_gradient`), with no norm, no eigenvalue problem and none of our code.

Goal: at most 1.10 of plain SGD at batch 256 and 512.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.profiler import profile

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import contenders
from hocket.optim import NGSGD

LR = 0.01
TURN = 4  # minibatches: the update period
RANK_IN, RANK_OUT = 20, 80
BOUND = "sgd + products"
WARM_UP = 16  # the first eleven calls update the estimate every time

Seconds = tuple[float, float]  # of a minibatch: by the clock, by processor time
CONTENDERS: dict[str, Callable[[nn.Module], Any]] = {
    "sgd": lambda model: torch.optim.SGD(model.parameters(), lr=LR),
    "ngsgd": lambda model: NGSGD(model, lr=LR),
    "ngsgd, no limits": lambda model: NGSGD(
        model, lr=LR, max_change=0, max_change_output=0, max_change_global=0
    ),
}


class Contender:
    """A model and its optimizer, a few minibatches at a time."""

    def __init__(self, make: Callable[[nn.Module], Any], batch_frames: int) -> None:
        torch.manual_seed(0)
        contenders.BATCH = batch_frames
        self._model = contenders.build_model()
        self._optimizer = make(self._model)
        self._batches = contenders.minibatches()
        self._step = 0
        self.take(WARM_UP)

    def take(self, steps: int) -> Seconds:
        """Train on so many minibatches; return the mean time of one."""
        clock, processor = time.perf_counter(), time.process_time()
        for _ in range(steps):
            x, labels = self._batches[self._step % len(self._batches)]
            loss = nn.functional.cross_entropy(self._model(x), labels)
            self._optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self._optimizer.step()
            self._step += 1
        return (time.perf_counter() - clock) / steps, (time.process_time() - processor) / steps


class ThinProducts:
    """Nothing but what projecting both sides of all layers, and the updates' J, must multiply."""

    def __init__(self, batch_frames: int) -> None:
        linear = [m for m in contenders.build_model() if isinstance(m, nn.Linear)]
        sides = [(m.in_features, RANK_IN) for m in linear]
        sides += [(m.out_features, RANK_OUT) for m in linear]
        self._sides = [(torch.randn(batch_frames, d), torch.randn(r, d)) for d, r in sides]

    def take(self, steps: int) -> Seconds:
        """Multiply for so many minibatches; return the mean time of one."""
        clock, processor = time.perf_counter(), time.process_time()
        for _, updates in zip(range(steps), cycle([True] + [False] * (TURN - 1)), strict=False):
            for x_ND, w_RD in self._sides:
                h_NR = x_ND @ w_RD.T
                torch.addmm(x_ND, h_NR, w_RD, alpha=-1)
                if updates:
                    h_NR.T @ x_ND
        return (time.perf_counter() - clock) / steps, (time.process_time() - processor) / steps


def compare(batch_frames: int, repeats: int) -> dict[str, list[Seconds]]:
    """Let all take turns."""
    racing: dict[str, Contender | ThinProducts] = {
        name: Contender(make, batch_frames) for name, make in CONTENDERS.items()
    }
    racing[BOUND] = ThinProducts(batch_frames)
    times: dict[str, list[Seconds]] = {name: [] for name in racing}
    for repeat in range(repeats):
        order = list(racing)
        random.Random(repeat).shuffle(order)
        for name in order:
            times[name].append(racing[name].take(TURN))
    pairs = zip(times["sgd"], times[BOUND], strict=True)
    times[BOUND] = [(a[0] + b[0], a[1] + b[1]) for a, b in pairs]
    return times


def _spread(values: list[float], form: str) -> str:
    low, high = min(values), max(values)
    return f"{format(statistics.median(values), form)} ({low:{form}} to {high:{form}})"


def show(batch_frames: int, times: dict[str, list[Seconds]]) -> None:
    print(f"\nbatch {batch_frames}: {'frames/s':24} ratio to sgd, clock        processor time")
    for name, values in times.items():
        speeds = [batch_frames / clock for clock, _ in values]
        pairs = list(zip(values, times["sgd"], strict=True))
        clock, processor = ([a[i] / b[i] for a, b in pairs] for i in (0, 1))
        print(
            f"{name:18} {_spread(speeds, ',.0f'):26} {_spread(clock, '.3f'):26} "
            f"{_spread(processor, '.3f')}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batches", type=int, nargs="+", default=[256, 512])
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--profile", action="store_true", help="where the time of a step goes")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for batch_frames in args.batches:
        if args.profile:
            racing = Contender(CONTENDERS["ngsgd"], batch_frames)
            with profile() as record:
                racing.take(2 * TURN)
            print(record.key_averages().table(sort_by="self_cpu_time_total", row_limit=20))
        else:
            show(batch_frames, compare(batch_frames, args.repeats))


if __name__ == "__main__":
    main()
