"""Learners that are groups, in real processes: as in the simulator, and lost with any rank."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.pipelines import Layers
from helpers.runs import OPTIONS, keep_only_first_checkpoint, real, same_model, simulated
from helpers.tasks import Quadratic, WithBuffers, WithDropout
from torch import nn

from hocket import (
    ADPSGD,
    ASGD,
    SGD,
    AllReduceSGD,
    Cluster,
    Constant,
    Death,
    Host,
    KStep,
    Loss,
    NaturalSGD,
    Result,
    api,
)
from hocket.errors import ConfigError, LearnerFailedError
from hocket.experiment import Experiment, RuntimeOptions
from hocket.runtime.launch.launcher import Launcher
from hocket.runtime.launch.learner_process import ORPHANED
from hocket.runtime.real.faults import Fault

MOMENTUM = SGD(lr=0.005, momentum=0.9)
TASK = WithBuffers(num_items=37, uneven=True)
CUTS: dict[Any, tuple[int, ...]] = {2: (1,), 3: (2, 4), 4: (2, 4, 6)}  # by the ranks of a learner
FRAMES = 2 * sum(item.frames for item in TASK.items("train"))


def later(*values: Any) -> Any:
    """A row much like another one: it waits for the long form."""
    return pytest.param(*values, marks=pytest.mark.long)


# ------------------------------------------------------------------ as in the simulator


@pytest.mark.parametrize(
    ("task", "strategy", "more"),
    [
        (WithDropout(), KStep(sync_every=3), {}),
        (Layers(), KStep(sync_every=3), {"micro_batches": 3, "ranks_per_learner": 3}),
        later(Layers(), KStep(sync_every=3), {"micro_batches": 3, "ranks_per_learner": 4}),
        later(WithBuffers(uneven=True), AllReduceSGD(), {}),
        later(Layers(), KStep(), {"transport": "sockets", "ranks_per_learner": 3}),
        later(Layers(), AllReduceSGD(), {"optimizer": NaturalSGD(lr=0.01)}),
        later(WithBuffers(uneven=True), KStep(), {"optimizer": NaturalSGD(lr=0.01)}),
    ],
)
def test_simulator_equals_real_processes_bit_for_bit(
    task: Any, strategy: Any, more: dict[str, Any]
) -> None:
    more = {"optimizer": MOMENTUM, "evaluate_every": 0.5, "ranks_per_learner": 2} | more
    cut = CUTS[more["ranks_per_learner"]]
    a, b = (world(task, strategy, 2, cut=cut, **more) for world in (simulated, real))
    assert same_model(a, b)
    assert (a.loss, a.accuracy, a.frames) == (b.loss, b.accuracy, b.frames)
    assert [one.rank for one in b.learners] == [0, 1], "the other ranks are in no record"
    assert not any(one.lost for one in b.learners), "the other ranks end with their learner"


@pytest.mark.long
@pytest.mark.parametrize("strategy", [ADPSGD(), ASGD(servers=1, overlap=0)], ids=lambda s: s.name)
def test_a_real_asynchronous_run_is_replayed_bit_for_bit(strategy: Any, tmp_path: Path) -> None:
    options = RuntimeOptions(
        learners=2, **OPTIONS | {"ranks_per_learner": 2, "cut": (1,), "trace": True}
    )
    made = Experiment(TASK, strategy, MOMENTUM, Constant(epochs=2), options=options)
    result = api.run_real(made, tmp_path, progress=False)
    replayed = api.run_simulated(made, Cluster.even(2), None, progress=False, replay=tmp_path)
    assert same_model(result, replayed)


@pytest.mark.long
@pytest.mark.parametrize("transport", ["auto", "torch"])
def test_large_pieces_go_through_memory_or_a_library(transport: Any) -> None:
    """Bigger than a message's own buffer: 600 x 600 values are handed over in shared memory."""
    more: dict[str, Any] = {"optimizer": SGD(lr=1e-4), "ranks_per_learner": 2, "epochs": 1}
    if transport == "torch":
        more |= {"transport": "torch", "deterministic": False, "on_loss": "stop"}
    more["schedule"] = Constant(epochs=more.pop("epochs"))
    one = real(Wide(), AllReduceSGD(), 2, **more | {"ranks_per_learner": 1})
    groups = real(Wide(), AllReduceSGD(), 2, **more)
    assert same_model(one, groups)
    assert one.loss < 100, "else nothing is compared"


@dataclass(frozen=True)
class Wide(WithBuffers):
    """The same with layers of 1.4 MB."""

    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(5, 600), nn.Tanh(), nn.Linear(600, 600), nn.Linear(600, 2))


# ------------------------------------------------------------------ losses


def with_faults(strategy: Any, *faults: Fault, **more: Any) -> Result:
    options = RuntimeOptions(learners=3, **OPTIONS | {"ranks_per_learner": 2, "cut": (1,)} | more)
    made = Experiment(TASK, strategy, MOMENTUM, Constant(epochs=2), options=options)
    result = api.run_real(made, None, progress=False, faults=faults)
    assert result.frames + result.discarded_frames == FRAMES, "the ledger closes"
    return result


def lost(result: Result) -> list[int]:
    return [one.rank for one in result.learners if one.lost]


def test_a_learner_is_lost_with_its_second_rank_as_in_the_simulator() -> None:
    """Process 4 is the second rank of learner 1 of three. Bit for bit, as what it drew returns."""
    result = with_faults(KStep(sync_every=3), Fault(4, at_draw=5))
    cluster = Cluster((Host(count=3),), deaths=(Death(1, at_draw=5, stage=2),))
    twin = simulated(
        TASK,
        KStep(sync_every=3),
        cluster,
        optimizer=MOMENTUM,
        schedule=Constant(epochs=2),
        ranks_per_learner=2,
        cut=(1,),
    )
    assert lost(result) == lost(twin) == [1]
    assert same_model(result, twin)


@pytest.mark.parametrize(
    ("strategy", "process"),
    [
        (KStep(sync_every=3), 1),
        (ASGD(servers=1, overlap=0), 4),
        later(ADPSGD(), 4),
        later(ADPSGD(), 1),
        later(ASGD(servers=1, overlap=0), 1),
    ],
    ids=lambda x: getattr(x, "name", str(x)),
)
def test_the_others_go_on_whichever_of_its_ranks_dies(strategy: Any, process: int) -> None:
    """Its first rank (1), or its second: with three learners 4, and 5 behind one server."""
    second = 5 if process == 4 and strategy.attendants(3) else process
    result = with_faults(strategy, Fault(second, at_draw=4))
    assert lost(result) == [1]


def test_why_a_learner_was_lost_is_in_the_record(tmp_path: Path) -> None:
    """Its silence, too: a rank that stands still is ended, and with it its learner."""
    options = RuntimeOptions(
        learners=2, **OPTIONS | {"ranks_per_learner": 2, "cut": (1,), "silence_s": 1.5}
    )
    made = Experiment(TASK, KStep(sync_every=3), MOMENTUM, Constant(epochs=2), options=options)
    result = api.run_real(
        made, tmp_path, progress=False, faults=(Fault(3, at_draw=4, how="freeze"),)
    )
    assert lost(result) == [1]
    said = next(x for x in (tmp_path / "metrics.jsonl").open() if '"lost"' in x)
    assert "process 3, which held stage 2 of its model, gave no sign of life" in said


@pytest.mark.parametrize(("process", "others"), [(1, [4]), later(4, [1]), later(6, [1, 5])])
def test_the_other_ranks_of_a_lost_learner_are_ended(
    process: int, others: list[int], tmp_path: Path
) -> None:
    """By the launcher; a first rank may see it first, and ends as one that was declared lost."""
    ranks = 3 if process == 6 else 2
    options = RuntimeOptions(
        learners=3, **OPTIONS | {"ranks_per_learner": ranks, "cut": CUTS[ranks]}
    )
    made = Experiment(Layers(), KStep(sync_every=3), schedule=Constant(epochs=2), options=options)
    launcher = Launcher(
        made, tmp_path, False, lambda event: None, faults=(Fault(process, at_draw=3),)
    )
    assert [one["rank"] for one in launcher.run()] == [0, 2]
    codes = {child.rank: child.process.exitcode for child in launcher.children}
    theirs = {rank: code for rank, code in codes.items() if rank in (process, *others)}
    assert set(theirs.values()) <= {-signal.SIGKILL, 1}
    assert theirs[process] == -signal.SIGKILL
    rest = {code for rank, code in codes.items() if rank not in theirs}
    assert rest <= {0, ORPHANED}, "the pipe may close as a process that has done ends"
    assert [loss.rank for loss in launcher.losses] == [1]


def test_the_last_learner_may_not_lose_a_rank() -> None:
    options = RuntimeOptions(learners=1, **OPTIONS | {"ranks_per_learner": 2, "cut": (1,)})
    made = Experiment(TASK, AllReduceSGD(), MOMENTUM, Constant(epochs=2), options=options)
    with pytest.raises(LearnerFailedError, match=r"stage 2 of rank 0, .* nobody is left"):
        api.run_real(made, None, progress=False, faults=(Fault(1, at_draw=4),))


@dataclass(frozen=True)
class Failing(WithBuffers):
    """The loss of one item cannot be computed."""

    def loss(self, model: nn.Module, batch: Any) -> Loss:
        found = super().loss(model, batch)
        if len(batch) == 4:
            raise RuntimeError("the disk with this item has gone")
        return found


def test_what_fails_on_a_rank_ends_the_run_with_its_own_words() -> None:
    """The loss is computed on the second rank, so it is that one's error."""
    with pytest.raises(LearnerFailedError, match=r"RuntimeError: the disk with this item"):
        real(Failing(uneven=True), KStep(), 2, ranks_per_learner=2, cut=(1,))


# ------------------------------------------------------------------ ending and going on


def test_a_run_goes_on_with_other_ranks_per_learner(tmp_path: Path) -> None:
    """Checkpoints are those of learners: how many ranks one has, and which parts, is free."""
    more: dict[str, Any] = {
        "optimizer": MOMENTUM,
        "schedule": Constant(epochs=3),
        "checkpoint_every": 0.7,
        "keep_checkpoints": 99,
    }
    strategy, task = KStep(sync_every=3), WithBuffers(uneven=True)
    whole = real(task, strategy, 2, out=tmp_path / "2", ranks_per_learner=2, **more)
    part = keep_only_first_checkpoint(tmp_path / "2", tmp_path / "to1")
    assert same_model(whole, real(task, strategy, 2, out=part, resume=True, **more))
    real(task, strategy, 2, out=tmp_path / "1", **more)
    part = keep_only_first_checkpoint(tmp_path / "1", tmp_path / "to2")
    again = real(task, strategy, 2, out=part, resume=True, ranks_per_learner=2, **more)
    assert same_model(whole, again)


@dataclass(frozen=True)
class Signalled(Layers):
    """The second rank of learner 1 of three is told to leave when it has computed five items."""

    def loss(self, model: nn.Module, batch: Any) -> Loss:
        import multiprocessing

        found = super().loss(model, batch)
        if multiprocessing.current_process().name == "hocket learner 4" and model.training:
            count = self.__dict__.get("count", 0) + 1
            object.__setattr__(self, "count", count)
            if count == 5:
                os.kill(os.getpid(), signal.SIGTERM)
        return found


@pytest.mark.long
def test_a_learner_leaves_politely_with_all_its_ranks(tmp_path: Path) -> None:
    result = real(
        Signalled(),
        KStep(sync_every=1),
        3,
        schedule=Constant(epochs=40),
        out=tmp_path,
        ranks_per_learner=2,
        cut=(3,),
    )
    events = (tmp_path / "metrics.jsonl").read_text()
    assert '"event": "left"' in events
    assert '"event": "lost"' not in events
    assert result.frames == 40 * 8 * 12


def test_ray_does_not_place_groups() -> None:
    options = RuntimeOptions(learners=2, ranks_per_learner=2)
    made = Experiment(Layers(), KStep(), options=options)
    nodes: Any = SimpleNamespace(name="Ray", num_nodes=1)
    with pytest.raises(ConfigError, match="--engine ray does not go together"):
        api.run_real(made, None, cluster=nodes, progress=False)


def test_a_model_that_cannot_be_cut_starts_no_process() -> None:
    with pytest.raises(Exception, match="it is a Point"):
        real(Quadratic(), KStep(), 2, ranks_per_learner=2)
