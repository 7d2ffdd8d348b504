"""Two stages on two cores: Hocket's pipeline, one learner, and torch.distributed.pipelining.

    python benchmarks/pipeline.py [--repeats 5] [--steps 60] [--only hocket-1 hocket-pipeline-2]

The job is that of `throughput.py`: a 440-5x1024-2000 sigmoid network, minibatches of 256 frames in
memory, SGD with momentum, one thread per process. `apart-2`, two processes that do not communicate,
are the physical limit of two. Contenders run one after another, in an order that is shuffled again
for every repeat; ratios are taken within a repeat, and their median and range are printed, by the
clock and by the processor time of all processes.

torch's schedules are synchronous: a minibatch is cut into micro-batches, and the stages idle at its
beginning and end, as Hocket's do with `flush`. Its other gradients are those of SGD; Hocket's
without a flush are late.

`hocket-group-2-M` is one learner of two ranks (`runtime.ranks_per_learner`), with M micro-batches:
the whole vector is on its first rank, and travels with every minibatch.

Goal: `hocket-pipeline-2` at least 1.6 times `hocket-1`.
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
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1]))

import hocket
from benchmarks.contenders import (
    BATCH,
    DISTINCT,
    LR,
    MOMENTUM,
    WARM_UP,
    Clock,
    Job,
    _group,
    _two,
    build_model,
    hocket_one,
    minibatches,
    plain,
    sgd,
    ticks,
    two_apart,
)

CUT = 8  # before the fifth of six linear layers: the most even one by counted operations

Contender = Callable[[int, str], None]


def hocket_pipeline(steps: int, folder: str, **more: Any) -> None:
    result = hocket.train(
        Job(folder, steps + 1),
        strategy=hocket.Pipeline(stages=2, cut=(CUT,), **more),
        optimizer=hocket.SGD(lr=LR, momentum=MOMENTUM),
        schedule=hocket.Constant(epochs=1),
        progress=False,
    )
    assert result.frames == BATCH * (steps + 1)


def hocket_group(steps: int, folder: str, micro_batches: int) -> None:
    result = hocket.train(
        Job(folder, steps + 1),
        strategy=hocket.Sequential(),
        optimizer=hocket.SGD(lr=LR, momentum=MOMENTUM),
        schedule=hocket.Constant(epochs=1),
        progress=False,
        ranks_per_learner=2,
        micro_batches=micro_batches,
        cut=(CUT,),
    )
    assert result.frames == BATCH * (steps + 1)


def _torch_pipeline(
    rank: int, barrier: Any, steps: int, folder: str, micro_batches: int, schedule: str
) -> None:
    from torch.distributed import pipelining

    _group(rank, folder)
    layers = build_model()
    module = layers[:CUT] if rank == 0 else layers[CUT:]
    stage = pipelining.PipelineStage(module, rank, 2, torch.device("cpu"))
    steps_of = getattr(pipelining, schedule)(
        stage, micro_batches, loss_fn=nn.functional.cross_entropy
    )
    optimizer, batches, clock = sgd(module), minibatches(), Clock(folder)
    barrier.wait()
    for step in range(steps + 1):
        clock.tick()
        x, labels = batches[step % DISTINCT]
        optimizer.zero_grad()
        if rank == 0:
            steps_of.step(x)
        else:
            steps_of.step(target=labels, losses=[])
        optimizer.step()
    barrier.wait()
    dist.destroy_process_group()


def torch_pipeline(steps: int, folder: str, *, micro_batches: int, schedule: str) -> None:
    _two(_torch_pipeline, steps, folder, micro_batches, schedule)


CONTENDERS: dict[str, Contender] = {
    "plain": plain,
    "hocket-1": hocket_one,
    "apart-2": two_apart,
    "hocket-pipeline-2": hocket_pipeline,
    "hocket-pipeline-2-window-2": partial(hocket_pipeline, window=2),
    "hocket-pipeline-2-stashed": partial(hocket_pipeline, weights="stashed"),
    "hocket-flush-2-4": partial(hocket_pipeline, flush=True, micro_batches=4),
    "hocket-flush-2-8": partial(hocket_pipeline, flush=True, micro_batches=8),
    "hocket-group-2-1": partial(hocket_group, micro_batches=1),
    "hocket-group-2-4": partial(hocket_group, micro_batches=4),
    "torch-gpipe-2-4": partial(torch_pipeline, micro_batches=4, schedule="ScheduleGPipe"),
    "torch-1f1b-2-4": partial(torch_pipeline, micro_batches=4, schedule="Schedule1F1B"),
    "torch-1f1b-2-8": partial(torch_pipeline, micro_batches=8, schedule="Schedule1F1B"),
}
ADDS_UP = ("apart-2",)  # its processes work on minibatches of their own


def speed(name: str, folder: str) -> tuple[float, float]:
    """Return frames per second: by the clock, and of the processor time of all processes."""
    rates, processor = [], 0.0
    for times in ticks(folder):
        frames = BATCH * (len(times) - WARM_UP - 1)
        rates.append(frames / (times[-1, 0] - times[WARM_UP, 0]))
        processor += (times[-1, 1] - times[WARM_UP, 1]) / frames
    together = name in ADDS_UP
    wall = sum(rates) if together else statistics.mean(rates)
    return wall, (len(rates) if together else 1) / processor


def contend(name: str, steps: int) -> tuple[float, float]:
    """Run one contender in a process of its own and return its speed."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [sys.executable, __file__, "--contender", name, folder, "--steps", str(steps)],
            check=True,
            env=os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
        )
        return speed(name, folder)


def show(speeds: dict[str, list[tuple[float, float]]]) -> None:
    base = speeds.get("hocket-1")
    print(f"\n{'':28}{'frames/s, clock':34}{'over hocket-1, clock':26}{'over hocket-1, processor'}")
    for name, values in speeds.items():
        line = f"{name:28}{_spread([v[0] for v in values], 0):34}"
        if base is not None:
            for kind in range(2):
                pairs = zip(values, base, strict=True)
                line += f"{_spread([a[kind] / b[kind] for a, b in pairs], 2):26}"
        print(line)


def _spread(values: list[float], digits: int) -> str:
    low, high = min(values), max(values)
    return f"{statistics.median(values):,.{digits}f} ({low:,.{digits}f} to {high:,.{digits}f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=60, help="minibatches")
    parser.add_argument("--only", nargs="+", choices=CONTENDERS, help="some contenders")
    parser.add_argument("--contender", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.contender:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        name, folder = args.contender
        CONTENDERS[name](args.steps, folder)
        return
    names = args.only or list(CONTENDERS)
    speeds: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for repeat in range(args.repeats):
        order = names[:]
        random.Random(repeat).shuffle(order)
        for name in order:
            speeds[name].append(contend(name, args.steps))
        row = "  ".join(f"{name} {values[-1][0]:,.0f}" for name, values in speeds.items())
        print(f"repeat {repeat + 1}: {row}", flush=True)
    show(speeds)


if __name__ == "__main__":
    main()
