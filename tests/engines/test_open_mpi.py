"""Open MPI starts learners and launchers: `make test-engines`, which installs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.mpi import NEEDS_MPIRUN, ROOT, mpirun

pytestmark = [pytest.mark.timeout(200), NEEDS_MPIRUN]


def test_attach_trains_one_model() -> None:
    said = mpirun(2, str(ROOT / "examples" / "attach.py"))
    lines = sorted(line for line in said.splitlines() if line.startswith("rank "))
    assert [line.partition(":")[0] for line in lines] == ["rank 0 of 2", "rank 1 of 2"]
    assert len({line.partition(":")[2] for line in lines}) == 1, "two separate models"


def test_hocket_train_divides_its_learners_among_the_processes(tmp_path: Path) -> None:
    run = tmp_path / "run"
    options = ["--strategy", "kstep", "--learners", "3", "--epochs", "1", "--out", str(run)]
    said = mpirun(2, "-m", "hocket", "train", "synthetic", *options)
    assert "engine: mpirun (Open MPI), 2 launchers" in said
    assert "can join it" not in said, "a job on one host lets nobody else in"
    versions = json.loads((run / "config.json").read_text())["versions"]
    assert versions["engine"] == "mpirun (Open MPI), 2 launchers"
    summary = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert summary["event"] == "summary"
    assert [one["rank"] for one in summary["learners"]] == [0, 1, 2]
    assert summary["frames"] == sum(one["frames"] for one in summary["learners"])
