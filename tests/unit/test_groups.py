"""Learners that are groups of ranks: their gradient, what they cost in the simulator, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.pipelines import Layers
from helpers.runs import same_model, simulated
from helpers.tasks import DIM, Quadratic, WithBuffers, WithDropout, acoustic
from torch import nn

from hocket import (
    ADPSGD,
    ASGD,
    SGD,
    AdamW,
    AllReduceSGD,
    Cluster,
    Constant,
    Death,
    HessianFree,
    Host,
    Kaldi,
    KStep,
    Loss,
    NaturalSGD,
    OneBit,
    Pipeline,
)
from hocket.cli.main import main
from hocket.core.accounts import Ticket
from hocket.core.effects import Grad
from hocket.core.task import Item, Task
from hocket.errors import ConfigError, TaskError
from hocket.experiment import Experiment, RuntimeOptions, Seat
from hocket.models.stages import counted
from hocket.record.rundir import RunDirectory
from hocket.runtime.shared.stages.cutting import StageCosts, settled
from hocket.runtime.shared.stages.group import GroupWorker
from hocket.runtime.shared.stages.group_stage import Job
from hocket.runtime.shared.stages.making import worker_of
from hocket.runtime.shared.worker import Worker, WorkerState
from hocket.runtime.sim.cost import Joining
from hocket.runtime.sim.group_cost import GroupCost

ROUNDING = 1e-6  # of float32, for sums of a few terms: eight machine epsilons


def experiment(task: Task, ranks: int = 1, optimizer: Any = None, **more: Any) -> Experiment:
    options = RuntimeOptions(ranks_per_learner=ranks, **more)
    parts = {} if optimizer is None else {"optimizer": optimizer}
    return settled(Experiment(task, KStep(), **parts, options=options), counted)


def worker(task: Task, ranks: int = 1, **more: Any) -> Worker:
    return worker_of(experiment(task, ranks, **more), 0, new=True)


def gradients(one: Worker, steps: int = 3) -> tuple[list[Grad], WorkerState]:
    """Gradients of some items, each at a point of its own; statistics go on meanwhile."""
    state, params, found = one.new_state(), one.first_params(), []
    for index in range(steps):
        frames = one.pool.items("train")[index].frames
        found.append(one.gradient(params, Ticket(0, index, frames), state))
        params = params - 0.1 * found[-1].vector
    return found, state


# ------------------------------------------------------------------ the gradient is that of one


@pytest.mark.parametrize("optimizer", [None, NaturalSGD()], ids=["sgd", "natural"])
@pytest.mark.parametrize(
    ("task", "ranks"),
    [(Layers(), 2), (Layers(), 4), (WithBuffers(uneven=True), 2), (WithDropout(), 2)],
    ids=["layers-2", "layers-4", "buffers-2", "dropout-2"],
)
def test_a_gradient_is_that_of_one_device_bit_for_bit(
    task: Task, ranks: int, optimizer: Any
) -> None:
    one, group = worker(task, optimizer=optimizer), worker(task, ranks, optimizer=optimizer)
    (plain, state), (ours, own) = gradients(one), gradients(group)
    assert isinstance(group, GroupWorker)
    assert torch.equal(one.initial, group.initial)
    for a, b in zip(plain, ours, strict=True):
        assert torch.equal(a.vector, b.vector)
        assert (a.frames, a.loss_sum, a.correct) == (b.frames, b.loss_sum, b.correct)
    assert state.buffers.keys() == own.buffers.keys()
    assert all(torch.equal(state.buffers[name], own.buffers[name]) for name in state.buffers)
    assert state.sides.keys() == own.sides.keys()


@pytest.mark.parametrize("micro_batches", [2, 3, 8, 50])
def test_micro_batches_add_up_to_it_to_rounding(micro_batches: int) -> None:
    """There are at most as many as frames (8 here), and each is a mean over all of them."""
    (plain, _), (ours, _) = (
        gradients(worker(Layers())),
        gradients(worker(Layers(), 3, micro_batches=micro_batches)),
    )
    for a, b in zip(plain, ours, strict=True):
        apart = (a.vector - b.vector).abs().max() / a.vector.abs().max()
        assert 0 < apart < ROUNDING, "added up in parts, or there is nothing to see"
        assert b.loss_sum == pytest.approx(a.loss_sum, rel=ROUNDING)
        assert (a.frames, a.correct) == (b.frames, b.correct)


def test_an_item_is_loaded_once_for_all_its_pieces() -> None:
    """By the first rank, which needs its frames, and by the last, which needs its labels."""
    loaded = []

    class Noting(Layers):
        def load(self, split: str, item: Item, epoch: int) -> Any:
            loaded.append(item.id)
            return super().load(split, item, epoch)

    group = worker(Noting(), 3, micro_batches=4)
    loaded.clear()
    gradients(group, steps=2)
    assert loaded == [0, 0, 1, 1]


def test_a_part_of_an_item_that_a_strategy_divides_itself() -> None:
    one, group = worker(Layers()), worker(Layers(), 2, micro_batches=4)
    ticket = Ticket(0, 1, 8)
    for part in ((0, 3), (2, 3)):
        a, b = (w.gradient(w.initial, ticket, w.new_state(), part) for w in (one, group))
        assert torch.equal(a.vector, b.vector)
        assert a.frames == b.frames
    assert group.gradient(group.initial, Ticket(0, 1, 8), group.new_state(), (0, 9)).frames == 0


def test_scores_are_those_of_one_device() -> None:
    """Training items may be scored, too: then nothing is dropped, and no statistics change."""
    for task in (Layers(), WithBuffers(), WithDropout(), acoustic()):
        one, group = worker(task), worker(task, 2)
        for split in ("dev", "train"):
            items, state = range(len(one.pool.items(split))), one.new_state()
            a, b = (w.score(w.initial, state, split, items) for w in (one, group))
            assert a == b
        assert group.score(group.initial, group.new_state(), "dev", []).frames == 0


def test_a_gradient_may_be_cut_between_any_two_parameters() -> None:
    """As the servers of `asgd` do: a shard is no stage."""
    one, group = worker(Layers()), worker(Layers(), 2)
    grads = [w.gradient(w.initial, Ticket(0, 0, 8), w.new_state()) for w in (one, group)]
    for place in one.layout.cut(3):
        a, b = (grad.part(place).join() for grad in grads)
        assert torch.equal(a, b)


def test_the_first_rank_keeps_no_layers_of_others() -> None:
    group = worker(Layers(), 3, cut=(2, 4))
    assert isinstance(group, GroupWorker)
    assert sum(group.held_bytes) == 4 * group.layout.size
    assert all(p.numel() == 0 for p in group.model.parameters())
    assert len(list(group.own.model.parameters())) == 2, "weight and bias of the first stage"


def test_a_job_travels_as_plain_values() -> None:
    job = Job("train", 2, 8, ((5, (0, 2)), (5, (1, 2))))
    assert Job.of_plain(job.plain()) == job


# ------------------------------------------------------------------ every strategy, unchanged

# No two learners are ready at once, so nothing depends on the last bit of the time.
FREE = Cluster((Host(count=3, jitter=0.3, memory_gbit=float("inf")),), local_latency_s=0.0)
METHODS = [KStep(sync_every=3), ADPSGD(), Kaldi(sync_every=3, combine_items=3)]


@pytest.mark.parametrize("strategy", METHODS, ids=lambda s: s.name)  # all: test_long.py
def test_a_run_is_that_of_learners_of_one_rank(strategy: Any) -> None:
    """Where ranks exchange at no cost, a group that takes turns is as fast as one device."""
    more: dict[str, Any] = {"optimizer": SGD(lr=0.005, momentum=0.9), "evaluate_every": 0.5}
    plain, groups = (
        simulated(WithBuffers(uneven=True), strategy, FREE, ranks_per_learner=n, **more)
        for n in (1, 2)
    )
    assert same_model(plain, groups)
    assert (plain.loss, plain.accuracy, plain.frames) == (
        groups.loss,
        groups.accuracy,
        groups.frames,
    )
    assert groups.time_s == pytest.approx(plain.time_s, rel=1e-6)
    assert len(groups.learners) == 3


@pytest.mark.parametrize(
    "more",
    [
        {"optimizer": SGD(lr=0.05, clip_norm=0.01)},
        pytest.param({"optimizer": AdamW(lr=0.01)}, marks=pytest.mark.long),
        {"optimizer": NaturalSGD(lr=0.01)},
        pytest.param(
            {"optimizer": SGD(lr=0.01), "codec": OneBit(float_below=4)}, marks=pytest.mark.long
        ),
    ],
    ids=["clipped", "adamw", "natural", "onebit"],
)
def test_what_needs_the_whole_gradient_has_it(more: dict[str, Any]) -> None:
    """The first rank does: limits on its norm, codecs, and natural gradient work as ever."""
    plain, groups = (
        simulated(Layers(), AllReduceSGD(), FREE, ranks_per_learner=n, **more) for n in (1, 3)
    )
    assert same_model(plain, groups)


# ------------------------------------------------------------------ what it costs


def cost(micro_batches: int = 1, bytes_out: float = 0.0, held: int = 0) -> GroupCost:
    return GroupCost(StageCosts([0.25] * 4, [bytes_out] * 3), [held] * 4, micro_batches)


@pytest.mark.parametrize("micro_batches", [1, 2, 4, 8])
def test_the_schedule_is_that_of_gpipe(micro_batches: int) -> None:
    """Four equal stages, M pieces: at work M / (M + S - 1) of the time, as in the paper."""
    takes_s = cost(micro_batches).gradient_s(64, 1.0, lambda size: 0.0)
    busy = 1.0 / (4 * takes_s)
    assert busy == pytest.approx(micro_batches / (micro_batches + 3))


def test_what_ranks_hand_each_other_takes_time() -> None:
    def handover(size: float) -> float:
        return 0.001 + size * 1e-6

    plain = cost().gradient_s(10, 1.0, lambda size: 0.0)
    # 100 bytes for each of 10 frames, up and down at three cuts.
    up_and_down = cost(bytes_out=100).gradient_s(10, 1.0, lambda size: 1e-6 * size)
    assert up_and_down == pytest.approx(plain + 6 * 1000e-6)
    # Parameters to three others one after the other; the gradient of the last but one is back
    # before the first rank has done.
    whole = cost(held=4000).gradient_s(10, 1.0, handover)
    assert whole == pytest.approx(plain + 3 * 0.005 + 6 * 0.001)


def test_held_out_items_follow_one_another() -> None:
    takes_s = cost().forward_s(80, 8, 1.0, lambda size: 0.0)
    assert takes_s == pytest.approx((1 + 7 / 4) / 8), "one goes through, each other a stage behind"


def test_micro_batches_make_a_simulated_group_faster() -> None:
    cluster = Cluster((Host(count=2),))
    times = [
        simulated(
            acoustic(),
            KStep(),
            cluster,
            schedule=Constant(epochs=1),
            ranks_per_learner=2,
            micro_batches=m,
        ).time_s
        for m in (1, 8)
    ]
    assert times[1] < 0.8 * times[0]


# ------------------------------------------------------------------ losses


@pytest.mark.parametrize("when", [{"at_draw": 4}, {"at_s": 0.02}], ids=["draw", "time"])
def test_a_learner_is_lost_with_any_of_its_ranks(when: dict[str, Any]) -> None:
    results = []
    for stage in (1, 2):
        cluster = Cluster((Host(count=3),), deaths=(Death(1, **when, stage=stage),))
        results.append(simulated(acoustic(), KStep(sync_every=2), cluster, ranks_per_learner=2))
    assert same_model(*results)
    for result in results:
        assert [one.rank for one in result.learners if one.lost] == [1]
        assert result.frames == 4 * 3000, "the ledger closes"


def test_a_death_of_a_stage_that_nobody_has_is_refused() -> None:
    cluster = Cluster((Host(count=2),), deaths=(Death(1, at_draw=2, stage=3),))
    with pytest.raises(ConfigError, match=r"rank 1 names stage 3, but each learner has 2"):
        simulated(acoustic(), KStep(), cluster, ranks_per_learner=2)


# ------------------------------------------------------------------ going on


def test_the_command_goes_on_with_other_ranks_per_learner(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The cut is in the record, and is forgotten with the number of ranks that it belongs to."""
    out = str(tmp_path / "run")
    task = ["--set", "task.num_frames=1000", "--set", "model.width=16", "--quiet"]
    begun = ["simulate", "synthetic", "--strategy", "kstep", "--learners", "2", "--out", out]
    groups = ["--set", "runtime.ranks_per_learner=2", "--set", "runtime.micro_batches=2"]
    assert main([*begun, *task, *groups, "--epochs", "1"]) == 0
    runtime = RunDirectory(tmp_path / "run").config()["runtime"]
    assert len(runtime["cut"]) == 1
    for epochs, ranks in (("2", 2), ("3", 3), ("4", 1)):
        more = ["simulate", "--resume", "--out", out, "--epochs", epochs, "--quiet"]
        more += ["--set", f"runtime.ranks_per_learner={ranks}", "--set", "runtime.micro_batches=1"]
        assert main(more) == 0
        cut = RunDirectory(tmp_path / "run").config()["runtime"]["cut"]
        assert cut == runtime["cut"] if ranks == 2 else len(cut or ()) == ranks - 1
    assert "4,000 frames" in capsys.readouterr().out


# ------------------------------------------------------------------ who is who


def test_processes_are_numbered_after_learners_and_attendants() -> None:
    options = RuntimeOptions(learners=2, ranks_per_learner=3)
    made = Experiment(Layers(), ASGD(servers=2), options=options)
    assert (made.num_ranks, made.num_processes) == (4, 8)
    assert [made.seat(n) for n in (1, 3, 4, 5, 6, 7)] == [
        Seat(1, 0),
        Seat(3, 0),
        Seat(0, 1),
        Seat(0, 2),
        Seat(1, 1),
        Seat(1, 2),
    ]
    assert [list(made.others_of(rank)) for rank in range(4)] == [[4, 5], [6, 7], [], []]


# ------------------------------------------------------------------ refusals


class Crossed(nn.Module):
    """Uses its layers in an order of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(DIM, DIM), nn.Linear(DIM, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(x + self.first(x))  # type: ignore[no-any-return]


class CannotBeCut(WithBuffers):
    def build_model(self) -> nn.Module:
        return Crossed()


@pytest.mark.parametrize(
    ("parts", "options", "said"),
    [
        ({"strategy": Pipeline()}, {"learners": 1}, "cuts the model into stages itself"),
        ({"strategy": HessianFree(), "optimizer": SGD()}, {}, "curvature product"),
        ({"optimizer": NaturalSGD()}, {"micro_batches": 2}, "takes a minibatch as a whole"),
        ({}, {"precision": "bfloat16"}, "float32 only"),
        ({}, {"transport": "mpi", "on_loss": "stop"}, "MPI would have to start"),
        ({}, {"listen": "127.0.0.1"}, "cannot join a running run"),
        ({}, {"cut": (1, 2)}, "makes 3 stages, and runtime.ranks_per_learner is 2"),
        ({}, {"ranks_per_learner": 1, "micro_batches": 2}, "a learner is one rank"),
        ({}, {"ranks_per_learner": 0}, "at least 1"),
    ],
)
def test_what_cannot_work_is_refused_with_the_reason(
    parts: dict[str, Any], options: dict[str, Any], said: str
) -> None:
    def make() -> Experiment:
        made: Any = RuntimeOptions(**{"learners": 2, "ranks_per_learner": 2} | options)
        return Experiment(**{"task": Layers(), "strategy": KStep(), "options": made} | parts)

    with pytest.raises(ConfigError, match=said):
        make()


def test_a_model_that_cannot_be_cut_is_refused() -> None:
    with pytest.raises(TaskError, match=r"cannot be cut into stages: it is a Crossed"):
        simulated(CannotBeCut(), KStep(), 2, ranks_per_learner=2)
    with pytest.raises(TaskError, match="it is a Point"):
        simulated(Quadratic(), KStep(), 2, ranks_per_learner=2)
    with pytest.raises(ConfigError, match="4 layers with parameters cannot be cut into 5 stages"):
        simulated(Layers(), KStep(), 2, ranks_per_learner=5)
    with pytest.raises(ConfigError, match=r"runtime.cut = \[9\] must be ascending"):
        simulated(Layers(), KStep(), 2, ranks_per_learner=2, cut=(9,))


def test_nobody_joins_groups() -> None:
    cluster = Cluster((Host(count=2),), joins=(Joining(0.0),))
    with pytest.raises(ConfigError, match=r"groups .* cannot join a running run"):
        simulated(Layers(), KStep(), cluster, ranks_per_learner=2)


def test_a_loss_that_calls_the_model_twice_is_refused() -> None:
    class Twice(Layers):
        def loss(self, model: nn.Module, batch: Any) -> Loss:
            super().loss(model, batch)
            return super().loss(model, batch)

    with pytest.raises(TaskError, match="calls it 2 times"):
        gradients(worker(Twice(), 2))
