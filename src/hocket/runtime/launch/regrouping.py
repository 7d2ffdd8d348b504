"""The launcher's side of a group that changes: newcomers join, a learner leaves politely.

    asked to    start newcomers; each loads its task and says that it is ready
    ready       tell all who are at work to meet: they write a checkpoint and leave the group
    regrouped   all have left it: number everybody anew, and tell each its place in the next group

It is a checkpoint and a resumption with other learners, without the end of any process. In the
record a learner keeps its number; its rank in the group (`Child.seat`) may change.

A scheduler that ends a job signals every process of it. Then all learners want to leave at once,
which means: stop, with a checkpoint.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from hocket.core.device import LIBRARIES
from hocket.errors import ConfigError, HocketError, LearnerFailedError
from hocket.experiment import Experiment
from hocket.runtime.launch import joining
from hocket.runtime.launch.children import Child
from hocket.runtime.launch.learner_process import LEAVE, MEET, STOP, NextGroup
from hocket.runtime.net.store import Store
from hocket.support.progress import Pace

LOOK_EVERY_S: Final = 0.2
ALIKE_S: Final = 0.2  # a signal to all reaches each of them within so long


@dataclass
class JoinRequest:
    """Somebody asked for newcomers, and waits for an answer."""

    number: int
    children: list[Child] = field(default_factory=list)


@dataclass
class Regrouping:
    """Lets learners in and out; `begin` starts newcomers, or seats those who have called."""

    store: Store
    begin: Callable[[list[int], list[int]], list[Child]]
    report: Callable[[str, int, dict[str, Any]], None]
    attending: frozenset[int]
    phase: int = 0
    _taken: int = 0
    _request: JoinRequest | None = None
    _called: bool = False
    _leaving_since: float | None = None
    _pace: Pace = field(default_factory=lambda: Pace(LOOK_EVERY_S))

    # ------------------------------------------------------------------ asked

    def look(
        self, experiment: Experiment, children: list[Child], *, stopping: bool = False
    ) -> Experiment:
        """Go on with whatever is under way; return the experiment, of another group perhaps."""
        there = [c for c in children if c.working and not c.waits]
        if (
            self._request is None
            and self._pace.due()
            and self.store.add(joining.ASKED, 0) > self._taken
        ):
            self._take_request(experiment, there, children, stopping=stopping)
        self._drop_failed(children)
        if not self._called and not stopping:
            self._call(there)
        if self._called and there and all(c.regrouped for c in there):
            return self._form(experiment, there)
        return experiment

    def _call(self, there: list[Child]) -> None:
        """Call all to a meeting, if there is a reason; if all learners want to leave, to an end."""
        request = self._request
        ready = request is not None and all(c.ready for c in request.children)
        leaving = self._leave(there)
        if (ready or leaving) and all(c.started for c in there):
            self._called = True
            _tell(there, STOP if all(c.leaving for c in self._learners(there)) else MEET)

    def _learners(self, there: list[Child]) -> list[Child]:
        """Return all but those who serve the others, and cannot leave them."""
        return [c for c in there if c.rank not in self.attending]

    def _leave(self, there: list[Child]) -> bool:
        """Return whether somebody wants to leave, once all who were signalled alike said so."""
        if not any(c.leaving for c in self._learners(there)):
            self._leaving_since = None
            return False
        if self._leaving_since is None:
            self._leaving_since = time.monotonic()
        return time.monotonic() - self._leaving_since >= ALIKE_S

    def _take_request(
        self,
        experiment: Experiment,
        there: list[Child],
        children: list[Child],
        *,
        stopping: bool,
    ) -> None:
        self._taken += 1
        number = self._taken
        try:
            count, callers = joining.understood(self.store.look(f"join/{number}", 1.0))
            refused = self.refuses(experiment, there, count)
            if stopping:
                refused = "it is stopping: resume it with more learners"
        except ValueError as error:
            refused = f"the request makes no sense ({error})"
        if refused:
            self._answer(number, {"refused": refused})
            return
        first = max(child.rank for child in children) + 1
        try:
            newcomers = self.begin(list(range(first, first + count)), callers)
        except ConfigError as error:
            self._answer(number, {"refused": str(error)})
            return
        self._request = JoinRequest(number, newcomers)

    def refuses(self, experiment: Experiment, there: list[Child], count: int) -> str:
        """Return why so many newcomers cannot be taken in; empty if they can."""
        strategy = experiment.strategy
        if strategy.takes_nobody_in_because:
            return f"strategy {strategy.name!r}: {strategy.takes_nobody_in_because}"
        if experiment.options.ranks_per_learner > 1:
            return "learners that are groups (runtime.ranks_per_learner) cannot join a running run"
        if experiment.options.transport in LIBRARIES:
            return f"runtime.transport = {experiment.options.transport!r} cannot form another group"
        learners = len(self._learners(there))
        try:
            grown = experiment.with_learners(learners + count)
        except ConfigError as error:
            return str(error)
        if grown.num_ranks - learners - count != len(self.attending):
            return "with so many learners the strategy needs another number of servers"
        return ""

    def _answer(self, number: int, answer: dict[str, Any]) -> None:
        self.store.put(f"join/{number}/answer", json.dumps(answer))

    def _drop_failed(self, children: list[Child]) -> None:
        """Forget newcomers if one of them ended before it was let in: that is no loss."""
        request = self._request
        newcomers = request.children if request else []
        failed = [c for c in newcomers if c.failure or c.ended or not c.working]
        if request is None or not failed:
            return
        why = failed[0].failure[1] if failed[0].failure else failed[0].ended_by()
        self._answer(request.number, {"refused": f"a newcomer could not start: {why}"})
        for child in request.children:
            child.pipe.close()
            children.remove(child)
        self._request = None

    # ------------------------------------------------------------------ the next group

    def _form(self, experiment: Experiment, there: list[Child]) -> Experiment:
        """Number everybody anew, and tell each its place."""
        request, self._request, self._called = self._request, None, False
        newcomers = [c for c in request.children if c.ready] if request else []
        if request and len(newcomers) < len(request.children):  # they are not ready yet
            self._request, newcomers = request, []
        by_seat = sorted(there, key=lambda child: child.seat)
        serving = [c for c in by_seat if c.rank in self.attending]
        learners = self._learners(by_seat)
        staying = [c for c in learners if not c.leaving] or learners  # if all leave, it ends next
        members = [*staying, *newcomers, *serving]
        try:
            grown = experiment.with_learners(len(staying) + len(newcomers))
        except HocketError as error:
            raise LearnerFailedError(
                f"the group cannot go on with {len(staying) + len(newcomers)} learner(s): {error}. "
                "Continue the run with --resume"
            ) from error
        self.phase += 1
        old = tuple(child.seat for child in staying)
        names = tuple(child.rank for child in members)
        departing = [c for c in there if c not in members]
        _tell(departing, LEAVE)
        for seat, child in enumerate(members):
            child.enter(seat)
            _tell([child], NextGroup(self.phase, grown.options.learners, seat, names, old))
        now = {"learners": list(names[: grown.options.learners])}
        for child in newcomers:
            self.report("joined", child.rank, now)
        for child in departing:
            self.report("left", child.rank, now)
        if request and newcomers:
            self._answer(request.number, {"joined": [child.rank for child in newcomers]})
        return grown


def _tell(children: list[Child], order: Any) -> None:
    for child in children:
        try:
            child.pipe.send(order)
        except OSError:  # it has ended, which its pipe will say
            continue
