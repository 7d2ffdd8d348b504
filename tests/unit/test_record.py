"""Metrics, TensorBoard events, checkpoints, run directories."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.runs import real, simulated, uneven
from helpers.tasks import Quadratic, WithBuffers

import hocket
from hocket import AllReduceSGD, Cluster, Constant, KStep, NaturalSGD, Sequential
from hocket.core.accounts import Ticket
from hocket.core.packing import flatten, from_bytes, to_bytes, unflatten
from hocket.core.strategy import State
from hocket.errors import CheckpointError, ConfigError, ContractError
from hocket.optim.momentum import MomentumState
from hocket.record.checkpoint import Checkpoints
from hocket.record.metrics import EVENTS, HEAD, rewind
from hocket.record.tensorboard import EventFile
from hocket.runtime.sim.cost import Death

DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


def documented() -> dict[str, set[str]]:
    """The fields of every event, as docs/metrics.md lists them."""
    fields: dict[str, set[str]] = {}
    event = ""
    for line in DOCS.read_text().splitlines():
        if heading := re.match(r"### `(\w+)`", line):
            event = heading[1]
            fields[event] = set()
        elif event and (row := re.match(r"\| `(\w+)`", line)):
            fields[event].add(row[1])
    return fields


def test_metrics_follow_the_documented_schema(tmp_path: Path) -> None:
    cluster = uneven(4, 0, (Death(1, at_s=0.02),))
    simulated(
        WithBuffers(), KStep(sync_every=2), cluster, optimizer=NaturalSGD(), out=tmp_path / "a"
    )
    schema = documented()
    assert set(schema) == set(EVENTS)
    seen = set()
    for row in rows(tmp_path / "a"):
        assert tuple(row)[: len(HEAD)] == HEAD
        assert row["event"] in EVENTS
        assert set(row) - set(HEAD) == schema[row["event"]], row["event"]
        assert row["clock"] == "virtual"
        seen.add(row["event"])
    assert seen == set(EVENTS) - {"joined", "left"}


def test_time_and_frames_never_go_back(tmp_path: Path) -> None:
    real(Quadratic(), AllReduceSGD(), 2, out=tmp_path / "a", schedule=Constant(epochs=3))
    read = rows(tmp_path / "a")
    assert [r["frames"] for r in read] == sorted(r["frames"] for r in read)
    assert [r["time_s"] for r in read] == sorted(r["time_s"] for r in read)
    assert read[-1]["event"] == "summary"
    assert read[-1]["frames"] == 3 * 44


def test_tensorboard_reads_our_events(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    file = EventFile(tmp_path)
    for step in range(300):
        file.scalar("eval/loss", 1.0 / (1 + step), step * 1000)
    file.close()
    events = accumulator.EventAccumulator(str(tmp_path), size_guidance={"scalars": 0})
    events.Reload()
    points = events.Scalars("eval/loss")
    assert [p.step for p in points] == [1000 * s for s in range(300)]
    assert points[3].value == pytest.approx(0.25)


def test_tensorboard_reads_our_histograms(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    file = EventFile(tmp_path)
    file.histogram("eval/staleness", {2: 5, 3: 200, 6: 1}, 1000)
    file.close()
    events = accumulator.EventAccumulator(str(tmp_path))
    events.Reload()
    (point,) = events.Histograms("eval/staleness")
    told = point.histogram_value
    assert (point.step, told.min, told.max, told.num) == (1000, 2, 6, 206)
    assert told.sum == 2 * 5 + 3 * 200 + 6
    assert told.sum_squares == 4 * 5 + 9 * 200 + 36
    assert list(told.bucket_limit) == [2.5, 3.5, 4.5, 5.5, 6.5]
    assert list(told.bucket) == [5, 200, 0, 0, 1]


def test_runs_write_tensorboard_events(tmp_path: Path) -> None:
    hocket.simulate(Quadratic(), cluster=1, out=tmp_path / "a", progress=False)
    assert len(list((tmp_path / "a" / "tensorboard").glob("events.out.tfevents.*"))) == 1


def test_packing_round_trip() -> None:
    tree: dict[str, Any] = {
        "a": [1, 2.5, "x", None, True],
        "t": (torch.arange(3), torch.randn(2, 2)),
        "k": Ticket(1, 2, 3, 4),
        "empty": torch.zeros(0),
    }
    back = from_bytes(to_bytes(tree))
    assert back["a"] == tree["a"]
    assert back["k"] == tree["k"]
    assert isinstance(back["t"], tuple)
    assert all(torch.equal(x, y) for x, y in zip(back["t"], tree["t"], strict=True))


def test_packing_fills_a_template_and_never_names_a_class() -> None:
    state = State(torch.ones(2), MomentumState(torch.ones(2) * 3))
    skeleton, tensors = flatten(state)
    assert "MomentumState" not in json.dumps(skeleton)
    back = unflatten(skeleton, tensors, State(torch.zeros(2), MomentumState()))
    assert torch.equal(back.optimizer.velocity, torch.ones(2) * 3)
    with pytest.raises(ContractError, match="do not fit"):
        unflatten(skeleton, tensors, MomentumState())
    with pytest.raises(ContractError, match="cannot pack"):
        flatten({"f": lambda: 0})


def test_checkpoints_are_all_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fills up while the second checkpoint is written costs only that one."""
    original = Checkpoints.write_part
    calls = []

    def full(self: Checkpoints, frames: int, rank: int, tree: Any) -> None:
        calls.append(rank)
        if len(calls) > 3:
            raise OSError(28, "No space left on device")
        original(self, frames, rank, tree)

    monkeypatch.setattr(Checkpoints, "write_part", full)
    with pytest.raises(CheckpointError, match=r"No space left.*Earlier checkpoints are kept"):
        simulated(Quadratic(), AllReduceSGD(), 2, out=tmp_path / "a", schedule=Constant(epochs=3))
    kept = list((tmp_path / "a" / "checkpoints").iterdir())
    assert [p.name for p in kept] == ["000000000044"]
    monkeypatch.undo()
    result = simulated(
        Quadratic(),
        AllReduceSGD(),
        2,
        out=tmp_path / "a",
        resume=True,
        schedule=Constant(epochs=3),
    )
    assert result.frames == 3 * 44


def test_old_checkpoints_are_pruned(tmp_path: Path) -> None:
    simulated(Quadratic(), Sequential(), out=tmp_path / "a", schedule=Constant(epochs=5))
    names = sorted(p.name for p in (tmp_path / "a" / "checkpoints").iterdir())
    assert names == ["000000000176", "000000000220"]


def test_a_run_is_never_overwritten(tmp_path: Path) -> None:
    simulated(Quadratic(), Sequential(), out=tmp_path / "a")
    before = (tmp_path / "a" / "metrics.jsonl").read_bytes()
    with pytest.raises(ConfigError, match="already holds a run: continue it with --resume"):
        simulated(Quadratic(), Sequential(), out=tmp_path / "a")
    with pytest.raises(ConfigError, match=r"is finished; to train on, raise schedule\.epochs"):
        simulated(Quadratic(), Sequential(), out=tmp_path / "a", resume=True)
    assert (tmp_path / "a" / "metrics.jsonl").read_bytes() == before


def test_a_finished_run_goes_on_with_more_epochs(tmp_path: Path) -> None:
    out = tmp_path / "a"
    simulated(Quadratic(), KStep(), 2, out=out, schedule=Constant(epochs=2))
    longer = simulated(Quadratic(), KStep(), 2, out=out, schedule=Constant(epochs=5), resume=True)
    assert longer.frames == 5 * 44
    assert sum(row["event"] == "summary" for row in rows(out)) == 1


def test_resume_refuses_another_configuration(tmp_path: Path) -> None:
    simulated(Quadratic(), KStep(), 2, out=tmp_path / "a", schedule=Constant(epochs=1))
    with pytest.raises(ConfigError, match=r"strategy.sync_every is 3 but .* begun with 16"):
        simulated(Quadratic(), KStep(sync_every=3), 2, out=tmp_path / "a", resume=True)


def test_rewind_drops_what_came_after_the_checkpoint(tmp_path: Path) -> None:
    lines = [
        '{"event": "train", "frames": 10}\n',
        '{"event": "eval", "frames": 20}\n',
        '{"event": "train", "frames": 30}\n',
        '{"event": "tra',
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(lines))
    rewind(tmp_path, 20)
    assert (tmp_path / "metrics.jsonl").read_text() == "".join(lines[:2])
    assert len((tmp_path / "metrics.abandoned.jsonl").read_text().splitlines()) == 2


def test_the_model_file_is_plain_pytorch(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    task = hocket.Synthetic(num_frames=500, dev_frames=100)
    result = hocket.simulate(
        task, cluster=Cluster.even(1), out=tmp_path / "a", progress=False, schedule={"epochs": 1}
    )
    model = task.build_model()
    model.load_state_dict(load_file(tmp_path / "a" / "model.safetensors"))
    assert torch.equal(next(model.parameters()), result.model["0.weight"])


def test_an_attempt_that_died_before_its_first_checkpoint_may_be_begun_again(
    tmp_path: Path,
) -> None:
    from helpers.tasks import Broken

    out = tmp_path / "a"
    with pytest.raises(hocket.HocketError):
        simulated(Broken(how="nan"), Sequential(), out=out)
    result = simulated(Broken(how="none"), Sequential(), out=out)
    assert result.frames == 4 * 44
    assert sum(row["event"] == "summary" for row in rows(out)) == 1


def test_an_extended_run_can_be_resumed_after_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, longer = tmp_path / "a", Constant(epochs=3)
    simulated(Quadratic(), Sequential(), out=out, schedule=Constant(epochs=1))
    with monkeypatch.context() as patch:
        patch.setattr(Quadratic, "loss", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            simulated(Quadratic(), Sequential(), out=out, schedule=longer, resume=True)
    result = simulated(Quadratic(), Sequential(), out=out, schedule=longer, resume=True)
    assert result.frames == 3 * 44
    with pytest.raises(ConfigError, match=r"schedule\.epochs is 2, but .* epoch|is finished"):
        simulated(Quadratic(), Sequential(), out=out, schedule=Constant(epochs=2), resume=True)


def test_a_run_that_newbob_ended_stays_ended(tmp_path: Path) -> None:
    schedule = hocket.Newbob(epochs=50, start_halving=0.9, end_halving=0.5)
    out = tmp_path / "a"
    first = simulated(Quadratic(), Sequential(), out=out, schedule=schedule)
    assert first.epoch < 50
    assert not first.stopped
    with pytest.raises(ConfigError, match="ended by its schedule"):
        simulated(Quadratic(), Sequential(), out=out, schedule=schedule, resume=True)


def test_a_real_run_is_not_resumed_by_the_simulator(tmp_path: Path) -> None:
    real(Quadratic(), Sequential(), out=tmp_path / "a", schedule=Constant(epochs=1))
    with pytest.raises(ConfigError, match=r"begun by `hocket train`; `hocket simulate` cannot"):
        simulated(
            Quadratic(), Sequential(), out=tmp_path / "a", schedule=Constant(epochs=2), resume=True
        )


def test_a_checkpoint_interrupted_while_it_replaces_another_loses_nothing(tmp_path: Path) -> None:
    out = tmp_path / "a"
    simulated(Quadratic(), Sequential(), out=out, schedule=Constant(epochs=1))
    checkpoint = out / "checkpoints" / "000000000044"
    checkpoint.rename(out / "checkpoints" / ".000000000044.replaced")
    result = simulated(Quadratic(), Sequential(), out=out, schedule=Constant(epochs=2), resume=True)
    assert result.frames == 88


def test_the_demo_clears_only_its_own_runs(tmp_path: Path) -> None:
    from hocket.cli.demo_synthetic import cleared

    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years")
    assert cleared(tmp_path / "mine").joinpath("thesis.tex").exists()


def test_a_directory_that_is_not_a_run_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["Wav2Vec2"]}')
    with pytest.raises(ConfigError, match="is not empty and holds no run"):
        simulated(Quadratic(), Sequential(), out=tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["config.json"]


class Plain(Quadratic):
    """A task whose configuration does not show what it reads."""

    def __init__(self, count: int) -> None:
        object.__setattr__(self, "uneven", False)
        object.__setattr__(self, "spread", 0.5)
        object.__setattr__(self, "num_items", 22)
        object.__setattr__(self, "_count", count)

    def items(self, split: str) -> Any:
        return super().items(split)[: self._count]  # type: ignore[attr-defined]


def test_resume_refuses_other_data(tmp_path: Path) -> None:
    simulated(Plain(20), Sequential(), out=tmp_path / "a", schedule=Constant(epochs=1))
    with pytest.raises(ConfigError, match=r"data\.train\.\w+ is"):
        simulated(
            Plain(9), Sequential(), out=tmp_path / "a", schedule=Constant(epochs=2), resume=True
        )


def test_never_is_an_interval(tmp_path: Path) -> None:
    inf = float("inf")
    more: dict[str, Any] = {"evaluate_every": inf, "checkpoint_every": inf, "log_every": inf}
    simulated(Quadratic(), Sequential(), out=tmp_path / "a", **more)
    assert [row["event"] for row in rows(tmp_path / "a")] == ["eval", "checkpoint", "summary"]


def test_the_time_to_a_loss_is_read_off_the_evaluations(tmp_path: Path) -> None:
    more: dict[str, Any] = {"cluster": 1, "out": tmp_path / "a"}
    simulated(Quadratic(), Sequential(), schedule=Constant(epochs=2), **more)
    result = simulated(Quadratic(), Sequential(), schedule=Constant(epochs=4), resume=True, **more)
    times = [at for at, _ in result.evaluations]
    assert times == pytest.approx([44e-4, 88e-4, 132e-4, 176e-4])  # 44 frames, 10,000 frames/s
    best = min(loss for _, loss in result.evaluations)
    assert result.time_to(best) in times
    assert result.time_to(result.evaluations[0][1]) == times[0]
    assert result.time_to(best - 1e-9) is None
