"""Learners join from another host: `hocket train --listen`, `hocket join` there."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
import pytest
from helpers import network
from helpers.company import events, held, release, run_beside, until
from helpers.programs import gone, learners_of, wait_for

import hocket
from hocket import running
from hocket.cli.main import main
from hocket.errors import ConfigError, HocketError, LearnerFailedError
from hocket.runtime.launch import joining, learner_process
from hocket.runtime.launch.guests.guest_host import GuestHost
from hocket.runtime.launch.joining import Door
from hocket.runtime.launch.learner_process import ORPHANED, Control
from hocket.runtime.net.store import Place
from hocket.support.fork_server import fork_context

pytestmark = pytest.mark.timeout(300)
needs_network = pytest.mark.skipif(
    not network.available(), reason="needs the privilege to make network namespaces"
)
EPOCHS, FRAMES = 250, 4000
TOKEN = b"t" * 32


@pytest.fixture
def pair() -> Iterator[network.Pair]:
    with network.two_hosts() as hosts:
        yield hosts


def _train(pair: network.Pair, run: Path, strategy: str) -> subprocess.Popen[str]:
    settings = [f"task.num_frames={FRAMES}", "task.dev_frames=500", "runtime.log_every=0.5"]
    return pair.python(
        0,
        *("-m", "hocket", "train", "synthetic", "--strategy", strategy, "--learners", "2"),
        *("--epochs", str(EPOCHS), "--listen", pair.address, "--out", str(run)),
        *(word for one in settings for word in ("--set", one)),
    )


def _join(pair: network.Pair, run: Path, *more: str) -> subprocess.Popen[str]:
    """Join from the second host; both have one name here, so it must be told where it is."""
    return pair.python(1, "-m", "hocket", "join", str(run), "--here", *more)


@pytest.mark.parametrize(
    "strategy",
    [hocket.BMUF(sync_every=2), pytest.param(hocket.ASGD(), marks=pytest.mark.long)],
    ids=["bmuf", "asgd"],
)
def test_guests_join_and_one_of_them_is_killed(strategy: Any, tmp_path: Path) -> None:
    run, first = tmp_path / "run", 3 if strategy.name == "asgd" else 2  # its server has number 2
    experiment = held(run, strategy, 2)
    experiment = replace(experiment, options=replace(experiment.options, listen="127.0.0.1"))
    said: list[str] = []

    def meanwhile() -> None:
        guests = GuestHost(experiment.on_hosts(1), run, joining.door(run), said.append)
        with ThreadPoolExecutor() as threads:
            staying = threads.submit(guests.bring, 2, 100.0)
            until(lambda: said)
            seen = len(events(run, "train"))
            until(lambda: len(events(run, "train")) > seen + 1)  # the new group is at work
            guests.guests[0].process.kill()
            until(lambda: events(run, "lost"))
            release(run)
            with pytest.raises(LearnerFailedError, match="ended with exit codes"):
                staying.result(100)

    result = run_beside(meanwhile, run, experiment, None)
    assert said[0].startswith(f"joined as rank {first}, rank {first + 1} on ")
    assert [one["rank"] for one in events(run, "joined")] == [first, first + 1]
    (lost,) = (one.rank for one in result.learners if one.lost)
    assert lost in (first, first + 1)


@needs_network
@pytest.mark.long
@pytest.mark.parametrize("strategy", ["allreduce", "bmuf", "adpsgd", "asgd"])
def test_one_is_killed_a_host_joins_and_its_launcher_is_killed(
    strategy: str, pair: network.Pair, tmp_path: Path
) -> None:
    """Start 2, kill 1, join 2 from another host, kill what started those: the run ends exactly."""
    run = tmp_path / "run"
    launcher = _train(pair, run, strategy)
    wait_for(lambda: len(events(run, "train")) > 2, 100)
    sorted(learners_of(launcher), key=lambda p: p.create_time())[1].kill()
    wait_for(lambda: events(run, "lost"), 100)
    guests = _join(pair, run, "--learners", "2")
    wait_for(lambda: len(events(run, "joined")) == 2, 100)
    joined = events(run, "joined")
    first = 3 if strategy == "asgd" else 2  # its server has number 2
    assert [one["rank"] for one in joined] == [first, first + 1]
    family = [p.pid for p in psutil.Process(guests.pid).children(recursive=True)]
    guests.kill()
    guests.communicate()
    wait_for(lambda: gone(family), 60)
    said, wrong = launcher.communicate(timeout=200)
    assert launcher.returncode == 0, said + wrong
    (end,) = events(run, "summary")
    assert end["frames"] + end["discarded_frames"] == EPOCHS * FRAMES
    assert [one["rank"] for one in end["learners"] if one["lost"]] == [1, first, first + 1]
    assert not (run / ".join").exists()


@needs_network
@pytest.mark.long
def test_guests_leave_politely_with_their_command(pair: network.Pair, tmp_path: Path) -> None:
    run = tmp_path / "run"
    launcher = _train(pair, run, "kstep")
    wait_for(lambda: events(run, "train"), 100)
    guests = _join(pair, run)
    wait_for(lambda: events(run, "joined"), 100)
    guests.send_signal(signal.SIGTERM)
    said = "".join(guests.communicate(timeout=60))
    assert guests.returncode == 0
    assert "joined as rank 2" in said
    assert "leave at the next boundary" in said
    launcher.communicate(timeout=200)
    assert launcher.returncode == 0
    assert [one["rank"] for one in events(run, "left")] == [2]
    assert not events(run, "lost")
    assert events(run, "summary")[0]["frames"] == EPOCHS * FRAMES


@needs_network
@pytest.mark.long
def test_guests_end_with_the_launcher_of_the_run(pair: network.Pair, tmp_path: Path) -> None:
    run = tmp_path / "run"
    launcher = _train(pair, run, "adpsgd")
    wait_for(lambda: events(run, "train"), 100)
    guests = _join(pair, run, "--learners", "2")
    wait_for(lambda: events(run, "joined"), 100)
    launcher.kill()
    launcher.communicate()
    _, wrong = guests.communicate(timeout=60)
    assert guests.returncode != 0
    assert "has ended or is cut off: resume the run there" in wrong


# ---------------------------------------------------------------------------- who is refused


@pytest.fixture(scope="module")
def run_of_another_host(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("another") / "run"
    told = ["--set", "task.num_frames=200", "--set", "task.dev_frames=100", "--out", str(run)]
    assert main(["simulate", "synthetic", "--quiet", *told]) == 0
    return run


def _door(guests: str = "127.0.0.1:9") -> Door:
    return Door(Place("127.0.0.1:9", TOKEN), "another", guests)


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("versions", {"hocket": "0.0.1"}, "begun by Hocket 0.0.1"),
        ("data", {"train_frames": 7}, "does not see the data of the run"),
    ],
)
def test_a_host_that_differs_is_refused(
    name: str, value: dict[str, Any], told: str, run_of_another_host: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    begun = json.loads((run_of_another_host / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(begun | {name: begun[name] | value}))
    with pytest.raises(ConfigError, match=told):
        running.bring_guests(run, _door(), 1, 1.0)


def test_a_run_that_does_not_listen_or_answer(
    run_of_another_host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joining, "CONNECT_S", 0.5)
    with pytest.raises(ConfigError, match="of its own host alone, another"):
        running.bring_guests(run_of_another_host, _door(guests=""), 1, 1.0)
    with pytest.raises(ConfigError, match="--learners must be"):
        running.bring_guests(run_of_another_host, _door(), 0, 1.0)
    with pytest.raises(HocketError, match="does not answer"):
        running.bring_guests(run_of_another_host, _door(), 1, 1.0)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["train", "synthetic", "--listen", "127.0.0.1", "--out", "RUN"], "takes nobody in"),
        (
            ["train", "synthetic", "--strategy", "kstep", "--listen", "192.0.2.7", "--out", "RUN"],
            "cannot listen at '192.0.2.7'",
        ),
        (
            ["simulate", "synthetic", "--set", "runtime.listen=127.0.0.1", "--out", "RUN"],
            "no effect in the simulator",
        ),
    ],
    ids=["sequential", "not an address of this host", "simulated"],
)
def test_listening_in_vain_is_refused(
    given: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [word.replace("RUN", str(tmp_path / "run")) for word in given]
    assert main(words) == 2
    assert told in " ".join(capsys.readouterr().err.split())


def test_a_run_without_a_directory_cannot_be_found(tmp_path: Path) -> None:
    experiment = held(tmp_path / "run", hocket.KStep(sync_every=2), 2)
    experiment = replace(experiment, options=replace(experiment.options, listen="127.0.0.1"))
    with pytest.raises(ConfigError, match="needs `out`"):
        running.run_real(experiment, None, progress=False)


def _tells(pipe: Connection, kind: str) -> None:
    Control(pipe, 60.0).tell(kind)
    time.sleep(60)


@pytest.mark.parametrize(("kind", "code"), [("done", 0), ("failed", 1), ("met", ORPHANED)])
def test_whoever_has_said_its_last_words_is_no_orphan(kind: str, code: int) -> None:
    """The launcher ends when all are done: a learner of another host may hear that first."""
    context = fork_context([learner_process.__name__])
    ours, theirs = context.Pipe()
    process = context.Process(target=_tells, args=(theirs, kind))
    process.start()
    theirs.close()
    assert ours.recv() == (kind, None)
    ours.close()
    process.join(60)
    assert process.exitcode == code
