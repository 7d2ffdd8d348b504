"""How long the others pause when a learner is killed.

    python benchmarks/loss_pause.py [--repeats 10] [--learners 5] [--transport sockets]

Learners train a small network, one of them is killed (`kill -9` of itself, inside a collective or
while it computes), and every survivor notes when it takes a minibatch. The pause is the longest
time between two minibatches of any survivor after the kill, minus the usual time. Goal: < 0.2 s.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import hocket
from hocket import api
from hocket.experiment import Experiment, RuntimeOptions
from hocket.runtime.real.faults import Fault

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.contenders import Clock, ticks

ITEMS, FRAMES = 1500, 64


@dataclass(frozen=True)
class Small(hocket.Task):
    """About a millisecond a minibatch."""

    folder: str

    def build_model(self) -> nn.Module:
        """A small network."""
        return nn.Sequential(nn.Linear(128, 256), nn.Sigmoid(), nn.Linear(256, 128))

    def items(self, split: str) -> Sequence[hocket.Item]:
        """Enough for a few seconds."""
        return [hocket.Item(i, FRAMES) for i in range(ITEMS if split == "train" else 1)]

    def prepare(self) -> None:
        """Begin to note times."""
        object.__setattr__(self, "_clock", Clock(self.folder))

    def load(self, split: str, item: hocket.Item, epoch: int) -> Any:
        """Note the time."""
        if split == "train":
            self.__dict__["_clock"].tick()
        return torch.randn(FRAMES, 128)

    def loss(self, model: nn.Module, batch: Any) -> hocket.Loss:
        """Anything."""
        return hocket.Loss((model(batch) ** 2).sum(), FRAMES)


def pause(fault: Fault, learners: int, transport: Any) -> tuple[float, float]:
    """Return the pause and the usual time between two minibatches."""
    with tempfile.TemporaryDirectory() as folder:
        experiment = Experiment(
            Small(folder),
            hocket.AllReduceSGD(),
            hocket.SGD(lr=1e-5),
            schedule=hocket.Constant(epochs=1),
            options=RuntimeOptions(learners=learners, transport=transport, tensorboard=False),
        )
        result = api.run_real(experiment, None, progress=False, faults=(fault,))
        assert [one.rank for one in result.learners if one.lost] == [fault.rank]
        times = [noted[:, 0] for noted in ticks(folder)]
        dead = min(times, key=lambda t: t[-1])
        gaps = [np.diff(t[t > dead[-1] - 0.05]) for t in times if t is not dead]
        usual = statistics.median(float(g) for t in times for g in np.diff(t))
        return max(float(g[:50].max()) for g in gaps) - usual, usual


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--learners", type=int, default=5)
    parser.add_argument("--transport", default="auto")
    args = parser.parse_args()
    pauses = []
    for repeat in range(args.repeats):
        victim = repeat % args.learners
        kinds = (Fault(victim, at_draw=60), Fault(victim, at_frame=400 + repeat))
        lost, usual = pause(kinds[repeat % 2], args.learners, args.transport)
        pauses.append(lost)
        print(f"rank {victim}: {lost * 1e3:7.1f} ms  (a minibatch takes {usual * 1e3:.1f} ms)")
    print(
        f"pause at a kill, {args.learners} learners, {args.transport}: median "
        f"{statistics.median(pauses) * 1e3:.1f} ms ({min(pauses) * 1e3:.1f} to "
        f"{max(pauses) * 1e3:.1f} ms)"
    )


if __name__ == "__main__":
    main()
