"""Real learners join a running group, leave it politely, and die in between."""

from __future__ import annotations

import signal
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from helpers.company import events, until
from helpers.tasks import Quadratic

import hocket
from hocket import api
from hocket.cli.main import main
from hocket.errors import ConfigError, HocketError
from hocket.experiment import Experiment, RuntimeOptions
from hocket.runtime.launch import joining
from hocket.runtime.real.faults import Fault

pytestmark = pytest.mark.timeout(240)
FRAMES_OF_AN_EPOCH = 44


class Slow(Quadratic):
    """Takes a while, so that somebody can join."""

    def load(self, split: str, item: hocket.Item, epoch: int) -> Any:
        time.sleep(0.01)
        return super().load(split, item, epoch)


def with_company(
    strategy: Any, out: Path, meanwhile: Callable[[Path], None], epochs: int = 60, **more: Any
) -> hocket.Result:
    """Run two learners, and something else beside them."""
    options = RuntimeOptions(
        learners=2,
        tensorboard=False,
        timeout_s=60.0,
        log_every=0.5,
        evaluate_every=20.0,
        checkpoint_every=20.0,
    )
    schedule = hocket.Constant(epochs=epochs)
    rate = hocket.SGD(lr=0.01)
    experiment = Experiment(Slow(), strategy, rate, schedule=schedule, options=options)
    failed: list[BaseException] = []

    def company() -> None:
        try:
            until(lambda: events(out, "train"))
            meanwhile(out)
        except BaseException as error:
            failed.append(error)

    beside = threading.Thread(target=company, daemon=True)
    beside.start()
    result = api.run_real(experiment, out, progress=False, **more)
    beside.join(30)
    if failed:
        raise failed[0]
    assert result.frames + result.discarded_frames == epochs * FRAMES_OF_AN_EPOCH
    return result


@pytest.mark.parametrize(
    "strategy",
    [
        hocket.AllReduceSGD(),
        hocket.BMUF(sync_every=2),
        hocket.ADPSGD(),
        hocket.ASGD(),
    ],
    ids=lambda strategy: strategy.name,
)
def test_two_start_one_dies_two_join(strategy: Any, tmp_path: Path) -> None:
    run = tmp_path / "run"

    def meanwhile(path: Path) -> None:
        door = (path / ".join").lstat()
        assert stat.S_IMODE(door.st_mode) == 0o600
        until(lambda: events(path, "lost"))
        assert main(["join", str(path), "--learners", "2"]) == 0

    result = with_company(strategy, run, meanwhile, faults=(Fault(1, at_draw=20),))
    first = 3 if strategy.name == "asgd" else 2  # its server has number 2
    joined = events(run, "joined")
    assert [event["rank"] for event in joined] == [first, first + 1]
    assert joined[0]["learners"] == [0, first, first + 1]
    by_rank = {one.rank: one for one in result.learners}
    assert sorted(by_rank) == [0, 1, first, first + 1]
    assert [rank for rank, one in by_rank.items() if one.lost] == [1]
    assert by_rank[first].frames > 0
    assert by_rank[first + 1].frames > 0
    assert not (run / ".join").exists()


def test_a_learner_leaves_politely(tmp_path: Path) -> None:
    run = tmp_path / "run"

    def meanwhile(path: Path) -> None:
        assert joining.ask(path, 1, 100.0) == [2]
        mine = psutil.Process().children(recursive=True)
        newest = max(mine, key=lambda p: p.create_time())  # the newcomer
        newest.send_signal(signal.SIGTERM)
        until(lambda: events(path, "left"))

    result = with_company(hocket.KStep(sync_every=2), run, meanwhile)
    (left,) = events(run, "left")
    assert left["rank"] == 2
    assert left["learners"] == [0, 1]
    assert not events(run, "lost")
    assert not any(one.lost for one in result.learners)


def test_who_cannot_be_let_in_is_told_why(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no run that takes learners in"):
        joining.ask(tmp_path, 1, 5.0)
    run = tmp_path / "run"
    told: list[str] = []

    def meanwhile(path: Path) -> None:
        for count in (1, 0):
            try:
                joining.ask(path, count, 60.0)
            except ConfigError as error:
                told.append(str(error))
        door = path / ".join"
        door.chmod(0o644)
        try:
            joining.ask(path, 1, 5.0)
        except ConfigError as error:
            told.append(str(error))

    options = RuntimeOptions(learners=1, tensorboard=False, log_every=0.5)
    schedule = hocket.Constant(epochs=20)
    experiment = Experiment(Slow(), hocket.Sequential(), schedule=schedule, options=options)

    def once_it_trains() -> None:
        until(lambda: events(run, "train"))
        meanwhile(run)

    beside = threading.Thread(target=once_it_trains, daemon=True)
    beside.start()
    api.run_real(experiment, run, progress=False)
    beside.join(30)
    assert "takes nobody in" in told[0]
    assert "--learners must be" in told[1]
    assert "not trusted" in told[2]


def test_a_door_that_leads_nowhere(tmp_path: Path) -> None:
    joining.leave_door_open(tmp_path, _nowhere())
    with pytest.raises(HocketError, match="does not answer"):
        joining.ask(tmp_path, 1, 5.0)
    (tmp_path / ".join").write_text("{")
    with pytest.raises(ConfigError, match="damaged"):
        joining.ask(tmp_path, 1, 5.0)


def _nowhere() -> Any:
    from hocket.runtime.net.store import Place

    return Place("@hocket-store-nowhere", b"x" * 32)
