"""One step over a slow link: Hocket's codecs beside torch's DDP with its compression hooks.

    python benchmarks/limited_link.py                       # 100 Mbit/s, 1 Gbit/s, no limit
    python benchmarks/limited_link.py --links 100 --steps 8

Two network namespaces of this machine, joined by a veth pair that `tc tbf` limits, stand for two
hosts with one process each (needs root and iproute2). The loop, the network (6.7 million values by
default) and the data are the same for all; contenders take turns, link by link. The figure is the
median step after two to warm up, and its ratio to DDP without a hook.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import time
from contextlib import nullcontext
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import hocket
from hocket.reproduce.setups import two_hosts

LIMIT_S = 300.0
WARM_UP, BATCH, WIDTH, CLASSES = 2, 64, 1024, 48
HOOKS = ("ddp", "ddp, fp16 hook", "ddp, PowerSGD rank 1", "ddp, PowerSGD rank 4")
CODECS = ("float32", "float16", "onebit", "topk")
CONTENDERS = (*HOOKS, *(f"hocket, {codec}" for codec in CODECS))


def network(layers: int) -> nn.Sequential:
    torch.manual_seed(0)
    sizes = [WIDTH] * (layers + 1)
    hidden = [m for a, b in pairwise(sizes) for m in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(WIDTH, CLASSES))


def hooked(model: nn.Module, contender: str) -> nn.Module:
    dist.init_process_group("gloo")
    wrapped = DistributedDataParallel(model, bucket_cap_mb=256)
    if "fp16" in contender:
        wrapped.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif "PowerSGD" in contender:
        rank = int(contender.rsplit(" ", 1)[1])
        state = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=rank, start_powerSGD_iter=2
        )
        wrapped.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return wrapped


def loop(contender: str, steps: int, layers: int) -> list[float]:
    """Train, and return the seconds of every step."""
    torch.set_num_threads(1)
    model = network(layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    attached: Any = nullcontext()
    trained: nn.Module = model
    if contender in HOOKS:
        trained = hooked(model, contender)
    else:
        codec = contender.split(", ")[1]
        attached = hocket.attach(model, optimizer, strategy="allreduce", codec=codec)
    x, y = torch.randn(BATCH, WIDTH), torch.randint(CLASSES, (BATCH,))
    times = []
    with attached as joined:
        for _ in range(WARM_UP + steps):
            began = time.perf_counter()
            optimizer.zero_grad()
            nn.functional.cross_entropy(trained(x), y).backward()  # type: ignore[no-untyped-call]
            if joined is None:
                optimizer.step()
            else:
                joined.step(BATCH)
            times.append(time.perf_counter() - began)
    return times[WARM_UP:]


def measured(pair: two_hosts.Pair, contender: str, args: argparse.Namespace) -> float:
    given = ("--contender", contender, "--steps", str(args.steps), "--layers", str(args.layers))
    first, _ = pair.run(__file__, *given, limit_s=LIMIT_S)
    return float(statistics.median(json.loads(first.splitlines()[-1])))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--links", type=float, nargs="+", default=[100.0, 1000.0, math.inf])
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--layers", type=int, default=6, help="of 1,024 units each")
    parser.add_argument("--contender", choices=CONTENDERS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.contender:
        times = loop(args.contender, args.steps, args.layers)
        if os.environ["RANK"] == "0":
            print(json.dumps(times))
        return
    if not two_hosts.available():
        sys.exit(f"skipped: {two_hosts.WHY_NOT}")
    for link in args.links:
        base = math.nan
        for contender in CONTENDERS:
            with two_hosts.two_hosts() as pair:
                if math.isfinite(link):
                    pair.limit(link)
                step_s = measured(pair, contender, args)
            base = step_s if contender == HOOKS[0] else base
            print(
                f"{link:6g} Mbit/s  {contender:22} {1000 * step_s:8.1f} ms a step  "
                f"{base / step_s:5.2f} x ddp",
                flush=True,
            )


if __name__ == "__main__":
    main()
