"""The launcher of a run whose learners Ray has placed.

It does what the launcher of one host does, over connections instead of pipes. Ray decides where a
learner runs. If a node is lost, its learners are lost; Ray makes their actors again where there is
room, these call the launcher, and as soon as all can meet they join the run as newcomers.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import Any, Final

from hocket.errors import LearnerFailedError, WaitTimeoutError
from hocket.runtime.launch import joining, tokens
from hocket.runtime.launch.children import Child
from hocket.runtime.launch.guests.arrivals import (
    Arrival,
    Arrivals,
    RemoteProcess,
    open_to_others,
    seated,
)
from hocket.runtime.launch.guests.line import Line
from hocket.runtime.launch.launcher import START_S, STORE_LIMIT_S, Launcher
from hocket.runtime.launch.learner_process import Orders
from hocket.runtime.launch.on_ray.cluster import RayActor, RayCluster
from hocket.runtime.launch.on_ray.learner import MARK
from hocket.runtime.launch.regrouping import Regrouping
from hocket.runtime.net import addresses
from hocket.runtime.net.store import Place, Store

SETTLE_S: Final = 1.0  # learners of one lost node come back together, and join together
RETURN_S: Final = 2.0  # a learner that has said that it is done ends within milliseconds
_POLL_S: Final = 0.2


@dataclass(kw_only=True)
class RayProcess(RemoteProcess):
    """The process of a learner, as its launcher sees it: its line, and the actor behind it."""

    actor: RayActor

    def kill(self) -> None:
        """End it for good or until Ray starts it anew; also its line, if nobody answers there."""
        self.actor.restart()
        super().kill()


@dataclass
class AskedFor:
    """What `hocket join` has asked for, and the actors begun for it."""

    number: int
    actors: frozenset[int]


@dataclass(kw_only=True)
class RayLauncher(Launcher):
    """Runs one experiment on a Ray cluster."""

    cluster: RayCluster
    _actors: dict[int, RayActor] = field(default_factory=dict)
    _ranks_of: dict[int, int] = field(default_factory=dict)  # actor: rank of its learner now
    _arrived: list[Arrival] = field(default_factory=list)
    _last_arrival: float = 0.0
    _arrivals: Arrivals | None = None
    _mark: str = ""
    _store: Store | None = None
    _asked: AskedFor | None = None
    _taken: int = 0
    _joined: set[int] = field(default_factory=set)
    _offered: int | None = None  # number of the request that lets those in who have arrived
    _refused_at: tuple[int, int] = (0, 0)

    # ------------------------------------------------------------------ the start

    def open_place(self) -> Place:
        """Serve the store, and listen for learners, where the cluster reaches this node."""
        here, token = addresses.own_address(self.cluster.own_address()), tokens.random().secret
        self._server, self._arrivals = open_to_others(here, token)
        return Place(self._server.address, token, here)

    def open_door(self, place: Place) -> None:
        """Let learners in that Ray has started anew, and those of `hocket join`."""
        assert self.run_dir is not None
        self._place = place
        self._store = store = place.store(STORE_LIMIT_S)
        self._mark = store.name()
        (self.run_dir / MARK).write_text(self._mark)
        inner = store.prefix("ray")  # requests of this launcher itself; others ask in `join/`
        self._regrouping = Regrouping(inner, self._begin, self._note_change, self.attending)
        joining.leave_door_open(self.run_dir, place)

    def _start(self, place: Place) -> None:
        ranks = self.ranks()
        self._place_actors(len(ranks))
        until = time.monotonic() + START_S
        while len(self._arrived) < len(ranks):
            if self._interrupts:
                raise KeyboardInterrupt
            if time.monotonic() > until:
                raise WaitTimeoutError(
                    f"Ray has placed {len(self._arrived)} of {len(ranks)} learners within "
                    f"{START_S:g} s: each asks for {self.cluster.resources}, and the cluster has "
                    f"{self.cluster.has()}"
                )
            self._admit(_POLL_S)
            self._drop_the_lost()
            if failed := self.cluster.failed(self._actors.values()):
                raise LearnerFailedError(failed)
        self._arrived.sort(key=lambda one: (one.hello.node, one.caller))  # neighbours of one node
        for rank in ranks:
            self._assign(rank, joins=False)

    def _place_actors(self, count: int) -> list[int]:
        assert self._arrivals is not None
        assert self._place is not None
        strategy = self.experiment.strategy
        restarts = self.experiment.goes_on_without and not strategy.takes_nobody_in_because
        orders = Orders(
            self.experiment,
            rank=-1,  # the launcher says so when it has arrived
            place=self._place,
            run_dir=self.run_dir,
            resume=self.resume,
            faults=self.faults,
            resumable=self.resumable,
        )
        first = len(self._actors)
        numbers = list(range(first, first + count))
        for number in numbers:
            self._actors[number] = self.cluster.begin(
                number, self._arrivals.place, orders, restarts=restarts
            )
        return numbers

    # ------------------------------------------------------------------ arrivals

    def _admit(self, wait_s: float = 0.0) -> None:
        """Take in the calls of learners that Ray has placed."""
        assert self._arrivals is not None
        for one in self._arrivals.admit(wait_s):
            if one.caller not in self._actors:
                one.line.close()
                continue
            self._forget(one.caller)
            self._arrived.append(one)
            self._last_arrival = time.monotonic()

    def _forget(self, actor: int) -> None:
        """Cut the line of an actor that calls again: whoever was there before is lost."""
        for child in self.children:
            if child.rank == self._ranks_of.get(actor) and isinstance(child.pipe, Line):
                child.pipe.cut()
        for one in self._arrived:
            if one.caller == actor:
                one.line.cut()

    def _assign(self, rank: int, *, joins: bool) -> Child:
        """Give the one who has arrived first a number."""
        one = self._arrived.pop(0)
        process = RayProcess(one.line, actor=self._actors[one.caller])
        self._ranks_of[one.caller] = rank
        self.children.append(seated(one, rank, process, joins=joins, directory=self._mark))
        return self.children[-1]

    def _begin(self, numbers: list[int], callers: list[int]) -> list[Child]:
        """Let newcomers load their task: they have arrived, or nobody would have asked."""
        return [self._assign(rank, joins=True) for rank in numbers]

    # ------------------------------------------------------------------ joining

    def look_around(self) -> None:
        """Let in whom Ray has started anew, and for whom somebody asks."""
        self._admit()
        self._drop_the_lost()
        self._hear_requests()
        self._offer()
        for child in self.children:
            if child.left or (child.waits and child.failure):  # its actor would stay, and wait
                self._actor_of(child).dismiss()
        super().look_around()
        self._hear_answer()

    def _actor_of(self, child: Child) -> RayActor:
        assert isinstance(child.process, RayProcess)
        return child.process.actor

    def _drop_the_lost(self) -> None:
        """Forget those who have arrived and are lost already; they have nothing to say yet."""
        if self._offered is not None:  # as many are to be let in as have been offered
            return
        for one in [a for a in self._arrived if a.is_gone()]:
            self._arrived.remove(one)
            one.line.close()

    def _hear_requests(self) -> None:
        """Let Ray place learners for `hocket join`, one request after the other."""
        assert self._store is not None
        assert self._regrouping is not None
        if self._asked is not None:
            failed = self.cluster.failed([self._actors[one] for one in self._asked.actors])
            if failed:
                self._turn_away(failed)
            return
        if self._store.add(joining.ASKED, 0) <= self._taken:
            return
        self._taken += 1
        try:
            count, _ = joining.understood(self._store.look(f"join/{self._taken}", 1.0))
            there = [c for c in self.children if c.working and not c.waits]
            refused = self._regrouping.refuses(self.experiment, there, count)
        except ValueError as error:
            refused = f"the request makes no sense ({error})"
        if refused:
            self._answer(self._taken, {"refused": refused})
        else:
            self._asked = AskedFor(self._taken, frozenset(self._place_actors(count)))

    def _answer(self, number: int, answer: dict[str, Any]) -> None:
        assert self._store is not None
        self._store.put(f"join/{number}/answer", json.dumps(answer))

    def _offer(self) -> None:
        """Ask ourselves to let those in who have arrived."""
        settled = time.monotonic() - self._last_arrival > SETTLE_S
        there = sum(c.working and not c.waits for c in self.children)
        at = len(self._arrived), there
        if self._offered is not None or not self._arrived or not settled or at == self._refused_at:
            return
        asked = json.dumps({"learners": len(self._arrived)})
        self._offered = joining.announce(self._inner, asked)
        self._refused_at = at  # until there are others, or more

    @property
    def _inner(self) -> Store:
        assert self._regrouping is not None
        return self._regrouping.store

    def _hear_answer(self) -> None:
        """Hear whether those who had arrived have joined, and tell who has asked for them."""
        said = self._inner.look(f"join/{self._offered}/answer") if self._offered else None
        if said is None:
            return
        self._offered = None
        answer: dict[str, Any] = json.loads(said)
        if "refused" in answer:
            self.say(f"note: learners that Ray has placed wait: {answer['refused']}")
        else:
            self._refused_at = (0, 0)
            self._joined |= set(answer["joined"])
        if self._asked is not None:
            names = {self._ranks_of.get(one, -1) for one in self._asked.actors}
            if names <= self._joined:
                self._answered({"joined": sorted(names)})
            elif "refused" in answer:
                self._turn_away(answer["refused"])

    def _turn_away(self, why: str) -> None:
        """Give the places of those back for whom somebody has asked."""
        assert self._asked is not None
        asked = self._asked.actors
        for one in asked:
            self._actors[one].dismiss()
        self._arrived = [one for one in self._arrived if one.caller not in asked]
        self._answered({"refused": why})

    def _answered(self, answer: dict[str, Any]) -> None:
        assert self._asked is not None
        self._answer(self._asked.number, answer)
        self._asked = None

    # ------------------------------------------------------------------ the end

    def _end_all(self) -> None:
        """Dismiss all actors first: the end of a line would make Ray start them anew."""
        done = [self._actor_of(child) for child in self.children if child.summary or child.left]
        self.cluster.await_return(done, RETURN_S)
        for actor in self._actors.values():
            actor.dismiss()
        for line in [*(child.pipe for child in self.children), *(a.line for a in self._arrived)]:
            line.close()
        if self._arrivals is not None:
            self._arrivals.close()
        if self._server is not None:
            self._server.close()
