"""Who leaves a group and who ends a run: the launcher's side, with learners that only listen."""

from __future__ import annotations

import contextlib
import json
import time
from typing import Any

import pytest
from helpers.tasks import Quadratic

import hocket
from hocket.errors import ConfigError
from hocket.experiment import Experiment, RuntimeOptions
from hocket.runtime.launch import joining, regrouping
from hocket.runtime.launch.children import Child
from hocket.runtime.launch.joining import understood
from hocket.runtime.launch.learner_process import LEAVE, MEET, STOP, NextGroup
from hocket.runtime.launch.regrouping import Regrouping
from hocket.runtime.net.store import Place
from hocket.runtime.net.store_server import StoreServer


class Pipe:
    """Keeps what was sent."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, order: Any) -> None:
        self.sent.append(order)

    def close(self) -> None: ...


class Store:
    """A store in which so many have asked to join."""

    def __init__(self, asked: int = 0) -> None:
        self.asked, self.said = asked, dict[str, str]()

    def add(self, key: str, count: int) -> int:
        return self.asked

    def look(self, key: str, limit_s: float) -> bytes:
        return b'{"learners": 1}'

    def put(self, key: str, value: str) -> None:
        self.said[key] = value


class Scene:
    """Three learners and one that serves them, all at work."""

    def __init__(self, asked: int = 0) -> None:
        options = RuntimeOptions(learners=3)
        self.experiment = Experiment(Quadratic(), hocket.KStep(sync_every=2), options=options)
        self.pipes = [Pipe() for _ in range(4)]
        self.children = [
            Child(rank, None, pipe, started=True)  # type: ignore[arg-type]
            for rank, pipe in enumerate(self.pipes)
        ]
        self.events: list[tuple[str, int, Any]] = []
        self.store = Store(asked)
        self.group = Regrouping(
            self.store,  # type: ignore[arg-type]
            lambda numbers, callers: pytest.fail("nobody is to be started"),
            lambda kind, rank, facts: self.events.append((kind, rank, facts["learners"])),
            frozenset([3]),
        )

    def look(self, *, stopping: bool = False) -> None:
        self.experiment = self.group.look(self.experiment, self.children, stopping=stopping)

    def sent(self) -> list[list[Any]]:
        return [pipe.sent for pipe in self.pipes]

    def leave(self, *ranks: int) -> None:
        for rank in ranks:
            self.children[rank].leaving = True


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.setattr(regrouping, "ALIKE_S", 0.0)
    return Scene()


def test_one_leaves_and_the_others_go_on(scene: Scene) -> None:
    scene.leave(1, 3)  # who serves the others cannot leave them
    scene.look()
    assert scene.sent() == [[MEET]] * 4
    for child in scene.children:
        child.regrouped = True
    scene.look()
    assert scene.events == [("left", 1, [0, 2])]
    assert scene.experiment.options.learners == 2
    assert scene.pipes[1].sent == [MEET, LEAVE]
    for seat, rank in enumerate([0, 2, 3]):
        assert scene.pipes[rank].sent[1:] == [NextGroup(1, 2, seat, (0, 2, 3), (0, 2))]


def test_a_signal_to_all_learners_ends_the_run_with_a_checkpoint(scene: Scene) -> None:
    scene.leave(0, 1, 2)
    scene.look()
    scene.look()
    assert scene.sent() == [[STOP]] * 4


def test_a_signal_that_reaches_them_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is called to a meeting before all who were signalled alike could say so."""
    scene, now = Scene(), [10.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    scene.leave(0)
    scene.look()
    scene.leave(1, 2)
    now[0] += 0.9 * regrouping.ALIKE_S
    scene.look()
    assert scene.sent() == [[]] * 4
    now[0] += 0.2 * regrouping.ALIKE_S
    scene.look()
    assert scene.sent() == [[STOP]] * 4


def test_a_signal_to_all_that_comes_while_they_meet(scene: Scene) -> None:
    scene.leave(0)
    scene.look()
    scene.leave(1, 2)
    for child in scene.children:
        child.regrouped = True
    scene.look()
    assert scene.events == [], "nobody left"
    assert [type(one[1]) for one in scene.sent()] == [NextGroup] * 4
    scene.look()
    assert [one[2:] for one in scene.sent()] == [[STOP]] * 4


def test_a_run_that_stops_lets_nobody_in_or_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regrouping, "ALIKE_S", 0.0)
    scene = Scene(asked=1)
    scene.leave(0, 1, 2)
    scene.look(stopping=True)
    assert scene.sent() == [[]] * 4, "the launcher itself has told them to stop"
    assert "it is stopping" in scene.store.said["join/1/answer"]


def test_a_meeting_under_way_is_ended_also_if_the_run_stops(scene: Scene) -> None:
    scene.leave(2)
    scene.look()
    for child in scene.children:
        child.regrouped = True
    scene.look(stopping=True)
    assert scene.events == [("left", 2, [0, 1])]


@pytest.mark.parametrize("mark", ["left", "ended"])
def test_a_newcomer_that_is_done_before_it_was_let_in_is_forgotten(mark: str) -> None:
    """Else whoever asks next would wait for ever."""
    scene = Scene(asked=1)
    scene.group.attending = frozenset()
    newcomer = Child(4, None, Pipe(), waits=True)  # type: ignore[arg-type]

    def begin(numbers: list[int], callers: list[int]) -> list[Child]:
        scene.children.append(newcomer)
        return [newcomer]

    scene.group.begin = begin
    newcomer.ended_by = lambda: "is done"  # type: ignore[method-assign]
    scene.look()
    assert newcomer in scene.children
    setattr(newcomer, mark, True)
    scene.look()
    assert newcomer not in scene.children
    assert "is done" in scene.store.said["join/1/answer"]


def test_whoever_is_killed_while_asking_keeps_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A number that was taken for a request that never came is answered, and so is the next."""
    monkeypatch.setattr(regrouping, "LOOK_EVERY_S", 0.0)
    scene, token = Scene(), b"t" * 32
    with contextlib.closing(StoreServer.nearby(token)) as server:
        store = Place(server.address, token).store(10.0)
        scene.group.store = store
        scene.group.attending = frozenset()
        scene.group.begin = lambda numbers, callers: _refuse()
        store.add(joining.ASKED, 1)  # and no more
        assert joining.announce(store, '{"learners": 1}') == 2
        scene.look()
        scene.look()
        answers = [json.loads(store.look(f"join/{n}/answer") or b"{}") for n in (1, 2)]
        store.close()
    assert "makes no sense" in answers[0]["refused"]
    assert answers[1] == {"refused": "it was asked for"}


def _refuse() -> list[Child]:
    raise ConfigError("it was asked for")


@pytest.mark.parametrize(
    "request_",
    [
        None,
        b"",
        b"[]",
        b"5",
        b'{"learners": Infinity}',
        b'{"learners": "2"}',
        b'{"learners": true}',
        b'{"learners": 0}',
        b'{"learners": 5000}',
        b'{"learners": 1, "callers": 5}',
        b'{"learners": 1, "callers": [1e400]}',
        b"[" * 100_000,
        b"\xff",
    ],
    ids=lambda text: str(text)[:30],
)
def test_a_request_that_makes_no_sense(request_: bytes | None) -> None:
    with pytest.raises(ValueError, match=r".+"):
        understood(request_)
    assert understood(b'{"learners": 2, "callers": [4, 5]}') == (2, [4, 5])
