"""One slow learner among four: asynchronous SGD, allreduce, and torch's DistributedDataParallel.

    python benchmarks/straggler.py [--repeats 3] [--items 400] [--pace 0.05] [--factor 5]

Four real processes. A minibatch takes `--pace` seconds, most of it asleep, so that four learners
find room on two cores, and `--factor` times as long in the last one. Every contender is a process
of its own; their order is shuffled again for every repeat. What is printed is the throughput over
the summed speed of the four, P - 1 + 1/factor times that of one learner alone. Whoever waits for
the slowest has P / factor of that sum: 0.25 with 4 learners, one of them 5 times slower.

DDP needs as many minibatches of every process. The others draw from one pool; only asynchronous
learners profit from it.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).parents[1]))

import hocket
from benchmarks.contenders import LR, Clock, ticks
from hocket.reproduce.setups.paced import Paced
from hocket.reproduce.tasks import synthetic

LEARNERS = 4


@dataclass(frozen=True)
class Job(Paced):
    """Synthetic frames at a stated pace; every minibatch is noted."""

    folder: str = ""

    def prepare(self) -> None:
        """Make the data, and a file for the times."""
        super().prepare()
        object.__setattr__(self, "_clock", Clock(self.folder))

    def load(self, split: str, item: hocket.Item, epoch: int) -> Any:
        """Take a minibatch, and note when."""
        if split == "train":
            self.__dict__["_clock"].tick()
        return super().load(split, item, epoch)


def train(strategy: Any, learners: int, job: Job) -> None:
    """Run a contender of Hocket's."""
    hocket.train(
        job,
        strategy=strategy,
        learners=learners,
        optimizer=hocket.SGD(lr=LR),
        schedule=hocket.Constant(epochs=1, lr_compensation="none"),
        progress=False,
    )


def _ddp(rank: int, job: Job, folder: str) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=LEARNERS
    )
    job.prepare()
    model = DistributedDataParallel(job.build_model(), gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    items = job.items("train")
    for step in range(len(items) // LEARNERS):
        loss = job.loss(model, job.load("train", items[step * LEARNERS + rank], 0))
        optimizer.zero_grad()
        (loss.total / loss.frames).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    dist.barrier()


def ddp(job: Job) -> None:
    """Run DDP over gloo, in processes whose names say their rank."""
    context = torch.multiprocessing.get_context("spawn")
    processes = [
        context.Process(target=_ddp, args=(rank, job, job.folder), name=f"ddp {rank}")
        for rank in range(LEARNERS)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0


CONTENDERS: dict[str, Callable[[Job], None]] = {
    "alone": lambda job: train("sequential", 1, job),
    "asgd": lambda job: train(hocket.ASGD(servers=1), LEARNERS, job),
    "asgd, servers = 0": lambda job: train(hocket.ASGD(servers=0), LEARNERS, job),
    "allreduce": lambda job: train("allreduce", LEARNERS, job),
    "ddp": ddp,
}


def contend(name: str, args: argparse.Namespace) -> float:
    """Run one contender in a process of its own; return its minibatches per second."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [sys.executable, __file__, "--contender", name, folder, *_options(args)],
            check=True,
            env=os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
        )
        return float(sum((len(t) - 1) / (t[-1, 0] - t[0, 0]) for t in ticks(folder)))


def _options(args: argparse.Namespace) -> list[str]:
    return ["--items", str(args.items), "--pace", str(args.pace), "--factor", str(args.factor)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--items", type=int, default=400, help="minibatches of all learners")
    parser.add_argument("--pace", type=float, default=0.05, help="seconds of a minibatch")
    parser.add_argument("--factor", type=float, default=5.0, help="how much slower the last one is")
    parser.add_argument("--contender", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.contender:
        torch.set_num_threads(1)
        name, folder = args.contender
        items = args.items // 4 if name == "alone" else args.items
        CONTENDERS[name](
            Job(synthetic(items, 96, 640), args.pace, LEARNERS - 1, args.factor, folder)
        )
        return
    shares: dict[str, list[float]] = {name: [] for name in CONTENDERS if name != "alone"}
    for repeat in range(args.repeats):
        order = list(CONTENDERS)
        random.Random(repeat).shuffle(order)
        speeds = {name: contend(name, args) for name in order}
        for name, found in shares.items():
            found.append(speeds[name] / (speeds["alone"] * (LEARNERS - 1 + 1 / args.factor)))
    print(f"throughput over the summed speed of {LEARNERS}, one {args.factor:g} times slower")
    for name, found in shares.items():
        print(f"{name:20} {statistics.median(found):.3f} ({min(found):.3f} to {max(found):.3f})")


if __name__ == "__main__":
    main()
