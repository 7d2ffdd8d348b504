"""The declared gain is the measured one: on a slope, where the gradient is the same everywhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from helpers.runs import same_model, simulated
from helpers.tasks import Point
from torch import nn

from hocket import (
    ADMM,
    BMUF,
    EASGD,
    SGD,
    AdaptiveKStep,
    AsyncEASGD,
    Constant,
    DiLoCo,
    Exponential,
    Item,
    Kaldi,
    KStep,
    Loss,
    Sequential,
    Strategy,
    Task,
)
from hocket.experiment import Experiment, RuntimeOptions
from hocket.optim.compensation import ramp_frames
from hocket.strategies import STRATEGIES

LEARNERS = 4


@dataclass(frozen=True)
class Slope(Task):
    """Every frame costs the same, and less the further w goes: a gradient of 1 everywhere."""

    num_items: int = 240

    def build_model(self) -> nn.Module:
        return Point()

    def items(self, split: str) -> Sequence[Item]:
        return [Item(i, 2) for i in range(self.num_items if split == "train" else 1)]

    def load(self, split: str, item: Item, epoch: int) -> int:
        return item.frames

    def loss(self, model: nn.Module, batch: Any) -> Loss:
        assert isinstance(model, Point)
        return Loss((1e6 - model.w.sum()) * batch, batch)  # far above 0: nothing seems to diverge


def moved(
    strategy: Strategy[Any], learners: int, epochs: int, task: Slope | None = None, **more: Any
) -> float:
    """How far one value of the model goes."""
    plain = {"optimizer": SGD(lr=1.0), "schedule": Constant(epochs, lr_compensation="none")}
    result = simulated(task or Slope(), strategy, learners, **(plain | more))
    return float(result.model["w"][0])


def gain_of(strategy: Strategy[Any]) -> float:
    """Movement over the second half of a run, relative to sequential SGD's."""
    whole, half = (moved(strategy, LEARNERS, epochs) for epochs in (4, 2))
    return (whole - half) / (2 * Slope().num_items)


STEADY: dict[str, Strategy[Any]] = {
    "diloco": DiLoCo(sync_every=1),  # its momentum takes ten rounds to arrive
    "bmuf": BMUF(sync_every=3),
    "adaptive-kstep": AdaptiveKStep(sync_every=4),
    "admm": ADMM(rho=1e-6),  # the gain is that of a small penalty
}


MOVING = [n for n, s in STRATEGIES.items() if n != "kaldi" and s.uses_rate and s.max_learners != 1]


@pytest.mark.parametrize("name", MOVING)
def test_the_declared_gain_is_measured(name: str) -> None:
    strategy = STEADY.get(name, STRATEGIES[name]())
    assert gain_of(strategy) == pytest.approx(strategy.gain(LEARNERS), rel=0.02)


@pytest.mark.parametrize("kind", [EASGD, AsyncEASGD])
def test_momentum_of_eamsgd_is_part_of_its_gain(kind: Any) -> None:
    strategy = kind(momentum=0.75)
    assert strategy.gain(4) == pytest.approx(4 / 5)
    assert gain_of(strategy) == pytest.approx(strategy.gain(4), rel=0.02)


def test_a_warm_start_of_bmuf_moves_as_sequential_sgd_does() -> None:
    """It had the gain of plain averages, 1/P, at the rate of a method whose gain is 1."""
    at_once = Constant(2, lr_ramp_frames=0)
    warm = moved(BMUF(warm_start_frames=10**9), 4, 2, schedule=at_once)
    assert warm == pytest.approx(moved(Sequential(), 1, 2))


def test_a_run_that_is_all_warm_start_is_kstep_with_one_step() -> None:
    more: dict[str, Any] = {"optimizer": SGD(lr=0.01), "schedule": Constant(2)}
    warm = simulated(Slope(), BMUF(warm_start_frames=10**9), 4, **more)
    assert same_model(warm, simulated(Slope(), KStep(sync_every=1), 4, **more))


# ------------------------------------------------------------------ ramp, limit, what they cost


def experiment(schedule: Any, learners: int = 8, strategy: Any = None) -> Experiment:
    how = strategy or KStep()
    options = RuntimeOptions(learners=learners)
    return Experiment(Slope(), how, SGD(lr=0.1), schedule, options=options)


@pytest.mark.parametrize(
    ("schedule", "frames"),
    [
        (Constant(epochs=1), 24),  # a twentieth of the run
        (Constant(epochs=40), 480),  # at most an epoch
        (Constant(epochs=4, lr_ramp_frames=7), 7),
    ],
)
def test_the_ramp_has_a_length_in_frames(schedule: Any, frames: int) -> None:
    assert ramp_frames(schedule, 480) == frames


@pytest.mark.parametrize(("kind", "epochs"), [(Constant, 1), (Constant, 3), (Exponential, 2)])
def test_the_share_of_the_integral_is_what_a_slope_measures(kind: Any, epochs: int) -> None:
    made = experiment(kind(epochs))
    share = made.rate_share(made.pool())
    assert 0.9 < share < 1.0
    more = {"optimizer": SGD(lr=0.1), "schedule": kind(epochs), "task": Slope(800)}
    alone = moved(Sequential(), 1, epochs, **more)
    assert moved(KStep(sync_every=1), 8, epochs, **more) / alone == pytest.approx(share, rel=0.02)


def test_a_limit_holds_and_is_part_of_the_share() -> None:
    free, held = Constant(2, lr_ramp_frames=0), Constant(2, lr_ramp_frames=0, lr_limit=2.0)
    more: dict[str, Any] = {"optimizer": SGD(lr=0.1)}
    fast, slow = (moved(KStep(), 8, 2, schedule=s, **more) for s in (free, held))
    assert slow / fast == pytest.approx(2 / 8)
    made = experiment(held)
    assert made.rate_share(made.pool()) == pytest.approx(2 / 8)


# ------------------------------------------------------------------ remarks before a run


def remarks(strategy: Strategy[Any], learners: int = 4, epochs: int = 2) -> list[str]:
    made = experiment(Constant(epochs), learners, strategy)
    return strategy.remarks(made.extent(made.pool()))


def test_a_run_too_short_for_the_outer_momentum_is_remarked_on() -> None:
    (said,) = remarks(DiLoCo())
    assert "500 local steps" in said
    assert "leave 0 of them" in said
    assert "strategy.sync_every to 3 or less" in said
    assert not remarks(DiLoCo(sync_every=3))
    (said,) = remarks(BMUF(sync_every=60))
    assert "2 blocks" in said
    assert "strategy.sync_every to 7 or less" in said
    assert not remarks(BMUF(sync_every=7))


def test_kaldi_says_how_much_its_first_archive_takes() -> None:
    made = experiment(Exponential(2), 4, Kaldi())
    (said,) = Kaldi().remarks(made.extent(made.pool()))
    assert "takes 100% of the data and 100% of the rate's integral" in said
    half = Kaldi(sync_every=240)
    (said,) = half.remarks(made.extent(made.pool()))
    assert "takes 50% of the data and 76% of the rate's integral" in said  # 1 - sqrt(.1) over .9
    assert not Kaldi(sync_every=40).remarks(made.extent(made.pool()))
