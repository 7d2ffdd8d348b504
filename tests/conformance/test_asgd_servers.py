"""The servers of asynchronous SGD: shards, losses, resuming, costs."""

from __future__ import annotations

import json
import re
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.runs import simulated, simulator
from helpers.tasks import DIM, Quadratic, WithDropout, acoustic
from torch import nn

from hocket import (
    ASGD,
    SGD,
    AdaGrad,
    AdamW,
    Cluster,
    Constant,
    Death,
    Host,
    NaturalSGD,
    Result,
    Sequential,
)
from hocket.cli.main import main
from hocket.core.flat import Layout
from hocket.core.optimizer import Optimizer
from hocket.errors import ConfigError, LearnerFailedError, PeerLostError
from hocket.experiment import Experiment, RuntimeOptions
from hocket.report.page import write_page
from hocket.report.runs import read_run
from hocket.runtime.sim.simulator import Simulator
from hocket.strategies.parameter_server import ServerState, cut_memory

LR = 0.02
PLAIN = Constant(epochs=2, lr_compensation="none")
TASK = Quadratic(num_items=40, uneven=True)
FRAMES = sum(item.frames for item in TASK.items("train"))


def jittery(learners: int, **more: Any) -> Cluster:
    host = Host(learners=learners, frames_per_s=400.0, jitter=0.4, memory_gbit=0.01)
    return Cluster((host,), **more)


def built(strategy: ASGD, learners: int = 4, **more: Any) -> Simulator:
    options = RuntimeOptions(learners=learners, trace=True, evaluate_every=9.0)
    experiment = Experiment(TASK, strategy, SGD(lr=LR), PLAIN, options=options)
    return simulator(experiment, jittery(learners, **more))


def run(strategy: Any, learners: int = 4, task: Any = TASK, **more: Any) -> Result:
    given: dict[str, Any] = {"optimizer": SGD(lr=LR), "schedule": PLAIN} | more
    return simulated(task, strategy, jittery(learners), **given)


def model_of(sim: Simulator) -> np.ndarray[Any, Any]:
    return sim.learners[-1].state.shard[:DIM].numpy()  # type: ignore[attr-defined, no-any-return]


# ------------------------------------------------------------------ servers


def test_shards_are_cut_between_parameters_and_the_start_says_who_serves_what(
    tmp_path: Path,
) -> None:
    layout = Layout.of(nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 4)))
    assert [rank for rank, _ in ASGD(servers=2).parts(layout, 3)] == [3, 4]
    assert [rank for rank, _ in ASGD(servers=0).parts(layout, 3)] == [0, 1, 2]
    assert len(ASGD(servers=0).parts(layout, 9)) == 4, "no more shards than parameters"
    with pytest.raises(ConfigError, match="servers = 9, but the model has 4 parameters"):
        ASGD(servers=9).parts(layout, 3)
    run(ASGD(servers=2), out=tmp_path / "a")
    notes = [
        row["text"]
        for row in map(json.loads, (tmp_path / "a" / "metrics.jsonl").open())
        if row["event"] == "note"
    ]
    assert "asgd: rank 4 (a rank of its own) serves 16 of 32 values" in notes


def test_the_default_is_one_server_on_one_host_and_none_across_hosts() -> None:
    assert ASGD().on_hosts(1).servers == 1
    assert ASGD().on_hosts(4).servers == 0
    assert ASGD(servers=2).on_hosts(4).servers == 2
    result = simulated(TASK, ASGD(), Cluster.even(3), optimizer=SGD(lr=LR), schedule=PLAIN)
    assert not result.attendants


@pytest.mark.parametrize("strategy", [ASGD(servers=1), ASGD(servers=0, overlap=0)])
def test_the_run_ends_with_a_remedy_if_a_server_is_lost(strategy: ASGD) -> None:
    rank = 4 if strategy.servers else 1
    host = Host(learners=4, attendants=strategy.pool, frames_per_s=400.0, memory_gbit=0.01)
    cluster = Cluster((host,), deaths=(Death(rank, at_s=0.05),))
    experiment = Experiment(
        TASK, strategy, SGD(lr=LR), PLAIN, options=RuntimeOptions(learners=4, timeout_s=5.0)
    )
    said = r"which served the others.*--resume" if strategy.servers else r"that it served.*--resume"
    with pytest.raises(LearnerFailedError if strategy.servers else PeerLostError, match=said):
        simulator(experiment, cluster).run()


def test_a_push_that_reached_only_some_shards_is_counted() -> None:
    """A learner dies after the first shard has its push and before the second has.

    Shards then differ in how many updates they have made: by what was counted, and nothing else.
    """
    found = 0
    for at_ms in range(5, 60, 4):
        host = Host(learners=3, attendants=1, frames_per_s=400.0, memory_gbit=0.01)
        far = Host(learners=1, attendants=1, frames_per_s=400.0, bandwidth_gbit=2e-5)
        cluster = Cluster((host, far), deaths=(Death(0, at_s=at_ms / 1000),))
        options = RuntimeOptions(learners=4, evaluate_every=9.0)
        experiment = Experiment(TASK, ASGD(servers=2), SGD(lr=LR), PLAIN, options=options)
        told: list[dict[str, Any]] = []
        sim = simulator(experiment, cluster, told.append)
        sim.run()
        ledger = sim.context(1).account.ledger
        assert ledger.committed_frames + ledger.discarded_frames == 2 * FRAMES
        first, second = (sim.learners[rank].state.clock for rank in (4, 5))  # type: ignore[attr-defined]
        (row,) = [event for event in told if event["event"] == "eval"]
        partial = row.get("partial_histogram", {}).get("1", 0)
        assert first - second == partial
        found += partial
    assert found > 5


def test_the_simulator_charges_the_servers_arithmetic_and_links() -> None:
    """One learner that waits, its server on another host: every push costs what it must."""
    layout = Layout.of(TASK.build_model())

    def time_s(memory_gbit: float, link_gbit: float) -> float:
        learner = Host(frames_per_s=400.0, bandwidth_gbit=link_gbit)
        server = Host(learners=0, attendants=1, bandwidth_gbit=link_gbit, memory_gbit=memory_gbit)
        cluster = Cluster((learner, server), latency_s=0.0)
        how, rule = ASGD(servers=1, overlap=0), SGD(lr=LR)
        return simulated(TASK, how, cluster, optimizer=rule, schedule=PLAIN).time_s

    fast, bits = time_s(1e9, 1e9), layout.size * 32
    assert fast == pytest.approx(2 * FRAMES / 400.0, rel=1e-3)
    arithmetic = 2 * 40 * 3 * bits / 1e-3 * 1e-9  # every value is read twice and written once
    assert time_s(1e-3, 1e9) - fast == pytest.approx(arithmetic, rel=1e-3)
    there_and_back = 2 * 40 * 2 * bits / 1e-3 * 1e-9
    wire = time_s(1e9, 1e-3) - fast
    assert there_and_back < wire < 1.6 * there_and_back, "stamps and tickets weigh something, too"


# ------------------------------------------------------------------ resuming, natural gradient


@pytest.mark.parametrize(
    ("before", "after"), [((4, 1), (2, 1)), ((2, 2), (4, 1)), ((3, 1), (3, 0)), ((2, 0), (3, 2))]
)
def test_it_resumes_with_other_learners_and_servers(
    before: tuple[int, int], after: tuple[int, int], tmp_path: Path
) -> None:
    task = WithDropout(num_items=30)
    optimizer = SGD(lr=0.005, momentum=0.5)

    def go(learners: int, servers: int, epochs: int, **more: Any) -> Result:
        return simulated(
            task,
            ASGD(servers=servers),
            jittery(learners),
            optimizer=optimizer,
            schedule=Constant(epochs, lr_compensation="none"),
            out=tmp_path / "run",
            **more,
        )

    go(*before, epochs=2)
    result = go(*after, epochs=4, resume=True)
    assert result.frames + result.discarded_frames == 4 * 60
    start = torch.cat(
        [value.flatten() for value in WithDropout().build_model().state_dict().values()]
    )
    assert result.loss < 0.5 * float(start.square().sum()), "it has learnt"


def test_the_servers_memory_is_cut_anew_with_the_shards() -> None:
    """Momentum that one server had is that of two servers, value by value; AdamW's steps, too."""
    layout = Layout.of(WithDropout().build_model())
    params = torch.randn(layout.size)
    rules: list[Optimizer] = [SGD(momentum=0.9), AdamW(), AdaGrad()]
    for rule in rules:
        memory = rule.init(params)
        for _ in range(3):
            rule.apply_(params, torch.randn(layout.size), memory, 0.1)
        whole = rule.moments(params, memory)
        pieces = []
        for place in layout.cut(2):
            shard = params[place.start : place.stop].clone()
            state = ServerState(params, [(memory, layout.size)], shard)
            cut = cut_memory(rule, state, place)
            assert getattr(cut, "steps", 3) == 3
            pieces.append(rule.moments(shard, cut))
        lost = ServerState(params, [], shard)  # of a checkpoint that the server did not live to see
        assert cut_memory(rule, lost, place) is not None
        for n, vector in enumerate(whole):
            assert torch.equal(vector, torch.cat([piece[n] for piece in pieces]))


def test_natural_gradient_runs_under_it() -> None:
    task = acoustic(num_frames=4000)
    result = run(ASGD(servers=2), 4, task, optimizer=NaturalSGD(lr=0.05), schedule=Constant(3))
    alone = simulated(task, Sequential(), 1, optimizer=NaturalSGD(lr=0.05), schedule=Constant(3))
    assert result.loss < 1.3 * alone.loss


def test_the_user_sees_staleness_queue_and_pushes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the terminal, in metrics.jsonl, on TensorBoard and on the page."""
    (tmp_path / "uneven.toml").write_text(
        "[[hosts]]\nlearners = 3\nattendants = 1\n[[slow]]\nrank = 1\nfactor = 6.0\n"
    )
    ask = ["simulate", "synthetic", "--strategy", "asgd", "--epochs", "2"]
    small = ("task.num_frames=4000", "task.dev_frames=400", "model.layers=1", "model.width=8")
    rules = ("strategy.servers=1", "strategy.max_staleness=9")
    sets = [word for one in (*small, *rules) for word in ("--set", one)]
    where = ["--cluster", str(tmp_path / "uneven.toml"), "--out", str(tmp_path / "run")]
    assert main([*ask, *sets, *where]) == 0
    told = capsys.readouterr()
    assert re.search(r"staleness \d.* dropped \d.*%  queue \d.*  pushes [\d,.]+/s", told.err)
    assert "gradients more than" in told.err
    assert "3 (serves)" in told.out
    assert re.search(r"pushes: \d+, [\d,.]+/s; rank 0: \d+ \([\d,.]+/s\), rank 1: ", told.out)
    assert re.search(r"staleness: [\d.]+ updates on average, at most \d+; \d+ .*█.* \d+", told.out)
    assert re.search(r"discarded as too late: [1-9]\d* frames \([\d.]+%\)", told.out)
    assert "queue at the servers: " in told.out
    assert "rank 1 is slow: " in told.out
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").open()]
    last = [row for row in rows if row["event"] == "eval"][-1]
    assert sum(last["staleness_histogram"].values()) == sum(last["pushes_histogram"].values())
    assert set(last["pushes_histogram"]) == {"0", "1", "2"}
    assert last["queue_max"] >= last["queue"] >= 0
    assert last["pushes_per_s"] > 0
    assert last["discarded_frames"] == rows[-1]["discarded_frames"] > 0
    write_page(tmp_path / "page.html", "asgd", [read_run(tmp_path / "run")])
    page = (tmp_path / "page.html").read_text()
    assert "What the servers saw" in page
    assert "queue: pushes that waited at a server" in page
    for line in told.out.splitlines()[-6:-1]:
        assert escape(line) in page, "the page says what the terminal said"
    board = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = board.EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    tags = events.Tags()
    assert {"eval/pushes/rank-1", "eval/pushes_per_s", "eval/queue"} <= set(tags["scalars"])
    assert {"eval/discarded_frames", "eval/dropped"} <= set(tags["scalars"])
    assert tags["histograms"] == ["eval/staleness"]


@pytest.mark.parametrize("servers", [1, 2])
def test_pushes_wait_at_a_server_that_is_slow(servers: int) -> None:
    """It works on one, another learner has its model, and the pushes of the rest wait."""

    def longest(memory_gbit: float) -> float:
        learners = Host(learners=4, frames_per_s=400.0, bandwidth_gbit=1e6)
        server = Host(learners=0, attendants=servers, memory_gbit=memory_gbit)
        told: list[dict[str, Any]] = []
        options = RuntimeOptions(learners=4, evaluate_every=9.0)
        how = ASGD(servers=servers, overlap=0)
        experiment = Experiment(TASK, how, SGD(lr=LR), PLAIN, options=options)
        simulator(experiment, Cluster((learners, server)), told.append).run()
        (row,) = [event for event in told if event["event"] == "eval"]
        return float(row["queue_max"])

    assert longest(40.0) < longest(1e-5)
    assert longest(1e-5) >= 2.0


@pytest.mark.parametrize("learners", [4, 2])
def test_what_was_counted_before_a_checkpoint_is_told_after_a_resume(
    learners: int, tmp_path: Path
) -> None:
    """Else a push that was applied in part could go unmentioned; also with fewer learners."""

    def go(cluster: Cluster, **more: Any) -> Result:
        return simulated(
            TASK,
            ASGD(servers=1),
            cluster,
            optimizer=SGD(lr=LR),
            schedule=PLAIN,
            evaluate_every=9.0,
            checkpoint_every=0.5,
            out=tmp_path / "run",
            **more,
        )

    host = Host(learners=4, attendants=1, frames_per_s=400.0, memory_gbit=0.01)
    with pytest.raises(LearnerFailedError):
        go(Cluster((host,), deaths=(Death(4, at_s=0.06),)))
    go(jittery(learners), resume=True)
    (last,) = [
        row
        for row in map(json.loads, (tmp_path / "run" / "metrics.jsonl").open())
        if row["event"] == "eval"
    ]
    assert sum(last["pushes_histogram"].values()) == 2 * 40, "every item was pushed, once"
