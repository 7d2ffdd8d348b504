"""How simulated learners exchange: collectives and messages on the virtual clock.

The arithmetic is in `hocket.runtime.shared.reductions`, the time in the cost model. Who waits for
whom (and what a deadlock says of it), what is piggybacked, and the checks of the contract are here.
`Simulator` builds on it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from hocket.codecs import coded
from hocket.core.accounts import NOTHING, Note
from hocket.core.effects import (
    AllReduce,
    AllToAll,
    Broadcast,
    CodedMean,
    Deliver,
    Grad,
    Message,
    Recv,
    Send,
)
from hocket.core.packing import flatten, num_bytes
from hocket.core.strategy import State
from hocket.errors import ContractError, DivergedError, PeerLostError, WaitTimeoutError, require
from hocket.experiment import Experiment
from hocket.runtime.shared import reductions
from hocket.runtime.shared.boundary_effects import Attend, Gather, Quiet
from hocket.runtime.shared.context import RankContext
from hocket.runtime.shared.dispatch import Fiber
from hocket.runtime.shared.inbox import Inbox, Waiting, refuse_undeclared
from hocket.runtime.shared.reductions import Post
from hocket.runtime.shared.trace import Trace
from hocket.runtime.shared.trampoline import Ready, Trampoline
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

    trace: Trace

    def __init__(self, experiment: Experiment, cost: CostModel) -> None:
        super().__init__()
        self.now = 0.0
        self.alive = tuple(range(experiment.num_ranks))
        self.learners: list[SimLearner] = []
        self.messages_in_flight = 0
        self._last_arrival: dict[tuple[int, int, str], float] = {}
        self._experiment = experiment
        self._cost = cost
        self._everyone = self.alive
        self._living = set(self.alive)
        self._gatherings: dict[tuple[tuple[int, ...] | None, int], Gathering] = {}
        self._unquiet: list[tuple[tuple[int, ...] | None, int]] = []
        self._attending: dict[int, Deliver] = {}  # ranks that wait for a meeting to be called
        self._asleep: dict[int, list[Ready]] = {}  # ranks that stand still, and what has come since
        self._lent: list[tuple[torch.Tensor, int, str]] = []
        self._failure: BaseException | None = None

    @abstractmethod
    def _at(self, when: float, happen: Callable[[], None]) -> None:
        """Schedule something for a time of the virtual clock."""

    @abstractmethod
    def _deliver_at(self, when: float, rank: int, deliver: Deliver, value: Any) -> None:
        """Hand an answer to a rank at a time, if it is still alive then."""

    # ------------------------------------------------------------------ collectives: handlers

    def _all_reduce(self, fiber: Fiber, effect: AllReduce, deliver: Deliver) -> None:
        context, group = self.context(fiber.rank), effect.group
        weight, along = context.weight_of(effect), context.piggyback(group)
        post = Post(effect, self.now, deliver, weight=weight, group=group, piggyback=along)
        self._post(fiber.rank, post)

    def _coded_mean(self, fiber: Fiber, effect: CodedMean, deliver: Deliver) -> None:
        rank, context = fiber.rank, self.context(fiber.rank)
        weight, along = context.weight_of(effect), context.piggyback(None)
        if len(self._everyone) == 1:
            deliver(reductions.answer_alone(rank, effect, weight), None)
            return
        work = coded.work(effect.coder, len(self.alive))
        start, end = self._cost.arithmetic(rank, self.now, work)
        self.trace.note(rank, "arithmetic", start, end)
        post = Post(effect, end, deliver, weight=weight, piggyback=along)
        self._at(end, lambda: self._post(rank, post))

    def _broadcast(self, fiber: Fiber, effect: Broadcast, deliver: Deliver) -> None:
        post = Post(effect, self.now, deliver, group=effect.group, root=effect.root)
        self._post(fiber.rank, post)

    def _all_to_all(self, fiber: Fiber, effect: AllToAll, deliver: Deliver) -> None:
        self._post(fiber.rank, Post(effect, self.now, deliver, group=effect.group))

    def _gather(self, fiber: Fiber, effect: Gather, deliver: Deliver) -> None:
        self._post(fiber.rank, Post(effect, self.now, deliver))

    def _quiet(self, fiber: Fiber, effect: Quiet, deliver: Deliver) -> None:
        self._wake_attending()
        self._post(fiber.rank, Post(effect, self.now, deliver, waits_for_quiet=True))

    def _attend(self, fiber: Fiber, effect: Attend, deliver: Deliver) -> None:
        posts = [p for g in self._gatherings.values() for p in g.posts.values()]
        called = any(p.waits_for_quiet for p in posts)
        if called or self.context(fiber.rank).account.alive != self.alive:
            deliver(None, None)
        else:
            self._attending[fiber.rank] = deliver

    # ------------------------------------------------------------------ collectives: who is here

    def _post(self, rank: int, post: Post) -> None:
        if rank not in self._living:
            return
        learner = self.learners[rank]
        if learner.lent is not None:
            learner.lent.give_back()
            learner.lent = None
        group = post.group
        if group is None:
            post.number = learner.context.account.hand.begin_collective()
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
        if not members:  # the whole group is lost, and with it what it gathered for
            del self._gatherings[group, number]
            return
        posts = [gathering.posts[r] for r in members]
        if posts[0].waits_for_quiet and not self._all_quiet():
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
        services = (s for rank in self.alive for s in self.learners[rank].services)
        return all(service.is_idle for service in services)

    def _wake_attending(self) -> None:
        """A meeting was called, or somebody was lost: those who attend come."""
        waiting, self._attending = self._attending, {}
        for rank, deliver in waiting.items():
            if rank in self._living:
                deliver(None, None)

    def _complete(self, members: tuple[int, ...], posts: list[Post]) -> None:
        first = posts[0]
        if first.root in set(self._everyone) - self._living:
            self._no_root(members, posts)
            return
        answers, size_bytes, trips = reductions.answer(members, posts)
        if first.lends:
            self._lend(answers[0].vector, "the vector of a mean gradient")
        end = (
            self._cost.collective(members, self.now, size_bytes, trips) if size_bytes else self.now
        )
        sent = int(trips * size_bytes * (len(members) - 1) / len(members))
        note = _note(members, posts)
        for rank, post, answer in zip(members, posts, answers, strict=True):
            if post.lends:
                self.learners[rank].lent = answer
            self.context(rank).account.books.bytes_sent += sent
            if size_bytes:
                self.trace.note(rank, type(post.effect).__name__.lower(), post.arrived_s, end)
            self._deliver_at(end, rank, self._recording(rank, note, post), answer)

    def _no_root(self, members: tuple[int, ...], posts: list[Post]) -> None:
        for rank, post in zip(members, posts, strict=True):
            what = f"rank {rank} awaits a broadcast from rank {post.root}, which is lost"
            post.deliver(None, PeerLostError(what))

    def _recording(self, rank: int, note: Note, post: Post) -> Deliver:
        """Return how an answer is handed over: what was piggybacked is recorded first."""

        def arrive(answer: Any, error: BaseException | None) -> None:
            try:
                self.context(rank).record(note, post.number)
            except DivergedError as failure:
                answer, error = None, failure
            post.deliver(answer, error)

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
        refuse_undeclared(self._experiment.strategy)
        require(
            0 <= effect.to < len(self.learners),
            f"rank {rank} sends to rank {effect.to}, which does not exist",
        )
        message = Message(rank, effect.tag, effect.payload)
        size = num_bytes(effect.payload)
        way = rank, effect.to, effect.tag
        arrival = self._cost.transfer(rank, effect.to, self.now, size)
        # Within a host a small message would overtake a large one (contract rule 2).
        arrival = self._last_arrival[way] = max(arrival, self._last_arrival.get(way, 0.0))
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

    def _recv(self, fiber: Fiber, effect: Recv, deliver: Deliver) -> None:
        rank = fiber.rank
        refuse_undeclared(self._experiment.strategy)
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

    # ------------------------------------------------------------------ nobody can go on

    def _deadlock(self) -> str:
        awaited: dict[str, list[int]] = defaultdict(list)
        for rank in self.alive:
            learner = self.learners[rank]
            if not learner.returned:
                awaited[self._describe(rank)].append(rank)
        lines = [
            f"rank {ranks[0]} awaits {what}"
            if len(ranks) == 1
            else f"ranks {', '.join(map(str, ranks))} await {what}"
            for what, ranks in awaited.items()
        ]
        return (
            f"Deadlock at virtual time {self.now:.6f} s: {'; '.join(lines)}. Nothing is under way "
            "that could wake any of them: the strategy's sends and receives, or its collectives, "
            "do not match."
        )

    def _describe(self, rank: int) -> str:
        for (group, number), gathering in self._gatherings.items():
            if rank in gathering.posts:
                name = gathering.posts[rank].effect.describe()
                return f"{name} #{number}" + (f" of group {group}" if group else "")
        main = self.learners[rank].main
        return main.describe() if main else "nothing"


def _note(members: tuple[int, ...], posts: list[Post]) -> Note:
    """Add up what the members sent along."""
    carried = [p.piggyback or NOTHING for p in posts]
    tally = reductions.total([c.tally for c in carried])
    stop, meet = any(c.stop for c in carried), any(c.meet for c in carried)
    return Note(members, tally, stop, meet, piggybacked=posts[0].piggyback is not None)
