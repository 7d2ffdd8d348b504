"""Simulated runs: rates, divergence, Ctrl-C, and resuming what is not simple."""

from __future__ import annotations

import json
import os
import signal
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.runs import (
    keep_only_first_checkpoint,
    same_model,
    simulated,
)
from helpers.strategies import Gossip, PushPull
from helpers.tasks import Broken, Quadratic, acoustic

from hocket import (
    SGD,
    AllReduceSGD,
    Cluster,
    Constant,
    KStep,
    Loss,
    Sequential,
)
from hocket.errors import (
    DivergedError,
)
from hocket.runtime.sim.cost import Death


def test_divergence_stops_the_run_and_names_the_rate(tmp_path: Path) -> None:
    with pytest.raises(DivergedError) as caught:
        simulated(
            Quadratic(num_items=200),
            AllReduceSGD(),
            4,
            optimizer=SGD(lr=1.0),
            schedule=Constant(epochs=3),
            out=tmp_path / "a",
        )
    text = str(caught.value)
    assert "The local rate is" in text
    assert "optimizer.lr = 1" in text
    assert "compensation of up to 4 for 4 learners" in text


def test_a_nan_stops_the_run_at_once() -> None:
    with pytest.raises(DivergedError, match="the training loss is nan"):
        simulated(Broken(how="nan"), KStep(sync_every=2), 2)


def test_ctrl_c_stops_a_simulation_with_a_checkpoint(tmp_path: Path) -> None:
    timer = threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    out, schedule = tmp_path / "a", Constant(epochs=1000)
    result = simulated(Quadratic(), KStep(sync_every=3), 3, out=out, schedule=schedule)
    assert result.stopped
    assert 0 < result.frames < 1000 * 44
    longer = Constant(epochs=result.epoch + 2)
    again = simulated(Quadratic(), KStep(sync_every=3), 3, out=out, schedule=longer, resume=True)
    assert not again.stopped
    assert again.frames == longer.epochs * 44


@pytest.mark.parametrize(("kind", "factor"), [("full", 4.0), ("sqrt", 2.0), ("none", 1.0)])
def test_the_local_rate_is_derived_from_the_gain(kind: Any, factor: float, tmp_path: Path) -> None:
    length = None if kind == "none" else 44
    schedule = Constant(epochs=2, lr_compensation=kind, lr_ramp_frames=length)
    simulated(Quadratic(), AllReduceSGD(), 4, schedule=schedule, out=tmp_path / "a")
    lines = (tmp_path / "a" / "metrics.jsonl").read_text().splitlines()
    rates = [row["lr"] for row in map(json.loads, lines) if row["event"] == "train"]
    assert rates[-1] == pytest.approx(0.1 * factor)
    assert rates[0] == pytest.approx(0.1 * (1 + (factor - 1) * 8 / 44))  # on the ramp


def test_clipping_and_weight_decay_act_in_the_stated_direction() -> None:
    plain = simulated(acoustic(), AllReduceSGD(), 2)
    decayed = simulated(acoustic(), AllReduceSGD(), 2, optimizer=SGD(weight_decay=0.1))
    clipped = simulated(acoustic(), AllReduceSGD(), 2, optimizer=SGD(clip_norm=0.01))
    norms = [
        float(sum(x.square().sum() for k, x in r.model.items() if "2" in k))
        for r in (plain, decayed, clipped)
    ]
    assert norms[1] < 0.7 * norms[0]
    assert norms[2] < 0.2 * norms[0]


def test_evaluation_time_is_left_out_of_the_training_time() -> None:
    often = simulated(Quadratic(), Sequential(), 1, evaluate_every=0.1)
    once = simulated(Quadratic(), Sequential(), 1, evaluate_every=4.0)
    assert often.aside_s > 5 * once.aside_s
    assert often.time_s == pytest.approx(once.time_s)


# ------------------------------------------------------------------ resuming what is not simple


def test_unread_messages_survive_a_checkpoint(tmp_path: Path) -> None:
    more: dict[str, Any] = {"schedule": Constant(epochs=4), "keep_checkpoints": 99}
    cluster = Cluster.even(2, frames_per_s=100.0)
    whole = simulated(Quadratic(), Gossip(), cluster, out=tmp_path / "a", **more)
    part = keep_only_first_checkpoint(tmp_path / "a", tmp_path / "b")
    again = simulated(Quadratic(), Gossip(), cluster, out=part, resume=True, **more)
    assert same_model(whole, again)


def test_a_death_that_has_happened_does_not_happen_again(tmp_path: Path) -> None:
    hosts = Cluster.even(3, frames_per_s=100.0).hosts
    cluster = Cluster(hosts, deaths=(Death(1, at_s=0.05), Death(2, at_draw=15)))
    out, schedule = tmp_path / "a", Constant(epochs=1)
    simulated(Quadratic(), AllReduceSGD(), cluster, out=out, schedule=schedule)
    again = simulated(
        Quadratic(), AllReduceSGD(), cluster, out=out, schedule=Constant(epochs=4), resume=True
    )
    assert again.frames == 4 * 44
    rows = [json.loads(x) for x in (out / "metrics.jsonl").read_text().splitlines()]
    assert [r["rank"] for r in rows if r["event"] == "lost"] == [1, 2]
    times = [r["time_s"] for r in rows]
    assert times == sorted(times)


def test_the_books_go_on_after_a_resumption(tmp_path: Path) -> None:
    more: dict[str, Any] = {"cluster": 2, "out": tmp_path / "a"}
    first = simulated(Quadratic(), KStep(sync_every=2), schedule=Constant(epochs=2), **more)
    longer = simulated(
        Quadratic(), KStep(sync_every=2), schedule=Constant(epochs=4), resume=True, **more
    )
    assert sum(one.frames for one in longer.learners) == longer.frames == 4 * 44
    for a, b in zip(first.learners, longer.learners, strict=True):
        assert b.utilisation == pytest.approx(a.utilisation, rel=0.02)
        assert b.bytes_sent == 2 * a.bytes_sent


def test_every_asynchronous_learner_is_heard_and_guarded(tmp_path: Path) -> None:
    simulated(Quadratic(num_items=60), PushPull(), 3, out=tmp_path / "a")
    rows = [json.loads(x) for x in (tmp_path / "a" / "metrics.jsonl").read_text().splitlines()]
    assert {r["rank"] for r in rows if r["event"] == "train"} == {0, 1, 2}
    with pytest.raises(DivergedError, match="nan"):
        simulated(Broken(how="nan"), PushPull(), 3)


@dataclass(frozen=True)
class Frozen(Quadratic):
    """A fixed layer in front, as an LDA transform would be."""

    def build_model(self) -> Any:
        model = torch.nn.Sequential(torch.nn.Linear(5, 5), torch.nn.Linear(5, 1))
        model[0].weight.requires_grad_(False)
        return model

    def loss(self, model: Any, batch: Any) -> Any:
        return Loss((model(batch) ** 2).sum(), len(batch))


def test_frozen_parameters_stay_and_are_saved() -> None:
    result = simulated(Frozen(), KStep(sync_every=2), 2)
    assert set(result.model) == {"0.weight", "0.bias", "1.weight", "1.bias"}
    alone = simulated(Frozen(), Sequential(), 1)
    assert torch.equal(result.model["0.weight"], alone.model["0.weight"])
    assert not torch.equal(result.model["1.weight"], alone.model["1.weight"])
