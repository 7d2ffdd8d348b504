"""The averaging family against slow twins, each other, and what its papers promise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from helpers.runs import same_model, simulated, simulator, uneven
from helpers.tasks import DIM, Quadratic
from reference import averaging_twins as twins

from hocket import (
    ADMM,
    BMUF,
    EASGD,
    SGD,
    AdamW,
    AllReduceSGD,
    AsyncEASGD,
    Cluster,
    Constant,
    DiLoCo,
    KStep,
    ModelAveraging,
    Sequential,
    SlowMo,
    Strategy,
)
from hocket.experiment import Experiment, RuntimeOptions
from hocket.runtime.sim.cost import Death
from hocket.runtime.sim.simulator import Simulator
from hocket.strategies.periodic import BlockState, filter_block_
from hocket.strategies.slowmo import SlowState, slow_step_

LR = 0.05
SCHEDULE = Constant(epochs=3, lr_compensation="none")
EVEN, UNEVEN = Quadratic(num_items=24), Quadratic(num_items=23, uneven=True)


def orders(task: Quadratic) -> list[list[int]]:
    pool = Experiment(task, Sequential(), schedule=Constant(epochs=3)).pool()
    return [[int(i) for i in pool.order(e)] for e in range(3)]


def run(task: Any, strategy: Strategy[Any], learners: int = 4, **more: Any) -> Any:
    more = {"optimizer": SGD(lr=LR), "schedule": SCHEDULE} | more
    return simulated(task, strategy, learners, **more)


def close(result: Any, expected: Any) -> None:
    np.testing.assert_allclose(result.model["w"].numpy(), expected, rtol=2e-5)


# ------------------------------------------------------------------ slow twins


@pytest.mark.parametrize("policy", ["keep", "reset", "average"])
@pytest.mark.parametrize(("learners", "k"), [(2, 1), (4, 3), (5, 7)])
def test_kstep_with_every_momentum_policy(learners: int, k: int, policy: Any) -> None:
    strategy = KStep(sync_every=k, local_momentum=policy)
    result = run(UNEVEN, strategy, learners, optimizer=SGD(lr=LR, momentum=0.8))
    close(result, twins.kstep(UNEVEN, orders(UNEVEN), learners, k, LR, 0.8, policy))


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize(("learners", "eta"), [(2, None), (4, None), (5, 0.3)])
def test_bmuf(learners: int, eta: float | None, nesterov: bool) -> None:
    strategy = BMUF(sync_every=2, block_momentum=eta, block_lr=0.9, nesterov=nesterov)
    used = 1 - 1 / learners if eta is None else eta
    expected = twins.bmuf(UNEVEN, orders(UNEVEN), learners, 2, LR, used, 0.9, nesterov)
    close(run(UNEVEN, strategy, learners), expected)


@pytest.mark.parametrize("outer", ["nesterov", "momentum", "sgd"])
def test_diloco_is_torchs_optimizer_on_the_pseudo_gradient(outer: Any) -> None:
    settings = {"lr": 0.7, "momentum": 0.0 if outer == "sgd" else 0.9}
    settings["nesterov"] = outer == "nesterov"
    expected = twins.diloco(UNEVEN, orders(UNEVEN), 4, 3, LR, settings)
    close(run(UNEVEN, DiLoCo(sync_every=3, outer_optimizer=outer)), expected)


@pytest.mark.parametrize(("learners", "alpha", "beta"), [(2, 1.0, 0.7), (4, 0.8, 0.4)])
def test_slowmo(learners: int, alpha: float, beta: float) -> None:
    strategy = SlowMo(sync_every=2, slow_lr=alpha, slow_momentum=beta)
    num_blocks = len(list(twins.blocks(orders(UNEVEN), learners, 2)))
    expected = twins.slowmo(UNEVEN, orders(UNEVEN), learners, 2, [LR] * num_blocks, alpha, beta)
    close(run(UNEVEN, strategy, learners), expected)


@pytest.mark.parametrize("delta", [0.0, 0.6])
@pytest.mark.parametrize(("learners", "tau", "alpha"), [(2, 1, None), (4, 3, None), (4, 2, 0.1)])
def test_easgd_and_eamsgd(learners: int, tau: int, alpha: float | None, delta: float) -> None:
    strategy = EASGD(sync_every=tau, moving_rate=alpha, momentum=delta)
    force = 0.9 / learners if alpha is None else alpha
    expected = twins.easgd(EVEN, orders(EVEN), learners, tau, LR, force, delta)
    close(run(EVEN, strategy, learners), expected)


@pytest.mark.parametrize("balance", [True, False])
@pytest.mark.parametrize(("learners", "k"), [(2, 1), (4, 3)])
def test_admm(learners: int, k: int, balance: bool) -> None:
    strategy = ADMM(sync_every=k, rho=0.4, balance=balance)
    expected = twins.admm(UNEVEN, orders(UNEVEN), learners, k, LR, 0.4, balance)
    close(run(UNEVEN, strategy, learners), expected)


def bare(task: Any, strategy: Strategy[Any], cluster: Cluster, **more: Any) -> Simulator:
    """A simulator to look into."""
    more = {"optimizer": SGD(lr=LR), "schedule": SCHEDULE} | more
    sharding = more.pop("sharding", "pool")
    options = RuntimeOptions(learners=cluster.num_learners, trace=True, sharding=sharding)
    return simulator(Experiment(task, strategy, options=options, **more), cluster)


@pytest.mark.parametrize("seed", range(3))
def test_asynchronous_easgd_follows_its_twin_along_the_trace(seed: int) -> None:
    """The trace says who drew what, and in which order models reached the centre."""
    sim = bare(EVEN, AsyncEASGD(sync_every=2), uneven(3, seed))
    sim.run()
    drawn: list[list[int]] = [[], [], []]
    asked = []
    for span in sim.trace.spans:
        if span.kind == "compute":
            drawn[span.rank].append(int(span.detail.split("/")[1]))
        if span.kind == "send" and span.detail.endswith("/elastic"):
            asked.append((span.end_s, span.rank))
    exchanges = [rank for _, rank in sorted(asked)]
    expected = twins.async_easgd(EVEN, drawn, exchanges, 2, LR, 0.3)
    state: Any = sim.learners[0].state
    np.testing.assert_allclose(state.centre[:DIM].numpy(), expected, rtol=2e-5)


# ------------------------------------------------------------------ identities


@pytest.mark.parametrize(
    "same",
    [
        BMUF(sync_every=3, block_momentum=0.0, local_momentum="keep"),
        DiLoCo(sync_every=3, outer_optimizer="sgd", outer_lr=1.0),
        SlowMo(sync_every=3, slow_momentum=0.0, local_momentum="keep"),
        ModelAveraging(sync_every=3),
    ],
    ids=lambda s: s.name,
)
def test_without_outer_momentum_all_are_model_averaging_bit_for_bit(same: Strategy[Any]) -> None:
    optimizer = SGD(lr=LR, momentum=0.8)
    averaged = run(UNEVEN, KStep(sync_every=3), optimizer=optimizer)
    assert same_model(averaged, run(UNEVEN, same, optimizer=optimizer))


def test_slowmo_at_a_constant_rate_is_classical_bmuf() -> None:
    block = BMUF(sync_every=2, block_momentum=0.6, block_lr=0.8, nesterov=False)
    slow = SlowMo(sync_every=2, slow_momentum=0.6, slow_lr=0.8)
    close(run(UNEVEN, slow), run(UNEVEN, block).model["w"].numpy())


def test_the_memory_of_slowmo_follows_the_rate() -> None:
    """After the rate falls to a tenth, what is remembered moves the model by a tenth."""
    state = SlowState(torch.zeros(1), None, torch.zeros(1), torch.zeros(1))
    slow_step_(state, torch.tensor([-1.0]), gamma=0.1, beta=0.5, alpha=1.0)
    assert float(state.start) == pytest.approx(-1.0)
    slow_step_(state, state.start.clone(), gamma=0.01, beta=0.5, alpha=1.0)
    assert float(state.start) == pytest.approx(-1.05), "BMUF would move by 0.5"


@pytest.mark.parametrize("form", ["nesterov", "momentum"])
def test_diloco_starts_where_bmuf_starts(form: Any) -> None:
    """theta is W_g, bit for bit; the evaluated W lies eta Delta behind it if Nesterov's."""
    rule: dict[str, Any] = {"sync_every": 3, "local_momentum": "keep"}
    diloco = bare(UNEVEN, DiLoCo(outer_optimizer=form, **rule), Cluster.even(4))
    block = BMUF(block_momentum=0.9, block_lr=0.7, nesterov=form == "nesterov", **rule)
    bmuf = bare(UNEVEN, block, Cluster.even(4))
    theta, start = (sim.run().params for sim in (diloco, bmuf))
    assert torch.equal(theta, start)
    state = bmuf.learners[0].state
    assert isinstance(state, BlockState)
    behind = start - 0.9 * state.delta if form == "nesterov" else start
    assert torch.equal(block.model(state), behind)


def blocks_of(
    eta: float, zeta: float, nesterov: bool, steps: list[torch.Tensor]
) -> list[torch.Tensor]:
    """W_g after each block whose mean moved by so much from its start."""
    state = BlockState(torch.zeros(3), None, torch.zeros(3), torch.zeros(3))
    starts = []
    for step in steps:
        filter_block_(state, state.start + step, eta, zeta, nesterov=nesterov)
        starts.append(state.start.clone())
    return starts


def test_the_nesterov_form_of_others_is_the_classical_one_with_a_larger_step() -> None:
    """CNTK and fairseq: W_g(t) = W_g(t-1) + (1 + eta) Delta(t); not the paper's."""
    eta, steps = 0.75, list(torch.randn(6, 3, generator=torch.Generator().manual_seed(0)))
    theirs, start, delta = [], torch.zeros(3), torch.zeros(3)
    for step in steps:
        delta = eta * delta + step
        start = start + (1 + eta) * delta
        theirs.append(start)
    torch.testing.assert_close(blocks_of(eta, 1 + eta, False, steps), theirs)
    ours = blocks_of(eta, 1.0, True, steps)
    assert not torch.allclose(ours[-1], theirs[-1])


@pytest.mark.parametrize("nesterov", [True, False])
def test_a_constant_block_moves_the_model_by_zeta_over_one_minus_eta(nesterov: bool) -> None:
    g = torch.tensor([1.0, -2.0, 0.5])
    starts = blocks_of(0.75, 0.9, nesterov, [g] * 60)
    torch.testing.assert_close(starts[-1] - starts[-2], 0.9 / (1 - 0.75) * g, rtol=1e-4, atol=1e-4)


def test_gains_are_those_of_the_steady_state() -> None:
    assert BMUF().gain(8) == pytest.approx(1.0)
    assert BMUF(block_momentum=0.5, block_lr=2.0).gain(8) == pytest.approx(0.5)
    assert SlowMo(slow_momentum=0.5).gain(8) == pytest.approx(0.25)
    assert DiLoCo().gain(8) == pytest.approx(7 / 8)
    assert EASGD().gain(8) == AsyncEASGD().gain(8) == 1 / 9
    assert KStep().gain(8) == ADMM().gain(8) == 1 / 8


@pytest.mark.parametrize("alpha", [0.1, 0.2])
def test_elastic_forces_alone_contract_and_conserve(alpha: float) -> None:
    """d = mean x_i - c becomes (1 - alpha - P alpha) d; sum x_i + c stays as it is."""
    sim = bare(
        Quadratic(num_items=4),
        EASGD(sync_every=1, moving_rate=alpha),
        Cluster.even(4),
        optimizer=SGD(lr=1e-30),
        schedule=Constant(epochs=1, lr_compensation="none"),
    )
    draw = torch.Generator().manual_seed(1)
    for learner in sim.learners:
        learner.state.params.copy_(torch.randn(learner.state.params.shape, generator=draw))

    def facts() -> tuple[torch.Tensor, torch.Tensor]:
        xs = torch.stack([one.state.params for one in sim.learners])
        centre = sim.learners[0].state.centre  # type: ignore[attr-defined]
        return xs.mean(0) - centre, xs.sum(0) + centre

    apart, whole = facts()
    sim.run()
    torch.testing.assert_close(facts()[0], (1 - 5 * alpha) * apart)
    torch.testing.assert_close(facts()[1], whole)


def test_multipliers_sum_to_zero_and_the_consensus_is_the_mean() -> None:
    sim = bare(UNEVEN, ADMM(sync_every=3, rho=0.4), Cluster.even(4))
    sim.run()
    states: list[Any] = [one.state for one in sim.learners]
    torch.testing.assert_close(
        sum(s.dual for s in states), torch.zeros_like(states[0].dual), atol=1e-6, rtol=0.0
    )
    mean = torch.stack([s.params for s in states]).mean(0)
    torch.testing.assert_close(states[0].centre, mean)


def test_at_the_fixed_point_multipliers_are_the_learners_gradients() -> None:
    """Two learners with an item each: w minimises the sum, lambda_k = -grad J_k(w)."""
    task = Quadratic(num_items=2)
    sim = bare(
        task,
        ADMM(sync_every=1, rho=0.5, balance=False),
        Cluster.even(2),
        optimizer=SGD(lr=0.2),
        schedule=Constant(epochs=400, lr_compensation="none"),
        sharding="fixed",
    )
    sim.run()
    states: list[Any] = [one.state for one in sim.learners]
    w = states[0].centre[:DIM].double().numpy()
    np.testing.assert_allclose(w, task.optimum, atol=1e-4)
    for rank, state in enumerate(states):
        gradient = (task.curvature() ** 2 * (w - task.targets(rank))).mean(0)
        np.testing.assert_allclose(state.dual[:DIM], -gradient, atol=1e-3)


def test_averaged_momentum_after_every_step_is_synchronous_momentum_sgd() -> None:
    """Also with unequal items, where private velocities are not."""
    optimizer = SGD(lr=0.02, momentum=0.9)
    averaged = run(UNEVEN, KStep(sync_every=1, local_momentum="average"), optimizer=optimizer)
    together = run(UNEVEN, AllReduceSGD(), optimizer=optimizer)
    torch.testing.assert_close(averaged.model["w"], together.model["w"], rtol=1e-5, atol=1e-6)


def test_momentum_that_is_reset_after_every_step_is_none() -> None:
    reset = KStep(sync_every=1, local_momentum="reset")
    momentum = run(UNEVEN, reset, optimizer=SGD(lr=LR, momentum=0.9))
    assert same_model(momentum, run(UNEVEN, KStep(sync_every=1)))


def test_adamws_moments_are_averaged_and_reset() -> None:
    models = [
        run(UNEVEN, KStep(sync_every=2, local_momentum=policy), optimizer=AdamW(lr=0.01)).model["w"]
        for policy in ("keep", "reset", "average")
    ]
    for a in range(3):
        assert not torch.equal(models[a], models[a - 1])


def test_a_warm_start_that_never_ends_is_averaging_after_every_step() -> None:
    warm = BMUF(sync_every=5, warm_start_frames=10**9, local_momentum="keep")
    assert same_model(run(UNEVEN, warm), run(UNEVEN, KStep(sync_every=1)))


@pytest.mark.parametrize("sharding", ["pool", "fixed"])
def test_one_average_an_epoch_is_a_setting(sharding: str) -> None:
    """A block ends with its epoch, however large K is: one average, 3 times."""
    result = run(UNEVEN, ModelAveraging(sync_every=10**9), sharding=sharding)
    assert same_model(result, run(UNEVEN, KStep(sync_every=23), sharding=sharding))
    if sharding == "pool":
        close(result, twins.kstep(UNEVEN, orders(UNEVEN), 4, 6, LR, 0.0, "keep"))


# ------------------------------------------------------------------ switches


def distance(result: Any) -> float:
    return float(np.abs(result.model["w"].numpy() - EVEN.optimum).max())


def test_block_momentum_makes_up_for_what_averaging_loses() -> None:
    """At the same local rate the filter gets as far as one learner alone on all the data."""
    schedule = Constant(epochs=4, lr_compensation="none")
    more: dict[str, Any] = {"optimizer": SGD(lr=0.01), "schedule": schedule}
    filtered, averaged = run(EVEN, BMUF(sync_every=1), **more), run(EVEN, KStep(1), **more)
    alone = run(EVEN, Sequential(), 1, **more)
    assert distance(averaged) - distance(alone) > 0.1
    assert abs(distance(filtered) - distance(alone)) < 0.03
    faster = run(EVEN, BMUF(sync_every=1, block_momentum=0.0, block_lr=2.0), **more)
    assert distance(faster) < distance(averaged)


def test_a_stronger_force_brings_the_centre_along() -> None:
    more: dict[str, Any] = {"optimizer": SGD(lr=0.02)}
    weak, strong = (run(EVEN, EASGD(moving_rate=a), **more) for a in (0.01, 0.2))
    assert distance(strong) < distance(weak)
    eamsgd = run(EVEN, EASGD(moving_rate=0.2, momentum=0.8), **more)
    assert distance(eamsgd) < distance(strong)


def test_a_stronger_penalty_holds_learners_together() -> None:
    def apart(rho: float) -> float:
        sim = bare(EVEN, ADMM(sync_every=3, rho=rho, balance=False), Cluster.even(4))
        sim.run()
        states: list[Any] = [one.state for one in sim.learners]
        return max(float((s.params - s.centre).norm()) for s in states)

    assert apart(5.0) < apart(0.01)


# ------------------------------------------------------------------ losing a learner


def test_block_momentum_follows_the_number_of_learners_left() -> None:
    cluster = Cluster(Cluster.even(4).hosts, deaths=(Death(2, at_draw=4),))
    sim = bare(UNEVEN, BMUF(sync_every=2), cluster)
    state = sim.run()
    assert isinstance(state, BlockState)
    assert state.momentum == 1 - 1 / 3


@pytest.mark.parametrize(
    "strategy", [KStep(3, "average"), BMUF(2, "average")], ids=lambda s: s.name
)
def test_a_loss_between_models_and_momentum(strategy: Strategy[Any]) -> None:
    """Two collectives a block: whoever dies between them leaves the others alike."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        deaths = (Death(int(rng.integers(4)), at_s=float(rng.uniform(0.0, 0.05))),)
        sim = bare(UNEVEN, strategy, uneven(4, seed, deaths), optimizer=SGD(lr=0.01, momentum=0.9))
        sim.run()
        models = [sim.learners[r].state.params for r in sim.alive]
        assert len(models) == 3
        assert all(torch.equal(models[0], other) for other in models)
        assert sim.context(sim.alive[0]).account.frames == 3 * sum(
            UNEVEN.frames_of(i) for i in range(23)
        )


def test_the_centre_survives_whoever_keeps_it() -> None:
    """Any learners but one may die; the next goes on from the centre it saw last."""
    for seed in range(30):
        rng = np.random.default_rng(seed)
        victims = rng.choice(4, size=1 + seed % 3, replace=False)
        deaths = tuple(Death(int(v), at_s=float(rng.uniform(0.0, 0.1))) for v in victims)
        sim = bare(UNEVEN, AsyncEASGD(sync_every=2), uneven(4, seed, deaths))
        sim.run()
        assert len(sim.alive) == 4 - len(deaths), "a planned fault did not fire"
        assert sim.context(sim.alive[0]).account.frames == 3 * sum(
            UNEVEN.frames_of(i) for i in range(23)
        )
        centre = sim.learners[sim.alive[0]].state.centre[:DIM].numpy()  # type: ignore[attr-defined]
        assert np.abs(centre - UNEVEN.optimum).max() < 0.9  # from 1.12 at the start
