"""Settings that make no sense are refused with the reason, by themselves and in combination."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from helpers.runs import simulated
from helpers.tasks import Quadratic

from hocket import (
    ADMM,
    BMUF,
    EASGD,
    SGD,
    AdamW,
    AdaptiveKStep,
    AsyncEASGD,
    Constant,
    DiLoCo,
    KStep,
    Strategy,
    config,
)
from hocket.errors import ConfigError, DivergedError
from hocket.experiment import Experiment, RuntimeOptions

EVEN = Quadratic(num_items=24)

REFUSED: list[tuple[str, Any, str]] = [
    ("K = 0", lambda: KStep(sync_every=0), "sync_every must be at least 1, not 0"),
    ("K = 0", lambda: BMUF(sync_every=0), "sync_every must be at least 1"),
    ("K = 0", lambda: EASGD(sync_every=0), "sync_every must be at least 1"),
    ("K = 0", lambda: ADMM(sync_every=0), "sync_every must be at least 1"),
    ("policy", lambda: KStep(local_momentum="mix"), "keep, reset, average, not 'mix'"),  # type: ignore[arg-type]
    ("eta = 1", lambda: BMUF(block_momentum=1.0), "the model diverges"),
    ("eta < 0", lambda: BMUF(block_momentum=-0.1), r"must be in \[0, 1\)"),
    ("zeta = 0", lambda: BMUF(block_lr=0.0), "block_lr must be above 0"),
    ("warm < 0", lambda: BMUF(warm_start_frames=-1), "warm_start_frames must be at least 0"),
    ("outer", lambda: DiLoCo(outer_optimizer="lamb"), "one of nesterov, momentum, sgd, not 'lamb'"),  # type: ignore[arg-type]
    ("outer lr", lambda: DiLoCo(outer_lr=0.0), "outer_lr must be above 0"),
    ("mu = 1", lambda: DiLoCo(outer_momentum=1.0), r"outer_momentum must be in \[0, 1\)"),
    (
        "mu without momentum",
        lambda: DiLoCo(outer_optimizer="sgd", outer_momentum=0.9),
        "has no effect with outer_optimizer = 'sgd'",
    ),
    ("alpha = 0", lambda: EASGD(moving_rate=0.0), "moving_rate must be above 0"),
    ("delta = 1", lambda: EASGD(momentum=1.0), r"momentum must be in \[0, 1\)"),
    ("rho = 0", lambda: ADMM(rho=0.0), "nothing pulls"),
    ("min K", lambda: AdaptiveKStep(4, min_sync_every=5), "from 1 to sync_every = 4"),
    ("nothing", lambda: AdaptiveKStep(shrink_sync=False), "adapts nothing: use kstep"),
    ("stall", lambda: AdaptiveKStep(stall=0.0), "stall must be between 0 and 1"),
    ("tolerance", lambda: AdaptiveKStep(tolerance=-1.0), "tolerance must be at least 0"),
]


@pytest.mark.parametrize(("what", "make", "reason"), REFUSED, ids=[r[0] for r in REFUSED])
def test_bad_settings_are_refused_with_the_reason(what: str, make: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        make()


def built(strategy: Strategy[Any], learners: int = 4, **more: Any) -> Experiment:
    return Experiment(EVEN, strategy, options=RuntimeOptions(learners=learners), **more)


COMBINATIONS: list[tuple[Strategy[Any], dict[str, Any], str]] = [
    (EASGD(moving_rate=0.4), {}, r"alpha \+ P alpha = 2 must stay below 2"),
    (AsyncEASGD(moving_rate=1.0), {}, "would overshoot the centre"),
    (EASGD(momentum=0.9), {"optimizer": SGD(momentum=0.9)}, "the velocity is the strategy's"),
    (EASGD(momentum=0.9), {"optimizer": SGD(weight_decay=0.1)}, "the velocity is the strategy's"),
    (EASGD(momentum=0.9), {"optimizer": AdamW()}, "the velocity is the strategy's"),
    (KStep(local_momentum="reset"), {}, "remembers nothing"),
    (
        DiLoCo(),
        {"schedule": Constant(lr_compensation="full")},
        "has a rule of its own for the rate of a learner",
    ),
]


@pytest.mark.parametrize(
    ("strategy", "more", "reason"), COMBINATIONS, ids=[t[2] for t in COMBINATIONS]
)
def test_combinations_are_refused_with_the_reason(
    strategy: Strategy[Any], more: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        built(strategy, **more)


@pytest.mark.parametrize("kind", [EASGD, AsyncEASGD])
def test_a_centre_that_overshoots_is_warned_of(kind: Any) -> None:
    with pytest.warns(UserWarning, match=r"P \* moving_rate = 1.2 is above 1"):
        built(kind(moving_rate=0.3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        built(kind(moving_rate=0.25))


def test_diloco_brings_its_own_optimizer_and_rate() -> None:
    parts = config.build_parts({"strategy": {"name": "diloco"}, "optimizer": {"lr": 0.003}})
    assert isinstance(parts["optimizer"], AdamW)
    assert parts["optimizer"].lr == 0.003
    plain = config.build_parts({"strategy": {"name": "diloco"}, "optimizer": {"name": "sgd"}})
    assert isinstance(plain["optimizer"], SGD)
    assert built(DiLoCo(), optimizer=SGD()).lr_factor() == 1.0


@pytest.mark.parametrize("capped", [True, False])
def test_balancing_keeps_the_local_step_of_admm_stable(
    capped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a cap on gamma rho, balancing drives the penalty up until the run diverges."""
    task, schedule = Quadratic(num_items=23, uneven=True), Constant(epochs=30)
    more: dict[str, Any] = {"schedule": schedule, "optimizer": SGD(lr=0.02)}
    if capped:
        result = simulated(task, ADMM(sync_every=3), 16, **more)
        assert abs(result.model["w"].numpy() - task.optimum).max() < 0.1
        return
    monkeypatch.setattr("hocket.strategies.admm.STABLE", float("inf"))
    with pytest.raises(DivergedError):
        simulated(task, ADMM(sync_every=3), 16, **more)
