"""Before the start: whoever freezes there is found, and every wait has a limit."""

from __future__ import annotations

import multiprocessing
import multiprocessing.forkserver
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from helpers.programs import gone, wait_for
from helpers.runs import real
from helpers.tasks import Quadratic

from hocket import AllReduceSGD, Constant
from hocket.errors import LearnerFailedError, WaitTimeoutError
from hocket.runtime.launch import launcher, script


def freeze(rank: int) -> None:
    """Stop this process if it is a certain learner: it is alive, but does nothing any more."""
    if multiprocessing.current_process().name == f"hocket learner {rank}":
        os.kill(os.getpid(), signal.SIGSTOP)


@dataclass(frozen=True)
class FrozenTask(Quadratic):
    """Rank 1 freezes when it unpacks its orders, or when it prepares its data."""

    when: str = "unpacked"

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self.when == "unpacked":
            freeze(1)

    def prepare(self) -> None:
        if self.when == "prepared":
            freeze(1)


@dataclass(frozen=True)
class FrozenBeforeMeeting(AllReduceSGD):
    """Rank 1 freezes just before it tells the others where it is."""

    @property
    def uses_messages(self) -> bool:  # type: ignore[override]
        freeze(1)
        return False


@pytest.mark.parametrize(
    ("task", "strategy"),
    [(FrozenTask(), AllReduceSGD()), (Quadratic(), FrozenBeforeMeeting())],
    ids=["unpacking", "meeting"],
)
def test_a_learner_that_freezes_before_the_others_have_met_is_found(
    task: Any, strategy: Any
) -> None:
    """It is the silence that ends the run, not the limit of the others' wait for it."""
    with pytest.raises(
        LearnerFailedError, match=r"rank 1 .*no sign of life \(runtime\.silence_s\) and was ended"
    ):
        real(task, strategy, 3, silence_s=1.5)


def test_a_learner_that_freezes_while_it_prepares_is_lost_and_the_others_go_on() -> None:
    result = real(
        FrozenTask(when="prepared"), AllReduceSGD(), 3, silence_s=1.5, schedule=Constant(epochs=2)
    )
    assert [one.lost for one in result.learners] == [False, True, False]
    assert result.frames == 2 * 44


def test_a_fork_server_that_is_stopped_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    real(Quadratic(), AllReduceSGD(), 1)  # so that there is one
    server = multiprocessing.forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    os.kill(server, signal.SIGSTOP)
    monkeypatch.setattr(launcher, "START_S", 1.0)
    try:
        with pytest.raises(WaitTimeoutError, match=r"rank 0 was not started within 1 s"):
            real(Quadratic(), AllReduceSGD(), 2)
    finally:
        os.kill(server, signal.SIGCONT)
    monkeypatch.undo()
    assert real(Quadratic(), AllReduceSGD(), 2).frames > 0


SCRIPT = """
import sys, hocket
if __name__ == "__main__":
    hocket.train(
        hocket.Synthetic(num_frames=4000, dev_frames=500), strategy=sys.argv[1], learners=2,
        schedule=hocket.Constant(epochs=5000), progress=False, checkpoint_every=0.1,
    )
"""


@pytest.mark.parametrize("when", [pytest.param("starting", marks=pytest.mark.long), "training"])
def test_kill_9_of_the_launcher_leaves_nothing_in_the_temporary_folder(
    when: str, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(SCRIPT)
    folder = Path(tempfile.mkdtemp(prefix="kill-9-"))  # a socket's path may have 107 characters
    process = subprocess.Popen(
        [sys.executable, str(program), "adpsgd"], env=os.environ | {"TMPDIR": str(folder)}
    )
    what = "listener-*" if when == "starting" else "hocket-*/checkpoints/[0-9]*/run.json"
    wait_for(lambda: list(folder.glob(f"pymp-*/{what}")))
    below = [p.pid for p in psutil.Process(process.pid).children(recursive=True)]
    process.kill()
    process.wait()
    wait_for(lambda: gone(below), 30)
    wait_for(lambda: not list(folder.iterdir()), 10)
    folder.rmdir()


def test_a_temporary_folder_with_a_long_name_is_named(tmp_path: Path) -> None:
    program, folder = tmp_path / "program.py", tmp_path / ("x" * 80)
    program.write_text(SCRIPT)
    folder.mkdir()
    ended = subprocess.run(
        [sys.executable, str(program), "kstep"],
        env=os.environ | {"TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "set TMPDIR to a shorter one" in ended.stderr


@pytest.mark.parametrize("given", [None, "3"])
def test_learners_of_a_script_share_the_cores_unless_told_otherwise(
    given: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a thread for every core in every learner, they wait for one another's threads."""
    monkeypatch.setattr(script, "default_jobs", lambda: 4)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if given:
        monkeypatch.setenv("OMP_NUM_THREADS", given)
    program = tmp_path / "program.py"
    program.write_text(
        "import os, pathlib\n"
        f"folder = pathlib.Path({str(tmp_path)!r})\n"
        "folder.joinpath(os.environ['RANK']).write_text(os.environ['OMP_NUM_THREADS'])\n"
    )
    assert script.main(["--learners", "2", str(program)]) == 0
    assert [(tmp_path / rank).read_text() for rank in "01"] == [given or "2"] * 2
