"""Real learners come, die and leave, and so do launchers: `make test-long`."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from helpers.programs import gone, learners_of, wait_for

from hocket.runtime.launch import joining

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]
STRATEGIES = ["allreduce", "bmuf", "adpsgd", "asgd"]
FRAMES = 4000  # of an epoch
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start `hocket train` as a user would; no process is left behind."""
    started: list[subprocess.Popen[str]] = []

    def one(run: Path, *given: str, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
        settings = [f"task.num_frames={FRAMES}", "task.dev_frames=500", "runtime.log_every=0.5"]
        command = [sys.executable, "-m", "hocket", "train", "--out", str(run), *given]
        if "--resume" not in given:
            command += ["synthetic", *(word for one in settings for word in ("--set", one))]
        started.append(
            subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
                env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})},
            )
        )
        return started[-1]

    yield one
    for process in started:
        below = (
            psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        )
        for victim in [*below, process]:
            victim.kill()
        process.wait(20)


def events(run: Path, kind: str) -> list[dict[str, Any]]:
    path = run / "metrics.jsonl"
    whole = path.read_text().splitlines(keepends=True) if path.exists() else []
    rows = [json.loads(line) for line in whole if line.endswith("\n")]
    return [row for row in rows if row["event"] == kind]


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def has_checkpoint(run: Path) -> bool:
    return any((run / "checkpoints").glob("0*"))


def ends(process: subprocess.Popen[str]) -> str:
    said, _ = process.communicate(timeout=200)
    assert process.returncode == 0, said
    return said


def finished_exactly(run: Path, epochs: int) -> dict[str, Any]:
    (end,) = events(run, "summary")[-1:]
    assert not end["stopped"]
    assert end["frames"] + end["discarded_frames"] == epochs * FRAMES
    return end


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_one_is_killed_two_join_and_the_launcher_is_killed(
    strategy: str, start: Start, tmp_path: Path
) -> None:
    """Start 2, kill 1, join 2; kill the launcher with all that is left; resume with 3."""
    run, epochs = tmp_path / "run", 400
    launcher = start(run, "--strategy", strategy, "--learners", "2", "--epochs", str(epochs))
    wait_for(lambda: len(events(run, "train")) > 2, 100)
    victim = max(learners_of(launcher), key=lambda p: p.create_time())
    if strategy == "asgd":  # the last one serves: its loss would end the run
        victim = sorted(learners_of(launcher), key=lambda p: p.create_time())[1]
    victim.kill()
    wait_for(lambda: events(run, "lost"), 100)
    names = joining.ask(run, 2, 100.0)
    assert [event["rank"] for event in wait_for(lambda: events(run, "joined"))] == names
    seen = len(events(run, "checkpoint"))
    wait_for(lambda: len(events(run, "checkpoint")) > seen, 100)
    family = [p.pid for p in psutil.Process(launcher.pid).children(recursive=True)]
    launcher.kill()
    launcher.communicate(timeout=60)
    wait_for(lambda: gone(family), 60)
    epochs = 1 + max(event["epoch"] for event in events(run, "checkpoint")) + 3
    ends(start(run, "--resume", "--learners", "3", "--epochs", str(epochs)))
    end = finished_exactly(run, epochs)
    assert [one["rank"] for one in end["learners"]] == [0, 1, 2]
    assert not any(one["lost"] for one in end["learners"])


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_launcher_of_one_of_two_hosts_is_killed(
    strategy: str, start: Start, tmp_path: Path
) -> None:
    """Its learners end with it and are lost; those of the other host go on to the exact end.

    Where every learner of `asgd` serves a part of the model, its usual way on several hosts, none
    can be spared: here one server stands on the first host.
    """
    run, epochs = tmp_path / "run", 60
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
    given = ["--strategy", strategy, "--learners", "4", "--epochs", str(epochs)]
    given += ["--set", "strategy.servers=1"] if strategy == "asgd" else []
    head, other = (
        start(run, *given, env={**place, "RANK": str(rank), "WORLD_SIZE": "2"}) for rank in range(2)
    )
    wait_for(lambda: has_checkpoint(run), 100)
    family = [p.pid for p in psutil.Process(other.pid).children(recursive=True)]
    other.kill()
    wait_for(lambda: gone(family), 60)
    ends(head)
    end = finished_exactly(run, epochs)
    assert [one["rank"] for one in end["learners"] if one["lost"]] == [2, 3]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2])
def test_a_signal_to_every_process_ends_in_a_checkpoint(
    number: signal.Signals, start: Start, tmp_path: Path
) -> None:
    """As Slurm sends it: to learners, to the server they are forked from, to the launcher last."""
    run = tmp_path / "run"
    launcher = start(run, "--strategy", "kstep", "--learners", "3", "--epochs", "400")
    wait_for(lambda: len(events(run, "train")) > 2, 100)
    for process in reversed([psutil.Process(launcher.pid), *learners_of(launcher)]):
        process.send_signal(number)
    launcher.communicate(timeout=100)
    assert launcher.returncode == 130
    (end,) = events(run, "summary")
    assert end["stopped"]
    assert (run / "checkpoints" / f"{end['frames']:012d}").is_dir()
    assert not events(run, "left")
    assert not events(run, "lost")
