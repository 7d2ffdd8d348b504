"""Examples are run, not only read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_own_model() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "own_model.py")],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "agree to the bit: True" in done.stdout
