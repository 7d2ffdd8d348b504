"""What every strategy computes, as fingerprints: a change of structure must not change a bit.

    python tests/fingerprints.py > before.txt
    ... move, rename, rewrite ...
    python tests/fingerprints.py | diff before.txt -

For every strategy and some of its variants: one simulated run on an uneven cluster in which a
learner dies, and, of synchronous strategies, one real run with 2 learners. A line holds the SHA-256
of the final parameters, the ledger (frames committed and discarded, epoch, frames of each learner)
and, of simulated runs, the digest of the trace: every draw, exchange and time.

Fingerprints depend on the processor (its vector instructions) and on the torch version, so they are
compared on one machine, before and after; none are kept in the repository.
"""

from __future__ import annotations

import hashlib
import sys
from dataclasses import dataclass, replace
from typing import Any

import torch

import hocket
from hocket import (
    SGD,
    Cluster,
    Constant,
    Death,
    Host,
    NaturalSGD,
    Result,
    Slow,
    Strategy,
    Synthetic,
)
from hocket.core.strategy import InStages
from hocket.strategies import STRATEGIES

LEARNERS = 4  # of simulated runs
QUIET: dict[str, Any] = {"tensorboard": False, "timeout_s": 60.0, "progress": False}
TASK = Synthetic(
    num_frames=1500,
    dev_frames=300,
    batch_frames=32,
    num_classes=6,
    num_features=6,
    context=1,
    model=hocket.DNN(layers=1, width=16),
)


@dataclass(frozen=True)
class Row:
    """A strategy with its options, and a word for the variant."""

    strategy: Strategy[Any]
    variant: str = ""
    natural_gradient: bool = False

    @property
    def label(self) -> str:
        """Name the row."""
        return f"{self.strategy.name}{'/' if self.variant else ''}{self.variant}"

    @property
    def optimizer(self) -> SGD | NaturalSGD:
        """Plain SGD with momentum, clipping and decay, or natural gradient."""
        if self.natural_gradient:
            return NaturalSGD(lr=0.02)
        if not self.strategy.uses_rate:
            return SGD()
        whole = not isinstance(self.strategy, InStages)  # no stage knows the norm of all of it
        return SGD(lr=0.02, momentum=0.5, clip_norm=5.0 if whole else None, weight_decay=1e-4)


def usual(name: str) -> Strategy[Any]:
    """Return a strategy with its defaults, meeting often enough for a short run."""
    strategy = STRATEGIES[name]()
    if "sync_every" in strategy.parameters():
        return replace(strategy, **{"sync_every": 3})
    if "servers" in strategy.parameters():
        return replace(strategy, **{"servers": 1})  # without one no learner can be spared
    if "cut" in strategy.parameters():
        return replace(strategy, **{"cut": (2,)})  # by itself it goes by measured time
    return strategy


VARIANTS = [
    Row(hocket.AllReduceSGD(), "natural", natural_gradient=True),
    Row(hocket.BMUF(sync_every=3, block_momentum=0.5, nesterov=False), "plain"),
    Row(hocket.BMUF(sync_every=2, warm_start_frames=200, local_momentum="average"), "warm"),
    Row(hocket.AdaptiveKStep(sync_every=4, accept=True), "accept"),
    Row(hocket.DPSGD(mixing="random_ring"), "random_ring"),
    Row(hocket.DPSGD(mixing="exponential"), "exponential"),
    Row(hocket.ADPSGD(ring="fixed"), "fixed"),
    Row(hocket.Kaldi(sync_every=3, combine_items=3), "combine", natural_gradient=True),
]


def rows() -> list[Row]:
    """Return every strategy, then the variants."""
    return [Row(usual(name)) for name in STRATEGIES] + VARIANTS


def cluster(learners: int) -> Cluster:
    """No two learners are equally fast; one straggles and one dies."""
    hosts = tuple(
        Host(frames_per_s=500.0 * (1 + rank % 3), jitter=0.3, bandwidth_gbit=0.01)
        for rank in range(learners)
    )
    if learners == 1:
        return Cluster(hosts)
    return Cluster(
        hosts, slow=(Slow(rank=0, factor=5.0, until_s=0.2),), deaths=(Death(2, at_draw=5),)
    )


def line(label: str, world: str, result: Result) -> str:
    """Say in one line what came out."""
    digest = hashlib.sha256()
    for name in sorted(result.model):
        digest.update(name.encode())
        digest.update(result.model[name].contiguous().numpy().tobytes())
    ledger = (
        f"{result.frames}+{result.discarded_frames} epoch {result.epoch} "
        f"{[one.frames for one in result.learners]}"
    )
    return f"{label} {world} {digest.hexdigest()} {ledger} {result.trace_digest or ''}".rstrip()


def simulated(row: Row) -> Result:
    """Run in the simulator."""
    learners = min(LEARNERS, row.strategy.max_learners or LEARNERS)
    return hocket.simulate(
        TASK,
        strategy=row.strategy,
        cluster=cluster(learners),
        optimizer=row.optimizer,
        schedule=Constant(epochs=2),
        **QUIET,
    )


def real(row: Row) -> Result:
    """Run in two processes."""
    return hocket.train(
        TASK,
        strategy=row.strategy,
        learners=min(2, row.strategy.max_learners or 2),
        optimizer=row.optimizer,
        schedule=Constant(epochs=2),
        **QUIET,
    )


def main() -> int:
    """Print a line for every run."""
    torch.set_num_threads(1)
    for row in rows():
        print(line(row.label, "simulated", simulated(row)), flush=True)
        if row.strategy.synchronous:
            print(line(row.label, "real", real(row)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
