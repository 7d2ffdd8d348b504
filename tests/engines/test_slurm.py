"""Slurm starts launchers and learners, requeues a run and resumes it: where Slurm is installed.

The cluster is this host alone, as two nodes; the daemons are Debian's (apt-get install slurm-wlm
munge). `make test-engines` runs this, and skips it where they are missing.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import slurm
from helpers.programs import wait_for
from helpers.slurm import Slurm

ROOT = Path(__file__).parents[2]
WHY_NOT = slurm.why_not()
pytestmark = [pytest.mark.timeout(280), pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)]
HOCKET = (sys.executable, "-m", "hocket")
EPOCHS, FRAMES = 40, 6000
# Long enough to be interrupted, and checkpoints all the way.
TRAINING = [
    *("synthetic", "--strategy", "kstep", "--epochs", str(EPOCHS)),
    *("--set", f"task.num_frames={FRAMES}", "--set", "task.dev_frames=500"),
    *("--set", "runtime.evaluate_every=20", "--set", "runtime.checkpoint_every=2"),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Slurm]:
    with slurm.cluster() as one:
        yield one


def summary(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert found["event"] == "summary", found
    return found


def has_checkpoint(run: Path) -> bool:
    return any((run / "checkpoints").glob("0*"))


def finished_exactly(run: Path) -> None:
    end = summary(run)
    assert not end["stopped"]
    assert end["frames"] == EPOCHS * FRAMES
    assert sum(one["frames"] for one in end["learners"]) == end["frames"]


# ---------------------------------------------------------------------------- srun


def test_srun_starts_launchers_that_find_each_other(cluster: Slurm, tmp_path: Path) -> None:
    run = tmp_path / "run"
    more = ["--learners", "3", "--epochs", "1", "--out", str(run)]
    said = cluster.run("srun", "-N1", "-n2", *HOCKET, "train", *TRAINING, *more, limit_s=120)
    assert "engine: srun (Slurm), 2 launchers" in said
    assert summary(run)["frames"] == FRAMES
    assert [one["rank"] for one in summary(run)["learners"]] == [0, 1, 2]


def test_srun_attaches_one_model(cluster: Slurm) -> None:
    command = ("srun", "-N1", "-n2", sys.executable, str(ROOT / "examples" / "attach.py"))
    lines = sorted(cluster.run(*command, limit_s=120).splitlines())
    told = [line for line in lines if line.startswith("rank ")]
    assert [line.partition(":")[0] for line in told] == ["rank 0 of 2", "rank 1 of 2"]
    assert len({line.partition(":")[2] for line in told}) == 1, "two separate models"


def test_two_nodes_need_a_place_to_meet(cluster: Slurm, tmp_path: Path) -> None:
    more = ["--learners", "2", "--out", str(tmp_path / "run")]
    said = cluster.run("srun", "-N2", *HOCKET, "train", *TRAINING, *more, check=False, limit_s=120)
    assert "nothing says where they meet" in said
    assert "export them before srun" in said


# ---------------------------------------------------------------------------- hocket submit


def submitted(cluster: Slurm, run: Path, *more: str) -> str:
    pytest.importorskip("submitit")
    given = ("submit", "--slurm", "--time", "60", *more, "--out", str(run))
    said = cluster.run(*HOCKET, *given)
    (job,) = re.findall(r"^job (\d+) trains", said, re.MULTILINE)
    return str(job)


def log(run: Path, job: str, node: int = 0) -> str:
    return Path(f"{run}.jobs/{job}_{node}_log.out").read_text()


def until_it_ends(cluster: Slurm, job: str) -> str:
    ended = ("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT")
    wait_for(lambda: cluster.state(job) in ended, 150)
    return cluster.state(job)


@pytest.mark.parametrize(("name", "nodes"), [("USR2", 2), ("TERM", 1)])
def test_a_job_that_is_warned_is_requeued_and_resumed(
    cluster: Slurm, tmp_path: Path, name: str, nodes: int
) -> None:
    run = tmp_path / "run"
    learners = ("--learners", "2")
    job = submitted(cluster, run, "--nodes", str(nodes), *TRAINING, *learners)
    wait_for(lambda: has_checkpoint(run), 100)
    cluster.run("scancel", f"--signal={name}", job)
    cluster.at_once(job)
    assert summary(run)["stopped"]
    assert until_it_ends(cluster, job) == "COMPLETED", log(run, job)
    assert cluster.facts(job)["Restarts"] == "1"
    assert "stopping at the next boundary" in log(run, job)
    finished_exactly(run)
    if nodes > 1:
        assert "engine: srun (Slurm), 2 launchers" in log(run, job)
        assert "can join it" not in log(run, job), "a secret was made"


def test_a_job_that_is_cancelled_ends_for_good(cluster: Slurm, tmp_path: Path) -> None:
    run = tmp_path / "run"
    job = submitted(cluster, run, *TRAINING, "--learners", "2")
    wait_for(lambda: has_checkpoint(run), 100)
    cluster.run("scancel", job)
    assert until_it_ends(cluster, job) == "CANCELLED"
    assert cluster.facts(job)["Restarts"] == "0"
    stopped = summary(run)
    assert stopped["stopped"]
    assert (run / "checkpoints" / f"{stopped['frames']:012d}").is_dir()
    again = submitted(cluster, run, "--resume")
    assert until_it_ends(cluster, again) == "COMPLETED", log(run, again)
    finished_exactly(run)


def test_what_slurm_refuses_is_said(cluster: Slurm, tmp_path: Path) -> None:
    pytest.importorskip("submitit")
    given = ("submit", "--slurm", "--time", "60", "--partition", "nowhere", *TRAINING)
    said = cluster.run(*HOCKET, *given, "--out", str(tmp_path / "run"), check=False)
    assert "hocket: Slurm did not take the job" in said
    assert "invalid partition" in said


# ---------------------------------------------------------------------------- a script by hand


def test_the_batch_script_of_the_manual(cluster: Slurm, tmp_path: Path) -> None:
    """As it is printed, but for sizes and places: stopped by a signal, requeued, resumed."""
    text = (ROOT / "docs" / "engines.md").read_text()
    (script,) = re.findall(r"```bash\n(#!/bin/bash\n.*?)```", text, re.DOTALL)
    (tmp_path / "token").write_text("0123456789abcdef\n")
    (tmp_path / "token").chmod(0o600)
    hocket = f"{' '.join(HOCKET)} train"
    for old, new in {
        "--nodes=4": "--nodes=2",
        "--cpus-per-task=16": "--cpus-per-task=1",
        "$((16 * SLURM_NNODES))": "$SLURM_NNODES",
        "/shared/runs": str(tmp_path),
        "$HOME/.hocket-token": str(tmp_path / "token"),
        "hocket train synthetic --strategy kstep": f"{hocket} {' '.join(TRAINING)}",
    }.items():
        assert old in script, old
        script = script.replace(old, new)
    file = tmp_path / "script.sh"
    file.write_text(script)
    said = cluster.run("sbatch", "--job-name=run", f"--output={tmp_path}/log", str(file))
    (job,) = re.findall(r"job (\d+)", said)
    wait_for(lambda: has_checkpoint(tmp_path / "run"), 100)
    cluster.run("scancel", "--signal=USR1", job)
    cluster.at_once(job)
    assert until_it_ends(cluster, job) == "COMPLETED", (tmp_path / "log").read_text()
    assert cluster.facts(job)["Restarts"] == "1"
    finished_exactly(tmp_path / "run")
