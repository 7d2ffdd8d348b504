"""The simulator's predicted time against the measured time of real runs.

    python benchmarks/simulator.py [--repeats 3] [--minibatches 24] [--network]

Runs with 2 and 4 learners on this host and, with --network (root needed), on two hosts: network
namespaces joined by a veth pair that `tc tbf` limits to 1 Gbit/s and 100 Mbit/s.

What the simulator is told is measured in the same circumstances: a learner's speed from a run in
which nobody communicates until the end, the speed of shared memory from collectives alone. A wire
is as fast as its limit, minus the headers of Ethernet, IP and TCP. Goal: within 10 %.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn

import hocket

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from helpers import network  # noqa: E402

from benchmarks.collectives import seconds  # noqa: E402

BATCH, WIDTH = 256, 512
PAYLOAD = 1448 / 1514  # of an Ethernet frame, after its headers and those of IP and TCP
KSTEP = 4


@dataclass(frozen=True)
class Job(hocket.Task):
    """A network of about a million parameters; each minibatch lies in memory."""

    minibatches: int

    def build_model(self) -> nn.Module:
        """The network."""
        sizes = (440, WIDTH, WIDTH, WIDTH, 500)
        layers = [m for a, b in pairwise(sizes) for m in (nn.Linear(a, b), nn.Sigmoid())]
        return nn.Sequential(*layers[:-1])

    def items(self, split: str) -> Sequence[hocket.Item]:
        """So many minibatches."""
        return [hocket.Item(i, BATCH) for i in range(self.minibatches if split == "train" else 1)]

    def prepare(self) -> None:
        """Put the data into memory."""
        object.__setattr__(self, "_batch", (torch.randn(BATCH, 440), torch.randint(500, (BATCH,))))

    def load(self, split: str, item: hocket.Item, epoch: int) -> Any:
        """Return the same minibatch every time."""
        return self.__dict__["_batch"]

    def loss(self, model: nn.Module, batch: Any) -> hocket.Loss:
        """Cross-entropy."""
        x, labels = batch
        return hocket.Loss(nn.functional.cross_entropy(model(x), labels, reduction="sum"), BATCH)


@dataclass(frozen=True)
class Case:
    """Where the learners run: how many, on how many hosts, joined by which wire."""

    hosts: int
    learners: int  # on all hosts
    mbit: float | None = None

    @property
    def name(self) -> str:
        """The name of this case in the table."""
        wire = f", {self.mbit:g} Mbit/s" if self.mbit else ""
        return f"{self.learners} learners on {self.hosts} host(s){wire}"


def strategy_of(name: str, minibatches: int) -> Any:
    every = {"allreduce": None, "kstep": KSTEP, "apart": minibatches}[name]
    return hocket.AllReduceSGD() if every is None else hocket.KStep(sync_every=every)


def train(name: str, learners: int, minibatches: int, out: str) -> float:
    """Train for real, in this host's or in torchrun's processes, and return the seconds."""
    result = hocket.train(
        Job(learners * minibatches),
        strategy=strategy_of(name, minibatches),
        learners=learners,
        optimizer=hocket.SGD(lr=0.001),
        schedule=hocket.Constant(epochs=1),
        out=out,
        progress=False,
        tensorboard=False,
    )
    return result.time_s


def measure(case: Case, name: str, minibatches: int) -> float:
    """Return the measured seconds of one run."""
    with tempfile.TemporaryDirectory() as folder:
        out = f"{folder}/run"
        if case.hosts == 1:
            return train(name, case.learners, minibatches, out)
        with network.two_hosts() as pair:
            assert case.mbit is not None
            pair.limit(case.mbit)
            worker = [__file__, "--worker", name, str(case.learners), str(minibatches), out]
            processes = [pair.torchrun(host, *worker) for host in range(2)]
            for process in processes:
                _, errors = process.communicate(timeout=600)
                assert process.returncode == 0, errors
        rows = [json.loads(x) for x in Path(f"{out}/metrics.jsonl").read_text().splitlines()]
        return float(rows[-1]["train_s"])


def predict(case: Case, name: str, minibatches: int, apart_s: float, memory_gbit: float) -> float:
    """Return the simulator's seconds for the same run."""
    host = hocket.Host(
        count=case.hosts,
        learners=case.learners // case.hosts,
        frames_per_s=minibatches * BATCH / apart_s,
        bandwidth_gbit=(case.mbit or 1000.0) / 1000 * PAYLOAD,
        memory_gbit=memory_gbit,
    )
    result = hocket.simulate(
        Job(case.learners * minibatches),
        strategy=strategy_of(name, minibatches),
        cluster=hocket.Cluster((host,)),
        optimizer=hocket.SGD(lr=0.001),
        schedule=hocket.Constant(epochs=1),
        progress=False,
        tensorboard=False,
    )
    return result.time_s


def memory_speed(case: Case) -> float:
    """Return the Gbit/s at which learners of one host reduce, from collectives alone."""
    values = sum(p.numel() for p in Job(1).build_model().parameters())
    return 2 * values * 32e-9 / seconds(case.learners // case.hosts, values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--minibatches", type=int, default=24, help="of each learner")
    parser.add_argument("--network", action="store_true", help="also on two hosts (root)")
    parser.add_argument("--worker", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.worker:
        name, learners, minibatches, out = args.worker
        train(name, int(learners), int(minibatches), out)
        return
    cases = [Case(1, 2), Case(1, 4)]
    if args.network:
        cases += [Case(2, n, mbit) for mbit in (1000.0, 100.0) for n in (2, 4)]
    print(f"{'case':40} {'strategy':10} {'measured':>10} {'predicted':>10}  predicted / measured")
    for case in cases:
        show(case, args.minibatches, args.repeats)


def show(case: Case, minibatches: int, repeats: int) -> None:
    rounds: dict[str, list[tuple[float, float]]] = {"allreduce": [], "kstep": []}
    for _ in range(repeats):  # what the simulator is told is measured beside what it predicts
        apart_s = measure(Case(1, case.learners), "apart", minibatches)  # no wire in this
        memory = memory_speed(case) if case.learners > case.hosts else 40.0
        for name, seen in rounds.items():
            measured = measure(case, name, minibatches)
            seen.append((measured, predict(case, name, minibatches, apart_s, memory)))
    for name, seen in rounds.items():
        ratios = sorted(p / m for m, p in seen)
        measured, predicted = (statistics.median(x[i] for x in seen) for i in (0, 1))
        print(
            f"{case.name:40} {name:10} {measured:8.2f} s {predicted:8.2f} s  "
            f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})",
            flush=True,
        )


if __name__ == "__main__":
    main()
