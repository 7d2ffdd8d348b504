"""A folder has one owner at a time; whoever dies gives it up."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from helpers.runs import simulated
from helpers.tasks import Quadratic

from hocket import Constant, Sequential
from hocket.cli.main import main
from hocket.errors import ConfigError, InUseError, UnreadableError
from hocket.record.rundir import RunDirectory
from hocket.support import ownership
from hocket.support.ownership import HELPERS, LOCK, help_in, owned

HOLD = """
import sys, time
from pathlib import Path
from hocket.support.ownership import help_in, owned
folder = Path(sys.argv[2])
if sys.argv[1] == "own":
    lock = owned(folder, "hocket train", print)
    lock.__enter__()
else:
    help_in(folder)
print("held", flush=True)
time.sleep(60)
"""
SMALL = ["--set", "task.num_frames=64", "--set", "task.dev_frames=32", "--epochs", "1", "--quiet"]


def said_nothing(text: str) -> None:
    raise AssertionError(text)


@contextmanager
def another(how: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds a folder."""
    words = [sys.executable, "-c", HOLD, how, str(folder)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


def wait_until(there: Callable[[], bool]) -> None:
    until = time.monotonic() + 30
    while not there():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_a_folder_has_one_owner_who_is_named(tmp_path: Path) -> None:
    with another("own", tmp_path) as process:
        told = (
            rf"in use by hocket train \(process {process.pid} on .*, since .*choose another --out"
        )
        with pytest.raises(InUseError, match=told), owned(tmp_path, "x", said_nothing):
            pass


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_dead_owner_gives_its_folder_up(number: signal.Signals, tmp_path: Path) -> None:
    with another("own", tmp_path) as process:
        process.send_signal(number)
        process.wait()
        with owned(tmp_path, "x", said_nothing):
            pass


def test_one_process_does_not_own_a_folder_twice(tmp_path: Path) -> None:
    with (
        owned(tmp_path, "x", said_nothing),
        pytest.raises(InUseError, match="in use by x"),
        owned(tmp_path, "y", said_nothing),
    ):
        pass
    with owned(tmp_path, "y", said_nothing):
        pass


def test_the_next_owner_waits_for_learners_that_still_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with another("help", tmp_path) as process:
        monkeypatch.setattr(ownership, "LINGER_S", 0.2)
        with pytest.raises(InUseError, match="learners of an earlier run"):
            owned(tmp_path, "x", said_nothing).__enter__()
        monkeypatch.setattr(ownership, "LINGER_S", 30.0)
        process.kill()
        with owned(tmp_path, "x", said_nothing):
            pass


def test_an_owner_does_not_wait_for_its_own_learners(tmp_path: Path) -> None:
    with owned(tmp_path, "x", said_nothing):
        help_in(tmp_path)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_named_and_used(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    said: list[str] = []
    with owned(tmp_path, "x", said.append):
        pass
    (warning,) = said
    assert "has no locks" in warning
    assert "do not start one" in warning


@pytest.mark.parametrize("name", [LOCK, HELPERS])
def test_a_lock_is_never_written_through_a_link(name: str, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("years")
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / name).symlink_to(precious)
    with pytest.raises(OSError, match="symbolic links"), owned(folder, "x", said_nothing):
        pass
    assert precious.read_text() == "years"


def test_a_pipe_in_place_of_the_lock_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / LOCK)
    with pytest.raises(UnreadableError, match="remove it"), owned(tmp_path, "x", said_nothing):
        pass


# ---------------------------------------------------------------------------- runs


def started(out: Path, *more: str) -> subprocess.Popen[str]:
    words = ["-m", "hocket", "simulate", "synthetic", "--out", str(out), "--quiet", *more]
    return subprocess.Popen([sys.executable, *words], stderr=subprocess.PIPE, text=True)


def test_two_runs_started_together_do_not_mix(tmp_path: Path) -> None:
    out = tmp_path / "run"
    long = ["--epochs", "50", "--seed"]
    runs = [started(out, *long, seed) for seed in ("1", "2")]
    ends: dict[int, str] = {}
    wait_until(lambda: any(run.poll() is not None for run in runs))
    for number, run in enumerate(runs):
        if run.poll() is not None:
            ends[number] = run.communicate()[1]
        else:
            seed = number + 1
            wait_until(lambda: (out / "config.json").exists())
            assert RunDirectory(out).table("runtime")["seed"] == seed  # nobody else's
            run.kill()
            run.wait()
    assert len(ends) == 1
    (said,) = ends.values()
    assert "in use by hocket simulate" in said
    assert runs[next(iter(ends))].returncode == 1


def test_a_run_in_use_is_neither_resumed_nor_decoded_nor_begun_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    simulated(Quadratic(), Sequential(), out=out, schedule=Constant(epochs=1))
    before = {p: p.read_bytes() for p in out.rglob("*") if p.is_file() and p.name != LOCK}
    with owned(out, "hocket train", said_nothing):
        with pytest.raises(InUseError, match="in use by hocket train"):
            simulated(Quadratic(), Sequential(), out=out, schedule=Constant(epochs=2), resume=True)
        with pytest.raises(ConfigError, match="already holds a run"):
            simulated(Quadratic(), Sequential(), out=out)
    after = {p: p.read_bytes() for p in out.rglob("*") if p.is_file() and p.name != LOCK}
    assert after == before
    empty = tmp_path / "empty"
    empty.mkdir()
    with owned(empty, "hocket train", said_nothing):
        assert main(["simulate", "synthetic", "--out", str(empty), *SMALL]) == 1
    assert "is in use by hocket train" in capsys.readouterr().err
    assert {p.name for p in empty.iterdir()} == {LOCK, HELPERS}
    assert main(["simulate", "synthetic", "--out", str(empty), *SMALL]) == 0  # it is empty still


# ---------------------------------------------------------------------------- other folders


def test_preparing_importing_and_making_a_corpus_need_the_folder_alone(tmp_path: Path) -> None:
    from helpers.spoilt import good_data, prepare

    good_data(tmp_path)
    (tmp_path / "exp").mkdir()
    with (
        owned(tmp_path / "exp", "hocket prepare", said_nothing),
        pytest.raises(InUseError, match="in use by hocket prepare"),
    ):
        prepare(tmp_path)
    prepare(tmp_path)


def test_a_folder_of_the_users_is_never_replaced_by_a_step(tmp_path: Path) -> None:
    """`hocket prepare data --out .` would have removed ./data: it is the name of a step."""
    from helpers.spoilt import good_data, prepare

    from hocket.speech.errors import SpeechError

    good_data(tmp_path)
    mine = tmp_path / "exp" / "data"
    mine.mkdir(parents=True)
    (mine / "thesis.tex").write_text("years")
    with pytest.raises(SpeechError, match=r"exp/data is there already.*choose another --out"):
        prepare(tmp_path)
    assert (mine / "thesis.tex").read_text() == "years"


@pytest.mark.parametrize("name", ["notes.txt", "metrics.jsonl", "model.safetensors"])
def test_a_page_replaces_only_a_page(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, mine = tmp_path / "run", tmp_path / name
    simulated(Quadratic(), Sequential(), out=run, schedule=Constant(epochs=1))
    mine.write_text("years")
    assert main(["report", str(run), "--out", str(mine)]) == 2
    assert "is no page" in capsys.readouterr().err
    assert mine.read_text() == "years"
    page = tmp_path / "page.html"
    for _ in range(2):
        assert main(["report", str(run), "--out", str(page)]) == 0


def test_exports_and_demos_write_into_folders_of_their_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "text").write_text("years")
    assert main(["demo", "synthetic", "--out", str(mine)]) == 2
    assert "no demo made it" in capsys.readouterr().err
    assert [p.name for p in mine.iterdir()] == ["text"]
