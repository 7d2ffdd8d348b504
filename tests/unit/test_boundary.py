"""The one boundary between a command and its user: what is said, with which status."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.runs import simulated
from helpers.tasks import Quadratic

from hocket import Sequential, errors
from hocket.cli import main as command_line
from hocket.cli.boundary import BUG, STOPPED, guarded
from hocket.cli.main import COMMANDS, main
from hocket.errors import ConfigError, HocketError, InputError, LearnerFailedError
from hocket.record.rundir import RunDirectory
from hocket.speech.errors import SpeechError


def ended(error: BaseException, run: Path | None = None) -> int:
    def work() -> int:
        raise error

    return guarded("hocket", ["train", "a b"], run, work)


STATUS: list[tuple[BaseException, int, str]] = [
    (ConfigError("bad"), 2, "hocket: bad"),
    (SpeechError("bad"), 2, "hocket: bad"),
    (errors.TaskError("bad"), 2, "hocket: bad"),
    (errors.UnreadableError.of(Path("x"), "empty"), 2, "hocket: x: empty"),
    (errors.DamagedError("bad"), 2, "hocket: bad"),
    (errors.InUseError("busy"), 1, "hocket: busy"),
    (errors.DivergedError("gone"), 1, "hocket: gone"),
    (errors.CheckpointError("full"), 1, "hocket: full"),
    (LearnerFailedError("died"), 1, "hocket: died"),
    (KeyboardInterrupt(), STOPPED, "ended at once"),
    (MemoryError("37 GB"), 1, "not enough memory (37 GB)"),
    (RuntimeError("DefaultCPUAllocator: can't allocate memory: x"), 1, "not enough memory"),
    (OSError(errno.ENOSPC, "No space", "/x"), 1, "no room on the disk of /x"),
    (OSError(errno.EIO, "I/O error", "/x"), 1, "what was finished or checkpointed is kept"),
    (PermissionError(errno.EACCES, "Permission denied", "/x"), 2, "/x: Permission denied"),
    (OSError(errno.ENAMETOOLONG, "File name too long", "xxx"), 2, "xxx: File name too long"),
    (OSError(errno.ELOOP, "Too many levels", "/x"), 2, "/x: Too many levels"),
    (NotADirectoryError(errno.ENOTDIR, "Not a directory", "/x"), 2, "/x: Not a directory"),
]


@pytest.mark.parametrize(("error", "status", "says"), STATUS, ids=lambda x: type(x).__name__)
def test_every_error_has_its_status(
    error: BaseException, status: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended(error) == status
    said = capsys.readouterr().err
    assert says in said
    assert "Traceback" not in said


def every_error(kind: type[HocketError] = HocketError) -> set[type[HocketError]]:
    found = {kind}
    for one in kind.__subclasses__():
        found |= every_error(one)
    return found


def test_bad_input_exits_with_2_everywhere() -> None:
    assert {e.exit_status for e in every_error() if issubclass(e, InputError)} == {2}
    others = {e for e in every_error() if not issubclass(e, InputError)}
    assert {e.exit_status for e in others} == {1}
    assert {"ConfigError", "SpeechError", "TaskError"} <= {
        e.__name__ for e in every_error() if issubclass(e, InputError)
    }


BY_NAME = {kind.__name__: kind for kind in every_error()}


@pytest.mark.parametrize("kind", [BY_NAME[name] for name in sorted(BY_NAME)])
def test_an_error_of_a_learner_is_raised_again_by_its_name(kind: type[HocketError]) -> None:
    """Also those of rooms that `hocket.errors` does not know, with one text each."""
    assert errors.by_name(kind.__name__) is kind
    assert str(kind("text")) == "text"


# ---------------------------------------------------------------------------- bugs


def broken() -> int:
    return json.loads("[]")["nobody foresaw this"]  # type: ignore[no-any-return]


def test_what_nobody_foresaw_is_reported_in_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    assert guarded("hocket", ["train", "a b", "--set", "x=1"], None, broken) == BUG
    said = capsys.readouterr().err
    assert "this is a bug in Hocket (TypeError: list indices" in said
    assert "Traceback" not in said
    (report,) = tmp_path.iterdir()
    assert f"please report it with {report}" in said
    text = report.read_text()
    assert "hocket train 'a b' --set x=1" in text
    assert "nobody foresaw this" in text
    assert "Traceback (most recent call last)" in text
    assert "torch" in text


def test_the_report_of_a_run_lies_in_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(elsewhere))
    simulated(Quadratic(), Sequential(), out=run)
    monkeypatch.setitem(COMMANDS, "decode", lambda args: broken())
    assert main(["decode", str(run)]) == BUG
    (report,) = run.glob("hocket-bug-*.txt")
    assert str(report) in capsys.readouterr().err
    assert main(["decode", str(tmp_path)]) == BUG  # no run: nothing is left in a user's folder
    assert {p.name for p in tmp_path.iterdir()} == {"run", "elsewhere"}
    assert len(list(elsewhere.iterdir())) == 1


def test_without_a_place_to_write_the_report_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: "/nowhere/at/all")
    assert guarded("hocket", [], Path("/nowhere"), broken) == BUG
    said = capsys.readouterr().err
    assert "Traceback" in said  # better than nothing
    assert "please report it with the above" in said


def test_a_bug_in_a_learner_is_a_bug(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    error = LearnerFailedError.unforeseen("rank 3 failed: KeyError: 'x'", "Traceback: in rank 3")
    assert ended(error) == BUG
    said = capsys.readouterr().err
    assert "this is a bug in Hocket (rank 3 failed: KeyError: 'x')" in said
    (report,) = tmp_path.iterdir()
    assert "in rank 3" in report.read_text()
    memory = LearnerFailedError.unforeseen("rank 3 failed: MemoryError: 9 GB", "Traceback")
    assert ended(memory) == 1


def test_every_way_into_the_command_line_passes_the_boundary(tmp_path: Path) -> None:
    """`python -m hocket`, the program, and recipes."""
    for program in ([sys.executable, "-m", "hocket"], [Path(sys.executable).with_name("hocket")]):
        words = [*program, "report", str(tmp_path / "no"), "--out", str(tmp_path / "page.html")]
        done = subprocess.run(words, capture_output=True, text=True, timeout=100, check=False)
        assert done.returncode == 2
        assert "is not a run directory" in done.stderr
        assert "Traceback" not in done.stderr


def test_a_recipe_passes_the_boundary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = pytest.importorskip("hocket.cli.recipe")
    made = object.__new__(recipe.Recipe)
    object.__setattr__(made, "name", "sweep")

    def fails(error: BaseException) -> Callable[..., Any]:
        def make(*_: Any, **__: Any) -> None:
            raise error

        return make

    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    for error, status in (
        (ConfigError("bad"), 2),
        (KeyboardInterrupt(), STOPPED),
        (KeyError(), BUG),
    ):
        monkeypatch.setattr(recipe.Recipe, "make", fails(error))
        assert recipe.main(made, [str(tmp_path / "out")]) == status
        assert "sweep: " in capsys.readouterr().err


def test_a_pipe_that_is_closed_is_no_error(tmp_path: Path) -> None:
    words = f"{sys.executable} -m hocket options | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", words], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode in (0, 1)
    assert done.stderr == ""


def test_the_commands_of_the_parser_are_those_that_run() -> None:
    choices = command_line.parser()._subparsers._group_actions[0].choices  # type: ignore[union-attr]
    assert set(choices or {}) == set(COMMANDS)
    assert RunDirectory(Path("nowhere")).is_run() is False
