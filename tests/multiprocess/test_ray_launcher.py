"""The launcher of a Ray cluster, with processes of this test in Ray's place.

What Ray does is small: it runs `RayLearner.run`, and again when its process has ended. So all but
Ray itself is tried here, and Ray in `make test-engines`.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from helpers.company import events, held, run_beside, until

import hocket
from hocket.errors import ConfigError, LearnerFailedError
from hocket.runtime.launch import joining
from hocket.runtime.launch.guests.arrivals import LauncherPlace
from hocket.runtime.launch.learner_process import Orders
from hocket.runtime.launch.on_ray import learner
from hocket.runtime.launch.on_ray.cluster import Resources
from hocket.runtime.launch.on_ray.learner import RayLearner
from hocket.support.fork_server import fork_context

pytestmark = pytest.mark.timeout(240)


def _actor(number: int, launcher: LauncherPlace, orders: Orders) -> None:
    learner._node = lambda: f"node {number // 2}"
    RayLearner().run(number, launcher, orders)
    os._exit(0)  # whatever it has returned: Ray starts only those anew that have not


class FakeActor:
    """A process that is started again when it ends without having returned."""

    def __init__(self, number: int, *orders: Any, restarts: bool) -> None:
        self.orders, self.restarts, self.dismissed = (number, *orders), restarts, False
        self.number_of_starts = 0
        self._start()

    def _start(self) -> None:
        context = fork_context([learner.__name__])
        self.process = context.Process(target=_actor, args=self.orders, daemon=True)
        self.process.start()
        self.number_of_starts += 1

    def look(self) -> None:
        code = self.process.exitcode
        if code is not None and code != 0 and self.restarts and not self.dismissed:
            self._start()

    def restart(self) -> None:
        self.process.kill()

    def dismiss(self) -> None:
        self.dismissed = True
        self.process.kill()
        self.process.join(10)


@dataclass
class FakeCluster:
    """What the launcher uses of a cluster; `look` is called whenever the launcher looks around."""

    actors: list[FakeActor] = field(default_factory=list)
    resources: Resources = field(default_factory=Resources)
    name: str = "no Ray at all"
    num_nodes: int = 2

    def own_address(self) -> str:
        return "127.0.0.1"

    def has(self) -> str:
        return "nothing"

    def failed(self, actors: Iterable[FakeActor]) -> str:
        for actor in actors:
            actor.look()
        return ""

    def await_return(self, actors: Iterable[FakeActor], limit_s: float) -> None:
        for actor in actors:
            actor.process.join(limit_s)

    def begin(
        self, number: int, launcher: LauncherPlace, orders: Orders, *, restarts: bool
    ) -> FakeActor:
        self.actors.append(FakeActor(number, launcher, orders, restarts=restarts))
        return self.actors[-1]

    def kill(self, *numbers: int) -> None:
        for number in numbers:
            os.kill(self.actors[number].process.pid or 0, signal.SIGKILL)
        for number in numbers:
            self.actors[number].process.join(10)
            self.actors[number].look()


class InPairs(hocket.KStep):
    """Works with an even number of learners alone."""

    needs_even_world: ClassVar[bool] = True


def lost(run: Path) -> list[int]:
    return sorted(event["rank"] for event in events(run, "lost"))


def joined(run: Path) -> set[int]:
    return {event["rank"] for event in events(run, "joined")}


@pytest.mark.parametrize(
    "strategy",
    [hocket.KStep(sync_every=2), pytest.param(hocket.ADPSGD(), marks=pytest.mark.long)],
    ids=lambda strategy: strategy.name,
)
def test_what_is_lost_together_comes_back_together(strategy: Any, tmp_path: Path) -> None:
    run, cluster = tmp_path / "run", FakeCluster()

    def meanwhile() -> None:
        cluster.kill(2, 3)
        until(lambda: joined(run) == {4, 5})

    result = run_beside(meanwhile, run, held(run, strategy, 4), cluster)
    assert lost(run) == [2, 3], "ranks are given node by node"
    assert [one.rank for one in result.learners if one.lost] == [2, 3]
    assert all(one.frames > 0 for one in result.learners if not one.lost)
    assert [actor.number_of_starts for actor in cluster.actors] == [1, 1, 2, 2]
    assert all(actor.dismissed for actor in cluster.actors)
    assert not any(actor.process.is_alive() for actor in cluster.actors)


def test_others_ask_to_join_and_some_are_refused(tmp_path: Path) -> None:
    run, cluster = tmp_path / "run", FakeCluster()

    def meanwhile() -> None:
        with pytest.raises(ConfigError, match="even"):
            joining.ask(run, 1, 60.0)
        assert len(cluster.actors) == 2, "nobody is placed in vain"
        assert joining.ask(run, 2, 60.0) == [2, 3]

    result = run_beside(meanwhile, run, held(run, InPairs(sync_every=2), 2), cluster)
    assert [one.rank for one in result.learners] == [0, 1, 2, 3]
    assert not lost(run)


@pytest.mark.long
def test_a_learner_that_leaves_is_not_started_anew(tmp_path: Path) -> None:
    run, cluster = tmp_path / "run", FakeCluster()

    def meanwhile() -> None:
        os.kill(cluster.actors[1].process.pid or 0, signal.SIGTERM)
        until(lambda: events(run, "left"))
        until(lambda: cluster.actors[1].dismissed)

    run_beside(meanwhile, run, held(run, hocket.KStep(sync_every=2), 3), cluster)
    assert not lost(run)
    assert not joined(run)


@pytest.mark.long
def test_a_frozen_learner_is_started_anew(tmp_path: Path) -> None:
    run, cluster = tmp_path / "run", FakeCluster()
    frozen = held(run, hocket.KStep(sync_every=2), 3)
    frozen = replace(frozen, options=replace(frozen.options, silence_s=3.0))

    def meanwhile() -> None:
        os.kill(cluster.actors[1].process.pid or 0, signal.SIGSTOP)
        until(lambda: lost(run) == [1])
        cluster.actors[1].process.join(10)
        cluster.actors[1].look()
        until(lambda: joined(run) == {3})

    run_beside(meanwhile, run, frozen, cluster)
    assert "gave no sign of life" in events(run, "lost")[0]["reason"]


class Astray(FakeCluster):
    """Its nodes have a disk of their own."""

    def begin(
        self, number: int, launcher: LauncherPlace, orders: Orders, *, restarts: bool
    ) -> FakeActor:
        elsewhere = replace(orders, run_dir=Path("/nowhere"))
        return super().begin(number, launcher, elsewhere, restarts=restarts)


def test_a_node_that_does_not_see_the_run_directory_is_named(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with pytest.raises(ConfigError, match=r"not see the run directory /nowhere.*--out must be"):
        run_beside(lambda: None, run, held(run, hocket.KStep(), 2), Astray())


@pytest.mark.long
@pytest.mark.parametrize("victim", [1, 3], ids=["a learner", "the server"])
def test_a_rank_that_serves_is_placed_like_others(victim: int, tmp_path: Path) -> None:
    """Its loss ends the run; a learner comes back, with a number after the server's."""
    run, cluster = tmp_path / "run", FakeCluster(num_nodes=1)

    def meanwhile() -> None:
        cluster.kill(victim)
        until(lambda: joined(run) == {4} or victim == 3)

    if victim == 3:
        with pytest.raises(LearnerFailedError, match=r"rank 3 \(which served the others\)"):
            run_beside(meanwhile, run, held(run, hocket.ASGD(), 3), cluster)
        assert all(actor.dismissed for actor in cluster.actors)
        return
    result = run_beside(meanwhile, run, held(run, hocket.ASGD(), 3), cluster)
    assert [one.rank for one in result.learners] == [0, 1, 2, 4]
    assert lost(run) == [1]


@pytest.mark.long
def test_a_newcomer_that_cannot_start_is_no_loss(tmp_path: Path) -> None:
    run, cluster = tmp_path / "run", FakeCluster()

    def meanwhile() -> None:
        (run / learner.MARK).unlink()
        with pytest.raises(ConfigError, match="a newcomer could not start: the node"):
            joining.ask(run, 1, 60.0)

    result = run_beside(meanwhile, run, held(run, hocket.KStep(sync_every=2), 2), cluster)
    assert [one.rank for one in result.learners] == [0, 1]
    assert not lost(run)
