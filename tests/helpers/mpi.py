"""Jobs of Open MPI on this host, for `make test-engines`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MPIRUN = os.environ.get("HOCKET_MPIRUN", "")
NEEDS_MPIRUN = pytest.mark.skipif(
    not Path(MPIRUN).is_file(), reason="no mpirun: see `make test-engines`"
)


def environment() -> dict[str, str]:
    """Without any place to meet."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("MASTER_", "HOCKET_"))}
    return env | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}


def job(processes: int, *command: str) -> list[str]:
    """What starts a Python command in several processes of one job."""
    started = [MPIRUN, "--allow-run-as-root", "--oversubscribe", "-n", str(processes)]
    return [*started, sys.executable, *command]


def mpirun(processes: int, *command: str) -> str:
    """Run a Python command in several processes of one job, and return what all of them said."""
    done = subprocess.run(
        job(processes, *command),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr
