"""Several hosts under torchrun: two network namespaces joined by a veth pair stand for them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from helpers import network
from helpers.programs import wait_for
from helpers.runs import same_model
from safetensors.torch import load_file

import hocket
from hocket.errors import ConfigError
from hocket.experiment import Experiment, RuntimeOptions
from hocket.runtime.launch.host_launcher import HostLauncher
from hocket.runtime.launch.hosts import LearnerHost
from hocket.runtime.net.store import Place

needs_network = pytest.mark.skipif(
    not network.available(), reason="needs the privilege to make network namespaces"
)
TASK = {"num_frames": 4000, "dev_frames": 500}


@pytest.fixture
def pair() -> Iterator[network.Pair]:
    with network.two_hosts() as hosts:
        yield hosts


def train(
    pair: network.Pair, out: Path, *more: str, learners: int = 4
) -> list[subprocess.Popen[str]]:
    settings = [f"task.{k}={v}" for k, v in TASK.items()]
    arguments = ["-m", "hocket", "train", "synthetic", "--learners", str(learners)]
    for setting in [*settings, *more]:
        arguments += ["--set", setting]
    return [pair.torchrun(host, *arguments, "--out", str(out)) for host in range(2)]


def finish(processes: list[subprocess.Popen[str]]) -> list[str]:
    ends = [p.communicate(timeout=90) for p in processes]
    assert [p.returncode for p in processes] == [0, 0], ends
    return [out for out, _ in ends]


def learners_below(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """torchrun, then the launcher, then its fork server, then the learners."""
    below = psutil.Process(process.pid).children(recursive=True)
    launchers = [p for p in below if p.ppid() == process.pid]
    servers = [p for p in below if p.ppid() in {x.pid for x in launchers}]
    return [p for p in below if p.ppid() in {x.pid for x in servers}]


def rows(out: Path) -> list[dict[str, Any]]:
    path = out / "metrics.jsonl"
    return [json.loads(x) for x in path.read_text().splitlines()] if path.exists() else []


@needs_network
def test_two_hosts_give_the_simulated_model_bit_for_bit(pair: network.Pair, tmp_path: Path) -> None:
    out = tmp_path / "run"
    more = ["strategy.name=kstep", "strategy.sync_every=3", "schedule.epochs=2"]
    ends = finish(train(pair, out, *more))
    assert all("frame accuracy" in text for text in ends)
    twin = hocket.simulate(
        hocket.Synthetic(num_frames=TASK["num_frames"], dev_frames=TASK["dev_frames"]),
        strategy=hocket.KStep(sync_every=3),
        cluster=4,
        schedule=hocket.Constant(epochs=2),
        progress=False,
    )
    assert same_model(load_file(out / "model.safetensors"), dict(twin.model))
    assert rows(out)[-1]["frames"] == 8000


@needs_network
def test_a_learner_killed_on_another_host_is_lost_and_the_run_goes_on(
    pair: network.Pair, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    processes = train(pair, out, "strategy.name=allreduce", "schedule.epochs=40", learners=5)
    wait_for(lambda: sum(r["event"] == "train" for r in rows(out)) > 2)
    victims = learners_below(processes[1])
    assert len(victims) == 3
    victims[0].kill()
    finish(processes)
    lost = [r for r in rows(out) if r["event"] == "lost"]
    assert len(lost) == 1
    assert lost[0]["rank"] in (2, 3, 4)
    assert "signal 9" in lost[0]["reason"]
    summary = rows(out)[-1]
    assert summary["frames"] == 40 * 4000, "the ledger closes"
    assert [one["lost"] for one in summary["learners"]].count(True) == 1


@needs_network
@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_group_of_another_host_is_lost_with_any_of_its_ranks(
    pair: network.Pair, tmp_path: Path
) -> None:
    """All ranks of a learner are on its host: four processes on each, for two learners."""
    out = tmp_path / "run"
    more = ("strategy.name=kstep", "schedule.epochs=40", "runtime.ranks_per_learner=2")
    processes = train(pair, out, *more, "model.width=16")
    wait_for(lambda: sum(r["event"] == "train" for r in rows(out)) > 2)
    there = learners_below(processes[1])
    assert len(there) == 4
    max(there, key=lambda p: p.pid).kill()  # it is started last: the second rank of learner 3
    finish(processes)
    (lost,) = (r for r in rows(out) if r["event"] == "lost")
    assert lost["rank"] == 3
    summary = rows(out)[-1]
    assert summary["frames"] == 40 * 4000, "the ledger closes"
    assert [one["lost"] for one in summary["learners"]] == [False, False, False, True]


@needs_network
@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("servers", ["", "strategy.servers=2"])
def test_servers_stand_on_several_hosts(servers: str, pair: network.Pair, tmp_path: Path) -> None:
    """Every learner serves unless told otherwise; servers of their own are dealt to the hosts."""
    out = tmp_path / "run"
    more = ("strategy.name=asgd", "schedule.epochs=4", *filter(None, [servers]))
    finish(train(pair, out, *more))
    summary = rows(out)[-1]
    assert summary["frames"] + summary["discarded_frames"] == 4 * 4000, "the ledger closes"
    assert [one["rank"] for one in summary["attendants"]] == ([4, 5] if servers else [])
    said = [r["text"] for r in rows(out) if r["event"] == "note"]
    who = "rank 5 (a rank of its own) serves" if servers else "rank 3 (a learner) serves"
    assert any(who in text for text in said)


@needs_network
@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_server_killed_on_another_host_ends_the_run(pair: network.Pair, tmp_path: Path) -> None:
    out = tmp_path / "run"
    more = ("strategy.name=asgd", "strategy.servers=2", "schedule.epochs=400")
    processes = train(pair, out, *more, "runtime.checkpoint_every=1")
    wait_for(lambda: any(out.glob("checkpoints/[0-9]*")))
    served = max(learners_below(processes[1]), key=lambda p: p.pid)  # it is started last
    served.kill()
    told = [process.communicate(timeout=120) for process in processes]
    assert all(process.returncode != 0 for process in processes)
    assert any("rank 5" in err and "--resume" in err for _, err in told), told
    assert not any(r["event"] == "summary" for r in rows(out))


@needs_network
@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_host_that_is_cut_off_is_lost_and_does_not_go_on_by_itself(
    pair: network.Pair, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    processes = train(pair, out, "strategy.name=allreduce", "schedule.epochs=60")
    try:
        wait_for(lambda: sum(r["event"] == "train" for r in rows(out)) > 4)
        apart = learners_below(processes[1])
        pair.cut()
        wait_for(lambda: rows(out)[-1]["event"] == "summary", 150)
        assert rows(out)[-1]["frames"] == 60 * 4000, "the ledger closes"
        wait_for(lambda: not any(p.is_running() for p in apart), 120)
    finally:  # torchrun's agents would wait for each other for five minutes
        for process in processes:
            process.kill()
            process.communicate()
    assert [one["lost"] for one in rows(out)[-1]["learners"]] == [False, False, True, True]


@needs_network
@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_run_stops_for_a_host_that_is_cut_off_if_asked_to(
    pair: network.Pair, tmp_path: Path
) -> None:
    """`on_loss = stop`: what is left of the run ends with the reason, and a checkpoint stays."""
    out = tmp_path / "run"
    more = ("schedule.epochs=4000", "runtime.on_loss=stop", "runtime.checkpoint_every=1")
    processes = train(pair, out, "strategy.name=allreduce", *more)
    try:
        wait_for(lambda: any(out.glob("checkpoints/[0-9]*")))
        learners = [p for process in processes for p in learners_below(process)]
        assert len(learners) == 4
        pair.cut()
        wait_for(lambda: not any(p.is_running() for p in learners), 150)
    finally:
        for process in processes:
            process.kill()
        told = [process.communicate()[1] for process in processes]
    assert not any(r["event"] == "summary" for r in rows(out))
    assert "is lost: host 1 gave no sign of life. Continue with --resume" in told[0]
    assert any(out.glob("checkpoints/[0-9]*"))


def test_learners_are_shared_out_over_hosts() -> None:
    def ranks(learners: int, hosts: int, attendants: int = 0) -> list[list[int]]:
        store: Any = None
        place = Place("", b"")
        return [
            LearnerHost(n, hosts, store, place, 10.0).ranks(learners, attendants)
            for n in range(hosts)
        ]

    assert ranks(4, 2) == [[0, 1], [2, 3]]
    assert ranks(5, 2) == [[0, 1], [2, 3, 4]]
    assert [rank for host in ranks(7, 3) for rank in host] == list(range(7))
    assert ranks(4, 2, 1) == [[0, 1, 4], [2, 3]]
    assert ranks(4, 2, 3) == [[0, 1, 4, 6], [2, 3, 5]]
    with pytest.raises(ConfigError, match=r"1 learner\(s\) cannot be divided among 2 hosts"):
        ranks(1, 2)


def test_the_ranks_of_a_learner_share_its_host() -> None:
    store: Any = None
    place = Place("nowhere:0", b"")
    options = RuntimeOptions(learners=5, ranks_per_learner=3)
    experiment = Experiment(hocket.Synthetic(), hocket.ASGD(servers=2), options=options)
    shares = []
    for number in range(2):
        host = LearnerHost(number, 2, store, place, 10.0)
        launcher = HostLauncher(experiment, None, False, print, host=host)
        shares.append([experiment.seat(one) for one in launcher.ranks()])
    assert sorted(seat.rank for seat in shares[0]) == [0, 0, 0, 1, 1, 1, 5]
    assert sorted(seat.rank for seat in shares[1]) == [2, 2, 2, 3, 3, 3, 4, 4, 4, 6]
    assert sum(map(len, shares)) == experiment.num_processes == 17
