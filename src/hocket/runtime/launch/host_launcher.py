"""The launchers of a run on several hosts: the head keeps the record, the others report to it."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

from hocket import errors
from hocket.core.accounts import Books, LostLearner
from hocket.errors import HocketError, LearnerFailedError, StoreLostError
from hocket.record.status import EVERY_S, LearnerStatus
from hocket.runtime.launch.groups import learners_of
from hocket.runtime.launch.hosts import LearnerHost
from hocket.runtime.launch.launcher import Launcher
from hocket.runtime.net.store import Place
from hocket.support.progress import Pace


@dataclass
class RemoteLearner:
    """A learner of another host, as the head knows it."""

    rank: int
    host: int
    summary: dict[str, Any] | None = None
    loss: LostLearner | None = None

    @property
    def working(self) -> bool:
        """True if its summary is still to come."""
        return self.summary is None and self.loss is None


@dataclass(kw_only=True)
class HostLauncher(Launcher):
    """What both have in common: some of the learners, and a store that the head serves."""

    host: LearnerHost

    def open_door(self, place: Place) -> None:
        """Take nobody in: only the launcher of a run on one host can form another group."""

    def ranks(self) -> list[int]:
        """Return what to start here: learners of this host, those of it that attend to all, ...

        ... and the other ranks of its learners: these share a host.
        """
        return self.ranks_of(self.host)

    def ranks_of(self, host: LearnerHost) -> list[int]:
        """Return the ranks that a host starts: its learners, and its share of the attendants."""
        learners = self.experiment.options.learners
        ranks = host.ranks(learners, self.experiment.num_ranks - learners)
        return ranks + [other for rank in ranks for other in self.experiment.others_of(rank)]

    def _is_rank(self, number: int) -> bool:
        """True unless a process is one that a learner consists of besides its first."""
        return number < self.experiment.num_ranks

    def open_place(self) -> Place:
        """Return the store that the head serves for all hosts."""
        return self.host.place


@dataclass(kw_only=True)
class HeadLauncher(HostLauncher):
    """The first host's launcher."""

    remote: dict[int, RemoteLearner] = field(default_factory=dict)

    def open_place(self) -> Place:
        """List the learners of other hosts."""
        for number in range(1, self.host.count):
            there = replace(self.host, number=number)
            for rank in filter(self._is_rank, self.ranks_of(there)):
                self.remote[rank] = RemoteLearner(rank, number)
        return super().open_place()

    def at_work(self) -> bool:
        """True while any learner of any host works."""
        return super().at_work() or any(r.working for r in self.remote.values())

    def look_around(self) -> None:
        """Read what other hosts report; the learners of a silent host are lost."""
        self.host.beat()
        for kind, rank, body in self.host.hear():
            self._heard(kind, rank, body)
        for number in self.host.silent():
            for remote in self.remote.values():
                if remote.host == number and remote.working:
                    time_s = self.now_s()
                    reason = f"host {number} gave no sign of life"
                    self._lost(remote, LostLearner(remote.rank, time_s, reason, Books()))
                    if not self._can_go_on(remote):
                        raise LearnerFailedError(
                            f"rank {remote.rank} is lost: {reason}. Continue with --resume"
                        )

    def _can_go_on(self, lost: RemoteLearner) -> bool:
        """True if the others can go on without a lost learner: if all have met before."""
        met = all(child.met for child in self.children)
        goes_on = self.experiment.goes_on_without and not self.attends(lost.rank)
        return goes_on and met and self.anybody_left()

    def _heard(self, kind: str, rank: int, body: Any) -> None:
        if kind == "event":
            self.report(body)
        elif kind == "done":
            self.remote[rank].summary = body | {"books": Books(**body["books"])}
        elif kind == "lost":
            self._lost(self.remote[rank], LostLearner(**(body | {"books": Books(**body["books"])})))
        elif kind == "failed":
            raise _error(*body)

    def _lost(self, remote: RemoteLearner, loss: LostLearner) -> None:
        remote.loss = loss
        self.note_loss(loss)

    def anybody_left(self) -> bool:
        """True if a learner of any host works or has finished."""
        return super().anybody_left() or any(
            (r.working or r.summary is not None) and not self.attends(r.rank)
            for r in self.remote.values()
        )

    def learners_stand(self) -> list[LearnerStatus]:
        """Return how the learners of all hosts stand; the others' say so in the store."""
        found = super().learners_stand()
        for number in range(1, self.host.count):
            said = self.host.store.look(f"stands/{number}")
            found += [LearnerStatus(**one) for one in json.loads(said)] if said else []
        return found

    @property
    def summaries(self) -> list[dict[str, Any]]:
        """What the survivors of all hosts report."""
        remote = [r.summary for r in self.remote.values() if r.summary is not None]
        return sorted(super().summaries + remote, key=lambda s: int(s["rank"]))

    @property
    def losses(self) -> list[LostLearner]:
        """The lost learners of all hosts."""
        return super().losses + [r.loss for r in self.remote.values() if r.loss is not None]

    def run(self) -> list[dict[str, Any]]:
        """Run to the end, and tell the other hosts how the run ended."""
        try:
            summaries = super().run()
        except BaseException as error:
            self.host.fail(f"{type(error).__name__}: {error}")
            raise
        plain = [s | {"books": asdict(s["books"])} for s in summaries]
        losses = [asdict(loss) for loss in self.losses]
        self.host.finish({"summaries": plain, "losses": losses})
        return summaries


@dataclass(kw_only=True)
class OtherHostLauncher(HostLauncher):
    """The launcher of another host: it passes on what its learners report."""

    told: set[int] = field(default_factory=set)
    all_losses: list[LostLearner] = field(default_factory=list)
    _pace: Pace = field(default_factory=lambda: Pace(EVERY_S))

    def look_around(self) -> None:
        """Pass on the summaries of finished learners; end if the head has ended."""
        self.host.check_head()
        if self._pace.due():
            stand = [asdict(one) for one in self.learners_stand()]
            self.host.store.put(f"stands/{self.host.number}", json.dumps(stand))
        for child in learners_of(self.children):
            if child.summary is not None and child.rank not in self.told:
                self.told.add(child.rank)
                body = child.summary | {"books": asdict(child.summary["books"])}
                self.host.tell("done", child.rank, body)

    def note_event(self, event: dict[str, Any]) -> None:
        """Pass an event on to the head."""
        self.host.tell("event", None, event)

    def note_loss(self, loss: LostLearner) -> None:
        """Pass a loss on to the head."""
        self.host.tell("lost", loss.rank, asdict(loss))

    def anybody_left(self) -> bool:
        """True, because only the head can know better."""
        return True

    def run(self) -> list[dict[str, Any]]:
        """Run the learners of this host to the end, then wait for the end of the whole run."""
        try:
            super().run()
            self.look_around()
        except BaseException as error:
            with suppress(StoreLostError):  # that may be the error itself
                self.host.tell("failed", None, [type(error).__name__, str(error)])
                self.host.leave()
            raise
        outcome = self.host.outcome()
        self.all_losses = [
            LostLearner(**(one | {"books": Books(**one["books"])})) for one in outcome["losses"]
        ]
        return [s | {"books": Books(**s["books"])} for s in outcome["summaries"]]

    @property
    def losses(self) -> list[LostLearner]:
        """The lost learners of all hosts; before the end, those of this host."""
        return self.all_losses or super().losses


def _error(name: str, message: str) -> HocketError:
    kind = errors.by_name(name)
    return LearnerFailedError(f"{name}: {message}") if kind is None else kind(message)


def launcher_for(host: LearnerHost | None) -> Callable[..., Launcher]:
    """Return what makes the launcher of this host; without a host, that of a run on one host."""
    if host is None:
        return Launcher
    return partial(HeadLauncher if host.is_head else OtherHostLauncher, host=host)
