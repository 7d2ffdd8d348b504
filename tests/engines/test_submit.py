"""`hocket submit` by submitit's local executor: a job is signalled, requeued, and resumed.

`make test-engines` runs this, and skips it where submitit is missing.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from helpers.programs import wait_for

pytest.importorskip("submitit")
pytestmark = pytest.mark.timeout(240)
EPOCHS, FRAMES = 40, 6000
# Long enough to be interrupted, and checkpoints all the way.
TRAINING = [
    *("synthetic", "--strategy", "kstep", "--learners", "2", "--epochs", str(EPOCHS)),
    *("--set", f"task.num_frames={FRAMES}", "--set", "task.dev_frames=500"),
    *("--set", "runtime.evaluate_every=20", "--set", "runtime.checkpoint_every=2"),
]
Submit = Callable[..., psutil.Process]


def hocket(*given: str) -> tuple[int, str]:
    """Run `hocket submit`; a local job keeps its output open, so a pipe would not end with it."""
    hidden = ("SLURM_", "MASTER_", "HOCKET_", "SUBMITIT_")
    env = {k: v for k, v in os.environ.items() if not k.startswith(hidden)}
    command = [sys.executable, "-m", "hocket", "submit", *given]
    with tempfile.TemporaryFile("w+") as said:
        done = subprocess.run(
            command,
            env=env | {"OMP_NUM_THREADS": "1"},
            stdout=said,
            stderr=said,
            timeout=100,
            check=False,
        )
        said.seek(0)
        return done.returncode, said.read()


@pytest.fixture
def submit() -> Iterator[Submit]:
    """Submit a job on this machine; none is left behind."""
    controllers: list[psutil.Process] = []

    def one(run: Path, *given: str) -> psutil.Process:
        status, said = hocket("--local", "--time", "60", *given, "--out", str(run))
        assert status == 0, said
        (number,) = re.findall(r"^job (\d+) trains", said, re.MULTILINE)
        controllers.append(psutil.Process(int(number)))
        return controllers[-1]

    yield one
    for controller in controllers:
        if controller.is_running():
            for process in [*controller.children(recursive=True), controller]:
                process.kill()


def job_of(controller: psutil.Process) -> psutil.Process:
    """The process that submitit runs the job in: it hears what a scheduler sends."""
    for child in controller.children():
        if "submitit.core._submit" in child.cmdline():
            return child
    raise AssertionError(f"no job below {controller.cmdline()}")


def summary(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert found["event"] == "summary", found
    return found


def log(run: Path, controller: psutil.Process) -> str:
    return Path(f"{run}.jobs/{controller.pid}_0_log.out").read_text()


def has_ended(controller: psutil.Process) -> bool:
    return not controller.is_running() or controller.status() == psutil.STATUS_ZOMBIE


def has_checkpoint(run: Path) -> bool:
    return any((run / "checkpoints").glob("0*"))


@pytest.mark.parametrize("number", [signal.SIGUSR2, signal.SIGUSR1])
def test_a_job_that_is_warned_goes_on_from_its_checkpoint(
    submit: Submit, tmp_path: Path, number: signal.Signals
) -> None:
    run = tmp_path / "run"
    controller = submit(run, *TRAINING)
    wait_for(lambda: has_checkpoint(run), 100)
    job_of(controller).send_signal(number)
    wait_for(lambda: has_ended(controller), 150)
    told = log(run, controller)
    assert told.count("Starting with JobEnvironment") == 2, told
    assert "stopping at the next boundary" in told
    assert "Requeued job" in told
    end = summary(run)
    assert not end["stopped"]
    assert end["frames"] == sum(one["frames"] for one in end["learners"]) == EPOCHS * FRAMES


def test_a_job_that_is_ended_stays_ended_until_it_is_submitted_again(
    submit: Submit, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    controller = submit(run, *TRAINING)
    wait_for(lambda: has_checkpoint(run), 100)
    controller.terminate()
    wait_for(lambda: has_ended(controller), 100)
    stopped = summary(run)
    assert stopped["stopped"]
    assert (run / "checkpoints" / f"{stopped['frames']:012d}").is_dir()
    second = hocket("--local", "--time", "60", *TRAINING, "--out", str(run))
    assert "already holds a run" in second[1]
    again = submit(run, "--resume", "--quiet")
    wait_for(lambda: has_ended(again), 150)
    assert summary(run)["frames"] == EPOCHS * FRAMES
    done = submit(run, "--resume")  # as Slurm does when a node fails after the last step
    wait_for(lambda: has_ended(done), 100)
    assert "has finished already" in log(run, done)


def test_what_is_edited_while_a_job_waits_does_not_change_it(
    submit: Submit, tmp_path: Path
) -> None:
    settings = tmp_path / "settings.toml"
    settings.write_text("[schedule]\nepochs = 1\n[task]\nname = 'synthetic'\nnum_frames = 2000\n")
    controller = submit(tmp_path / "run", "--config", str(settings))
    settings.write_text("[schedule]\nepochs = 2000\n")
    wait_for(lambda: has_ended(controller), 100)
    assert summary(tmp_path / "run")["frames"] == 2000


def test_a_job_that_fails_says_why(submit: Submit, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "note").write_text("not a run")
    assert "holds no run" in hocket("--local", "--time", "9", *TRAINING, "--out", str(run))[1]
    (run / "note").unlink()
    controller = submit(run, *TRAINING, "--lr", "1e30")
    wait_for(lambda: has_ended(controller), 100)
    told = log(run, controller)
    assert "ended with exit status 1; its message is in this log" in told
    assert told.count("Starting with JobEnvironment") == 1, "it was not requeued"


def test_the_batch_script_is_printed_and_nothing_is_left(tmp_path: Path) -> None:
    run = tmp_path / "run"
    status, said = hocket(
        *("--slurm", "--time", "1-12", "--nodes", "3", "--gpus", "2", "--partition", "fast"),
        *("--sbatch", "constraint=avx512", "--setup", "module load x", "--dry-run"),
        *("synthetic", "--strategy", "kstep", "--learners", "8", "--out", str(run)),
    )
    assert status == 0, said
    lines = said.splitlines()
    for line in (
        *("--nodes=3", "--ntasks-per-node=1", "--cpus-per-task=3", "--gpus-per-node=2"),
        *("--time=2160", "--signal=USR2@120", "--requeue", "--partition=fast"),
        *("--constraint=avx512", "--job-name=run", "--open-mode=append"),
    ):
        assert f"#SBATCH {line}" in lines
    assert lines.index("module load x") < len(lines) - 2
    assert any(line.startswith("srun ") and "--cpus-per-task=3" in line for line in lines)
    assert list(tmp_path.iterdir()) == []
