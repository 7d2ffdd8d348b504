"""What has started a process, as which of how many; what is refused instead of being ignored."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import hocket
from hocket.cli.main import main as hocket_command
from hocket.errors import ConfigError, WaitTimeoutError
from hocket.runtime.launch import engines, script
from hocket.runtime.launch.engines import Engine, started_by
from hocket.runtime.net.libraries import mpi_group

EXAMPLE = Path(__file__).parents[2] / "examples" / "attach.py"

OMPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}
ALONE = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0"}
BATCH = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
SRUN = BATCH | {"SLURM_PROCID": "1", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2"}
PLAIN = {"RANK": "1", "WORLD_SIZE": "2"}
TORCHRUN = PLAIN | {"TORCHELASTIC_RUN_ID": "none", "LOCAL_RANK": "0", "GROUP_WORLD_SIZE": "2"}
OURS = PLAIN | {"HOCKET_STORE": "@hocket-store-1", "LOCAL_RANK": "0"}


@pytest.mark.parametrize(
    ("env", "engine"),
    [
        (OURS, engines.OURS),
        (TORCHRUN, engines.TORCHRUN),
        (OMPI, engines.OPEN_MPI),
        (HYDRA, engines.HYDRA),
        (SRUN, engines.SLURM),
        (PLAIN, engines.VARIABLES),
        (OMPI | {"PMIX_RANK": "1"}, engines.OPEN_MPI),
        (SRUN | {"PMIX_RANK": "1"} | HYDRA, engines.HYDRA),
        (SRUN | PLAIN, engines.SLURM),
    ],
    ids=["ours", "torchrun", "openmpi", "hydra", "srun", "plain", "pmix", "srun pmi", "submitit"],
)
def test_each_engine_says_who_this_process_is(env: dict[str, str], engine: Engine) -> None:
    started = started_by(env)
    assert started is not None
    assert started.engine is engine
    assert (started.rank, started.size) == (1, 2)


def test_the_innermost_engine_counts() -> None:
    """`srun torchrun`: Slurm has started torchrun, and torchrun this process."""
    inner = TORCHRUN | {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}
    started = started_by(SRUN | inner)
    assert started is not None
    assert (started.engine, started.rank, started.size) == (engines.TORCHRUN, 5, 8)
    assert started.local_rank == 1
    wide = OMPI | {"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "8"}
    started = started_by(SRUN | wide)  # mpirun has started its servers with srun
    assert started is not None
    assert (started.engine, started.rank, started.size) == (engines.OPEN_MPI, 5, 8)


@pytest.mark.parametrize(
    "env",
    [
        {},
        BATCH,
        {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"},
        {"RANK": "3"},
        {"SLURM_JOB_ID": "7", "PATH": "/bin"},
    ],
    ids=["nothing", "batch script", "salloc", "a variable of that name", "a job"],
)
def test_a_single_process_is_left_alone(env: dict[str, str]) -> None:
    assert started_by(env) is None
    engines.refuse_several("hocket train", env)


@pytest.mark.parametrize(
    "env",
    [
        SRUN | {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"},
        ALONE,
        {"RANK": "0", "WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": "x"},
    ],
    ids=["srun -n 1", "mpirun -n 1", "torchrun with one"],
)
def test_one_of_one_may_do_anything(env: dict[str, str]) -> None:
    started = started_by(env)
    assert started is not None
    assert started.size == 1
    engines.refuse_several("hocket train", env)


@pytest.mark.parametrize(
    ("env", "reason"),
    [
        ({"OMPI_COMM_WORLD_RANK": "0"}, "OMPI_COMM_WORLD_SIZE is not known"),
        ({"PMI_SIZE": "2"}, "PMI_RANK is not known"),
        ({"PMIX_RANK": "0"}, "how many there are is not known"),
        (OMPI | {"OMPI_COMM_WORLD_SIZE": "two"}, "OMPI_COMM_WORLD_SIZE='two' must be a number"),
        (OMPI | {"OMPI_COMM_WORLD_RANK": "2"}, "OMPI_COMM_WORLD_RANK=2 is no rank of"),
        (
            OMPI | {"RANK": "0", "WORLD_SIZE": "1"},
            r"rank 1 of 2, but whatever has set RANK and WORLD_SIZE says",
        ),
        (SRUN | ALONE, r"rank 0 of 1, but srun \(Slurm\) says rank 1 of 2"),
    ],
)
def test_what_is_unclear_or_contradictory_is_refused(env: dict[str, str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        started_by(env)


@pytest.mark.parametrize("env", [OMPI, HYDRA, SRUN, PLAIN, OURS], ids=lambda e: next(iter(e)))
def test_what_starts_its_own_learners_is_not_started_several_times(env: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"2 processes.*a separate model: start it once.*2"):
        engines.refuse_several("hocket train", env)


def test_torchruns_that_know_nothing_of_each_other_are_refused() -> None:
    alone = TORCHRUN | {"GROUP_WORLD_SIZE": "1"}
    with pytest.raises(ConfigError, match=r"torchrun 2 times.*--nnodes=2.*env -u SLURM_STEP"):
        engines.refuse_separate_torchruns(SRUN | alone)
    engines.refuse_separate_torchruns(SRUN | TORCHRUN)
    engines.refuse_separate_torchruns(alone)
    engines.refuse_separate_torchruns(BATCH | alone)


# ------------------------------------------------------------------ as a user meets it


def started(monkeypatch: pytest.MonkeyPatch, env: dict[str, str]) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value)


def test_mpirun_does_not_train_separate_models_silently() -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)],
        env=os.environ | OMPI,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode != 0
    assert "mpirun (Open MPI) has started 2 processes, but nothing says where" in done.stderr
    assert "mpirun -x MASTER_ADDR=HOST -x MASTER_PORT=29500" in done.stderr


def test_one_job_on_one_host_has_a_name_of_its_own() -> None:
    here = OMPI | {"PMIX_NAMESPACE": "prterun-vm-7@1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
    started = started_by(here)
    assert started is not None
    assert engines.job_on_one_host(started, here) == "mpirun (Open MPI)/prterun-vm-7@1"
    for changed in ({"OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, {"PMIX_NAMESPACE": None}):
        env = {k: v for k, v in (here | changed).items() if v is not None}
        assert engines.job_on_one_host(started, env) is None
    step = SRUN | {"SLURM_STEP_NUM_NODES": "1"}
    started = started_by(step)
    assert started is not None
    assert engines.job_on_one_host(started, step) == "srun (Slurm)/7/0"
    assert engines.job_on_one_host(started, step | {"SLURM_STEP_NUM_NODES": "2"}) is None
    started = started_by(HYDRA)
    assert started is not None
    assert engines.job_on_one_host(started, HYDRA) is None


def test_hocket_train_under_mpirun_needs_a_place_to_meet(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    started(monkeypatch, OMPI)
    out = tmp_path / "run"
    assert hocket_command(["train", "synthetic", "--out", str(out)]) == 2
    assert "2 processes, but nothing says where they meet" in capsys.readouterr().err
    assert not out.exists()


def test_the_launcher_of_scripts_is_not_started_by_srun(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started(monkeypatch, SRUN)
    assert script.main(["--learners", "2", str(EXAMPLE)]) == 2
    assert "srun (Slurm) has started 2 processes" in capsys.readouterr().err


def test_the_launcher_of_scripts_starts_no_more_than_a_host_can_hold(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert script.main(["--learners", "100000", str(EXAMPLE)]) == 2
    assert "--learners must be from 1 to 1,024, not 100,000" in capsys.readouterr().err
    begun: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def one_only(command: list[str], **more: Any) -> subprocess.Popen[bytes]:
        if begun:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        begun.append(popen(["sleep", "100"]))
        return begun[0]

    monkeypatch.setattr(subprocess, "Popen", one_only)
    assert script.main(["--learners", "2", str(EXAMPLE)]) == 1
    assert "rank 1 of 2 cannot be started" in capsys.readouterr().err
    assert begun[0].returncode is not None, "the first one was ended"


def test_a_learner_may_say_itself_who_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    started(monkeypatch, OMPI)
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with hocket.attach(model, optimizer, rank=0, world_size=1) as dist:
        assert dist.size == 1
    with pytest.raises(ConfigError, match="rank=2 is no rank of world_size=2"):
        hocket.attach(model, optimizer, rank=2, world_size=2)


# ------------------------------------------------------------------ vectors over MPI


def without_mpi4py(name: str) -> None:
    assert name == "mpi4py"


@pytest.mark.parametrize(
    ("env", "ranks", "reason"),
    [
        ({}, 2, "processes that MPI has started, one for each learner: mpirun -n 2"),
        (TORCHRUN, 2, "processes that MPI has started"),
        (OMPI | TORCHRUN, 2, "processes that MPI has started"),
        (OMPI, 4, "has started 2, and there are 4 learners: mpirun -n 4"),
        (SRUN, 2, r"needs mpi4py in every process: pip install 'hocket\[mpi\]'"),
    ],
    ids=["nothing", "torchrun", "torchrun within", "more learners", "no mpi4py"],
)
def test_mpi_carries_vectors_between_its_own_processes(
    env: dict[str, str], ranks: int, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", without_mpi4py)
    with pytest.raises(ConfigError, match=reason):
        engines.check_mpi(ranks, env)


OVER_MPI = ["--set", "runtime.transport=mpi", "--set", "runtime.on_loss=stop"]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--strategy", "kstep"], "needs processes that MPI has started"),
        (["--strategy", "adpsgd"], "carries collectives alone, and strategy 'adpsgd' sends"),
        (["--strategy", "dpsgd"], "carries collectives alone, and strategy 'dpsgd' sends"),
        (["--set", "runtime.on_loss=continue"], "cannot go on without a learner that is lost"),
        (["--set", "codec.name=onebit"], "carries plain vectors, and codec 'onebit'"),
    ],
    ids=["no mpirun", "asynchronous", "messages", "losses", "codec"],
)
def test_what_mpi_cannot_do_is_refused(
    options: list[str], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["train", "synthetic", "--learners", "2", "--strategy", "allreduce", *OVER_MPI]
    assert hocket_command([*command, *options, "--out", str(tmp_path / "run")]) == 2
    assert reason in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "run").exists()


def test_mpi_under_a_loop_of_ones_own_needs_mpi() -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ConfigError, match="needs processes that MPI has started"):
        hocket.attach(model, optimizer, transport="mpi")


def test_a_wait_for_mpi_has_a_limit() -> None:
    answers = iter([False, False, True])
    mpi_group.wait_for(lambda: next(answers), 20.0)
    with pytest.raises(WaitTimeoutError, match="another process of the job is stuck"):
        mpi_group.wait_for(lambda: False, 0.05)


def test_a_learner_inherits_the_wire_of_mpi(monkeypatch: pytest.MonkeyPatch) -> None:
    """MPICH and Intel MPI talk to a process through a descriptor, whose number they tell it."""
    monkeypatch.delenv("PMI_FD", raising=False)
    assert mpi_group.wire_of_mpi() is None
    ours, theirs = os.pipe()
    monkeypatch.setenv("PMI_FD", str(theirs))
    wire = mpi_group.wire_of_mpi()
    assert wire is not None
    mpi_group.take_wire(wire)  # in the learner
    handed_on = int(os.environ["PMI_FD"])
    assert handed_on not in (theirs, wire.fileno())
    os.close(theirs)
    wire.close()
    os.write(handed_on, b"finalize")
    assert os.read(ours, 100) == b"finalize"
    os.close(handed_on)
    os.close(ours)
