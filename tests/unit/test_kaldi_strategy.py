"""Kaldi's recipe: every switch changes the result in the stated direction."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.runs import real, same_model, simulated, simulator
from helpers.tasks import DIM, Broken, Quadratic, acoustic
from reference.kaldi_twin import kaldi

from hocket import SGD, Constant, Exponential, Kaldi, KStep, NaturalSGD, Sequential
from hocket.api import rate_note
from hocket.core.accounts import DRY
from hocket.core.effects import Progress
from hocket.core.task import Item
from hocket.data.ledger import ReplicatedLedger
from hocket.data.pool import Pool
from hocket.errors import ConfigError, ContractError, DivergedError, TaskError
from hocket.experiment import Experiment, RuntimeOptions
from hocket.record.results import slow_learner
from hocket.runtime.sim.cost import Cluster
from hocket.runtime.sim.simulator import Simulator
from hocket.strategies.kaldi import Archive, means_from_the_end

PLAIN: dict[str, Any] = {"first_parts": 1, "combine_models": 0, "local_momentum": None}
TASK = acoustic(num_frames=64 * 48)


def run(strategy: Kaldi, learners: int = 4, optimizer: Any = None, **more: Any) -> Any:
    rule = optimizer or SGD(lr=0.05)
    schedule = more.pop("schedule", Constant(epochs=2))
    return simulated(TASK, strategy, learners, optimizer=rule, schedule=schedule, **more)


def traced(strategy: Kaldi, learners: int = 4, epochs: int = 2) -> Simulator:
    options = RuntimeOptions(learners=learners, trace=True)
    experiment = Experiment(TASK, strategy, SGD(lr=0.05), Constant(epochs=epochs), options=options)
    sim = simulator(experiment, Cluster.even(learners))
    sim.run()
    return sim


# ------------------------------------------------------------------ the ramp


def test_the_ramp_is_kaldis_as_a_function_of_data() -> None:
    """Kaldi: round(start + (end - start) it / num_it), for as many iterations as the data last."""
    strategy, total = Kaldi(initial_learners=2, final_learners=16), 1_000_000
    archive = 500.0
    num_iterations = int(2 * total / archive / (2 + 16))
    done = 0.0
    for it in range(num_iterations):
        kaldi = 2 + 14 * it / num_iterations
        ours = strategy.at_work(Progress(int(done), 0, total), 20)
        assert abs(ours - kaldi) <= 0.6
        done += archive * round(kaldi)
    assert strategy.at_work(Progress(0, 0, total), 20) == 2
    assert strategy.at_work(Progress(total, 0, total), 20) == 16
    assert strategy.at_work(Progress(total, 0, total), 5) == 5, "no more than are alive"


def test_learners_join_the_work_one_after_the_other() -> None:
    sim = traced(Kaldi(sync_every=2, **PLAIN))
    first: dict[int, float] = {}
    for span in sim.trace.spans:
        if span.kind == "compute":
            first.setdefault(span.rank, span.start_s)
    assert sorted(first) == [0, 1, 2, 3]
    assert first[0] < first[1] < first[2] < first[3]
    assert sim.context(0).account.books.frames > sim.context(3).account.books.frames
    frames = sum(sim.context(r).account.books.frames for r in range(4))
    assert frames == 2 * TASK.num_frames == sim.context(0).account.ledger.committed_frames


def test_learners_that_join_late_are_not_called_slow() -> None:
    result = run(Kaldi(sync_every=2, **PLAIN))
    assert result.learners[3].frames < 0.5 * result.learners[0].frames
    assert slow_learner(result.learners) is None


def test_without_a_ramp_and_its_other_switches_it_is_kstep() -> None:
    """All learners from the start, equal archives, no dropping, lr times P: K-AVG bit for bit."""
    strategy = Kaldi(
        sync_every=3, initial_learners=4, best_first=False, drop_worse_by=0.0, effective_lr=False,
        **PLAIN,
    )  # fmt: skip
    a = run(strategy, schedule=Constant(epochs=2))
    b = simulated(
        TASK,
        KStep(sync_every=3),
        4,
        optimizer=SGD(lr=0.05),
        schedule=Constant(epochs=2, lr_compensation="none"),
    )
    assert same_model(a, b)
    four = run(
        Kaldi(sync_every=3, initial_learners=4, best_first=False, drop_worse_by=0.0, **PLAIN)
    )
    c = run(strategy, optimizer=SGD(lr=0.2))
    assert same_model(four, c), "the effective rate is a fourth of each learner's"


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_one_learner_is_plain_sgd_bit_for_bit(momentum: float) -> None:
    strategy = Kaldi(sync_every=5, first_parts=1, combine_models=0, local_momentum=(
        "keep" if momentum else None))  # fmt: skip
    more: dict[str, Any] = {"optimizer": SGD(lr=0.05, momentum=momentum)}
    a = run(strategy, 1, **more)
    b = simulated(TASK, Sequential(), 1, schedule=Constant(epochs=2), **more)
    assert same_model(a, b)


@pytest.mark.parametrize("margin", [0.02, 0.3, 100.0])
@pytest.mark.parametrize("learners", [2, 5])
def test_follows_its_float64_twin(learners: int, margin: float) -> None:
    task, schedule = Quadratic(num_items=46), Constant(epochs=3)  # 2 frames: halves are equal
    strategy = Kaldi(sync_every=3, drop_worse_by=margin, combine_items=7)
    result = simulated(task, strategy, learners, optimizer=SGD(lr=0.04), schedule=schedule)
    pool = Experiment(task, Sequential(), schedule=schedule).pool()
    orders = [[int(i) for i in pool.order(e)] for e in range(3)]
    expected = kaldi(task, orders, learners, 3, 0.04, margin, 7)
    np.testing.assert_allclose(result.model["w"].numpy(), expected, rtol=1e-4)


# ------------------------------------------------------------------ who is averaged


def test_who_is_kept() -> None:
    archive = Archive((1.5, 0.4, 9.9, math.nan, 1.4), (10.0, 10.0, 0.0, 10.0, 10.0))
    assert archive.kept(1.0, best_only=False) == (1, 4)
    assert archive.kept(2.0, best_only=False) == (0, 1, 4)
    assert archive.kept(0.0, best_only=False) == (0, 1, 4), "0: nobody is dropped, but the broken"
    assert archive.kept(1.0, best_only=True) == (1,)
    assert Archive((1.0, 1.0), (5.0, 5.0)).kept(1.0, best_only=True) == (0,), "the first of equals"
    assert Archive((math.nan,), (5.0,)).kept(1.0, best_only=True) == ()


def test_the_first_iteration_keeps_the_best_model() -> None:
    """One iteration over the whole epoch: the result is that of the learner with the least loss."""
    task = Quadratic(num_items=12, spread=2.0)
    more: dict[str, Any] = {"optimizer": SGD(lr=0.02), "schedule": Constant(epochs=1)}
    kept = Kaldi(sync_every=3, initial_learners=4, **PLAIN)
    result = simulated(task, kept, 4, **more)
    pool = Experiment(task, kept, schedule=Constant(epochs=1), options=RuntimeOptions(learners=4))
    order = [int(i) for i in pool.pool().order(0)]
    models, losses = [], []
    for rank in range(4):
        w, total = torch.zeros(DIM), 0.0
        for index in order[rank::4]:
            batch = task.load("train", Item(index, 2), 0)
            a = torch.from_numpy(task.curvature().astype("float32"))
            total += float((0.5 * (a * (w - batch)) ** 2).sum())
            w = w - 0.08 * (a**2 * (w - batch)).mean(0)
        models.append(w)
        losses.append(total)
    best = min(range(4), key=lambda r: losses[r])
    torch.testing.assert_close(result.model["w"], models[best])
    mean = Kaldi(sync_every=3, initial_learners=4, best_first=False, drop_worse_by=0.0, **PLAIN)
    averaged = simulated(task, mean, 4, **more)
    torch.testing.assert_close(averaged.model["w"], torch.stack(models).mean(0))


def test_a_learner_that_breaks_is_dropped() -> None:
    """One item gives NaN: its learner is left out, said to be, and the model stays finite."""
    task = Broken(num_items=24, at=3, how="nan")
    strategy = Kaldi(sync_every=2, initial_learners=4, best_first=False, **PLAIN)
    schedule = Constant(epochs=1)
    options = RuntimeOptions(learners=4)
    experiment = Experiment(task, strategy, SGD(lr=0.02), schedule, options=options)
    told: list[dict[str, Any]] = []
    sim = simulator(experiment, Cluster.even(4), told.append)
    assert bool(torch.isfinite(sim.run().params).all())
    assert max(event.get("dropped_max", 0) for event in told) == 1


def test_if_all_learners_break_the_run_ends() -> None:
    task = Broken(num_items=24, at=3, how="nan")
    with pytest.raises(DivergedError, match=r"no learner's loss .* is finite.*lower optimizer\.lr"):
        simulated(task, Kaldi(sync_every=6, initial_learners=1, **PLAIN), 1)


def test_a_bad_archive_moves_the_average_unless_it_is_dropped() -> None:
    """A narrow margin drops more learners, so it gives another model."""
    runs = [
        run(Kaldi(sync_every=4, initial_learners=4, drop_worse_by=margin, **PLAIN))
        for margin in (0.0, 1.0, 0.01)
    ]
    assert same_model(runs[0], runs[1]), "here nobody is worse by a whole nat"
    assert not same_model(runs[1], runs[2])


# ------------------------------------------------------------------ the start


def test_minibatches_are_halved_in_the_first_iteration_only() -> None:
    sim = traced(Kaldi(sync_every=3, first_parts=2, combine_models=0))
    parts = [s for s in sim.trace.spans if s.kind == "compute" and "part" in s.detail]
    assert len(parts) == 3, "one learner, three items"
    assert all(s.rank == 0 for s in parts)


def test_halves_are_half_steps_of_their_own() -> None:
    """Two steps on half an item each, at the rate of a frame that whole ones have, by hand."""
    task = Quadratic(num_items=4)
    strategy = Kaldi(sync_every=4, first_parts=2, combine_models=0)
    optimizer, schedule = SGD(lr=0.1), Constant(epochs=1)
    result = simulated(task, strategy, 1, optimizer=optimizer, schedule=schedule)
    order = Experiment(task, strategy, schedule=schedule).pool().order(0)
    w, a = torch.zeros(DIM), torch.from_numpy(task.curvature().astype("float32"))
    for index in order:
        for row in task.load("train", Item(int(index), 2), 0):
            w = w - 0.1 / 2 * a**2 * (w - row)
    torch.testing.assert_close(result.model["w"], w)


def test_what_cannot_be_divided_is_refused() -> None:
    class Opaque(Quadratic):
        def load(self, split: str, item: Item, epoch: int) -> Any:
            return {"x": super().load(split, item, epoch)}

        def loss(self, model: Any, batch: Any) -> Any:
            return super().loss(model, batch["x"])

    with pytest.raises(TaskError, match="first_parts = 1"):
        simulated(Opaque(), Kaldi(sync_every=2), 2)
    simulated(Opaque(), Kaldi(sync_every=2, first_parts=1), 2)


def test_limits_on_a_step_are_tighter_at_the_start() -> None:
    """At a rate at which every step is limited, the path is shorter by the factor."""
    rule = NaturalSGD(lr=100.0, max_change=0.02, max_change_output=0.02, max_change_global=0.02)
    start = run(Kaldi(sync_every=1000, **PLAIN), 1, rule, schedule=Constant(epochs=1))
    tight = run(
        Kaldi(sync_every=1000, first_max_change=0.01, **PLAIN), 1, rule, schedule=Constant(epochs=1)
    )
    loose = run(
        Kaldi(sync_every=1000, first_max_change=1.0, **PLAIN), 1, rule, schedule=Constant(epochs=1)
    )
    uniform = math.log(6)
    assert abs(tight.loss - uniform) < abs(start.loss - uniform)
    assert not same_model(start, loose)


# ------------------------------------------------------------------ the end


def test_means_from_the_end() -> None:
    models = [torch.tensor([1.0]), torch.tensor([4.0]), torch.tensor([2.0])]
    assert [float(m) for m in means_from_the_end(models)] == pytest.approx([2, 3, 7 / 3])


def test_the_final_combination_is_never_worse_on_its_own_set() -> None:
    """It chooses among the last model and means with earlier ones, on training data."""
    alone = Kaldi(sync_every=2, first_parts=1, combine_models=0)
    combined = Kaldi(sync_every=2, first_parts=1, combine_models=20, combine_items=1000)
    rule = SGD(lr=0.4)  # so high that the last models scatter
    last, mean = (run(s, optimizer=rule) for s in (alone, combined))
    assert not same_model(last, mean)
    losses = []
    for result in (last, mean):
        model = TASK.build_model()
        model.load_state_dict(result.model)
        items = TASK.items("train")
        with torch.no_grad():
            losses.append(
                sum(float(TASK.loss(model, TASK.load("train", i, 0)).total) for i in items)
            )
    assert losses[1] < losses[0]


def test_in_both_worlds_and_with_natural_gradient() -> None:
    strategy = Kaldi(sync_every=3, combine_items=4)
    more: dict[str, Any] = {
        "optimizer": NaturalSGD(lr=0.05, rank_in=3, rank_out=2),
        "schedule": Exponential(epochs=2),
    }
    a = simulated(TASK, strategy, 3, **more)
    b = real(TASK, strategy, 3, **more)
    assert same_model(a, b)
    assert (a.loss, a.frames) == (b.loss, b.frames)


# ------------------------------------------------------------------ the ledger


def ledgers(num_items: int = 23, size: int = 4) -> list[ReplicatedLedger]:
    pool = Pool(Quadratic(num_items=num_items, uneven=True), epochs=2, seed=1)
    return [ReplicatedLedger(pool, r, tuple(range(size))) for r in range(size)]


def test_items_are_dealt_to_some_learners_and_the_account_stays_exact() -> None:
    books = ledgers()
    seen: list[tuple[int, int]] = []
    for active in (1, 1, 3, 2, 4, 4, 2, 1, 3, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4):
        for rank, ledger in enumerate(books):
            ledger.deal_to(active)
            for _ in range(2):
                ticket = ledger.draw()
                assert rank < active or ticket.dry
                if not ticket.dry:
                    seen.append((ticket.epoch, ticket.index))
            ledger.settle("commit")
    assert sorted(seen) == sorted((e, i) for e in range(2) for i in range(23))
    frames = 2 * sum(Quadratic(num_items=23, uneven=True).frames_of(i) for i in range(23))
    assert {ledger.committed_frames for ledger in books} == {frames}
    assert all(ledger.closed() for ledger in books)


def test_a_saved_account_keeps_who_is_at_work() -> None:
    (one, *_), (two, *_) = ledgers(), ledgers()
    one.deal_to(2)
    for ledger in (one,):
        ledger.draw()
        ledger.settle("commit")
    two.load_state_dict(one.state_dict(), same_learners=True)
    assert [one.draw().index for _ in range(9)] == [two.draw().index for _ in range(9)]
    assert DRY not in [one.draw().index]


def test_dealing_with_draws_unsettled_is_refused() -> None:
    ledger = ledgers()[0]
    ledger.draw()
    with pytest.raises(ContractError, match="commit first"):
        ledger.deal_to(2)


# ------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: Kaldi(initial_learners=0), "initial_learners"),
        (lambda: Kaldi(initial_learners=4, final_learners=2), "final_learners"),
        (lambda: Kaldi(first_parts=0), "first_parts"),
        (lambda: Kaldi(drop_worse_by=-1.0), "drop_worse_by"),
        (lambda: Kaldi(combine_models=-1), "combine_models"),
        (lambda: Kaldi(first_max_change=0.0), "first_max_change"),
        (lambda: run(Kaldi(first_max_change=0.5), 2), "does not limit its steps"),
        (lambda: run(Kaldi(final_learners=8), 4), "give --learners 8"),
        (lambda: run(Kaldi(initial_learners=8), 4), "give --learners 8"),
        (
            lambda: run(Kaldi(), 2, schedule=Constant(lr_compensation="full")),
            "lr_compensation.*has no effect",
        ),
    ],
)
def test_what_cannot_take_effect_is_refused(make: Any, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        make()


def test_the_log_says_what_the_rate_is() -> None:
    more: dict[str, Any] = {"optimizer": SGD(lr=0.05), "options": RuntimeOptions(learners=4)}
    effective = Experiment(TASK, Kaldi(), **more)
    assert rate_note(effective, effective.pool()) == (
        "rate: 0.05, effective: each of n learners at work uses n times it"
    )
    as_given = Experiment(TASK, Kaldi(effective_lr=False), **more)
    assert rate_note(as_given, as_given.pool()).endswith("each learner")


def test_resumes_in_the_middle_of_the_ramp(tmp_path: Path) -> None:
    from helpers.runs import keep_only_first_checkpoint

    more: dict[str, Any] = {"out": tmp_path / "whole", "keep_checkpoints": 99}
    strategy = Kaldi(sync_every=2, combine_items=4)
    whole = run(strategy, checkpoint_every=0.4, **more)
    part = keep_only_first_checkpoint(tmp_path / "whole", tmp_path / "part")
    more["out"] = part
    assert same_model(whole, run(strategy, checkpoint_every=0.4, resume=True, **more))
