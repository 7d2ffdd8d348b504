"""`hocket watch` and `hocket track`: what they say of running, ended, partial and hostile runs."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from helpers.runs import simulated, uneven
from helpers.tasks import Quadratic

from hocket import ADPSGD, Cluster, Constant, KStep
from hocket.cli.main import main
from hocket.errors import ConfigError
from hocket.record.rundir import RunDirectory
from hocket.record.status import LearnerStatus, Status, StatusFile, read_status
from hocket.report.standing import read_standing, slowest
from hocket.report.trackers import replay
from hocket.runtime.sim.cost import Death, Host, Slow


@pytest.fixture
def run(tmp_path: Path) -> Path:
    cluster = uneven(4, 0, (Death(1, at_s=0.02),))
    simulated(Quadratic(), KStep(sync_every=2), cluster, out=tmp_path / "run")
    return tmp_path / "run"


def test_a_finished_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", str(run), "--once"]) == 0
    shown = capsys.readouterr().out
    assert "kstep, ended: 176 frames (100%)" in shown
    assert "rank 1 lost at" in shown
    assert "median" in shown
    standing = read_standing(run)
    assert [row.state for row in standing.rows] == ["finished", "lost", "finished", "finished"]
    summary = RunDirectory(run).summary()
    by_status = {row.rank: (row.frames, row.bytes_sent, 1 - row.waiting) for row in standing.rows}
    for one in summary["learners"]:  # the live table and the record tell the same
        frames, sent, busy = by_status[one["rank"]]
        assert (frames, sent) == (one["frames"], one["bytes_sent"])
        assert busy == pytest.approx(min(1.0, one["utilisation"]), abs=1e-6)
    (run / "status.json").unlink()  # of an earlier version: the record alone says the same
    again = read_standing(run)
    assert [(r.rank, r.frames, r.state) for r in again.rows] == [
        (r.rank, r.frames, r.state) for r in standing.rows
    ]
    for old, new in zip(standing.rows, again.rows, strict=True):
        assert new.waiting == pytest.approx(old.waiting, abs=1e-6)


@pytest.mark.parametrize(
    ("strategy", "cluster", "rank", "why"),
    [
        (KStep(sync_every=2), Cluster((Host(count=4),), slow=(Slow(2, 5.0),)), 2, "computing: "),
        (ADPSGD(), Cluster((Host(count=4),), slow=(Slow(3, 5.0),)), 3, "computing: "),
        (KStep(sync_every=1), Cluster((Host(count=4, bandwidth_gbit=1e-6),)), None, "network: "),
        (KStep(sync_every=1), Cluster.even(1), None, None),
    ],
    ids=["synchronous", "asynchronous", "network", "alone"],
)
def test_the_slowest_is_named_and_why(
    tmp_path: Path, strategy: Any, cluster: Cluster, rank: int | None, why: str | None
) -> None:
    simulated(Quadratic(), strategy, cluster, out=tmp_path, schedule=Constant(epochs=4))
    found = slowest(read_standing(tmp_path).working)
    if why is None:
        assert found is None
        return
    assert found is not None
    assert rank in (None, found[0].rank)
    assert found[1].startswith(why)


def test_a_run_that_has_just_begun_or_was_killed(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[:-1]) + lines[-1][:20])  # cut off
    one = LearnerStatus(0, "working", 10, 2, 100, 0.5, host="a")
    status = Status(2.0, 1.0, "wall", 20, 44, 0, "running", (one,))
    StatusFile(run).write(status)
    assert main(["watch", str(run), "--once"]) == 0
    assert "running: 20 frames (45%)" in capsys.readouterr().out
    table = json.loads((run / "status.json").read_text()) | {"written": 1.0}
    (run / "status.json").write_text(json.dumps(table))
    assert main(["watch", str(run), "--once"]) == 0
    assert "no news for" in capsys.readouterr().out
    for name in ("status.json", "metrics.jsonl"):
        (run / name).unlink()
    assert main(["watch", str(run), "--once"]) == 0
    assert "no learner has been heard of" in capsys.readouterr().out
    assert main(["watch", str(run)]) == 2  # a script must say that one table is enough
    assert "--once" in capsys.readouterr().err


HOSTILE = (
    "",
    "[]",
    "{}",
    '{"format": 2}',
    '{"format": 1, "state": "running", "learners": [{"rank": {}}]}',
    '{"format": 1, "state": "running", "time_s": 1e999, "learners": 7}',
    "[" * 100_000,
)


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_status_is_named(
    run: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "status.json").write_text(text)
    assert main(["watch", str(run), "--once"]) == 2
    assert "status.json" in capsys.readouterr().err


def test_hostile_directories(tmp_path: Path, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", str(tmp_path / "nothing"), "--once"]) == 2
    rows = [
        {"event": "summary", "learners": [{"rank": "x"}], "frames": 1},
        {"event": "lost", "time_s": "soon"},
        {"event": "eval", "loss": [1], "frames": {}},
    ]
    (run / "status.json").unlink()
    for row in rows:
        (run / "metrics.jsonl").write_text(json.dumps(row) + "\n")
        assert main(["watch", str(run), "--once"]) == 2
        assert "metrics.jsonl" in capsys.readouterr().err


def test_a_status_that_cannot_be_written_ends_nothing(tmp_path: Path) -> None:
    StatusFile(tmp_path / "gone").write(Status(0, 0, "wall", 0, 0, 0, "running", ()))
    (tmp_path / "config.json").write_text("{}")
    assert read_status(RunDirectory(tmp_path)) is None


# ---------------------------------------------------------------------------- trackers


class FakeTracker(types.ModuleType):
    """Stands for each of the three modules, and notes what it is told."""

    def __init__(self) -> None:
        super().__init__("fake")
        self.told: list[tuple[int, dict[str, float]]] = []
        self.opened: dict[str, Any] = {}
        self.closed = 0

    def init(self, **facts: Any) -> FakeTracker:
        self.opened = facts
        return self

    def define_metric(self, name: str, step_metric: str | None = None) -> None:
        assert name in ("frames", "*")

    def log(self, figures: dict[str, float], step: int | None = None) -> None:
        frames = figures.get("frames") if step is None else step
        assert frames is not None
        self.told.append((int(frames), {k: v for k, v in figures.items() if k != "frames"}))

    log_metrics = log

    def finish(self) -> None:
        self.closed += 1

    end_run = finish

    def set_experiment(self, name: str) -> None:
        self.opened["project"] = name

    def start_run(self, run_name: str) -> None:
        self.opened["name"] = run_name

    def log_params(self, params: dict[str, str]) -> None:
        assert len(params) <= 100
        self.opened.setdefault("config", {}).update(params)


@pytest.mark.parametrize("kind", ["wandb", "mlflow", "trackio"])
def test_a_tracker_is_told_the_whole_record(
    run: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeTracker()
    monkeypatch.setitem(sys.modules, kind, fake)
    assert main(["track", str(run), "--to", kind, "--project", "p"]) == 0
    assert (fake.opened["project"], fake.opened["name"], fake.closed) == ("p", "run", 1)
    assert fake.opened["config"]
    events = RunDirectory(run).metrics()
    evaluated = [(e["frames"], e["loss"]) for e in events if e["event"] == "eval"]
    told = [(at, f["eval/loss"]) for at, f in fake.told if "eval/loss" in f]
    assert told == evaluated
    assert any("train/loss" in f for _, f in fake.told)
    assert fake.told[-1][1]["summary/loss"] == evaluated[-1][1]


def test_following_sends_every_line_once_and_ends_with_the_run(run: Path, tmp_path: Path) -> None:
    path = run / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    parts = iter([lines[: len(lines) // 2], [*lines[:-1], lines[-1][:9]], lines])
    path.write_text("")
    fake = FakeTracker()

    class Tracker:
        def log(self, figures: dict[str, float], frames: int) -> None:
            fake.log(figures, frames)

        def close(self) -> None:
            raise AssertionError

    def more() -> None:
        path.write_text("".join(next(parts)))

    told = replay(RunDirectory(run), Tracker(), follow=True, wait=more)
    kinds = [json.loads(line)["event"] for line in lines]
    assert told == len(fake.told) == sum(k in ("train", "eval", "summary") for k in kinds)


def test_a_tracker_that_is_not_there_is_refused(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert main(["track", str(run), "--to", "wandb"]) == 2
    assert "hocket[wandb]" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="not a run directory"):
        replay(RunDirectory(run / "no"), None, follow=False) or RunDirectory(run / "no").config()  # type: ignore[arg-type]
