"""Losing real learners: killed or frozen, between collectives and inside them."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.runs import OPTIONS, same_model, simulated
from helpers.strategies import PushPull, Striped
from helpers.tasks import Forking, Quadratic, Slow, WithBuffers

from hocket import (
    ADPSGD,
    DPSGD,
    HADPSGD,
    SGD,
    AllReduceSGD,
    AsyncEASGD,
    Cluster,
    Constant,
    Death,
    DelayByOne,
    Host,
    KStep,
    Result,
    api,
)
from hocket.core import topology
from hocket.errors import LearnerFailedError
from hocket.experiment import Experiment, RuntimeOptions
from hocket.runtime.real.faults import Fault

STRATEGIES = [AllReduceSGD(), KStep(sync_every=3)]
named = pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: s.name)
MOMENTUM = SGD(lr=0.005, momentum=0.9)


def later(*values: Any) -> Any:
    """A row much like another one: it waits for the long form."""
    return pytest.param(*values, marks=pytest.mark.long)


def run(
    strategy: Any,
    faults: tuple[Fault, ...],
    *,
    learners: int = 5,
    task: Any = None,
    out: Path | None = None,
    epochs: int = 2,
    **options: Any,
) -> Result:
    """Train in real processes, with faults, and see that every one of them fired."""
    task = task or Quadratic(num_items=23, uneven=True)
    more = OPTIONS | options
    experiment = Experiment(
        task,
        strategy,
        MOMENTUM,
        Constant(epochs=epochs),
        options=RuntimeOptions(learners=learners, **more),
    )
    result = api.run_real(experiment, out, progress=False, faults=faults)
    assert [one.rank for one in result.learners if one.lost] == sorted(f.rank for f in faults)
    frames = epochs * sum(item.frames for item in task.items("train"))
    assert result.frames + result.discarded_frames == frames, "the ledger closes"
    return result


# ------------------------------------------------------------------ the same as in the simulator


# Every strategy does it over shared memory, in test_every_loss.py.
@pytest.mark.parametrize("transport", [later("shared_memory"), "sockets"])
@pytest.mark.parametrize("strategy", [*STRATEGIES, DelayByOne(), Striped()], ids=lambda s: s.name)
def test_a_death_at_a_draw_gives_the_same_model_as_in_the_simulator(
    strategy: Any, transport: str
) -> None:
    """Bit for bit: who contributed, what came back to the pool, and the rate afterwards.

    Delay-by-one forks its collective before it draws: dying at the draw, it may or may not have
    contributed. So it dies just before, which in the simulator is the same thing as long as it is
    not the last to contribute: so it is fast there.
    """
    plan = {2: 3, 0: 6} if strategy.name != "kstep" else {2: 4, 0: 8}
    before = strategy.name == "delay-by-one"
    task = WithBuffers(num_items=37, uneven=True)
    real = run(
        strategy,
        tuple(
            Fault(r, at_collective=n) if before else Fault(r, at_draw=n) for r, n in plan.items()
        ),
        task=task,
        transport=transport,
    )
    hosts = tuple(Host(frames_per_s=1e6 if r in plan else 1e4) for r in range(5))
    cluster = Cluster(hosts, deaths=tuple(Death(r, at_draw=d) for r, d in plan.items()))
    twin = simulated(
        task, strategy, cluster, optimizer=MOMENTUM, schedule=Constant(epochs=2), timeout_s=60.0
    )
    assert same_model(real, twin)
    assert (real.loss, real.accuracy, real.frames) == (twin.loss, twin.accuracy, twin.frames)


# ------------------------------------------------------------------ anywhere


@named
@pytest.mark.parametrize("victim", [0, 3, later(1), later(2), later(4)])
def test_any_of_five_may_be_killed_inside_a_collective(strategy: Any, victim: int) -> None:
    """Frame by frame: after none, some or all of the others have heard of it."""
    for frame in (11, 12, 14, 17):
        run(strategy, (Fault(victim, at_frame=frame),))


def random_faults(seed: int, learners: int) -> tuple[Fault, ...]:
    rng = np.random.default_rng(seed)
    victims = rng.choice(learners, size=1 + seed % (learners - 1), replace=False)
    return tuple(
        Fault(int(v), at_frame=int(rng.integers(9, 60)))
        if i % 2
        else Fault(int(v), at_draw=int(rng.integers(1, 4)))
        for i, v in enumerate(victims)
    )


@named
@pytest.mark.parametrize("transport", ["shared_memory", "sockets"])
def test_several_may_die(strategy: Any, transport: str) -> None:
    for seed in range(2):  # a hundred in the long form
        run(strategy, random_faults(seed, 5), transport=transport, epochs=3)


@named
@pytest.mark.parametrize("apart", [11, pytest.param(5, marks=pytest.mark.long)])
def test_a_learner_may_die_while_the_run_is_evaluated_and_saved(
    strategy: Any, apart: int, tmp_path: Path
) -> None:
    """Also the one who writes the checkpoint; the next of them then does it."""
    for frame in range(40, 84, apart):
        out = tmp_path / f"{frame}"
        run(strategy, (Fault(frame // apart % 2, at_frame=frame),), out=out, epochs=3)
        saved = sorted((out / "checkpoints").iterdir())
        assert not [p.name for p in saved if p.name.startswith(".")]
        assert json.loads((saved[-1] / "run.json").read_text())["finished"]


# ------------------------------------------------------------------ what is said about it


def test_metrics_and_summary_say_who_was_lost_when_and_how(tmp_path: Path) -> None:
    result = run(
        AllReduceSGD(),
        (Fault(3, at_draw=2), Fault(0, at_frame=30)),
        task=Slow(num_items=23, seconds=0.01),
        out=tmp_path / "run",
    )
    rows = [json.loads(x) for x in (tmp_path / "run" / "metrics.jsonl").open()]
    lost = {row["rank"]: row for row in rows if row["event"] == "lost"}
    assert set(lost) == {0, 3}
    assert all("signal 9 (SIGKILL)" in row["reason"] for row in lost.values())
    # a busy launcher may hear of both at once, and then of either one first
    assert all(row["time_s"] <= rows[-1]["time_s"] for row in lost.values())
    summary = {one["rank"]: one for one in rows[-1]["learners"]}
    assert {rank for rank, one in summary.items() if one["lost"]} == {0, 3}
    assert summary[3]["lost_s"] == pytest.approx(lost[3]["time_s"])
    assert [one.lost_s is not None for one in result.learners] == [True, False, False, True, False]
    assert rows[-1]["event"] == "summary"
    evaluations = [row for row in rows if row["event"] == "eval"]
    assert all(row["eval_frames"] == 10 for row in evaluations), "no slice is missing"


@named
def test_a_frozen_learner_is_lost_after_the_stated_limit_and_ended(
    strategy: Any, tmp_path: Path
) -> None:
    run(
        strategy,
        (Fault(2, at_draw=3, how="freeze"), Fault(4, at_frame=20, how="freeze")),
        silence_s=1.0,
        out=tmp_path / "run",
    )
    rows = [json.loads(x) for x in (tmp_path / "run" / "metrics.jsonl").open()]
    reasons = {row["rank"]: row["reason"] for row in rows if row["event"] == "lost"}
    assert set(reasons) == {2, 4}
    assert all("no sign of life (runtime.silence_s)" in reason for reason in reasons.values())


def test_the_first_loss_may_stop_the_run(tmp_path: Path) -> None:
    with pytest.raises(LearnerFailedError, match=r"rank 1 .* ended by signal 9.*\n.*rank 0 awaits"):
        run(AllReduceSGD(), (Fault(1, at_draw=2),), on_loss="stop", learners=3)


def test_the_last_learner_may_not_die() -> None:
    with pytest.raises(LearnerFailedError, match="nobody is left, so the run was stopped"):
        run(AllReduceSGD(), (Fault(1, at_draw=2), Fault(0, at_draw=4)), learners=2)


@pytest.mark.parametrize(
    ("transport", "sharding"),
    [
        ("shared_memory", "pool"),
        ("sockets", "fixed"),
        later("shared_memory", "fixed"),
        later("sockets", "pool"),
    ],
)
def test_an_asynchronous_run_goes_on_too(transport: str, sharding: str) -> None:
    """What the lost had in hand comes back at the next quiet point; the ledger closes."""
    faults = (Fault(1, at_draw=2), Fault(3, at_draw=4))
    run(PushPull(), faults, transport=transport, sharding=sharding)


@pytest.mark.parametrize(
    ("ring", "victims"),
    [
        ("random", (0,)),
        ("random", (1, 2, 3)),
        ("fixed", (1,)),
        ("fixed", (0, 3)),
        later("random", (1,)),
        later("random", (0, 3)),
        later("fixed", (0,)),
        later("fixed", (1, 2, 3)),
    ],
    ids=str,
)
def test_a_ring_closes_around_the_lost(ring: Any, victims: tuple[int, ...]) -> None:
    faults = tuple(Fault(v, at_draw=2 + i) for i, v in enumerate(victims))
    run(ADPSGD(ring=ring), faults, epochs=3)


@pytest.mark.parametrize("victims", [(1,), (0, 1), later((0,))], ids=str)
def test_the_centre_is_kept_by_the_next(victims: tuple[int, ...]) -> None:
    faults = tuple(Fault(v, at_draw=3 + 2 * i) for i, v in enumerate(victims))
    run(AsyncEASGD(sync_every=2), faults, epochs=3)


@pytest.mark.parametrize("victims", [(0,), (0, 2, 3), later((1,)), later((2, 3))], ids=str)
def test_a_node_goes_on_without_its_leader(victims: tuple[int, ...]) -> None:
    faults = tuple(Fault(v, at_draw=2 + i) for i, v in enumerate(victims))
    run(HADPSGD(), faults, epochs=3)


@pytest.mark.parametrize("sleeper", [0, 3, later(1)])
def test_a_ring_leaves_a_sleeper_out_and_takes_it_in_again(sleeper: int, tmp_path: Path) -> None:
    """SIGSTOP for a second; the others go on, and it begins anew from its neighbours' average.

    Rank 0 is active: nobody waits for it, so it is merely slow for a second.
    """
    out = tmp_path / "run"
    strategy = ADPSGD(ring="fixed", partner_timeout_s=0.2)
    experiment = Experiment(
        Slow(num_items=60, seconds=0.05),
        strategy,
        MOMENTUM,
        Constant(epochs=2),
        options=RuntimeOptions(learners=4, timeout_s=60.0, tensorboard=False, trace=True),
    )
    nap = Fault(sleeper, at_draw=3, how="nap")
    result = api.run_real(experiment, out, progress=False, faults=(nap,))
    assert result.frames == 2 * experiment.pool().epoch_frames
    assert not any(one.lost for one in result.learners)
    rows = [json.loads(x) for x in (out / "metrics.jsonl").open()]
    left_out = sum(row.get("left_out", 0) for row in rows if row["event"] == "eval")
    assert (left_out > 0) == (sleeper % 2 == 1), "only one whose answer is awaited can be left out"
    drawn = {r: _draws_while_asleep(out, r, sleeper) for r in range(4) if r != sleeper}
    assert min(drawn.values()) >= 3, f"the others go on: {drawn}"


def _draws_while_asleep(out: Path, rank: int, sleeper: int) -> int:
    """How many minibatches a learner began in the longest gap between two of the sleeper's."""
    begun = []
    for r in (sleeper, rank):
        spans = [json.loads(x) for x in (out / f"trace-{r}.jsonl").open()]
        begun.append([s["start_s"] for s in spans if s["kind"] == "compute"])
    first, last = max(pairwise(begun[0]), key=lambda gap: gap[1] - gap[0])
    return sum(first < start < last for start in begun[1])


@pytest.mark.parametrize("mixing", topology.ROUNDS)
def test_rounds_go_on_among_the_living(mixing: Any) -> None:
    run(DPSGD(mixing=mixing), (Fault(1, at_draw=2), Fault(4, at_frame=30)), epochs=3)


def test_a_server_cannot_be_spared() -> None:
    with pytest.raises(
        LearnerFailedError, match=r"rank 0 .* was ended by signal 9.*\n.*rank 1 fail"
    ):
        run(PushPull(), (Fault(0, at_draw=3),), learners=3)


def test_a_run_that_lost_a_learner_is_resumed_with_all(tmp_path: Path) -> None:
    out = tmp_path / "run"
    run(KStep(sync_every=2), (Fault(1, at_draw=2),), learners=3, out=out)
    experiment = Experiment(
        Quadratic(num_items=23, uneven=True),
        KStep(sync_every=2),
        MOMENTUM,
        Constant(epochs=4),
        options=RuntimeOptions(learners=3, **OPTIONS),
    )
    result = api.run_real(experiment, out, resume=True, progress=False)
    assert result.frames == 4 * sum(Quadratic(uneven=True).frames_of(i) for i in range(23))
    assert not any(one.lost for one in result.learners)


def test_a_child_of_the_dead_learner_does_not_hide_its_death() -> None:
    """A data loader's process that lives on must not hold the dead learner's connections."""
    run(AllReduceSGD(), (Fault(1, at_draw=3),), learners=3, task=Forking(), timeout_s=8.0)


@pytest.mark.long
@pytest.mark.timeout(1200)
@named
@pytest.mark.parametrize("transport", ["shared_memory", "sockets"])
def test_several_may_die_many_times(strategy: Any, transport: str) -> None:
    for seed in range(100, 200):
        run(strategy, random_faults(seed, 5), transport=transport, epochs=3)
