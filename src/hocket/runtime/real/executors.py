"""Where a real learner's work is done: at once, or in threads that post results to the loop.

A strategy without services, forks or messages needs no thread: every effect is carried out where it
was awaited. Otherwise gradients run in one thread and collectives in another, and their results
wait in a queue for the loop that advances fibers; between two awaits nothing else runs on the rank.
"""

from __future__ import annotations

import queue
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from hocket.core.effects import Deliver


def _as_it_is(value: Any) -> Any:
    return value


class Executors:
    """Runs work and hands its result to the loop."""

    def __init__(self, threads: int, concurrent: Callable[[], bool]) -> None:
        self._concurrent = concurrent
        self._done: queue.SimpleQueue[tuple[Deliver, Any, BaseException | None]] = (
            queue.SimpleQueue()
        )
        self._computing = _one_thread("gradient", threads)
        self._communicating = _one_thread("collective", threads)

    @property
    def concurrent(self) -> bool:
        """True once work is done in threads."""
        return self._concurrent()

    def compute(
        self,
        job: Callable[[], Any],
        deliver: Deliver,
        finish: Callable[[Any], Any] = _as_it_is,
    ) -> None:
        """Run something that computes; `finish` then treats its result on the loop."""
        self._do(self._computing, job, deliver, finish)

    def communicate(self, job: Callable[[], Any], deliver: Deliver) -> None:
        """Run a blocking exchange with others, in the order in which they are issued."""
        self._do(self._communicating, job, deliver, _as_it_is)

    def _do(
        self,
        executor: ThreadPoolExecutor,
        job: Callable[[], Any],
        deliver: Deliver,
        finish: Callable[[Any], Any],
    ) -> None:
        def settle(value: Any, error: BaseException | None) -> None:
            if error is None:
                value, error = _attempt(lambda: finish(value))
            deliver(value, error)

        if self.concurrent:
            executor.submit(lambda: self._done.put((settle, *_attempt(job))))
        else:
            settle(*_attempt(job))

    def post(self, deliver: Deliver, value: Any = None, error: BaseException | None = None) -> None:
        """Queue something that is to happen on the loop; from any thread."""
        self._done.put((deliver, value, error))

    def take(self, timeout_s: float) -> bool:
        """Let the next thing happen; False if nothing came in time."""
        try:
            deliver, value, error = self._done.get(timeout=max(0.0, timeout_s))
        except queue.Empty:
            return False
        deliver(value, error)
        return True

    def close(self) -> None:
        """Take no more work; what is under way ends with the process."""
        self._computing.shutdown(wait=False, cancel_futures=True)
        self._communicating.shutdown(wait=False, cancel_futures=True)


def _one_thread(name: str, width: int) -> ThreadPoolExecutor:
    """Make a thread; how many threads torch may use is a setting of each thread."""
    return ThreadPoolExecutor(1, name, initializer=torch.set_num_threads, initargs=(width,))


def _attempt(job: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    try:
        return job(), None
    except Exception as failure:
        return None, failure
