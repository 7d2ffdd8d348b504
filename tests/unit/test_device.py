"""Devices and precision: all that can be tried without a GPU."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import pytest
import torch
from helpers.runs import real, same_model, simulated
from helpers.tasks import Quadratic, Steep, acoustic

from hocket import SGD, AllReduceSGD, Constant, KStep, Sequential, Strategy, api
from hocket.core import device
from hocket.errors import ConfigError, DivergedError, LearnerFailedError
from hocket.experiment import Experiment, RuntimeOptions
from hocket.runtime.real.faults import Fault

LOW: dict[str, Any] = {"precision": "bfloat16", "schedule": Constant(epochs=3)}


def test_a_device_that_is_not_there_is_refused() -> None:
    assert device.resolve("cpu", 3) == torch.device("cpu")
    if torch.cuda.is_available():
        pytest.skip("there is one here")
    assert device.resolve("auto", 0) == torch.device("cpu")
    with pytest.raises(ConfigError, match="finds no CUDA device"):
        simulated(Quadratic(), Sequential(), device="cuda")
    with pytest.raises(ConfigError, match="finds no CUDA device"):
        real(Quadratic(), AllReduceSGD(), 2, device="cuda")


def test_batches_of_any_shape_are_moved() -> None:
    pair = namedtuple("pair", "x y")
    batch = {"a": [torch.ones(2), "text"], "b": pair(torch.zeros(1), (1, torch.ones(1)))}
    assert device.move(batch, torch.device("cpu")) is batch
    moved = device.move(batch, torch.device("meta"))
    assert moved["a"][0].is_meta
    assert moved["a"][1] == "text"
    assert isinstance(moved["b"], pair)
    assert moved["b"].y[1].is_meta


def test_bfloat16_learns_as_well_and_keeps_its_vectors_in_float32() -> None:
    task = acoustic(num_frames=6000)
    high = simulated(task, Sequential(), schedule=Constant(epochs=3))
    low = simulated(task, Sequential(), **LOW)
    assert all(value.dtype == torch.float32 for value in low.model.values())
    assert not same_model(high, low), "autocast had no effect"
    assert low.loss == pytest.approx(high.loss, rel=0.05)


@pytest.mark.parametrize("strategy", [AllReduceSGD(), KStep(sync_every=2)], ids=lambda s: s.name)
def test_both_worlds_agree_in_bfloat16_too(strategy: Strategy[Any]) -> None:
    a = simulated(acoustic(), strategy, 2, **LOW)
    b = real(acoustic(), strategy, 2, **LOW)
    assert same_model(a, b)


@pytest.mark.parametrize("learners", [1, 2, 4])
def test_a_gradient_that_is_not_finite_is_skipped_by_all_or_by_none(learners: int) -> None:
    """The mean is the same everywhere, so all skip it; it is counted, and the ledger closes."""
    more = LOW | {"optimizer": SGD(lr=0.01, momentum=0.9)}
    a = simulated(Steep(), AllReduceSGD(), learners, **more)
    b = real(Steep(), AllReduceSGD(), learners, **more)
    for result in (a, b):
        assert [one.skipped for one in result.learners] == [3] * learners
        assert torch.isfinite(result.model["w"]).all()
        assert result.frames == 3 * 44
    assert same_model(a, b)


def test_in_float32_such_a_gradient_ends_in_a_clear_error() -> None:
    with pytest.raises(DivergedError, match="nan"):
        simulated(Steep(), AllReduceSGD(), 2, schedule=Constant(epochs=3))


# ------------------------------------------------------------------ vectors through torch


TORCH: dict[str, Any] = {"transport": "torch", "deterministic": False, "on_loss": "stop"}


@pytest.mark.parametrize("learners", [2, 4])
@pytest.mark.parametrize("strategy", [AllReduceSGD(), KStep(sync_every=2)], ids=lambda s: s.name)
def test_vectors_may_go_through_torch_distributed(strategy: Strategy[Any], learners: int) -> None:
    """With gloo here, in NCCL's place: the same mean but for the order of the sum."""
    task = Quadratic(uneven=True)
    ours = simulated(task, strategy, learners)
    theirs = real(task, strategy, learners, **TORCH)
    assert theirs.frames == ours.frames
    assert theirs.model.keys() == ours.model.keys()
    for name, value in theirs.model.items():
        torch.testing.assert_close(value, ours.model[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("left_out", [("deterministic",), ("on_loss",)])
def test_what_torch_distributed_cannot_do_is_refused(left_out: tuple[str]) -> None:
    options = {k: v for k, v in TORCH.items() if k not in left_out}
    with pytest.raises(ConfigError, match=f"runtime.{left_out[0]} = "):
        real(Quadratic(), AllReduceSGD(), 2, **options)


def test_a_loss_ends_a_run_through_torch_distributed() -> None:
    """Within the limit of a wait, and by name."""
    experiment = Experiment(
        Quadratic(num_items=60),
        AllReduceSGD(),
        options=RuntimeOptions(learners=3, timeout_s=20.0, **TORCH),
    )
    with pytest.raises(LearnerFailedError, match="rank 1"):
        api.run_real(experiment, None, progress=False, faults=(Fault(1, at_draw=4),))


def test_a_lane_on_the_cpu_changes_nothing() -> None:
    with device.Lane(torch.device("cpu")).work():
        assert float(torch.ones(3).sum()) == 3.0
