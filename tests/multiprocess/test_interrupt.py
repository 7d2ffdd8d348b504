"""Ctrl-C in the middle of parallel work ends the program, also when it is pressed twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

PROGRAM = """
import signal, sys, time
from pathlib import Path
from hocket.support.parallel import ordered_map

def piece(number):
    Path(sys.argv[1]).joinpath(str(number)).touch()
    time.sleep(0.05)
    return number

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells ignore it in the background
    try:
        for number in ordered_map(piece, range(1000), jobs=2, what="waiting"):
            if number == 3:
                print("under way", flush=True)
    except KeyboardInterrupt:
        sys.exit(130)
"""


@pytest.fixture
def program(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Parallel work that is under way, in a session of its own."""
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    touched = tmp_path / "touched"
    touched.mkdir()
    process = subprocess.Popen(
        [sys.executable, str(script), str(touched)],
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "under way\n"
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def test_two_interrupts_end_the_program(program: subprocess.Popen[str], tmp_path: Path) -> None:
    os.kill(program.pid, signal.SIGINT)  # as `timeout` does: first the child, then its group
    os.killpg(program.pid, signal.SIGINT)
    assert program.wait(timeout=60) in (130, -signal.SIGINT)  # the second may strike at the exit
    assert len(list((tmp_path / "touched").iterdir())) < 1000


def test_workers_end_with_a_program_that_is_killed(program: subprocess.Popen[str]) -> None:
    """They are another process's children, and nobody is left to tell them."""
    below = psutil.Process(program.pid).children(recursive=True)
    assert len(below) >= 3  # the server they are forked from, and two workers
    program.kill()
    program.wait(timeout=10)
    _, alive = psutil.wait_procs(below, timeout=30)
    assert not alive
