"""A push and its pull, against plain copies of memory.

    python benchmarks/push_pull.py [--steps 40]

The job of `contenders.py` with one learner and one server of `asgd`, and `overlap = 0`, so that the
learner waits for each reply. What it does between the end of one gradient and the beginning of the
next is counted: it lays the gradient out in shared memory (a copy), the server makes its step
(reads and writes the model and its velocity) and writes the reply (a copy), and the learner takes
it in (a copy). Push + pull in GB/s are two models' bytes over that time; a memory copy is one
model's bytes over the time of `copy_` between two vectors that have been used before. Median and
range over the minibatches.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

import hocket
from benchmarks.contenders import WARM_UP, build_model, ticks, train
from hocket.core.flat import Layout
from hocket.core.learner import Learner


class Timed(hocket.ASGD):
    """`asgd` that notes when a gradient is there; the task notes when the next one begins."""

    async def run(self, me: Learner, state: Any) -> Any:
        """As usual."""
        folder, gradient = os.environ["HOCKET_PUSH_PULL"], me.gradient

        async def noted(params: torch.Tensor) -> Any:
            grad = await gradient(params)
            with Path(folder, "made").open("ab") as file:
                file.write(np.array([time.perf_counter()]).tobytes())
            return grad

        me.gradient = noted  # type: ignore[method-assign]
        return await super().run(me, state)


def push_pull_s(steps: int) -> list[float]:
    """Return the time of every push and pull."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HOCKET_PUSH_PULL"] = folder
        train(Timed(servers=1, overlap=0), 1, steps, folder)
        made, (begun,) = np.fromfile(Path(folder, "made")), ticks(folder)
    return list(begun[WARM_UP + 1 :, 0] - made[WARM_UP : len(begun) - 1])


def copies_s(num_values: int, steps: int) -> list[float]:
    """Return the time of copies of so many values, from memory to memory."""
    vectors = [torch.ones(num_values) for _ in range(6)]  # together larger than the caches
    took = []
    for step in range(WARM_UP + steps):
        source, target = vectors[step % 6], vectors[(step + 3) % 6]
        begun = time.perf_counter()
        target.copy_(source)
        took.append(time.perf_counter() - begun)
    return took[WARM_UP:]


def show(steps: int) -> None:
    """Measure both and print them."""
    torch.set_num_threads(1)
    num_values = Layout.of(build_model()).size
    model_gb = num_values * 4 / 1e9
    copies = copies_s(num_values, steps) + copies_s(num_values, steps)
    exchanges = push_pull_s(steps)
    for name, times, volume in (
        ("memory copy", copies, model_gb),
        ("push + pull", exchanges, 2 * model_gb),
    ):
        low, middle, high = min(times), statistics.median(times), max(times)
        print(
            f"{name:12} {1e3 * middle:6.1f} ms ({1e3 * low:.1f} to {1e3 * high:.1f}) for "
            f"{volume * 1e3:.0f} MB: {volume / middle:5.1f} GB/s ({volume / high:.1f} to "
            f"{volume / low:.1f})"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40, help="minibatches")
    show(parser.parse_args().steps)


if __name__ == "__main__":
    main()
