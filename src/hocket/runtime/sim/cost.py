"""What a cluster costs: the simulator's model of computing and of the network.

A cluster is a small TOML file, or these objects:

    [[hosts]]
    count = 4                  # hosts like this one
    learners = 1               # on each of them; 0 where there are attendants only
    attendants = 0             # servers on each of them; left out, they are shared out evenly
    frames_per_s = 10000.0     # of one learner, forward and backward
    jitter = 0.1               # sigma of a log-normal factor on every minibatch's time
    bandwidth_gbit = 10.0      # of its link, each way

    [[slow]]                   # stragglers
    rank = 3
    factor = 10.0

    [[pauses]]                 # a learner stands still; beyond runtime.silence_s it is lost
    rank = 2
    at_s = 3.0
    for_s = 5.0

    [[deaths]]                 # planned faults
    rank = 1
    at_s = 8.0

Each host's incoming and outgoing link is a queue shared by all its transfers: otherwise one server
could feed sixteen learners at no cost. Learners on one host exchange through its memory.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from hocket.core.limits import MOST, check_numbers
from hocket.core.numerics import stable_seed
from hocket.errors import require

EVALUATION_SPEED = 3.0  # forward alone takes a third of forward and backward


@dataclass(frozen=True)
class Host:
    """One kind of machine."""

    count: int = 1
    learners: int = 1
    attendants: int = 0  # ranks that only serve; none on any host: they are placed in turn
    frames_per_s: float = 10_000.0
    jitter: float = 0.0
    bandwidth_gbit: float = 10.0
    memory_gbit: float = 40.0  # between two learners of this host

    def __post_init__(self) -> None:
        require(self.count >= 1, "hosts.count must be at least 1")
        require(self.attendants >= 0, f"hosts.attendants must be at least 0: {self.attendants}")
        require(
            self.learners >= 1 or (self.learners == 0 and self.attendants > 0),
            f"hosts.learners must be at least 1, not {self.learners}, or 0 on a host that only "
            "serves (hosts.attendants)",
        )
        for key in ("frames_per_s", "bandwidth_gbit", "memory_gbit"):
            require(
                getattr(self, key) > 0, f"hosts.{key} must be above 0, not {getattr(self, key)}"
            )
        require(0 <= self.jitter <= 2, f"hosts.jitter must be in [0, 2], not {self.jitter}")


@dataclass(frozen=True)
class Slow:
    """A learner that takes `factor` times as long, from one time to another."""

    rank: int
    factor: float
    from_s: float = 0.0
    until_s: float = math.inf

    def __post_init__(self) -> None:
        require(self.factor > 0, f"slow.factor must be above 0, not {self.factor}")
        require(self.from_s < self.until_s, "slow.until_s must come after slow.from_s")


@dataclass(frozen=True)
class Pause:
    """A learner that stands still for a while; longer than `runtime.silence_s`, and it is lost."""

    rank: int
    at_s: float
    for_s: float

    def __post_init__(self) -> None:
        require(self.at_s >= 0 and self.for_s > 0, "pauses need at_s >= 0 and for_s > 0")


@dataclass(frozen=True)
class Death:
    """A learner that dies, at a time or when it has drawn so many items."""

    rank: int
    at_s: float | None = None
    at_draw: int | None = None
    stage: int = 1  # which rank of a learner that is a group: the one with this stage

    def __post_init__(self) -> None:
        require(self.stage >= 1, f"deaths.stage must be at least 1, not {self.stage}")
        require(
            (self.at_s is None) != (self.at_draw is None),
            f"the death of rank {self.rank} needs either at_s or at_draw",
        )
        require(
            (self.at_s is None or self.at_s >= 0) and (self.at_draw is None or self.at_draw >= 1),
            f"the death of rank {self.rank} needs at_s >= 0 or at_draw >= 1",
        )


@dataclass(frozen=True)
class Joining:
    """Learners that join the running group: as soon as all can meet."""

    at_s: float
    host: int | None = None  # number of the machine they run on; None: another one, as the first
    count: int = 1
    pause_s: float = 0.0  # how long the others stand still meanwhile (benchmarks/join_pause.py)

    def __post_init__(self) -> None:
        require(self.at_s >= 0, f"joins.at_s must be at least 0, not {self.at_s}")
        require(
            self.host is None or self.host >= 0, f"joins.host must be at least 0, not {self.host}"
        )
        require(1 <= self.count <= MOST["learners"], f"joins.count is {self.count}")
        require(self.pause_s >= 0, f"joins.pause_s must be at least 0, not {self.pause_s}")


@dataclass(frozen=True)
class Cluster:
    """Hosts, the network between them, and what will go wrong."""

    hosts: tuple[Host, ...] = (Host(),)
    latency_s: float = 50e-6  # between hosts
    local_latency_s: float = 15e-6  # within one
    slow: tuple[Slow, ...] = field(default=())
    pauses: tuple[Pause, ...] = field(default=())
    deaths: tuple[Death, ...] = field(default=())
    joins: tuple[Joining, ...] = field(default=())

    def __post_init__(self) -> None:
        require(len(self.hosts) > 0, "a cluster needs at least one entry in [[hosts]]")
        check_numbers(self, "cluster")
        for kind in ("hosts", "slow", "pauses", "deaths", "joins"):
            for one in getattr(self, kind):
                check_numbers(one, kind)
        require(self.num_learners >= 1, "a cluster needs a learner: all [[hosts]] have 0 of them")
        ranks, most = self.num_learners + self.num_attendants, MOST["learners"]
        require(
            ranks + self.num_to_join <= most,
            f"a cluster has at most {most:,} learners and servers, not {ranks:,}",
        )
        require(self.latency_s >= 0 and self.local_latency_s >= 0, "a latency cannot be negative")
        last = ranks + self.num_to_join - 1
        for kind in ("slow", "pauses", "deaths"):
            for event in getattr(self, kind):
                require(
                    0 <= event.rank <= last,
                    f"[[{kind}]] names rank {event.rank}, but the cluster has ranks 0 to {last}",
                )
        for one, other in pairwise(sorted(self.pauses, key=lambda p: (p.rank, p.at_s))):
            require(
                one.rank != other.rank or one.at_s + one.for_s <= other.at_s,
                f"[[pauses]] of rank {one.rank} overlap: it stands still from {one.at_s:g} s for "
                f"{one.for_s:g} s, and again from {other.at_s:g} s",
            )
        dead = [d.rank for d in self.deaths]
        require(len(set(dead)) == len(dead), "a learner can die only once")
        lost = sum(rank < self.num_learners for rank in dead)
        require(lost < self.num_learners, "at least one learner must stay alive")

    @classmethod
    def even(cls, learners: int, frames_per_s: float = 10_000.0, jitter: float = 0.0) -> Cluster:
        """Return so many equal hosts with one learner each."""
        return cls((Host(count=learners, frames_per_s=frames_per_s, jitter=jitter),))

    @property
    def num_learners(self) -> int:
        """Learners on all hosts."""
        return sum(h.count * h.learners for h in self.hosts)

    @property
    def num_attendants(self) -> int:
        """Attendants that hosts have a place for."""
        return sum(h.count * h.attendants for h in self.hosts)

    @property
    def num_to_join(self) -> int:
        """Learners that will join while the run goes on; their ranks come after all others."""
        return sum(join.count for join in self.joins)

    @property
    def num_hosts(self) -> int:
        """Machines of all kinds."""
        return sum(h.count for h in self.hosts)

    def places(self, attendants: int = 0) -> list[tuple[int, Host]]:
        """Return each rank's host number and kind, in rank order: learners, then attendants."""
        machines = list(enumerate(kind for kind in self.hosts for _ in range(kind.count)))
        learners = [one for one in machines for _ in range(one[1].learners)]
        placed = [one for one in machines for _ in range(one[1].attendants)]
        shared_out = [machines[n % len(machines)] for n in range(attendants)]
        return learners + (placed or shared_out)


class CostModel:
    """Turns work and bytes into virtual seconds; remembers which link is busy until when."""

    def __init__(
        self,
        cluster: Cluster,
        seed: int,
        attendants: int = 0,
        *,
        names: tuple[int, ...] | None = None,  # of each rank, if another than its number
    ) -> None:
        self._cluster = cluster
        self._places = cluster.places(attendants)
        num_hosts = 1 + max(host for host, _ in self._places)
        self._out_free = [0.0] * num_hosts
        self._in_free = [0.0] * num_hosts
        self._core_free = [0.0] * len(self._places)
        self._rngs = [
            random.Random(stable_seed(seed, "cost", name))
            for name in (names or range(len(self._places)))
        ]
        self._slow = {r: [s for s in cluster.slow if s.rank == r] for r in self._ranks()}
        self._pauses = {
            r: sorted((p.at_s, p.for_s) for p in cluster.pauses if p.rank == r)
            for r in self._ranks()
        }

    def _ranks(self) -> range:
        return range(len(self._places))

    def device_s(self, rank: int, frames: int) -> float:
        """Return how long so many frames usually take one device of a rank's host."""
        return frames / self._places[rank][1].frames_per_s

    def handover_s(self, rank: int, num_bytes: float) -> float:
        """Return how long two processes of a rank's host take to hand something over."""
        host = self._places[rank][1]
        return self._cluster.local_latency_s + num_bytes * 8e-9 / host.memory_gbit

    def compute(
        self, rank: int, now: float, frames: int, speed: float = 1.0
    ) -> tuple[float, float]:
        """Return start and end of computing on so many frames; tasks of one rank share its core."""
        host = self._places[rank][1]
        start = max(now, self._core_free[rank])
        seconds = frames / (host.frames_per_s * speed)
        if host.jitter:  # mean 1, whatever the sigma
            seconds *= self._rngs[rank].lognormvariate(-(host.jitter**2) / 2, host.jitter)
        for slow in self._slow[rank]:
            if slow.from_s <= start < slow.until_s:
                seconds *= slow.factor
        end = start + seconds
        for at, length in self._pauses[rank]:
            if at + length > start and at < end:
                end += length - max(0.0, start - at)
        self._core_free[rank] = end
        return start, end

    def arithmetic(self, rank: int, now: float, num_values: int) -> tuple[float, float]:
        """Return start and end of a step on a vector: it is read twice and written once."""
        start = max(now, self._core_free[rank])
        bits = 3 * 32 * num_values
        end = start + bits * 1e-9 / self._places[rank][1].memory_gbit
        self._core_free[rank] = end
        return start, end

    def transfer(self, source: int, to: int, now: float, num_bytes: int) -> float:
        """Return when a message has arrived; both links are busy until then."""
        (a, host_a), (b, host_b) = self._places[source], self._places[to]
        if a == b:
            return now + self._cluster.local_latency_s + num_bytes * 8e-9 / host_a.memory_gbit
        start = max(now, self._out_free[a])
        sent = start + num_bytes * 8e-9 / host_a.bandwidth_gbit
        self._out_free[a] = sent
        begins = max(start + self._cluster.latency_s, self._in_free[b])
        received = begins + num_bytes * 8e-9 / host_b.bandwidth_gbit
        self._in_free[b] = max(received, sent + self._cluster.latency_s)
        return self._in_free[b]

    def collective(
        self, members: tuple[int, ...], now: float, num_bytes: int, trips: float
    ) -> float:
        """Return when a collective is done; `trips` = 2 for allreduce, 1 for a half of it.

        As the real runtime does it: each member reduces a stripe and sends every other stripe to
        its owner. So a host with L of P members passes trips * L * (P-L)/P of the data through its
        link, as much as a ring if L = 1; frames cross trips + 1 times. Within hosts data go
        through memory. All links in use are busy until the end.
        """
        if len(members) == 1:
            return now
        hosts = sorted({self._places[r][0] for r in members})
        kinds = [self._places[r][1] for r in members]
        local = 0.0
        if len(hosts) < len(members):
            slowest = min(k.memory_gbit for k in kinds)
            local = trips * (self._cluster.local_latency_s + num_bytes * 8e-9 / slowest)
        if len(hosts) == 1:
            return now + local
        start = max([now, *(max(self._out_free[h], self._in_free[h]) for h in hosts)])
        near = [sum(self._places[r][0] == h for r in members) for h in hosts]
        share = max(n * (len(members) - n) / len(members) for n in near)
        wire = trips * share * num_bytes * 8e-9 / min(k.bandwidth_gbit for k in kinds)
        end = start + local + wire + (trips + 1) * self._cluster.latency_s
        for h in hosts:
            self._out_free[h] = self._in_free[h] = end
        return end

    def state_dict(self) -> list[Any]:
        """Return the random states; at a quiet point links and cores are free."""
        return [rng.getstate() for rng in self._rngs]

    def carry_on(self, states: list[Any]) -> None:
        """Go on from random states, where there are any."""
        for rng, state in zip(self._rngs, states, strict=True):
            if state is not None:
                rng.setstate(state)

    def load_state_dict(self, state: list[Any]) -> None:
        """Go on from saved random states; the last learners of the old run may have been lost."""
        for rng, (version, words, gauss) in zip(self._rngs, state, strict=False):
            rng.setstate((version, tuple(words), gauss))
