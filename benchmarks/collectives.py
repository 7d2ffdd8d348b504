"""How long one mean over the learners of one host takes, without any training.

python benchmarks/collectives.py [--learners 2 4] [--values 6700000]
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from typing import Any

import torch

from hocket.core.effects import AllReduce
from hocket.runtime.net.addresses import LOOPBACK
from hocket.runtime.net.exchange import Exchange
from hocket.runtime.net.handshake import Handshake
from hocket.runtime.net.mesh import Mesh
from hocket.runtime.net.store import Place
from hocket.runtime.net.store_server import StoreServer

REPEATS = 30


def _learner(rank: int, size: int, place: Place, values: int, answers: Any) -> None:
    torch.set_num_threads(1)
    store = place.store(60.0, rank)
    mesh = Mesh(store, Handshake(rank, store.derived_key(), 60.0), size, address=LOOPBACK)
    exchange = Exchange(mesh, size, timeout_s=60.0)
    x, times = torch.randn(values), []
    for _ in range(REPEATS):
        began = time.perf_counter()
        exchange.all_reduce(AllReduce(x), 1.0)
        times.append(time.perf_counter() - began)
    exchange.wait()
    answers.put(statistics.median(times[5:]))
    exchange.close()


def seconds(learners: int, values: int) -> float:
    """Return the median seconds of one mean over `learners` vectors of so many values."""
    context = multiprocessing.get_context("spawn")
    server, answers = StoreServer.nearby(bytes(32)), context.Queue()
    place = Place(server.address, server.token)
    processes = [
        context.Process(target=_learner, args=(rank, learners, place, values, answers))
        for rank in range(learners)
    ]
    for process in processes:
        process.start()
    found = [float(answers.get(timeout=120)) for _ in processes]
    for process in processes:
        process.join()
    return statistics.median(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--learners", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--values", type=int, default=6_700_000)
    args = parser.parse_args()
    for learners in args.learners:
        took = seconds(learners, args.values)
        print(f"{learners} learners, {args.values * 4 / 1e6:.1f} MB: {took * 1e3:.2f} ms")


if __name__ == "__main__":
    main()
