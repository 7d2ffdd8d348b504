"""What natural gradient costs: a step of `NGSGD` against a step of `torch.optim.SGD`.

    python benchmarks/natural_gradient.py [--batches 256 512] [--repeats 30] [--profile]

The network and the data of `throughput.py` (440-5x1024-2000, sigmoid), one thread, ranks 20 and 80,
update period 4, Kaldi's first rate (3e-4 for every frame of a minibatch). Each contender has a
process of its own, so that none uses memory that another has left; one runs at a time, four
minibatches (one update of the estimate) in each turn, in an order shuffled again for every repeat.
Ratios are taken within a repeat, to the mean of plain SGD's two processes, which also show the
effect of chance. Printed: mean, standard error and median of the ratios, by the clock and by
processor time.

`sgd, in backward` is PyTorch's own way to step in the backward pass (a hook after each gradient).
`sgd + products` is a lower bound for whatever stores its gradients: plain SGD and the products with
the 20 and 80 directions (eqs. 5 and 10 of `hocket.optim.natural_gradient.online`), with no norm, no
eigenvalue problem and none of our code.

Goal: at most 1.10 of plain SGD at batch 256 and 512.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import subprocess
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

LR_PER_FRAME = 3e-4  # Kaldi's first effective rate
TURN = 4  # minibatches: the update period
RANK_IN, RANK_OUT = 20, 80
PLAIN = ("sgd", "sgd, again")
BOUND = "sgd + products"
WARM_UP = 16  # the first eleven calls update the estimate every time

Seconds = tuple[float, float]  # of a minibatch: by the clock, by processor time


def sgd(model: nn.Module, lr: float) -> Any:
    return torch.optim.SGD(model.parameters(), lr=lr)


class InBackward:
    """SGD that steps on each parameter as soon as its gradient is there."""

    def __init__(self, model: nn.Module, lr: float) -> None:
        self._own = {p: torch.optim.SGD([p], lr=lr) for p in model.parameters()}
        for p in self._own:
            p.register_post_accumulate_grad_hook(self._step_on)  # type: ignore[no-untyped-call]

    def _step_on(self, p: torch.Tensor) -> None:
        self._own[p].step()  # type: ignore[index]
        p.grad = None

    def step(self) -> None:
        """All is done."""

    def zero_grad(self) -> None:
        """All is done."""


CONTENDERS: dict[str, Callable[[nn.Module, float], Any]] = {
    PLAIN[0]: sgd,
    PLAIN[1]: sgd,
    "sgd, in backward": InBackward,
    "ngsgd": lambda model, lr: NGSGD(model, lr=lr),
    "ngsgd, no limits": lambda model, lr: NGSGD(
        model, lr=lr, max_change=0, max_change_output=0, max_change_global=0
    ),
    "ngsgd, in backward": lambda model, lr: NGSGD(model, lr=lr, in_backward=True),
}


class Contender:
    """A model and its optimizer, a few minibatches at a time."""

    def __init__(self, name: str, batch_frames: int) -> None:
        torch.manual_seed(0)
        contenders.BATCH = batch_frames
        self._model = contenders.build_model()
        self._optimizer = CONTENDERS[name](self._model, LR_PER_FRAME * batch_frames)
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
    """Only the products that projecting both sides of all layers, and the updates' J, need."""

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


def contend(name: str, batch_frames: int) -> None:
    """A process of its own: a turn for every line that comes in."""
    made = ThinProducts(batch_frames) if name == BOUND else Contender(name, batch_frames)
    print("ready", flush=True)
    for _ in sys.stdin:
        print(*made.take(TURN), flush=True)


class Racing:
    """A contender's process, seen from outside."""

    def __init__(self, name: str, batch_frames: int) -> None:
        words = [sys.executable, __file__, "--contend", name, "--batches", str(batch_frames)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True)
        assert self._line() == "ready"

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def take(self) -> Seconds:
        """Let the contender take one turn; return its times."""
        assert self._process.stdin is not None
        print("go", file=self._process.stdin, flush=True)
        clock, processor = map(float, self._line().split())
        return clock, processor

    def close(self) -> None:
        """End the contender's process."""
        self._process.communicate(timeout=60)


def compare(batch_frames: int, repeats: int) -> dict[str, list[Seconds]]:
    """Let all contenders take turns, in a new order for every repeat."""
    racing = {name: Racing(name, batch_frames) for name in (*CONTENDERS, BOUND)}
    times: dict[str, list[Seconds]] = {name: [] for name in racing}
    for repeat in range(repeats):
        order = list(racing)
        random.Random(repeat).shuffle(order)
        for name in order:
            times[name].append(racing[name].take())
    for process in racing.values():
        process.close()
    pairs = zip(plain(times), times[BOUND], strict=True)
    times[BOUND] = [(a[0] + b[0], a[1] + b[1]) for a, b in pairs]
    return times


def plain(times: dict[str, list[Seconds]]) -> list[Seconds]:
    """The mean of plain SGD's processes, repeat by repeat."""
    pairs = zip(*(times[name] for name in PLAIN), strict=True)
    return [((a[0] + b[0]) / 2, (a[1] + b[1]) / 2) for a, b in pairs]


def _summary(ratios: list[float]) -> str:
    error = statistics.stdev(ratios) / math.sqrt(len(ratios))
    return f"{statistics.mean(ratios):.3f} ± {error:.3f}, median {statistics.median(ratios):.3f}"


def show(batch_frames: int, times: dict[str, list[Seconds]]) -> None:
    print(f"\nbatch {batch_frames}: {'frames/s':18} ratio to sgd, clock          processor time")
    for name, values in times.items():
        speed = batch_frames / statistics.median(clock for clock, _ in values)
        pairs = list(zip(values, plain(times), strict=True))
        clock, processor = ([a[i] / b[i] for a, b in pairs] for i in (0, 1))
        print(f"{name:18} {speed:8,.0f}   {_summary(clock):32} {_summary(processor)}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batches", type=int, nargs="+", default=[256, 512])
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--profile", action="store_true", help="where the time of a step goes")
    parser.add_argument("--contend", help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    for batch_frames in args.batches:
        if args.contend:
            contend(args.contend, batch_frames)
        elif args.profile:
            racing = Contender("ngsgd", batch_frames)
            with profile() as record:
                racing.take(2 * TURN)
            print(record.key_averages().table(sort_by="self_cpu_time_total", row_limit=20))
        else:
            show(batch_frames, compare(batch_frames, args.repeats))


if __name__ == "__main__":
    main()
