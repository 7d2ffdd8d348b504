"""Signals, and processes that must not outlive their parent.

A terminal sends Ctrl-C to all processes of a program, and Slurm does so with SIGTERM. One process
decides what happens then; those that it has started leave signals to it.

Learners under Hocket's own launcher need nothing of the second half: the launcher ends them by
closing their pipe, and its death closes the pipe, too (`runtime/launch/learner_process.py`).
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
# What a scheduler may send before it ends a job; `--signal` of Slurm may name any of them.
WARNINGS: Final = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
_HELD: Final = (signal.SIGINT, *WARNINGS)
STOPPING: Final = "stopping at the next boundary, with a checkpoint (Ctrl-C again to end at once)"
_PR_SET_PDEATHSIG: Final = 1  # from <linux/prctl.h>


# ------------------------------------------------------------------ in the one that decides


@contextmanager
def on_signals(
    react: Callable[[], None], numbers: Iterable[signal.Signals] = STOP_SIGNALS
) -> Iterator[None]:
    """Call `react` at each signal, instead of what usually happens.

    Only the main thread may do so. In another thread nothing changes, and whoever waits for that
    thread in the main one sees KeyboardInterrupt.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    usual = {n: signal.signal(n, lambda number, frame: react()) for n in numbers}
    try:
        yield
    finally:
        for number, handler in usual.items():
            signal.signal(number, handler)


@contextmanager
def on_first_signal(react: Callable[[], None]) -> Iterator[None]:
    """Call `react` at the first Ctrl-C or SIGTERM; after that they do what they usually do."""
    usual = {number: signal.getsignal(number) for number in STOP_SIGNALS}

    def first() -> None:
        react()
        for number, handler in usual.items():
            signal.signal(number, handler)

    with on_signals(first):
        yield


@contextmanager
def interrupted_once() -> Iterator[None]:
    """Let the first Ctrl-C raise KeyboardInterrupt, and ignore it from then on.

    For work that must be cleared up in full: a second Ctrl-C in the middle of that would leave
    processes behind. If somebody else already handles Ctrl-C, nothing changes.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return

    def interrupt() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise KeyboardInterrupt

    with on_signals(interrupt, [signal.SIGINT]):
        yield


@contextmanager
def signals_held_back() -> Iterator[None]:
    """Let Ctrl-C and a scheduler's warnings wait, in this thread, while processes are started.

    The new processes inherit this: a signal to the whole group, or to every process of a job, must
    not end them before they have called `leave_to_parent`.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# ------------------------------------------------------------------ in those it has started


def react_from_now_on(react: Callable[[], None], number: signal.Signals) -> None:
    """Call `react` at each such signal, until this process ends."""
    signal.signal(number, lambda number, frame: react())


def leave_to_parent(numbers: Iterable[signal.Signals]) -> None:
    """Ignore signals that are sent to all: the parent decides what happens then.

    Whatever was held back while this process was being started gets through again.
    """
    for number in numbers:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HELD)


def end_with_parent() -> None:
    """End this process of `multiprocessing` when its parent has ended, also by `kill -9`."""

    def watch() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def end_program_with_parent() -> None:
    """Do the same for another program: the `preexec_fn` of `subprocess`. Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
