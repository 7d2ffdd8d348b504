"""How simulated learners exchange: collectives and messages on the virtual clock.

The arithmetic is in `hocket.runtime.shared.reductions`, the time in the cost model. Who waits for
whom, what is piggybacked, and the checks of the contract are here. `Simulator` builds on it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from hocket.core.accounts import Note
from hocket.core.effects import (
    AllReduce,
    Broadcast,
    Deliver,
    Grad,
    MeanGradient,
    Message,
    Recv,
    Send,
)
from hocket.core.packing import flatten, num_bytes
from hocket.core.strategy import State
from hocket.errors import ContractError, DivergedError, PeerLostError, WaitTimeoutError, require
from hocket.experiment import Experiment
from hocket.runtime.shared import reductions
from hocket.runtime.shared.boundary_effects import Quiet
from hocket.runtime.shared.context import RankContext
from hocket.runtime.shared.dispatch import Fiber
from hocket.runtime.shared.inbox import Inbox, Waiting, undeclared_messages
from hocket.runtime.shared.reductions import Post
from hocket.runtime.shared.trace import Trace
from hocket.runtime.shared.trampoline import Trampoline
from hocket.runtime.sim.cost import CostModel


@dataclass
class Gathering:
    """A collective that some of its members have not joined yet."""

    members: tuple[int, ...] | None  # None: all learners that are alive
    posts: dict[int, Post] = field(default_factory=dict)


@dataclass
class SimLearner:
    """One simulated rank: its context, its strategy's state, its messages and fibers."""

    context: RankContext
    state: State
    inbox: Inbox
    services: list[Fiber] = field(default_factory=list)
    main: Fiber | None = None
    returned: bool = False
    lost_s: float | None = None  # when it died
    lent: Grad | None = None  # the last mean gradient, spent with the next collective
    collectives: dict[tuple[int, ...] | None, int] = field(default_factory=lambda: defaultdict(int))


class SimulatedExchange(Trampoline):
    """The exchange between simulated learners; the clock is in `Simulator`."""

    def __init__(self, experiment: Experiment, cost: CostModel) -> None:
        super().__init__()
        self.now = 0.0
        self.trace = Trace(keep=experiment.options.trace)
        self.alive = tuple(range(experiment.options.learners))
        self.learners: list[SimLearner] = []
        self.messages_in_flight = 0
        self._experiment = experiment
        self._cost = cost
        self._everyone = self.alive
        self._living = set(self.alive)
        self._gatherings: dict[tuple[tuple[int, ...] | None, int], Gathering] = {}
        self._unquiet: list[tuple[tuple[int, ...] | None, int]] = []
        self._lent: list[tuple[torch.Tensor, int, str]] = []
        self._failure: BaseException | None = None

    @abstractmethod
    def _at(self, when: float, happen: Callable[[], None]) -> None:
        """Schedule something for a time of the virtual clock."""

    @abstractmethod
    def _deliver_at(self, when: float, rank: int, deliver: Deliver, value: Any) -> None:
        """Hand an answer to a rank at a time, if it is still alive then."""

    # ------------------------------------------------------------------ collectives

    def _post(self, rank: int, post: Post) -> None:
        if rank not in self._living:
            return
        learner = self.learners[rank]
        if learner.lent is not None:
            learner.lent.give_back()
            learner.lent = None
        group = getattr(post.effect, "group", None)
        if isinstance(post.effect, AllReduce):
            given = post.effect.weight
            post.weight = learner.context.account.ledger.pending_frames if given is None else given
        if isinstance(post.effect, AllReduce | MeanGradient) and group is None:
            self._board(learner.context, post)
        if isinstance(post.effect, AllReduce) and group is not None:
            moves = self._experiment.strategy.moves_in_groups
            post.stop = moves and learner.context.agenda.wish().quiet
        number = learner.collectives[group]
        learner.collectives[group] += 1
        gathering = self._gatherings.setdefault((group, number), Gathering(group))
        gathering.posts[rank] = post
        other = next(iter(gathering.posts.values()))
        if type(other.effect) is not type(post.effect):
            raise ContractError(
                f"collective #{number}: rank {next(iter(gathering.posts))} issued "
                f"{other.effect.describe()}, rank {rank} issued {post.effect.describe()}; a "
                "group's collectives must come in the same order on all members (contract rule 7)"
            )
        self._complete_if_all_here(group, number)

    def _num_dead(self, group: tuple[int, ...] | None) -> int:
        return 0 if group is None else sum(r not in self._living for r in group)

    def _members(self, gathering: Gathering) -> tuple[int, ...]:
        wanted = self.alive if gathering.members is None else gathering.members
        return tuple(r for r in wanted if r in self._living)

    def _complete_if_all_here(self, group: tuple[int, ...] | None, number: int) -> None:
        gathering = self._gatherings[group, number]
        wanted = len(self.alive if group is None else group)
        if len(gathering.posts) < wanted - self._num_dead(group):
            return
        members = self._members(gathering)
        posts = [gathering.posts[r] for r in members]
        if isinstance(posts[0].effect, Quiet) and not self._all_quiet():
            self._unquiet.append((group, number))  # looked at again after every event
            return
        del self._gatherings[group, number]
        self._complete(members, posts)

    def _retry(self, group: tuple[int, ...] | None, number: int) -> None:
        if (group, number) in self._gatherings:
            self._complete_if_all_here(group, number)

    def _all_quiet(self) -> bool:
        """True if no message is in flight and every service waits for one."""
        if self.messages_in_flight:
            return False
        for rank in self.alive:
            for service in self.learners[rank].services:
                if service.awaiting is not None and not isinstance(service.awaiting, Recv):
                    return False
        return True

    def _complete(self, members: tuple[int, ...], posts: list[Post]) -> None:
        effect = posts[0].effect
        if isinstance(effect, Broadcast) and effect.root in set(self._everyone) - self._living:
            self._no_root(members, posts)
            return
        answers, size_bytes, trips = reductions.answer(members, posts)
        if isinstance(effect, MeanGradient):
            self._lend(answers[0].vector, "the vector of a mean gradient")
        end = (
            self._cost.collective(members, self.now, size_bytes, trips) if size_bytes else self.now
        )
        sent = int(trips * size_bytes * (len(members) - 1) / len(members))
        tally = reductions.total([p.tally for p in posts])
        note = Note(members, tally, any(p.stop for p in posts))
        everyone = getattr(effect, "group", None) is None
        for rank, post, answer in zip(members, posts, answers, strict=True):
            if isinstance(answer, Grad):
                self.learners[rank].lent = answer
            self.context(rank).account.books.bytes_sent += sent
            if size_bytes:
                self.trace.note(rank, type(effect).__name__.lower(), post.arrived_s, end)
            deliver = post.deliver
            if everyone:
                deliver = self._with_note(rank, note, deliver)
            else:
                wished = isinstance(effect, AllReduce)
                deliver = self._in_group(rank, note if wished else None, deliver)
            self._deliver_at(end, rank, deliver, answer)

    def _no_root(self, members: tuple[int, ...], posts: list[Post]) -> None:
        for rank, post in zip(members, posts, strict=True):
            what = f"rank {rank} awaits a broadcast from rank {post.effect.root}, which is lost"
            post.deliver(None, PeerLostError(what))

    def _board(self, context: RankContext, post: Post) -> None:
        """Return what a learner piggybacks on a collective: its tally, and a wish to stop."""
        if self._experiment.strategy.synchronous:
            post.tally, post.stop = context.account.tally.take(), context.agenda.stop_wanted

    def _with_note(self, rank: int, note: Note, deliver: Deliver) -> Deliver:
        def arrive(answer: Any, error: BaseException | None) -> None:
            try:
                self.context(rank).took_part(note)
            except DivergedError as failure:
                answer, error = None, failure
            deliver(answer, error)

        return arrive

    def _in_group(self, rank: int, note: Note | None, deliver: Deliver) -> Deliver:
        def arrive(answer: Any, error: BaseException | None) -> None:
            if note is not None:
                self.context(rank).agenda.group_wishes = note.stop
            deliver(answer, error)

        return arrive

    # ------------------------------------------------------------------ messages

    def _lend(self, tensor: torch.Tensor, what: str) -> None:
        """Remember a tensor that must not be written to; it is checked at the next loan."""
        self._check_lent()
        self._lent.append((tensor, tensor._version, what))

    def _check_lent(self) -> None:
        for tensor, version, what in self._lent:
            if tensor._version != version:
                raise ContractError(f"{what} was written to; it is read only (contract rule 3)")
        self._lent.clear()

    def _send(self, fiber: Fiber, effect: Send, deliver: Deliver) -> None:
        rank = fiber.rank
        self._check_messages()
        require(
            0 <= effect.to < len(self.learners),
            f"rank {rank} sends to rank {effect.to}, which does not exist",
        )
        message = Message(rank, effect.tag, effect.payload)
        size = num_bytes(effect.payload)
        arrival = self._cost.transfer(rank, effect.to, self.now, size)
        self.context(rank).account.books.bytes_sent += size
        self.trace.note(rank, "send", self.now, arrival, f"{effect.to}/{effect.tag}")
        versions = [(t, t._version) for t in flatten(effect.payload)[1].values()]
        self.messages_in_flight += 1

        def arrive() -> None:
            self.messages_in_flight -= 1
            if any(t._version != version for t, version in versions):
                self._failure = self._failure or ContractError(
                    f"rank {rank} wrote to a payload after sending it to rank {effect.to} with tag "
                    f"{effect.tag!r}; send a copy (contract rule 3)"
                )
            if rank in self._living and effect.to in self._living:
                self.learners[effect.to].inbox.arrive(message)

        self._at(arrival, arrive)
        deliver(None, None)

    def _check_messages(self) -> None:
        """Refuse what real processes would refuse: they open no mailbox for such a strategy."""
        strategy = self._experiment.strategy
        if strategy.synchronous and not strategy.uses_messages:
            raise ContractError(undeclared_messages(strategy.name))

    def _recv(self, fiber: Fiber, effect: Recv, deliver: Deliver) -> None:
        rank = fiber.rank
        self._check_messages()
        waiting = Waiting(effect, deliver)
        self.learners[rank].inbox.receive(waiting)
        if effect.timeout_s is not None:
            self._at(self.now + effect.timeout_s, partial(self._time_out, rank, waiting))

    def _time_out(self, rank: int, waiting: Waiting) -> None:
        inbox = self.learners[rank].inbox
        if waiting in inbox.waiting and rank in self._living:
            inbox.waiting.remove(waiting)
            what = f"rank {rank} waited {waiting.recv.timeout_s} s for {waiting.recv.describe()}"
            waiting.deliver(None, WaitTimeoutError(what))
