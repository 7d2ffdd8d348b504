"""`hocket submit` without a scheduler: what it asks for and refuses, when a job is requeued."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.runs import simulated
from helpers.tasks import Quadratic

from hocket import Constant
from hocket.cli.cluster import command, scheduler
from hocket.cli.cluster.job import FINISHED, STOPPED_FOR_GOOD, Training, ends_for_good
from hocket.cli.cluster.scheduler import JobResources, further, minutes
from hocket.cli.main import main, parser
from hocket.errors import ConfigError, LearnerFailedError
from hocket.record.rundir import RunDirectory
from hocket.runtime.launch import tokens

# ---------------------------------------------------------------------------- what is asked for


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *(("90", 90), ("90:30", 91), ("1:30:00", 90), ("0:00:01", 1), ("2-12", 3600)),
        *(("2-12:30", 3630), ("1-0:0:30", 1441)),
    ],
)
def test_a_duration_is_read_as_slurm_reads_it(text: str, expected: int) -> None:
    assert minutes(text) == expected


@pytest.mark.parametrize("text", ["", "0", "-5", "1h", "1:2:3:4", "1-", "infinite", "٣", "1.5"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is no duration"):
        minutes(text)


def test_what_slurm_is_asked_for() -> None:
    more = further(["constraint=a&b", "--exclusive"])
    asked = JobResources(60, 2, 8, 1, partition="x", warn_s=30, setup=("a",), more=more)
    slurm = asked.for_slurm("run")
    assert slurm["additional_parameters"] == {
        "requeue": True,
        "constraint": "a&b",
        "exclusive": True,
    }
    assert (slurm["time"], slurm["nodes"], slurm["ntasks_per_node"]) == (60, 2, 1)
    assert (slurm["cpus_per_task"], slurm["gpus_per_node"], slurm["signal_delay_s"]) == (8, 1, 30)
    assert "--cpus-per-task=8" in slurm["srun_args"]
    assert "mem" not in slurm
    assert "account" not in slurm


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"nodes": 0}, "--nodes must be at least 1"),
        ({"cpus": 0}, "--cpus must be"),
        ({"gpus": -1}, "--gpus must be"),
        ({"stretches": -1}, "--stretches must be"),
        ({"warn_s": 0}, "--warn must be"),
        ({"warn_s": 3600}, "leaves no time to train"),
        ({"partition": "a\n#SBATCH --x"}, "no single line"),
        ({"setup": ("a\nb",)}, "no single line"),
    ],
)
def test_what_cannot_be_asked_for(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        JobResources(60, **wrong)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("nodes=2", "use --nodes"),
        ("--signal=TERM@9", "use --warn"),
        ("no-requeue", "sets this itself"),
        ("a b", "KEY or KEY=VALUE"),
        ("x=\n", "KEY or KEY=VALUE"),
        ("", "KEY or KEY=VALUE"),
    ],
)
def test_an_option_that_is_set_already(option: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        further([option])


# ---------------------------------------------------------------------------- the command


def refused(*given: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["submit", *given]) in (1, 2)
    return capsys.readouterr().err


def test_what_is_refused_before_it_waits_in_a_queue(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = ("--out", str(tmp_path / "run"))
    slurm = ("--slurm", "--time", "60")
    for given, message in {
        (*slurm, "--nodes", "2", "synthetic", *out): "1 learner(s) cannot be divided among 2",
        (*slurm, "--strategy", "kstep", *out): "name the task",
        (*slurm, "synthetic", "--lr", "-1", *out): "lr",
        (*slurm, "--resume", *out): "not a run directory",
        ("--local", "--time", "60", "synthetic", "--qos", "x", *out): "--qos has no effect",
        ("--local", "--time", "60", "synthetic", "--dry-run", *out): "--dry-run has no effect",
    }.items():
        assert message in refused(*given, capsys=capsys)
    assert list(tmp_path.iterdir()) == [], "nothing was written"
    monkeypatch.setitem(sys.modules, "submitit", None)
    told = refused(*slurm, "synthetic", "--dry-run", *out, capsys=capsys)
    assert "pip install 'hocket[slurm]'" in told


def test_a_run_that_is_there_is_resumed_only_if_that_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    simulated(Quadratic(), "kstep", 2, out=tmp_path / "run")
    slurm = ("--slurm", "--time", "60", "--out", str(tmp_path / "run"))
    assert "already holds a run" in refused(*slurm, "synthetic", capsys=capsys)


def test_the_job_gets_a_core_for_each_thread_and_keeps_its_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[tuple[JobResources, Training, Path]] = []

    def submit(resources: JobResources, one: Training, folder: Path, *, local: bool) -> str:
        kept.append((resources, one, folder))
        return "7"

    monkeypatch.setattr(scheduler, "submit", submit)
    run = tmp_path / "run"
    given = ["submit", "--slurm", "--time", "60", "--nodes", "2", "--out", str(run), "synthetic"]
    given += ["--strategy", "kstep", "--learners", "7", "--set", "runtime.threads=2"]
    for _ in range(2):
        assert main(given) == 0
    (resources, one, folder), (_, second, _) = kept
    assert resources.cpus == 8
    assert (folder, one.settings, second.settings) == (
        tmp_path / "run.jobs",
        tmp_path / "run.jobs" / "1.json",
        tmp_path / "run.jobs" / "2.json",
    )
    assert json.loads(one.settings.read_text())["runtime"]["learners"] == 7
    assert one.token is not None
    assert one.token == second.token
    assert stat.S_IMODE(one.token.stat().st_mode) == 0o600
    monkeypatch.setenv(tokens.FILE, str(one.token))
    assert not tokens.shared("run").is_open, "a secret that launchers accept"


# ---------------------------------------------------------------------------- the job


class Requeued(BaseException):
    """What submitit does at this point ends the process."""


@pytest.fixture
def training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Training]:
    """A job whose program is a line of the shell, under something like submitit."""

    def requeue(number: int, frame: Any) -> None:
        raise Requeued

    for name in [n for n in os.environ if n.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    usual = {n: signal.getsignal(n) for n in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM)}
    signal.signal(signal.SIGUSR2, requeue)
    args = parser().parse_args(["submit", "--local", "--time", "1", "--out", "x", "synthetic"])
    from hocket.cli.training import tables_of
    from hocket.config import build_experiment

    settings = command._keep_settings(tmp_path / "jobs", build_experiment(tables_of(args)))
    yield Training(tmp_path / "run", settings)
    for number, handler in usual.items():
        signal.signal(number, handler)


def shell(monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    monkeypatch.setattr(Training, "command", lambda self: ["sh", "-c", line])


def test_a_program_that_ends_well_ends_the_job(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell(monkeypatch, "true")
    assert training() == FINISHED


@pytest.mark.parametrize("status", [1, 2, 70])
def test_a_program_that_fails_fails_the_job(
    training: Training, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    shell(monkeypatch, f"trap '' USR2; kill -USR2 $PPID; exit {status}")
    with pytest.raises(LearnerFailedError, match=f"exit status {status}"):
        training()


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("USR1", "exit 130"),
        ("USR2", "exit 130"),
        ("USR1", "sleep 60"),  # it was only starting: the signal that is passed on ends it
        ("USR2", "sleep 60"),
    ],
)
def test_a_warning_stops_the_program_and_requeues_the_job(
    training: Training, monkeypatch: pytest.MonkeyPatch, name: str, line: str
) -> None:
    trap = "" if line.startswith("sleep") else f"trap '' {name}; "
    shell(monkeypatch, f"{trap}kill -{name} $PPID; {line}")
    with pytest.raises(Requeued):
        training()


def test_a_job_that_is_ended_is_not_requeued(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell(monkeypatch, "trap '' TERM; kill -TERM $PPID; exit 130")
    assert training() == STOPPED_FOR_GOOD


def test_slurm_says_whether_a_job_was_cancelled(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell(monkeypatch, "trap '' TERM; kill -TERM $PPID; exit 130")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    asked: list[list[str]] = []
    answers = iter(
        ["JobId=7 JobState=RUNNING Reason=None", "JobId=7 JobState=COMPLETING Reason=None"]
    )

    def run(command: list[str], **more: Any) -> Any:
        asked.append(command)
        return type("Done", (), {"stdout": next(answers)})()

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(Requeued):
        training()
    assert training() == STOPPED_FOR_GOOD
    assert asked == [["scontrol", "show", "job", "--oneliner", "7"]] * 2


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ("JobState=RUNNING Reason=None", False),  # warned, or about to be preempted
        ("JobState=COMPLETING Reason=TimeLimit", False),
        ("JobState=TIMEOUT Reason=TimeLimit", False),
        ("JobState=COMPLETING Reason=None", True),  # scancel, or scontrol requeue from outside
        ("JobState=CANCELLED Reason=None", True),
        ("", False),  # the controller does not answer
    ],
)
def test_what_slurm_tells_of_a_job(told: str, expected: bool) -> None:
    assert ends_for_good(told) == expected


def test_a_job_resumes_from_the_checkpoint_that_is_there(training: Training) -> None:
    assert "--resume" not in training.command()
    (training.run / "checkpoints" / "000000000042").mkdir(parents=True)
    assert "--resume" in training.command()
    assert not training.has_finished()


def test_a_run_that_has_finished_is_not_begun_again(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulated(Quadratic(), "kstep", 2, out=training.run, schedule=Constant(epochs=3))
    shell(monkeypatch, "exit 1")
    assert not training.has_finished(), "of another schedule"
    training.settings.write_text(json.dumps(RunDirectory(training.run).config()))
    assert training() == FINISHED


def test_launchers_of_several_nodes_get_the_secret_unless_there_is_one(
    training: Training, tmp_path: Path
) -> None:
    with_token = Training(training.run, training.settings, tmp_path / "token")
    assert with_token._secret({}) == {tokens.FILE: str(tmp_path / "token")}
    assert with_token._secret({tokens.VALUE: "x"}) == {}
    assert training._secret({}) == {}
