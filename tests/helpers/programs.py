"""Programs started as a user would start them, and what is below them."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil


def start(tmp_path: Path, *more: str) -> subprocess.Popen[str]:
    """Start `hocket train` as a user would."""
    command = [
        *(sys.executable, "-m", "hocket", "train", "synthetic", "--strategy", "kstep"),
        *("--learners", "2", "--epochs", "500", "--out", str(tmp_path / "run")),
        *("--set", "strategy.sync_every=2", "--set", "task.num_frames=4000"),
        *("--set", "task.dev_frames=500", "--set", "runtime.log_every=0.5", *more),
    ]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def wait_for(what: Any, limit_s: float = 60.0) -> Any:
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        if found := what():
            return found
        time.sleep(0.05)
    raise AssertionError("waited too long")


def learners_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The learner processes below a launcher (children of its fork server)."""
    try:
        below = psutil.Process(process.pid).children(recursive=True)
        return [p for p in below if p.parent() and p.parent().pid != process.pid]
    except psutil.NoSuchProcess:
        return []


def training(tmp_path: Path) -> bool:
    path = tmp_path / "run" / "metrics.jsonl"
    return path.exists() and path.read_text().count('"train"') > 2


def gone(pids: list[int]) -> bool:
    return not any(
        psutil.pid_exists(p) and psutil.Process(p).status() != psutil.STATUS_ZOMBIE for p in pids
    )
