"""Vectors over MPI: `runtime.transport = "mpi"`, with Open MPI and mpi4py (`make test-engines`)."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from helpers.mpi import NEEDS_MPIRUN, ROOT, environment, job, mpirun
from helpers.runs import same_model
from safetensors.torch import load_file

from hocket.cli.main import main as hocket_command

HAS_MPI4PY = importlib.util.find_spec("mpi4py") is not None
OVER_MPI = ["--set", "runtime.transport=mpi", "--set", "runtime.on_loss=stop"]
RESULT = re.compile(r"rank \d of \d: accuracy \d\.\d{3}")  # lines of two may run together
EPOCHS = 6
EPOCH_FRAMES = 20_000

pytestmark = [
    pytest.mark.timeout(200),
    NEEDS_MPIRUN,
    pytest.mark.skipif(not HAS_MPI4PY, reason="no mpi4py: see `make test-engines`"),
]

SUMS = """
import sys, torch
from hocket.core.numerics import weighted_sum
from hocket.runtime.net.libraries.mpi_group import MpiGroup, end_mpi

size = 3
import os
rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
exact = MpiGroup(rank, size, in_order=True, timeout_s=60.0)
loose = MpiGroup(rank, size, in_order=False, timeout_s=60.0)
for length in (1, 17, 33, 100_003):
    noise = torch.Generator().manual_seed(length)
    vectors = [torch.randn(length, generator=noise) for _ in range(size)]
    for shares in ([0.25, 0.5, 0.25], [0.7, 0.0, 0.3], [1.0, 0.0, 0.0]):
        mine = vectors[rank].clone()
        if shares[rank] == 0.0:
            mine.fill_(float("nan"))
        wanted = weighted_sum(vectors, shares)
        assert torch.equal(exact.weighted_sum(mine, shares), wanted), (length, shares)
        torch.testing.assert_close(loose.weighted_sum(mine, shares), wanted)
    for root in range(size):
        assert torch.equal(exact.broadcast(vectors[rank], root), vectors[root])
end_mpi()
print(f"rank {rank}: all sums agree")
"""

ATTACHED = """
import functools, runpy, sys
import hocket
from hocket.runtime.net.libraries.mpi_group import MpiGroup

sums = 0
plain = MpiGroup.weighted_sum

def counted(self, x, shares):
    global sums
    sums += 1
    return plain(self, x, shares)

MpiGroup.weighted_sum = counted
hocket.attach = functools.partial(hocket.attach, transport="mpi")
runpy.run_path(sys.argv[1], run_name="__main__")
print(f"sums over MPI: {sums}")
"""


def train(run: Path, *more: str) -> list[str]:
    given = ["--learners", "2", "--quiet", "--out", str(run)]
    return ["-m", "hocket", "train", "synthetic", *given, *OVER_MPI, *more]


def test_sums_are_those_in_rank_order_bit_for_bit(tmp_path: Path) -> None:
    """Of any length, also where a learner has no stripe; a share of 0 hides what is there."""
    script = tmp_path / "sums.py"
    script.write_text(SUMS)
    assert mpirun(3, str(script)).count("all sums agree") == 3


@pytest.mark.parametrize("strategy", ["allreduce", "delay-by-one"])
def test_a_run_over_mpi_is_the_simulators(strategy: str, tmp_path: Path) -> None:
    real, simulated = tmp_path / "real", tmp_path / "simulated"
    chosen = ["--strategy", strategy, "--set", "task.num_frames=12000", "--epochs", "1"]
    mpirun(2, *train(real, *chosen))
    out = ["--learners", "2", "--quiet", "--out", str(simulated)]
    assert hocket_command(["simulate", "synthetic", *chosen, *out]) == 0
    one, other = (load_file(run / "model.safetensors") for run in (real, simulated))
    assert same_model(one, other)
    config = json.loads((real / "config.json").read_text())
    assert config["runtime"]["transport"] == "mpi"
    assert config["versions"]["engine"] == "mpirun (Open MPI), 2 launchers"


def test_a_loop_of_ones_own_goes_over_mpi(tmp_path: Path) -> None:
    """The example as it is prints what it prints over our own sockets and memory."""
    script, example = tmp_path / "over_mpi.py", str(ROOT / "examples" / "attach.py")
    script.write_text(ATTACHED)
    said = mpirun(2, str(script), example)
    sums = [int(number) for number in re.findall(r"sums over MPI: (\d+)", said)]
    assert len(sums) == 2
    assert min(sums) > 10
    done = subprocess.run(
        [sys.executable, "-m", "hocket.launch", "--learners", "2", example],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    assert sorted(RESULT.findall(said)) == sorted(RESULT.findall(done.stdout))
    assert len(RESULT.findall(said)) == 2


def test_a_lost_learner_ends_the_job_and_resume_continues_it(tmp_path: Path) -> None:
    run = tmp_path / "run"
    size = ["--epochs", str(EPOCHS), "--set", f"task.num_frames={EPOCH_FRAMES}"]
    often = ["--set", "runtime.checkpoint_every=0.5"]
    command = train(run, "--strategy", "kstep", *size, *often)
    started = subprocess.Popen(
        job(2, *command), env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    try:
        victim = _learner_once_there_is_a_checkpoint(started, run)
        os.kill(victim, signal.SIGKILL)
        assert started.wait(60) != 0
    finally:
        started.kill()
        started.communicate(timeout=20)
    assert not (run / "model.safetensors").exists()
    mpirun(2, *command, "--resume")
    summary = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert summary["event"] == "summary"
    assert summary["frames"] == EPOCHS * EPOCH_FRAMES


def _learner_once_there_is_a_checkpoint(started: subprocess.Popen[bytes], run: Path) -> int:
    """Return a process of the job that was forked from a fork server."""
    until = time.monotonic() + 90
    while time.monotonic() < until and started.poll() is None:
        if any(one.name.isdigit() for one in run.glob("checkpoints/*")):
            for one in psutil.Process(started.pid).children(recursive=True):
                parent = one.parent()
                if _forked(one) and parent is not None and _forked(parent):
                    return int(one.pid)
        time.sleep(0.02)
    raise AssertionError("the run has not come as far as a checkpoint")


def _forked(process: psutil.Process) -> bool:
    try:
        return any("multiprocessing.forkserver" in word for word in process.cmdline())
    except psutil.Error:
        return False
