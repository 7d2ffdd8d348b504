"""What a curvature product costs: a Gauss-Newton product against a gradient of the same items.

    python benchmarks/curvature.py [--repeats 12] [--only dnn]

The worker's own product and gradient (`hocket.runtime.shared.worker`), loading of the minibatch and
laying out of the vector included, one thread. Networks: the one of `throughput.py`
(440-5x1024-2000, sigmoid, batch 256), ReLU and p-norm networks of the sizes in the recipes, and an
LSTM of torch's own (2 x 320, chunks of 40 frames). In each repeat both are timed in turn, in an
order shuffled again; the ratio is taken within a repeat. Printed: median and range, by the clock
and by processor time. `twice backward` is the other way to the same product.

Goal: at most 2.2 gradients for the DNN. What the simulator charges is between the first two rows:
`hocket.models.gauss_newton.PRODUCT_COST`; for a model with an LSTM it is `LSTM_COST`.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

sys.path.insert(0, str(Path(__file__).parents[1]))

from hocket import DNN, Item, Loss, PNorm, Sequential, Task
from hocket.core.accounts import Ticket
from hocket.experiment import Experiment
from hocket.models.gauss_newton import LSTM_COST, PRODUCT_COST
from hocket.runtime.shared.worker import Worker


@dataclass(frozen=True)
class Fixed(Task):
    """One minibatch of random frames for a network."""

    network: Callable[[], nn.Module]
    shape: tuple[int, ...]
    classes: int

    def build_model(self) -> nn.Module:
        """Return the network with random weights."""
        model = self.network()
        for p in model.parameters():  # the output layer begins at zero
            if p.ndim > 1:
                nn.init.normal_(p, std=p.shape[-1] ** -0.5)
        return model

    def items(self, split: str) -> Sequence[Item]:
        """Return the one minibatch."""
        frames = 1
        for size in self.shape[:-1]:
            frames *= size
        return [Item(0, frames)]

    def load(self, split: str, item: Item, epoch: int) -> Any:
        """Make it."""
        generator = torch.Generator().manual_seed(1)
        x = torch.randn(self.shape, generator=generator)
        return x, torch.randint(self.classes, (item.frames,), generator=generator)

    def loss(self, model: nn.Module, batch: Any) -> Loss:
        """Return the cross-entropy summed over frames."""
        x, labels = batch
        scores = model(x).flatten(0, -2)
        return Loss(cross_entropy(scores, labels, reduction="sum"), len(labels))


class Recurrent(nn.Module):
    """A plain LSTM with a linear layer on top."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(40, 320, 2, batch_first=True)
        self.output = nn.Linear(320, 500)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a score for each frame and class."""
        scores: torch.Tensor = self.output(self.lstm(x)[0])
        return scores


CASES = {
    "dnn 440-5x1024-2000 sigmoid, batch 256": Fixed(
        lambda: DNN(layers=5, width=1024, activation="sigmoid").network(440, 2000),
        (256, 440),
        2000,
    ),
    "dnn 195-3x256-500 relu, batch 256": Fixed(
        lambda: DNN(layers=3, width=256).network(195, 500), (256, 195), 500
    ),
    "pnorm 195-3x1000/10-500, batch 256": Fixed(
        lambda: PNorm(layers=3, width=1000).network(195, 500), (256, 195), 500
    ),
    "lstm 40-2x320-500, 8 chunks of 40 frames": Fixed(Recurrent, (8, 40, 40), 500),
}
TURN_S = 0.5  # how long each is run in a repeat, about


def both(task: Task, *, twice_backward: bool) -> dict[str, Callable[[], Any]]:
    """Return the two things to be timed."""
    worker = Worker(task, Experiment(task, Sequential()).pool(), 0)
    state, params = worker.new_state(), worker.initial
    ticket = Ticket(0, 0, task.items("train")[0].frames)
    along = torch.randn_like(params)
    if twice_backward:
        worker._curves._ways = [worker._curves._twice_backward]
    return {
        "gradient": lambda: worker.gradient(params, ticket, state).vector,
        "product": lambda: worker.curvature(params, along, (ticket,), state).vector,
    }


def timed(job: Callable[[], Any], times: int) -> tuple[float, float]:
    """Return seconds by the clock and by processor time."""
    clock, processor = time.perf_counter(), time.process_time()
    for _ in range(times):
        job()
    return time.perf_counter() - clock, time.process_time() - processor


def ratios(jobs: dict[str, Callable[[], Any]], repeats: int) -> list[tuple[float, float]]:
    """Return product / gradient within each repeat: by the clock, by processor time."""
    for job in jobs.values():
        job()
    times = max(1, round(TURN_S / timed(jobs["gradient"], 2)[0] * 2))
    found, order = [], list(jobs)
    for _ in range(repeats):
        random.shuffle(order)
        seconds = {name: timed(jobs[name], times) for name in order}
        product, gradient = seconds["product"], seconds["gradient"]
        found.append((product[0] / gradient[0], product[1] / gradient[1]))
    return found


def told(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=12)
    parser.add_argument("--only", default="", help="part of a name")
    args = parser.parse_args()
    torch.set_num_threads(1)
    random.seed(0)
    charged = f"the simulator charges {PRODUCT_COST}, with an LSTM {LSTM_COST}"
    print(f"product / gradient; {charged}; goal for the first row: 2.2")
    for name, task in CASES.items():
        if args.only not in name:
            continue
        for twice in (False, True):
            found = ratios(both(task, twice_backward=twice), args.repeats)
            label = "twice backward" if twice else "as used"
            clock, processor = ([r[i] for r in found] for i in (0, 1))
            print(f"{name}, {label}: clock {told(clock)}, processor {told(processor)}", flush=True)


if __name__ == "__main__":
    main()
