"""The same function on many things, by several processes; results come in order.

What is computed never depends on how many processes there are: the pieces are fixed by the caller,
and results are handed back in the order of the pieces.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from typing import TypeVar

import torch

from hocket.errors import HocketError
from hocket.support.fork_server import fork_context
from hocket.support.signals import end_with_parent, interrupted_once, leave_to_parent

T = TypeVar("T")
R = TypeVar("R")

# Loaded once by the server that processes are forked from; what is not installed is left out.
PRELOAD = [
    "hocket.runtime.launch.learner_process",
    "hocket.speech.gmm.alignment",
    "hocket.speech.corpus.build",
]


class WorkerDiedError(HocketError):
    """A process ended in the middle of its piece."""


def default_jobs() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def ordered_map(
    function: Callable[[T], R], pieces: Sequence[T], *, jobs: int, what: str, fresh: bool = False
) -> Iterator[R]:
    """Yield `function(piece)` for each piece, in order.

    With `fresh` each piece gets a new process, for libraries with state that cannot be reset.
    One job without `fresh` runs here, without a process.
    """
    if jobs <= 1 and not fresh:
        yield from map(partial(in_one_thread, function), pieces)
        return
    pool = ProcessPoolExecutor(
        max(1, min(jobs, len(pieces))),
        mp_context=fork_context(PRELOAD),
        initializer=_begin_worker,
        max_tasks_per_child=1 if fresh else None,
    )
    finished = False
    with interrupted_once():  # a second Ctrl-C would leave a pool that waits for ever
        try:
            yield from pool.map(function, pieces)
            finished = True
        except BrokenProcessPool as error:
            raise WorkerDiedError(
                f"a process died while {what}: out of memory, or ended from outside. Run the "
                "command again: what is finished is kept (fewer processes at once: --jobs "
                f"{max(1, jobs // 2)})"
            ) from error
        finally:
            if not finished:
                _end_workers(pool)
            pool.shutdown(wait=True, cancel_futures=True)


def _begin_worker() -> None:
    """Compute in one thread, until the parent ends the pool or is ended itself."""
    torch.set_num_threads(1)
    leave_to_parent([signal.SIGINT])  # not SIGTERM: with that the parent ends its workers
    end_with_parent()


def _end_workers(pool: ProcessPoolExecutor) -> None:
    """End workers whose results are no longer needed, without waiting for their pieces."""
    for process in list((getattr(pool, "_processes", None) or {}).values()):
        process.terminate()


def in_one_thread(function: Callable[[T], R], piece: T) -> R:
    """Run with one thread, as the processes do: sums then come out the same."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return function(piece)
    finally:
        torch.set_num_threads(threads)


def chunks(things: Sequence[T], size: int) -> list[Sequence[T]]:
    """Cut into pieces of `size`, the last one shorter."""
    return [things[i : i + size] for i in range(0, len(things), size)]
