"""Hessian-free: its float64 twin, exact identities, and what every switch does."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from helpers.runs import OPTIONS, real, same_model, simulated, simulator
from helpers.tasks import Quadratic, WithBuffers, WithDropout, acoustic
from reference import hessian_free_twin as twin

import hocket
from hocket import DNN, SGD, Cluster, Constant, Exponential, HessianFree, Host, Loss, api
from hocket.core.effects import Progress
from hocket.errors import ConfigError
from hocket.experiment import Experiment, RuntimeOptions
from hocket.runtime.real.faults import Fault
from hocket.runtime.sim.cost import Death, Slow
from hocket.runtime.sim.simulator import Simulator

ONE = Constant(epochs=1)
TASK = replace(
    acoustic(num_frames=500), model=DNN(layers=1, width=3, activation="sigmoid"), batch_frames=50
)


def sim_of(task: Any, strategy: HessianFree, learners: int | Cluster, **more: Any) -> Simulator:
    cluster = Cluster.even(learners) if isinstance(learners, int) else learners
    options = RuntimeOptions(learners=cluster.num_learners, trace=True)
    schedule = more.pop("schedule", ONE)
    sim = simulator(Experiment(task, strategy, schedule=schedule, options=options), cluster)
    sim.run()
    return sim


def flat(model: dict[str, torch.Tensor]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """In the order of the network's own parameters; a saved model has another."""
    names = [name for name, _ in TASK.build_model().named_parameters()]
    return torch.cat([model[name].reshape(-1) for name in names]).double().numpy()


# ------------------------------------------------------------------ oracles


@pytest.mark.parametrize(
    ("learners", "preconditioner"),
    [(1, "none"), (3, "none"), (1, "diagonal"), (3, "diagonal"), (3, "lbfgs")],
)
def test_it_follows_its_float64_twin(learners: int, preconditioner: Any) -> None:
    epochs, share = 3, 0.3
    most = 4 if preconditioner == "diagonal" else 12  # few: where they end is the preconditioner's
    strategy = HessianFree(
        curvature=share,
        cg_iterations=most,
        held_out_items=4,
        preconditioner=preconditioner,
        pairs=20 if preconditioner == "lbfgs" else None,  # all of a run
    )
    schedule = Constant(epochs=epochs)
    steps: list[twin.Floats] | None = [] if preconditioner == "lbfgs" else None
    result = simulated(TASK, strategy, learners, schedule=schedule)
    pool = Experiment(TASK, strategy, schedule=schedule).pool()
    worker = sim_of(TASK, strategy, 1)._worker
    start = torch.cat([v.reshape(-1) for v in worker.layout.views(worker.initial)])
    w, orders = start.double().numpy(), [[int(i) for i in pool.order(e)] for e in range(epochs)]
    for epoch in range(epochs):  # another order of frames in every epoch: other batches
        held = [TASK.load("train", TASK.items("train")[i], 0) for i in range(4)]
        batches = [TASK.load("train", item, epoch) for item in TASK.items("train")]
        problem = twin.Problem(
            worker.model.double(), [(x.double(), y) for x, y in [*batches, *held]]
        )
        if epoch == 0:
            state = (w, strategy.damping, np.zeros_like(w))
        state = twin.iteration(
            problem,
            *state,
            orders[epoch],
            curvature_frames=150,
            held=range(len(batches), len(batches) + 4),
            decay=0.95,
            most=most,
            martens=preconditioner == "diagonal",
            steps=steps,
        )
    moved = np.abs(state[0] - start.double().numpy()).max()
    assert moved > 0.1
    np.testing.assert_allclose(flat(result.model), state[0], atol=2e-3 * moved)


def test_on_a_quadratic_one_iteration_is_exact() -> None:
    task = Quadratic(uneven=True)
    strategy = HessianFree(damping=0.0, held_out_items=99)
    for learners in (1, 4):
        result = simulated(task, strategy, learners, schedule=ONE)
        np.testing.assert_allclose(result.model["w"].numpy(), task.optimum, rtol=2e-6)


def test_damping_to_infinity_is_gradient_descent() -> None:
    """w moves by -g / lambda."""
    for damping in (1e2, 1e3):
        result = simulated(TASK, HessianFree(damping=damping), 2, schedule=ONE)
        sim = sim_of(TASK, HessianFree(damping=1e9), 1)
        worker = sim._worker
        model, total = worker.model, torch.zeros(())
        start = worker.initial.clone()
        worker.bind(start, worker.new_state())
        for item in TASK.items("train"):
            total = total + TASK.loss(model, TASK.load("train", item, 0)).total
        grads = torch.autograd.grad(total / TASK.num_frames, list(model.parameters()))
        for (name, value), grad in zip(worker.layout.named(start).items(), grads, strict=True):
            step = value - grad / damping
            torch.testing.assert_close(result.model[name], step, rtol=0, atol=2.0 / damping**2)
            assert grad.abs().max() > 0.01 or name.startswith("0")  # zero weights above them


def test_several_learners_are_one_learner_up_to_rounding() -> None:
    """Ten steps at most: beyond them rounding may decide at which one Martens' rule ends a run."""
    for strategy in (
        HessianFree(cg_iterations=10),
        HessianFree(sample=0.4, curvature=0.2, cg_iterations=8, preconditioner="diagonal"),
    ):
        alone = simulated(TASK, strategy, 1, schedule=Constant(epochs=2))
        for learners in (2, 5):
            many = simulated(TASK, strategy, learners, schedule=Constant(epochs=2))
            np.testing.assert_allclose(flat(many.model), flat(alone.model), atol=2e-3)


@pytest.mark.parametrize("preconditioner", ["none", "diagonal"])
def test_the_other_preconditioners_too_are_the_same_in_real_processes(preconditioner: Any) -> None:
    strategy = HessianFree(curvature=0.2, cg_iterations=8, preconditioner=preconditioner)
    task = acoustic() if preconditioner == "none" else WithDropout(uneven=True)
    a, b = (run(task, strategy, 3, schedule=Constant(epochs=2)) for run in (simulated, real))
    assert same_model(a, b)


# ------------------------------------------------------------------ losing a learner


def test_a_loss_during_conjugate_gradients_leaves_the_ledger_exact() -> None:
    """In the middle of every product of an iteration, one after the other."""
    task = WithBuffers(num_items=19, uneven=True)
    strategy = HessianFree(curvature=0.5, cg_iterations=5, held_out_items=7)
    frames = 2 * sum(item.frames for item in task.items("train"))
    spans = [s for s in sim_of(task, strategy, 4).trace.spans if s.kind == "curvature"]
    middles = [(s.start_s + s.end_s) / 2 for s in spans if s.rank == 2 and s.end_s > s.start_s]
    assert len(middles) >= 4
    models = []
    for at in middles:
        cluster = Cluster(Cluster.even(4).hosts, deaths=(Death(2, at_s=at),))
        sim = sim_of(task, strategy, cluster, schedule=Constant(epochs=2))
        assert sim.alive == (0, 1, 3)
        for rank in sim.alive:
            assert sim.context(rank).account.ledger.committed_frames == frames
            assert torch.equal(sim.learners[rank].state.params, sim.learners[0].state.params)
        models.append(sim.learners[0].state.params)
    assert not all(torch.equal(m, models[0]) for m in models)  # the rest of the sample counts


def test_a_loss_in_a_product_is_the_same_in_real_processes() -> None:
    """Rank 2 dies after its third product, before anybody has it: in both worlds bit for bit."""
    task = WithBuffers(num_items=19, uneven=True)
    strategy = HessianFree(curvature=0.5, cg_iterations=5, held_out_items=7)
    spans = [s for s in sim_of(task, strategy, 4).trace.spans if s.kind == "curvature"]
    third = [s for s in spans if s.rank == 2][2]
    deaths = (Death(2, at_s=(third.start_s + third.end_s) / 2),)
    cluster = Cluster(Cluster.even(4).hosts, deaths=deaths)
    twin_run = simulated(task, strategy, cluster, schedule=Constant(epochs=2))
    before = 2 + 1 + 2  # two blocks of the gradient, the held-out loss, two products
    experiment = Experiment(
        task, strategy, schedule=Constant(epochs=2), options=RuntimeOptions(learners=4, **OPTIONS)
    )
    faults = (Fault(2, at_collective=before + 1),)
    result = api.run_real(experiment, None, progress=False, faults=faults)
    assert [one.rank for one in result.learners if one.lost] == [2]
    assert same_model(result, twin_run)
    assert result.frames == 2 * sum(item.frames for item in task.items("train"))


# ------------------------------------------------------------------ switches


def products(sim: Simulator) -> int:
    return sum(s.kind == "curvature" and s.rank == 0 for s in sim.trace.spans)


def test_more_curvature_and_more_iterations_are_more_work() -> None:
    def frames(**more: Any) -> int:
        strategy = HessianFree(**({"curvature": 0.1, "cg_iterations": 11} | more))
        return sim_of(TASK, strategy, 1).context(0).account.books.product_frames

    assert frames() == 50 * 11
    assert frames(curvature=0.3) == 150 * 11
    assert frames(cg_iterations=3) == 50 * 3


def test_martens_rule_ends_a_run_before_the_limit() -> None:
    assert 10 < products(sim_of(TASK, HessianFree(damping=1.0, cg_iterations=500), 1)) < 100


def test_a_sample_grows_up_to_the_epoch() -> None:
    strategy = HessianFree(sample=0.2, sample_growth=1.5, curvature=0.02)
    whole = 1000
    progress = [Progress(n, 0, 4 * whole, whole) for n in (0, 200, 500, 800)]
    assert strategy.wanted(progress[0], 1) == (200, 20)
    assert strategy.wanted(progress[1], 2) == (300, 20)
    assert strategy.wanted(progress[2], 3) == (500, 20)  # 50 would be left: all of it now
    assert strategy.wanted(progress[3], 9) == (200, 20)
    assert HessianFree().wanted(progress[0], 1) == (1000, 50)
    evaluations = simulated(TASK, strategy, 2, evaluate_every=0.2, schedule=Constant(epochs=2))
    assert evaluations.frames == 1000


def test_a_restart_direction_costs_one_product_more() -> None:
    two = Constant(epochs=2)
    with_start, without = (
        products(sim_of(TASK, HessianFree(cg_iterations=4, start_decay=d), 1, schedule=two))
        for d in (0.95, 0.0)
    )
    assert with_start == without + 1 == 2 * 4 + 1


@pytest.mark.parametrize("balance", ["frames", "speed", "none"])
def test_items_are_balanced(balance: Any) -> None:
    """Items of 1 to 4 frames; one learner is slow."""
    task = Quadratic(num_items=60, uneven=True)
    cluster = Cluster((Host(count=4, frames_per_s=100.0),), slow=(Slow(3, factor=4.0),))
    strategy = HessianFree(balance=balance, curvature=0.5, cg_iterations=3)
    sim = sim_of(task, strategy, cluster, schedule=Constant(epochs=3))
    frames = [sim.context(r).account.books.frames for r in range(4)]
    assert sum(frames) == 3 * 150
    if balance == "frames":
        assert max(frames) - min(frames) <= 3 * 2
    elif balance == "speed":
        assert frames[3] < 0.6 * frames[0]  # alike in the first iteration, a quarter afterwards
    else:
        assert max(frames) - min(frames) > 3 * 2


def test_balancing_saves_time_on_uneven_items_and_on_uneven_learners() -> None:
    task = Quadratic(num_items=60, uneven=True)

    def time_s(balance: Any, slow: tuple[Slow, ...] = ()) -> float:
        cluster = Cluster((Host(count=4, frames_per_s=10.0),), slow=slow)
        strategy = HessianFree(balance=balance, curvature=0.5, cg_iterations=3, start_decay=0)
        return simulated(task, strategy, cluster, schedule=Constant(epochs=4)).time_s

    assert time_s("frames") < 0.98 * time_s("none")
    straggler = (Slow(3, factor=4.0),)
    assert time_s("speed", straggler) < 0.7 * time_s("frames", straggler)


def test_pairs_of_the_last_run_carry_on_where_it_ended() -> None:
    """Two runs of 3 steps in 5 dimensions: on a quadratic the second goes on as if in one run."""
    task = Quadratic()

    def after(**more: Any) -> tuple[float, int]:
        strategy = HessianFree(
            damping=0.0, cg_iterations=3, start_decay=0, held_out_items=99, **more
        )
        state: Any = sim_of(task, strategy, 2, schedule=Constant(epochs=2)).learners[0].state
        return float(np.abs(state.params[:5].numpy() - task.optimum).max()), len(state.steps)

    assert after()[0] > 1e-3
    for pairs in (1, 3):
        distance, kept = after(preconditioner="lbfgs", pairs=pairs)
        assert distance < 1e-6
        assert kept == pairs


def test_a_diagonal_needs_fewer_iterations_where_scales_differ() -> None:
    """Inputs whose sizes differ by a factor of 30: conjugate gradients alone are slow there."""

    def steps(preconditioner: Any) -> int:
        strategy = HessianFree(
            preconditioner=preconditioner, damping=1e-3, cg_iterations=300, curvature=0.5
        )
        sim = sim_of(Stretched(), strategy, 1, schedule=Constant(epochs=4))
        return products(sim)

    assert steps("diagonal") < 0.9 * steps("none")


@dataclass(frozen=True)
class Stretched(Quadratic):
    """Classes from inputs of very different sizes."""

    def build_model(self) -> torch.nn.Module:
        return torch.nn.Linear(12, 3)

    def load(self, split: str, item: Any, epoch: int) -> Any:
        generator = torch.Generator().manual_seed(int(item.id))
        x = torch.randn(item.frames * 8, 12, generator=generator) * torch.logspace(-1.5, 0, 12)
        return x, (x[:, -3:] + 0.3 * torch.randn(len(x), 3, generator=generator)).argmax(1)

    def loss(self, model: Any, batch: Any) -> Any:
        x, labels = batch
        total = torch.nn.functional.cross_entropy(model(x), labels, reduction="sum") / 8
        return Loss(total, len(labels) // 8)


# ------------------------------------------------------------------ what it refuses


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"sample": 0.0}, "strategy.sample must be above 0 and at most 1, not 0.0"),
        ({"curvature": 1.5}, "strategy.curvature must be above 0"),
        ({"sample_growth": 1.2}, "sample_growth has no effect"),
        ({"sample": 0.5, "sample_growth": 0.9}, "sample_growth must be at least 1"),
        ({"cg_iterations": 0}, "cg_iterations must be at least 1"),
        ({"damping": -1.0}, "damping must be at least 0"),
        ({"start_decay": 1.1}, "start_decay must be in"),
        ({"pairs": 4}, "strategy.pairs has no effect"),
        ({"preconditioner": "lbfgs", "pairs": 0}, "strategy.pairs must be at least 1"),
        ({"held_out_items": 0}, "held_out_items must be at least 1"),
    ],
)
def test_bad_values_are_named(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        HessianFree(**given)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"optimizer": SGD(lr=0.2)}, r"\[optimizer\] has no effect: 'hessian-free'"),
        ({"optimizer": SGD(momentum=0.9)}, r"\[optimizer\] has no effect"),
        ({"schedule": Exponential(epochs=2)}, "schedule.name = 'exponential' has no effect"),
        ({"schedule": Constant(lr_limit=2.0)}, "schedule.lr_limit = 2.0 has no effect"),
    ],
)
def test_a_rate_has_no_effect_and_is_refused(more: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Experiment(TASK, HessianFree(), **more)


def test_speeds_and_fixed_shards_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match="leaves every item with its owner"):
        simulated(TASK, HessianFree(balance="speed"), 2, sharding="fixed")


def test_a_sample_too_small_for_the_learners_is_remarked_on() -> None:
    options = RuntimeOptions(learners=4)
    made = Experiment(TASK, HessianFree(curvature=0.2), schedule=ONE, options=options)
    (said,) = made.strategy.remarks(made.extent(made.pool()))
    assert "about 2 minibatches for 4 learners" in said
    enough = HessianFree(curvature=0.4)
    assert not enough.remarks(made.extent(made.pool()))


def test_a_loop_of_ones_own_is_refused() -> None:
    model = torch.nn.Linear(2, 2)
    with pytest.raises(ConfigError, match="follows the held-out loss"):
        hocket.attach(
            model, torch.optim.SGD(model.parameters(), lr=0.1), strategy="hessian-free"
        ).__enter__()
