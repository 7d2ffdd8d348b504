"""What meeting every 16 minibatches costs two real learners, measured within one run.

    python benchmarks/meeting.py [--turns 32] [--strategy kstep bmuf diloco]

The job of `contenders.py`. The learners take turns: 32 minibatches on their own, each at its own
pace, then 32 in two blocks of 16 with the strategy's meeting after each. A ratio is the speed of a
turn with meetings over that of the turn without before it; both ran in the same processes within
seconds, so a machine that is faster or slower in the next minute does not matter. The cost
of a meeting is given for the learner that comes last, which does not wait; the rest is waiting for
that learner.
Means over the pairs (of ratios: geometric), with standard errors: pairs differ by several percent.

Goal: `kstep` >= 0.98.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

import hocket
from benchmarks.contenders import SYNC_EVERY, ticks, train

TURN = 2 * SYNC_EVERY  # minibatches
_BLOCKS = itertools.count()  # of this process


class Turns:
    """A strategy's blocks, except that every third block is one long turn without a meeting."""

    def block(self, state: hocket.State) -> int:
        """Return how many local steps come before the next meeting."""
        return TURN if next(_BLOCKS) % 3 == 0 else SYNC_EVERY


@dataclass(frozen=True)
class KStep(Turns, hocket.KStep):
    """The strategy, with and without meetings in turns."""


@dataclass(frozen=True)
class BMUF(Turns, hocket.BMUF):
    """The strategy, with and without meetings in turns."""


@dataclass(frozen=True)
class DiLoCo(Turns, hocket.DiLoCo):
    """The strategy, with and without meetings in turns."""


STRATEGIES = {"kstep": KStep, "bmuf": BMUF, "diloco": DiLoCo}


@dataclass(frozen=True)
class Pair:
    """A turn without meetings and one with."""

    log_ratio: float
    cost: float  # of a meeting, for the learner that comes last; seconds
    share: float  # of the turn with meetings, that this cost is


def pairs(folder: str) -> list[Pair]:
    """Read the turns from the times that the learners noted."""
    times = np.stack([row[:, 0] for row in ticks(folder)])
    found = []
    # The first pair warms up: its meetings make the memory.
    for start in range(2 * TURN, times.shape[1] - 2 * TURN, 2 * TURN):
        turn = np.diff(times[:, start : start + 2 * TURN + 1])
        alone = turn[:, : TURN - 1]  # the last one ends in a meeting
        blocks = turn[:, TURN:].reshape(len(turn), -1, SYNC_EVERY)
        apart = (1 / alone.mean(1)).sum()
        together = (1 / blocks.mean((1, 2))).sum()
        cost = (blocks[:, :, -1] - blocks[:, :, :-1].mean(2)).min(0)
        found.append(Pair(np.log(together / apart), cost.mean(), cost.sum() / blocks[0].sum()))
    return found


def _error(values: list[float]) -> float:
    """Return the standard error of the mean."""
    return statistics.stdev(values) / math.sqrt(len(values))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=32, help="pairs of turns")
    parser.add_argument("--strategy", nargs="+", choices=STRATEGIES, default=["kstep"])
    args = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    torch.set_num_threads(1)
    print(f"{'':10} {'of two apart':20} {'costs the last, ms':20} of the time")
    for name in args.strategy:
        with tempfile.TemporaryDirectory() as folder:
            train(STRATEGIES[name](sync_every=SYNC_EVERY), 2, 2 * TURN * (args.turns + 1), folder)
            found = pairs(folder)
        logs = [pair.log_ratio for pair in found]
        ratio = f"{np.exp(np.mean(logs)):.3f} ± {_error(logs):.3f}"
        costs = [1000 * pair.cost for pair in found]
        cost = f"{np.mean(costs):.1f} ± {_error(costs):.1f}"
        share = float(np.mean([pair.share for pair in found]))
        print(f"{name:10} {ratio:20} {cost:20} {share:.2%}", flush=True)


if __name__ == "__main__":
    main()
