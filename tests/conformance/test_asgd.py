"""Asynchronous SGD against its twin, its identities, and every rule in its stated direction."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.runs import same_model, simulated, simulator
from helpers.tasks import DIM, Quadratic, WithDropout, acoustic
from reference import asgd_twin

from hocket import (
    ASGD,
    SGD,
    AdaGrad,
    AdamW,
    Cluster,
    Constant,
    Host,
    Pause,
    Result,
    Sequential,
    Slow,
)
from hocket.core.flat import Layout
from hocket.core.learner import Learner
from hocket.errors import ConfigError
from hocket.experiment import Experiment, RuntimeOptions
from hocket.runtime.sim.simulator import Simulator
from hocket.strategies.parameter_server import ServerState

LR = 0.02
PLAIN = Constant(epochs=2, lr_compensation="none")
TASK = Quadratic(num_items=40, uneven=True)


def jittery(learners: int, **more: Any) -> Cluster:
    host = Host(learners=learners, frames_per_s=400.0, jitter=0.4, memory_gbit=0.01)
    return Cluster((host,), **more)


def built(strategy: ASGD, learners: int = 4, rule: Any = None, **more: Any) -> Simulator:
    options = RuntimeOptions(learners=learners, trace=True, evaluate_every=9.0)
    experiment = Experiment(TASK, strategy, rule or SGD(lr=LR), PLAIN, options=options)
    return simulator(experiment, jittery(learners, **more))


def run(strategy: Any, learners: int = 4, task: Any = TASK, **more: Any) -> Result:
    given: dict[str, Any] = {"optimizer": SGD(lr=LR), "schedule": PLAIN} | more
    return simulated(task, strategy, jittery(learners), **given)


def model_of(sim: Simulator) -> np.ndarray[Any, Any]:
    return sim.learners[-1].state.shard[:DIM].numpy()  # type: ignore[attr-defined, no-any-return]


# ------------------------------------------------------------------ against the twin


@pytest.mark.parametrize("learners", [1, 2, 4, 7])
@pytest.mark.parametrize("overlap", [0, 1])
def test_it_follows_its_twin(overlap: int, learners: int) -> None:
    """From the order in which pushes arrived: the model, and how late every gradient was."""
    sim = built(ASGD(servers=1, overlap=overlap), learners)
    sim.run()
    order = asgd_twin.order_of(sim.trace.spans, learners)
    expected, lates, _ = asgd_twin.asgd(TASK, order, LR, overlap=overlap)
    np.testing.assert_allclose(model_of(sim), expected, rtol=2e-5, atol=1e-6)
    usual = ASGD(overlap=overlap).usual_staleness(learners)
    assert np.mean(lates[learners * 2 :]) == pytest.approx(usual, rel=0.1, abs=0.01)


@pytest.mark.parametrize(
    ("strategy", "twin"),
    [
        (ASGD(servers=1, damping="staleness"), {"damp": lambda late: 1 / max(1, late)}),
        (ASGD(servers=1, max_staleness=6), {"most": 6}),
        (ASGD(servers=1, delay_compensation=0.5), {"lam": 0.5}),
        (
            ASGD(servers=1, delay_compensation=0.5, adaptive_compensation=True),
            {"lam": 0.5, "adaptive": True},
        ),
        (ASGD(servers=1, softsync=3), {"softsync": 3}),
        (
            ASGD(servers=1, softsync=2, damping="staleness"),
            {"softsync": 2, "damp": lambda late: 1 / max(1, late)},
        ),
        (ASGD(servers=1), {"adagrad": True}),
    ],
    ids=[
        "staleness-aware",
        "discard",
        "DC-ASGD-c",
        "DC-ASGD-a",
        "softsync",
        "softsync, damped",
        "AdaGrad",
    ],
)
def test_each_rule_follows_its_twin(strategy: ASGD, twin: dict[str, Any]) -> None:
    sim = built(strategy, rule=AdaGrad(lr=LR) if "adagrad" in twin else None)
    sim.run()
    order = asgd_twin.order_of(sim.trace.spans, 4)
    expected, _, dropped = asgd_twin.asgd(TASK, order, LR, overlap=1, **twin)
    np.testing.assert_allclose(model_of(sim), expected, rtol=5e-5, atol=2e-6)
    plain, _, _ = asgd_twin.asgd(TASK, order, LR, overlap=1)
    assert not np.allclose(expected, plain, rtol=1e-4), "the rule changes something"
    assert bool(dropped) == ("most" in twin)
    assert bool(sim.context(0).account.ledger.discarded_frames) == ("most" in twin)


# ------------------------------------------------------------------ identities


@pytest.mark.parametrize("optimizer", [SGD(lr=LR, momentum=0.9, clip_norm=0.5), AdamW(), AdaGrad()])
@pytest.mark.parametrize("servers", [0, 1, 2])
def test_one_learner_that_waits_is_the_optimizer_itself_bit_for_bit(
    servers: int, optimizer: Any
) -> None:
    alone = simulated(TASK, Sequential(), 1, optimizer=optimizer, schedule=Constant(2))
    served = run(ASGD(servers=servers, overlap=0), 1, optimizer=optimizer, schedule=Constant(2))
    assert same_model(alone, served)


def test_one_learner_with_downpours_own_step_is_plain_sgd_bit_for_bit() -> None:
    alone = simulated(TASK, Sequential(), 1, optimizer=SGD(lr=LR), schedule=PLAIN)
    assert same_model(alone, run(ASGD(servers=1, local_step=True), 1))
    assert not same_model(alone, run(ASGD(servers=1), 1)), "else it is delayed by one"


@pytest.mark.parametrize("accumulate", [2, 3])
def test_one_learner_with_own_steps_within_a_push_is_plain_sgd(accumulate: int) -> None:
    """From the first push on, before any reply has come in; items of one size, so sums agree."""
    task = Quadratic(num_items=40)
    alone = simulated(task, Sequential(), 1, optimizer=SGD(lr=LR), schedule=PLAIN)
    how = ASGD(servers=1, local_step=True, accumulate=accumulate)
    pushed = run(how, 1, task)
    torch.testing.assert_close(pushed.model["w"], alone.model["w"], rtol=1e-5, atol=1e-6)


def test_rules_that_do_nothing_change_nothing_bit_for_bit() -> None:
    plain = run(ASGD(servers=1, max_staleness=np.inf))
    assert same_model(plain, run(ASGD(servers=1))), "nothing is as late as the default allows"
    assert same_model(plain, run(ASGD(servers=1, warm_start_frames=0, softsync=1)))
    even = Cluster((Host(learners=2, frames_per_s=400.0),))  # in turn: staleness 1 throughout
    fresh, plain = (
        simulated(Quadratic(40), ASGD(servers=1, overlap=0, damping=d), even, schedule=PLAIN)
        for d in ("staleness", "none")
    )
    assert same_model(fresh, plain)


@pytest.mark.parametrize("servers", [2, 4])
@pytest.mark.parametrize(
    "rules",
    [{}, {"max_staleness": 5}, {"damping": "staleness"}, {"delay_compensation": 0.5}],
    ids=["plain", "discard", "staleness-aware", "DC-ASGD"],
)
def test_shards_agree_with_one_server_where_the_order_is_fixed(
    servers: int, rules: dict[str, Any]
) -> None:
    """A fast network and learners of fixed speed: pushes come in the same order to all.

    So all shards do what the first one decides: drop the same pushes, and damp them alike.
    """
    task = WithDropout(num_items=30)
    hosts = (Host(learners=3, frames_per_s=100.0, memory_gbit=1e6),)
    slow = (Slow(1, 1.37), Slow(2, 1.91))
    one, several, plain = (
        simulated(
            task,
            ASGD(servers=n, **options),
            Cluster(hosts, slow=slow),
            optimizer=SGD(lr=LR, momentum=0.5),
            schedule=PLAIN,
        )
        for n, options in ((1, rules), (servers, rules), (1, {}))
    )
    assert same_model(one, several)
    assert same_model(one, plain) == (not rules)
    assert one.discarded_frames == several.discarded_frames
    assert bool(one.discarded_frames) == ("max_staleness" in rules)


@pytest.mark.parametrize("servers", [0, 1, 2])
def test_clipping_is_by_the_norm_of_the_whole_gradient(servers: int) -> None:
    """Both shards have a part in it, and one learner that waits is still plain SGD."""
    task, rule = WithDropout(num_items=30), SGD(lr=LR, clip_norm=0.01)
    alone = simulated(task, Sequential(), 1, optimizer=rule, schedule=PLAIN)
    assert same_model(alone, run(ASGD(servers=servers, overlap=0), 1, task, optimizer=rule))
    assert not same_model(alone, run(ASGD(servers=servers, overlap=0), 1, task))


@pytest.mark.parametrize("servers", [0, 1, 2])
def test_pushes_and_replies_pass_the_same_memory_back_and_forth(
    servers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two pieces for each pair of a learner and a server: fresh memory costs more than copying."""
    seen: list[torch.Tensor] = []  # held, so that no address is used twice
    send = Learner.send

    async def noted(me: Learner, to: int, tag: str, payload: Any) -> None:
        seen.extend(one for one in payload if isinstance(one, torch.Tensor))
        await send(me, to, tag, payload)

    monkeypatch.setattr(Learner, "send", noted)
    run(ASGD(servers=servers), 3, WithDropout(num_items=30))
    shards = servers or len(ASGD(servers=0).parts(Layout.of(WithDropout().build_model()), 3))
    assert len(seen) == 2 * 60 * shards, "a push and a reply of every item"
    assert len({one.data_ptr() for one in seen}) <= 2 * 3 * shards


# ------------------------------------------------------------------ the rules, in their direction


def late_part(result: Result) -> float:
    return result.discarded_frames / (result.frames + result.discarded_frames)


def test_the_threshold_discards_what_is_older_and_warns_if_that_is_nearly_all() -> None:
    shares = [late_part(run(ASGD(servers=1, max_staleness=n))) for n in (np.inf, 8, 5, 0)]
    assert shares[0] == 0
    assert shares == sorted(shares)
    assert shares[-1] > 0.4
    made = Experiment(TASK, ASGD(max_staleness=3), options=RuntimeOptions(learners=4))
    (said,) = made.strategy.remarks(made.extent(made.pool()))
    assert "nearly all of them; set strategy.max_staleness to 14" in said


def test_a_slow_learner_simply_does_fewer() -> None:
    slowed = Cluster(jittery(4).hosts, slow=(Slow(3, 8.0),))
    result = simulated(TASK, ASGD(servers=1), slowed, optimizer=SGD(lr=LR), schedule=PLAIN)
    frames = [one.frames for one in result.learners]
    assert frames[3] < 0.3 * frames[0]
    assert result.frames + result.discarded_frames == 2 * sum(i.frames for i in TASK.items("train"))


def test_a_learner_that_stood_still_finds_its_gradient_discarded_and_goes_on() -> None:
    paused = Cluster(jittery(4).hosts, pauses=(Pause(2, at_s=0.01, for_s=0.15),))
    strategy = ASGD(servers=1, max_staleness=16)
    result = simulated(TASK, strategy, paused, optimizer=SGD(lr=LR), schedule=PLAIN)
    assert 0 < result.discarded_frames < 10
    assert result.learners[2].frames > 10, "it went on"


def test_accumulation_halves_the_traffic() -> None:
    large = acoustic(num_frames=2000)
    runs = [run(ASGD(servers=1, accumulate=n), task=large) for n in (1, 2)]
    sent = [sum(one.bytes_sent for one in result.learners) for result in runs]
    assert sent[1] == pytest.approx(sent[0] / 2, rel=0.15)


def test_accumulated_gradients_move_as_far_as_single_ones() -> None:
    """The step is n times that of the mean: on even items two pushes in one are their sum."""
    task = Quadratic(num_items=40, spread=0.0)
    one, two = (run(ASGD(servers=1, accumulate=n), 2, task) for n in (1, 2))
    torch.testing.assert_close(one.model["w"], two.model["w"], rtol=0.1, atol=0.0)


def test_accumulated_gradients_are_weighted_by_their_frames() -> None:
    """Items of 1 to 4 frames, three in a push: one learner that waits, and the loop by hand."""
    (order,) = [Experiment(TASK, ASGD()).pool().order(0)]
    w: Any = np.zeros(DIM)
    for start in range(0, len(order), 3):
        items = [TASK.targets(int(i)) for i in order[start : start + 3]]
        g = (TASK.curvature() ** 2 * (w - np.concatenate(items))).mean(0)
        w = w - LR * len(items) * g
    one = Constant(epochs=1, lr_compensation="none")
    pushed = run(ASGD(servers=1, overlap=0, accumulate=3), 1, schedule=one)
    np.testing.assert_allclose(pushed.model["w"].numpy(), w, rtol=1e-5)


def test_softsync_averages_gradients_before_a_step() -> None:
    sim = built(ASGD(servers=1, softsync=4))
    sim.run()
    clock = sim.learners[-1].state.clock  # type: ignore[attr-defined]
    pushes = sum(s.detail == "4/push" for s in sim.trace.spans)
    assert clock == pushes // 4
    assert ASGD(softsync=4).gain(4) == 0.25


def test_a_warm_start_is_plain_sgd_and_then_all_take_part() -> None:
    frames = sum(item.frames for item in TASK.items("train"))
    all_warm = run(ASGD(servers=1, warm_start_frames=10**6))
    alone = simulated(TASK, Sequential(), 1, optimizer=SGD(lr=LR), schedule=PLAIN)
    assert same_model(all_warm, alone)
    assert [one.frames > 0 for one in all_warm.learners] == [True, False, False, False]
    half = run(ASGD(servers=1, warm_start_frames=frames))
    assert same_model(half, run(ASGD(servers=1, warm_start_epochs=1.0))), "one pass"
    shares = [one.frames / (2 * frames) for one in half.learners]
    assert shares[0] == pytest.approx(0.5 + 0.5 / 4, abs=0.06)
    ramped = run(ASGD(servers=1, warm_start_frames=frames // 2, ramp_frames=frames // 4))
    done = [one.frames for one in ramped.learners]
    assert done == sorted(done, reverse=True)
    assert done[0] > done[1] > done[3] > 0


def test_a_warm_start_helps_where_stale_gradients_hurt_at_the_beginning() -> None:
    task = acoustic(num_frames=6000)
    more: dict[str, Any] = {"optimizer": SGD(lr=0.4), "schedule": Constant(4)}
    cold, warm = (
        run(ASGD(servers=1, warm_start_frames=n), 8, task, **more).loss for n in (0, 3000)
    )
    assert warm < cold


def test_a_barrier_brings_learners_together(tmp_path: Path) -> None:
    """After a meeting all begin from the same model, so that no gradient is very late."""
    slowed = Cluster(jittery(4).hosts, slow=(Slow(3, 20.0),))
    largest = []
    for every in (0, 20):
        strategy = ASGD(servers=1, barrier_frames=every, max_staleness=np.inf)
        out = tmp_path / str(every)
        simulated(TASK, strategy, slowed, optimizer=SGD(lr=LR), schedule=PLAIN, out=out)
        rows = map(json.loads, (out / "metrics.jsonl").open())
        largest.append(max(row["staleness_max"] for row in rows if row["event"] == "eval"))
    assert largest[1] < 0.6 * largest[0]


def test_accumulation_leaves_the_staleness_in_updates_as_it_is(tmp_path: Path) -> None:
    """Everybody pushes as much less often, so the threshold need not know of it."""
    for accumulate in (1, 3):
        out = tmp_path / str(accumulate)
        run(ASGD(servers=1, accumulate=accumulate), out=out, evaluate_every=9.0)
        (row,) = [
            e for e in map(json.loads, (out / "metrics.jsonl").open()) if e["event"] == "eval"
        ]
        assert row["staleness"] == pytest.approx(ASGD().usual_staleness(4), rel=0.2)


def test_delay_compensation_makes_of_a_stale_gradient_what_it_would_be_now() -> None:
    """Logistic regression with labels as the stale model expects them, where E[g^2] is the Hessian.

    There the mean gradient at w_bak is zero, and that at w is what compensation makes of it.
    """
    x, w_bak, w = 0.7, torch.tensor([0.3]), torch.tensor([0.36])
    chance = torch.sigmoid(x * w_bak)
    wanted = (torch.sigmoid(x * w) - chance) * x
    found = torch.zeros(1)
    for label, weight in ((1.0, chance), (0.0, 1 - chance)):
        g = (chance - label) * x
        state = ServerState(w_bak.clone(), None, w.clone(), sent={0: [w_bak.clone()]})
        ASGD(servers=1, delay_compensation=1.0).compensate_(state, 0, g)
        found += weight * g
    assert abs(found - wanted) < 0.01 * abs(wanted)


def test_damping_slows_what_is_stale() -> None:
    plain, damped = (run(ASGD(servers=1, damping=d)).model["w"] for d in ("none", "staleness"))
    assert damped.norm() < 0.7 * plain.norm(), "both are on the way from 0 to the optimum"


# ------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: ASGD(servers=-1), "servers must be at least 0"),
        (lambda: ASGD(overlap=2), "overlap must be 0 or 1"),
        (lambda: ASGD(accumulate=0), "accumulate must be at least 1"),
        (lambda: ASGD(max_staleness=-1), "max_staleness must be at least 0"),
        (lambda: ASGD(adaptive_compensation=True), "has no effect without.*delay_compensation"),
        (
            lambda: ASGD(warm_start_frames=9, warm_start_epochs=1),
            "both say how long the warm start is",
        ),
        (lambda: ASGD(local_step=True, overlap=0), "local_step has no effect with overlap = 0"),
        (
            lambda: ASGD(local_step=True, delay_compensation=0.04),
            "local_step and strategy.delay_compensation exclude each other",
        ),
        (
            lambda: Experiment(TASK, ASGD(local_step=True), SGD(momentum=0.9)),
            "local_step needs an optimizer without memory",
        ),
        (
            lambda: Experiment(TASK, ASGD(ramp_frames=5)),
            "ramp_frames has no effect with one learner",
        ),
        (
            lambda: simulated(TASK, ASGD(servers=2), Cluster((Host(learners=2, attendants=1),))),
            "places for 1 attendants.*needs 2",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(make: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        make()
