"""Examples are run, not only read."""

from __future__ import annotations

import difflib
import re
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
    assert "agree bit for bit: True" in done.stdout


def test_attach_runs_on_two_learners_and_its_diff_is_the_documented_one() -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "hocket.launch", "--learners", "2"),
            str(ROOT / "examples" / "attach.py"),
        ],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    reached = [float(x) for x in re.findall(r"rank \d of 2: accuracy ([\d.]+)", done.stdout)]
    assert len(reached) == 2
    assert min(reached) > 0.95
    plain, ours = ((ROOT / "examples" / f"{n}.py").read_text() for n in ("plain", "attach"))
    diff = list(difflib.unified_diff(plain.splitlines(), ours.splitlines(), lineterm="", n=1))
    assert "\n".join(diff[2:]) in (ROOT / "docs" / "attach.md").read_text()
