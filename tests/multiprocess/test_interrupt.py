"""Ctrl-C in the middle of parallel work ends the program, also when it is pressed twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys, time
from pathlib import Path
from hocket.parallel import ordered_map

def piece(number):
    Path(sys.argv[1]).joinpath(str(number)).touch()
    time.sleep(0.05)
    return number

if __name__ == "__main__":
    try:
        for number in ordered_map(piece, range(1000), jobs=2, what="waiting"):
            if number == 3:
                print("under way", flush=True)
    except KeyboardInterrupt:
        sys.exit(130)
"""


def test_two_interrupts_end_the_program(tmp_path: Path) -> None:
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
        os.kill(process.pid, signal.SIGINT)  # as `timeout` does: first the child, then its group
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(timeout=60) == 130
        assert len(list(touched.iterdir())) < 1000
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
