"""Who decides what a signal does, and for how long."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from multiprocessing import forkserver, resource_tracker
from pathlib import Path

import pytest

from hocket.support.parallel import ordered_map
from hocket.support.signals import (
    WARNINGS,
    interrupted_once,
    on_first_signal,
    on_signals,
    signals_held_back,
)


@pytest.fixture(autouse=True)
def usual() -> Iterator[None]:
    before = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def send(number: signal.Signals) -> None:
    signal.raise_signal(number)  # to this thread; of a process, any thread may get it


def test_each_signal_is_reacted_to_and_handlers_are_given_back() -> None:
    heard: list[int] = []
    with on_signals(lambda: heard.append(1)):
        send(signal.SIGINT)
        send(signal.SIGTERM)
    assert heard == [1, 1]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_only_the_first_signal_is_reacted_to() -> None:
    heard: list[int] = []
    with on_first_signal(lambda: heard.append(1)):
        send(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)
    assert heard == [1]


def test_a_second_interrupt_is_ignored_until_all_is_cleared_up() -> None:
    with interrupted_once():
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)
        send(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_somebody_elses_handler_is_left_alone() -> None:
    heard: list[int] = []
    with on_signals(lambda: heard.append(1)), interrupted_once():
        send(signal.SIGINT)
        send(signal.SIGINT)
    assert heard == [1, 1]


def test_signals_wait_while_they_are_held_back() -> None:
    heard: list[int] = []
    with on_signals(lambda: heard.append(1)):
        with signals_held_back():
            send(signal.SIGTERM)
            assert heard == []
        assert heard == [1]


def test_other_threads_set_no_handlers() -> None:
    def work() -> None:
        with on_signals(lambda: None), on_first_signal(lambda: None), interrupted_once():
            pass

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def _signals_of(process: str, line: str) -> set[int]:
    """Return the signals that a process blocks (SigBlk) or ignores (SigIgn)."""
    for text in Path(f"/proc/{process}/status").read_text().splitlines():
        name, _, mask = text.partition(":")
        if name == line:
            return {n for n in range(1, 32) if int(mask, 16) >> (n - 1) & 1}
    raise AssertionError(f"no {line}")


def _what_a_worker_blocks(_: int) -> set[int]:
    return _signals_of("self", "SigBlk")


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_a_signal_to_every_process_of_a_job_spares_the_server_of_processes() -> None:
    """Slurm sends it to all; a server that ends by it cannot start any learner."""
    (blocked,) = ordered_map(_what_a_worker_blocks, [0], jobs=1, what="looking", fresh=True)
    assert not blocked & set(WARNINGS), "with SIGTERM the parent ends its workers"
    server = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    deaf = _signals_of(server, "SigBlk") | _signals_of(server, "SigIgn")
    assert deaf >= {signal.SIGINT, *WARNINGS}
    tracker = resource_tracker._resource_tracker._pid  # type: ignore[attr-defined]
    deaf = _signals_of(tracker, "SigBlk") | _signals_of(tracker, "SigIgn")
    assert deaf >= {signal.SIGINT, *WARNINGS}
