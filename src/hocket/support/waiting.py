"""Calls that might wait for ever, with a limit."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


def within(limit_s: float, call: Callable[[], T], name: str) -> T:
    """Return what a call returns, or raise what it raises; TimeoutError if it takes too long.

    It runs in a thread of its own, which is then left to itself.
    """
    ended: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

    def attempt() -> None:
        try:
            ended.put((call(), None))
        except BaseException as error:
            ended.put((None, error))

    threading.Thread(target=attempt, name=name, daemon=True).start()
    try:
        value, error = ended.get(timeout=limit_s)
    except queue.Empty:
        raise TimeoutError(f"no answer within {limit_s:g} s") from None
    if error is not None:
        raise error
    return value  # type: ignore[no-any-return]
