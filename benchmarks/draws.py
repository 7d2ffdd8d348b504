"""What the store of a run costs an asynchronous learner: one minibatch's entries in the ledger.

    python benchmarks/draws.py [--repeats 9] [--draws 300]

A learner draws an item and commits it, as after every minibatch: about a dozen round trips to the
store. Ours asks for the token once per connection; torch's TCPStore, which asks nobody, is the
yardstick. Both are served by one process; the learner, another one, takes turns with them, and a
ratio is taken within a repeat. A round trip within a core takes a third of one between two cores,
so both are measured apart: left to itself, the kernel chooses now this, now that.

Goal: at most 1.2 of torch's time within a core, 1.0 between two.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import time
from datetime import timedelta
from typing import Any

import torch.distributed

import hocket
from hocket.data.pool import Pool
from hocket.data.shared_ledger import SharedLedger
from hocket.runtime.net.store import Place
from hocket.runtime.net.store_server import StoreServer

dist: Any = torch.distributed


class TorchCounters:
    """torch's store, as the ledger wants to see one."""

    def __init__(self, port: int, prefix: str) -> None:
        limit = timedelta(seconds=60)
        self._inner = dist.PrefixStore(prefix, dist.TCPStore("127.0.0.1", port, None, False, limit))

    def add(self, key: str, amount: int) -> int:
        """Add to a counter."""
        return int(self._inner.add(key, amount))

    def put(self, key: str, value: str) -> None:
        """Store a value."""
        self._inner.set(key, value)

    def get(self, key: str) -> str:
        """Return a value."""
        return str(self._inner.get(key).decode())


def _minibatch_s(counters: Any, draws: int) -> float:
    """Return the seconds of a draw and its commit, the median of many."""
    pool = Pool(hocket.Synthetic(num_frames=1_000_000), epochs=1, seed=0)
    ledger, times = SharedLedger(pool, 0, (0,), counters), []
    for _ in range(draws):
        began = time.perf_counter()
        ledger.settle("commit", (ledger.draw(),))
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def _learner(core: int, place: Place, port: int, repeats: int, draws: int, answers: Any) -> None:
    os.sched_setaffinity(0, {core})
    for repeat in range(repeats):
        ours = _minibatch_s(place.store(60.0).prefix(f"{core}/{repeat}"), draws)
        theirs = _minibatch_s(TorchCounters(port, f"{core}/{repeat}"), draws)
        answers.put((ours, theirs))


def _show(found: list[tuple[float, float]]) -> None:
    for name, column in (("ours", 0), ("torch's TCPStore", 1)):
        times = [1e6 * row[column] for row in found]
        low, high = min(times), max(times)
        print(f"  {name:18} {statistics.median(times):6.0f} us ({low:.0f} to {high:.0f})")
    ratios = [ours / theirs for ours, theirs in found]
    low, high = min(ratios), max(ratios)
    print(f"  {'ratio':18} {statistics.median(ratios):6.2f}    ({low:.2f} to {high:.2f})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--draws", type=int, default=300)
    args = parser.parse_args()
    first, second = sorted(os.sched_getaffinity(0))[:2]
    os.sched_setaffinity(0, {first})  # and the threads that serve
    server = StoreServer.nearby(bytes(32))
    limit = timedelta(seconds=60)
    other = dist.TCPStore("127.0.0.1", 0, None, True, limit, wait_for_workers=False)
    place = Place(server.address, server.token)
    context = multiprocessing.get_context("spawn")
    for name, core in (("within a core", first), ("between two cores", second)):
        answers = context.Queue()
        learner = context.Process(
            target=_learner, args=(core, place, other.port, args.repeats, args.draws, answers)
        )
        learner.start()
        print(name)
        _show([answers.get(timeout=300) for _ in range(args.repeats)])
        learner.join()


if __name__ == "__main__":
    main()
