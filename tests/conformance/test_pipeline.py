"""Pipelined back-propagation, on several stages: what it is equal to, and how late it is."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.pipelines import CUTS, ITEMS, LR, Layers, layered, run
from helpers.runs import real, same_model, simulated
from helpers.tasks import WithBuffers, WithDropout
from reference.pipeline_twin import Twin
from torch import nn

from hocket import DNN, SGD, Cluster, Constant, Exponential, Loss, Pipeline, Sequential, Synthetic
from hocket.core.task import Item, Task
from hocket.errors import ConfigError, HocketError, TaskError
from hocket.experiment import Experiment
from hocket.runtime.shared.worker import new_model
from hocket.runtime.sim.cost import Host

# ------------------------------------------------------------------ the twin


def twin_of(strategy: Pipeline, breaks: tuple[int, ...], epochs: int = 2) -> Twin:
    """The twin after a run whose pipeline ran empty after so many minibatches."""
    task = Layers()
    model = new_model(task, 0)
    linear = [(n, m) for n, m in enumerate(model.children()) if isinstance(m, nn.Linear)]
    edges = [*CUTS[strategy.stages], len(list(model.children()))]
    stages = [next(s for s, end in enumerate(edges) if number < end) for number, _ in linear]
    weights = [[(m.weight.detach().double().numpy(), m.bias.detach().double().numpy())]
               for _, m in linear]  # fmt: skip
    twin = Twin(
        weights, [strategy.delay(s) for s in stages], LR, 0.5, strategy.weights == "stashed"
    )
    pool = Experiment(task, Sequential(), schedule=Constant(epochs=epochs)).pool()
    order = [int(i) for epoch in range(epochs) for i in pool.order(epoch)]
    batches = []
    for index in order:
        x, labels = task.load("train", task.items("train")[index], 0)
        batches.append((x.double().numpy(), labels.numpy()))
    for begin, end in zip([0, *breaks], [*breaks, len(batches)], strict=True):
        twin.learn(batches[begin:end])
    return twin


def assert_agrees(result: Any, twin: Twin) -> None:
    for number, versions in enumerate(twin.versions):
        w, b = versions[-1]
        np.testing.assert_allclose(result.model[f"{2 * number}.weight"], w, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(result.model[f"{2 * number}.bias"], b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("weights", ["as_they_are", "stashed"])
@pytest.mark.parametrize(("stages", "window"), [(2, None), (3, None), (4, None), (4, 4), (3, 2)])
def test_a_twin_that_knows_only_the_delays_agrees(
    stages: int, window: int | None, weights: Any
) -> None:
    strategy = layered(stages, window=window, weights=weights)
    twin = twin_of(strategy, ())
    assert_agrees(run(strategy), twin)
    other = twin_of(replace(layered(stages), flush=True), ())
    apart = max(
        np.abs(a[-1][0] - b[-1][0]).max()
        for a, b in zip(twin.versions, other.versions, strict=True)
    )
    assert apart > 1e-3, "the delay moves the model, else this proves nothing"


def test_the_pipeline_runs_empty_where_a_model_is_evaluated() -> None:
    strategy = layered(3)
    result = run(strategy, evaluate_every=1)
    # The first one is due when it has come back as many as an epoch has; the window is full then.
    assert_agrees(result, twin_of(strategy, (ITEMS + strategy.delay(0),)))


def test_stashed_weights_differ_from_those_of_now() -> None:
    models = [run(layered(3, weights=w)).model for w in ("stashed", "as_they_are")]
    assert not same_model(*models)


# ------------------------------------------------------------------ the identities


@pytest.mark.parametrize("task", [Layers(), WithBuffers(uneven=True)], ids=["layers", "buffers"])
def test_one_stage_is_sgd_bit_for_bit(task: Task) -> None:
    more: dict[str, Any] = {"optimizer": SGD(lr=0.05, momentum=0.9), "evaluate_every": 0.5}
    plain, one = (simulated(task, s, **more) for s in (Sequential(), Pipeline(stages=1)))
    assert same_model(plain, one)
    assert (plain.loss, plain.accuracy, plain.frames) == (one.loss, one.accuracy, one.frames)


@pytest.mark.parametrize("micro_batches", [1, 3])
@pytest.mark.parametrize("stages", [2, 4])
def test_with_a_flush_it_is_sgd_to_rounding(stages: int, micro_batches: int) -> None:
    plain = run(Sequential())
    flushed = run(layered(stages, flush=True, micro_batches=micro_batches))
    for name, value in plain.model.items():
        torch.testing.assert_close(flushed.model[name], value, rtol=1e-5, atol=1e-6)
    assert flushed.loss == pytest.approx(plain.loss, rel=1e-5)
    assert (flushed.accuracy, flushed.frames) == (plain.accuracy, plain.frames)
    if micro_batches == 1:
        assert same_model(plain, flushed), "what is not added up in parts is the same bit for bit"


def test_a_window_of_one_is_sgd_too() -> None:
    assert same_model(run(Sequential()), run(layered(4, window=1)))


def test_batch_norm_statistics_stay_with_their_stage() -> None:
    """With a flush also the statistics are those of SGD, and held-out data is scored with them."""
    flushed = Pipeline(stages=2, cut=(1,), flush=True)
    plain, cut = (simulated(WithBuffers(), s, evaluate_every=0.5) for s in (Sequential(), flushed))
    assert plain.model.keys() == cut.model.keys()
    for name, value in plain.model.items():
        torch.testing.assert_close(cut.model[name], value, rtol=1e-5, atol=1e-6)
    assert cut.loss == pytest.approx(plain.loss, rel=1e-5)


@pytest.mark.parametrize(
    ("task", "strategy"),
    [
        (Layers(), layered(3)),
        (WithBuffers(uneven=True), Pipeline(stages=2, cut=(1,), flush=True)),
        pytest.param(WithDropout(), Pipeline(stages=2, cut=(2,)), marks=pytest.mark.long),
        pytest.param(Layers(), layered(4, weights="stashed"), marks=pytest.mark.long),
        pytest.param(Layers(), layered(2, flush=True, micro_batches=3), marks=pytest.mark.long),
    ],
)
def test_simulator_equals_real_processes_bit_for_bit(task: Task, strategy: Pipeline) -> None:
    more: dict[str, Any] = {"optimizer": SGD(lr=0.01, momentum=0.9), "evaluate_every": 0.5}
    a, b = simulated(task, strategy, **more), real(task, strategy, **more)
    assert same_model(a, b)
    assert (a.loss, a.accuracy, a.frames) == (b.loss, b.accuracy, b.frames)


def test_speeds_do_not_change_the_result() -> None:
    slow = Cluster((Host(attendants=2, jitter=0.8, memory_gbit=0.001),))
    fast = Cluster((Host(attendants=2),))
    results = [
        simulated(Layers(), layered(3), c, optimizer=SGD(lr=LR), evaluate_every=0.5)
        for c in (slow, fast)
    ]
    assert same_model(*results)
    assert results[0].time_s > results[1].time_s


# ------------------------------------------------------------------ what is seen of it


def events(path: Path, kind: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["event"] == kind]


def test_delays_are_measured(tmp_path: Path) -> None:
    run(layered(3), out=tmp_path)
    (last,) = events(tmp_path, "eval")
    assert [last[f"delay_stage_{s}_max"] for s in (1, 2, 3)] == [4, 2, 0]
    # The first ones of a stretch are less late: 0, 1, 2, 3, 4, 4, ... and so at its end.
    assert last["delay_stage_1"] == pytest.approx((0 + 1 + 2 + 3 + 4 * 20) / 24)
    said = [event["text"] for event in events(tmp_path, "note")]
    assert any("stage 2 (rank 1) holds layers 2 to 3, 64 parameters" in text for text in said)


def idle_share(path: Path, rank: int, time_s: float) -> float:
    """How much of a run a rank did not compute, by its timeline."""
    busy = 0.0
    for line in (path / "trace.jsonl").read_text().splitlines():
        span = json.loads(line)
        if span["rank"] == rank and span["kind"] in ("forward", "backward"):
            busy += span["end_s"] - span["start_s"]
    return 1.0 - busy / time_s


@dataclass(frozen=True)
class Even(Layers):
    """Four layers that take as long: the first is wider, but has nobody to send derivatives to."""

    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(9, 6), *(nn.Linear(6, 6) for _ in range(3)))

    def load(self, split: str, item: Item, epoch: int) -> tuple[torch.Tensor, torch.Tensor]:
        x, labels = super().load(split, item, epoch)
        return torch.cat([x, x[:, :3]], 1), labels


@pytest.mark.parametrize("micro_batches", [1, 2, 4, 8])
def test_the_bubble_is_in_the_timeline(micro_batches: int, tmp_path: Path) -> None:
    """GPipe's formula, in the simulator, where four equal stages exchange at no cost."""
    cluster = Cluster((Host(attendants=3, memory_gbit=1e9),), local_latency_s=0.0)
    strategy = Pipeline(stages=4, flush=True, micro_batches=micro_batches)
    result = simulated(
        Even(), strategy, cluster, out=tmp_path, trace=True, schedule=Constant(epochs=3)
    )
    bubble = 3 / (micro_batches + 3)
    for rank in range(4):
        assert idle_share(tmp_path, rank, result.time_s) == pytest.approx(bubble, abs=0.002)


def test_without_a_flush_only_its_beginning_and_end_are_idle(tmp_path: Path) -> None:
    cluster = Cluster((Host(attendants=3, memory_gbit=1e9),), local_latency_s=0.0)
    result = simulated(
        Even(),
        Pipeline(stages=4),
        cluster,
        out=tmp_path,
        trace=True,
        schedule=Constant(epochs=20),
        evaluate_every=20,
        checkpoint_every=20,
    )
    for rank in range(4):
        assert idle_share(tmp_path, rank, result.time_s) < 4 / (20 * ITEMS)


# ------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"stages": 0}, "strategy.stages must be at least 1, not 0"),
        ({"stages": 3, "cut": (1,)}, r"strategy.cut = \[1\] makes 2 stages, and .* is 3"),
        ({"micro_batches": 2}, "micro_batches has no effect without strategy.flush"),
        ({"flush": True, "window": 3}, "window has no effect with strategy.flush"),
        ({"stages": 1, "window": 3}, "strategy.window = 3 has no effect with one stage"),
        ({"stages": 1, "weights": "stashed"}, "'stashed' has no effect"),
        ({"flush": True, "weights": "stashed"}, "'stashed' has no effect"),
        ({"window": 1, "weights": "stashed"}, "'stashed' has no effect"),
        ({"weights": "new"}, "strategy.weights must be 'as_they_are' or 'stashed', not 'new'"),
        ({"window": 0}, "strategy.window must be at least 1, not 0"),
        ({"flush": True, "micro_batches": 0}, "micro_batches must be at least 1, not 0"),
    ],
)
def test_options_without_effect_are_refused(more: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Pipeline(**more)


@dataclass(frozen=True)
class Twice(Layers):
    """Calls its model twice."""

    def loss(self, model: nn.Module, batch: Any) -> Loss:
        x, labels = batch
        return super().loss(model, (x + 0 * model(x)[:, :1], labels))


@dataclass(frozen=True)
class Residual(Layers):
    """A model whose layers are not in a row."""

    def build_model(self) -> nn.Module:
        return nn.ModuleDict({"a": nn.Linear(6, 6), "b": nn.Linear(6, 4)})


@pytest.mark.parametrize(
    ("task", "strategy", "more", "error", "said"),
    [
        (Residual(), Pipeline(), {}, TaskError, r"is a ModuleDict \(of a, b\).*nn.Sequential"),
        (Twice(), Pipeline(), {}, TaskError, r"loss\(\) calls it 2 times"),
        (Layers(), Pipeline(stages=5), {}, ConfigError, "4 layers with parameters cannot be cut"),
        (Layers(), Pipeline(cut=(9,)), {}, ConfigError, "between 1 and 6: the model has layers"),
        (Layers(), Pipeline(3, (3, 4)), {}, ConfigError, r"leaves stage 2 \(layers 3 to 3\)"),
        (Layers(), layered(2), {"optimizer": SGD(clip_norm=1.0)}, ConfigError, "clip_norm needs"),
        (Layers(), layered(2), {"precision": "bfloat16"}, ConfigError, "float32 only"),
        (Layers(), layered(2), {"cluster": 2}, ConfigError, "one learner.*strategy.stages=2"),
    ],
)
def test_what_cannot_be_cut_is_refused_with_the_reason(
    task: Task, strategy: Pipeline, more: dict[str, Any], error: type[HocketError], said: str
) -> None:
    with pytest.raises(error, match=said):
        simulated(task, strategy, **more)


def test_a_large_softmax_is_a_stage_of_its_own(tmp_path: Path) -> None:
    task = Synthetic(num_frames=2000, num_classes=400, model=DNN(layers=3, width=32))
    simulated(task, "pipeline", schedule=Constant(epochs=1), out=tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["strategy"]["cut"] == [6]  # Linear and ReLU three times, then the softmax's


def test_rates_follow_their_schedule() -> None:
    more: dict[str, Any] = {
        "optimizer": SGD(lr=LR),
        "schedule": Exponential(epochs=3, final_factor=0.01),
    }
    plain = simulated(Layers(), Sequential(), **more)
    assert same_model(plain, simulated(Layers(), layered(3, flush=True), **more))


def test_an_input_transform_is_a_layer_of_the_first_stage() -> None:
    """It is not trained, but it is saved; and it is estimated from the data by the first rank."""
    model = DNN(layers=2, width=16, input_transform="lda")
    task = Synthetic(num_frames=1000, dev_frames=300, num_classes=6, model=model)
    more: dict[str, Any] = {"optimizer": SGD(lr=0.1), "schedule": Constant(epochs=1)}
    plain = simulated(task, Sequential(), **more)
    cut = simulated(task, Pipeline(stages=3, flush=True), **more)
    assert plain.model.keys() == cut.model.keys()
    assert same_model(plain, cut)
