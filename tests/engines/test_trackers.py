"""`hocket track` into the trackers themselves, as far as they keep what they are told on this host.

`make test-engines` installs them; each test is skipped where its tracker is missing.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hocket.cli.main import main

pytestmark = pytest.mark.timeout(240)
RUN = [
    *("--strategy", "kstep", "--epochs", "2"),
    *("--set", "task.num_frames=3000", "--set", "task.dev_frames=500"),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("tracked") / "run"
    assert main(["simulate", "synthetic", *RUN, "--learners", "2", "--out", str(out)]) == 0
    return out


def losses(run: Path) -> list[tuple[int, float]]:
    """Frames and loss of every evaluation, as the run's own record has them."""
    events = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    found = [(e["frames"], e["loss"]) for e in events if e["event"] == "eval"]
    assert len(found) > 1
    return found


def test_mlflow_has_what_the_record_has(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow: Any = pytest.importorskip("mlflow", reason="no mlflow: see `make test-engines`")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "kept").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    assert main(["track", str(run), "--to", "mlflow", "--project", "ours"]) == 0
    client = mlflow.MlflowClient()
    (experiment,) = client.search_experiments(filter_string="name = 'ours'")
    (tracked,) = client.search_runs([experiment.experiment_id])
    history = client.get_metric_history(tracked.info.run_id, "eval/loss")
    assert [(one.step, one.value) for one in history] == losses(run)
    assert tracked.data.params["strategy.name"] == "kstep"


def test_what_mlflow_refuses_is_told_in_its_words(
    run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("mlflow", reason="no mlflow: see `make test-engines`")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nowhere://at-all")
    assert main(["track", str(run), "--to", "mlflow"]) == 1
    assert "mlflow failed: " in capsys.readouterr().err


def test_trackio_has_what_the_record_has(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))
    pytest.importorskip("trackio", reason="no trackio: see `make test-engines`")
    assert main(["track", str(run), "--to", "trackio", "--project", "ours"]) == 0
    with sqlite3.connect(tmp_path / "ours.db") as base:
        rows = base.execute("select step, metrics from metrics order by id").fetchall()
    told = [(step, json.loads(figures)) for step, figures in rows]
    assert [(step, f["eval/loss"]) for step, f in told if "eval/loss" in f] == losses(run)


def test_wandb_takes_the_record(run: Path, tmp_path: Path) -> None:
    """In a program of its own: wandb writes its file when the program ends."""
    pytest.importorskip("wandb", reason="no wandb: see `make test-engines`")
    command = [sys.executable, "-m", "hocket", "track", str(run), "--to", "wandb"]
    kept_offline = {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path)}
    subprocess.run(command, env=os.environ | kept_offline, timeout=120, check=True)
    (kept,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    data = kept.read_bytes()
    for name in (b"eval/loss", b"summary/frames_per_s"):
        assert name in data
