"""Learners that join a simulated run: the group stops at a quiet point and goes on as another one.

A joining is a checkpoint and a resumption with more learners, in memory: every learner's part is
kept as it would be written, and the group of the next *phase* is restored from these parts by the
code that resumes a run. So whatever holds of a resumption holds of a joining, for every strategy.

Ranks are numbered anew in every phase: learners that live, newcomers, then ranks that only attend.
In the record each learner keeps one number for the whole run, its *name*; newcomers get the next
free ones.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from hocket.core.accounts import Books
from hocket.core.effects import Deliver
from hocket.core.packing import flatten, unflatten
from hocket.errors import ConfigError, require
from hocket.experiment import Experiment
from hocket.record.checkpoint import Saved
from hocket.runtime.shared.boundary_effects import Regroup
from hocket.runtime.shared.dispatch import Fiber
from hocket.runtime.shared.trace import Trace
from hocket.runtime.shared.worker import Worker
from hocket.runtime.sim.cost import Cluster, CostModel, Host, Joining
from hocket.runtime.sim.faults import SimulatedFaults

if TYPE_CHECKING:
    from hocket.runtime.sim.simulator import Simulator


@dataclass(frozen=True, kw_only=True)
class SimulatedPhase(Cluster):
    """A cluster whose learners have been placed one by one."""

    learner_seats: tuple[tuple[int, Host], ...] = ()
    attendant_seats: tuple[tuple[int, Host], ...] = ()

    @property
    def num_learners(self) -> int:
        """How many learners have a seat."""
        return len(self.learner_seats)

    @property
    def num_attendants(self) -> int:
        """How many ranks that only serve have a seat."""
        return len(self.attendant_seats)

    @property
    def num_to_join(self) -> int:
        """None: who joins is planned beside the phase."""
        return 0

    def places(self, attendants: int = 0) -> list[tuple[int, Host]]:
        """Return each rank's machine."""
        return [*self.learner_seats, *self.attendant_seats]


@dataclass
class LearnerPast:
    """What is known of a learner over all phases."""

    books: Books
    lost_s: float | None = None
    joined_s: float | None = None


@dataclass
class Group:
    """Who is in a simulation, by name, and what goes over from one phase to the next."""

    cluster: Cluster  # as it was given: faults in it go by name
    names: tuple[int, ...]  # of each rank
    seats: dict[int, tuple[int, Host]]
    joins: tuple[Joining, ...]  # to come
    trace: Trace
    worker: Worker | None = None
    past: dict[int, LearnerPast] = field(default_factory=dict)
    jitter: dict[int, Any] = field(default_factory=dict)  # states of random numbers
    phase: int = 0

    @classmethod
    def first(cls, experiment: Experiment, cluster: Cluster) -> Group:
        """Return those who are there at the beginning."""
        places = cluster.places(experiment.num_ranks - experiment.options.learners)
        seats = dict(enumerate(places))
        joins = tuple(sorted(cluster.joins, key=lambda join: join.at_s))
        trace = Trace(keep=experiment.options.trace)
        return cls(cluster, tuple(range(experiment.num_ranks)), seats, joins, trace)

    @classmethod
    def resumed(cls, experiment: Experiment, cluster: Cluster, saved: Saved) -> Group:
        """Return those who were there when a checkpoint was written; some may have joined."""
        group = cls.first(experiment, cluster)
        kept = saved.run.get("group")
        if kept is None:
            return group
        for name, number in sorted((int(n), int(m)) for n, m in kept["machines"].items()):
            machines = dict(group.seats.values())
            group.seats[name] = number, machines.get(number, cluster.hosts[0])
        group.names = tuple(map(int, kept["names"]))
        group.joins = group.joins[len(group.joins) - int(kept["joins"]) :]
        group.trace.names = group.names
        return group

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs."""
        machines = {str(name): number for name, (number, _) in self.seats.items()}
        return {"names": list(self.names), "machines": machines, "joins": len(self.joins)}

    def cost(self, phase: Cluster, seed: int, attendants: int) -> CostModel:
        """Return the cost model of a phase; whoever goes on keeps its random numbers."""
        model = CostModel(phase, seed, attendants, names=self.names)
        model.carry_on([self.jitter.get(name) for name in self.names])
        return model

    def seat(self, join: Joining) -> int:
        """Place a newcomer, and return its name."""
        name = max(self.seats) + 1
        machines = dict(place for place in self.seats.values())
        number = max(machines) + 1 if join.host is None else join.host
        require(
            join.host is None or number in machines,
            f"[[joins]] names host {join.host}, but there are hosts 0 to {max(machines)}",
        )
        self.seats[name] = number, machines.get(number, self.cluster.hosts[0])
        return name

    def phase_of(self, num_learners: int) -> SimulatedPhase:
        """Return the cluster of this phase: faults that were planned by name go by rank."""
        rank_of = {name: rank for rank, name in enumerate(self.names)}
        seats = [self.seats[name] for name in self.names]
        planned: dict[str, Any] = {
            kind: tuple(
                replace(one, rank=rank_of[one.rank])
                for one in getattr(self.cluster, kind)
                if one.rank in rank_of
            )
            for kind in ("slow", "pauses", "deaths")
        }
        whole = self.cluster
        return SimulatedPhase(
            hosts=whole.hosts,
            latency_s=whole.latency_s,
            local_latency_s=whole.local_latency_s,
            learner_seats=tuple(seats[:num_learners]),
            attendant_seats=tuple(seats[num_learners:]),
            **planned,
        )


class KeptParts:
    """Stands for the folder of checkpoints: parts are kept as they would be written."""

    dir = "memory"

    def __init__(self) -> None:
        self._parts: dict[int, tuple[str, dict[str, torch.Tensor]]] = {}
        self.saved: Saved | None = None

    def write_part(self, frames: int, rank: int, tree: Any) -> None:
        """Keep one learner's state."""
        skeleton, tensors = flatten(tree)
        kept = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        self._parts[rank] = json.dumps(skeleton), kept

    def finish(self, frames: int, run: dict[str, Any], model: dict[str, torch.Tensor]) -> None:
        """Keep what is common to all."""
        common = json.loads(json.dumps(run))  # as it would be read: keys have become text
        self.saved = InMemory(Path(self.dir), common, model, parts=self._parts)

    def abandon(self, frames: int) -> None:
        """Forget the parts."""
        self._parts = {}


@dataclass
class InMemory(Saved):
    """A checkpoint that was never written."""

    parts: dict[int, tuple[str, dict[str, torch.Tensor]]] = field(default_factory=dict)

    def part(self, rank: int, template: Any, on: torch.device | None = None) -> Any:
        """Return a copy of one learner's state, in the shape of `template`."""
        skeleton, tensors = self.parts[rank]
        copies = {name: tensor.clone() for name, tensor in tensors.items()}
        return unflatten(json.loads(skeleton), copies, template)

    def plain(self, rank: int, key: str) -> Any:
        """Return one entry that holds no tensors."""
        return unflatten(dict(json.loads(self.parts[rank][0])["$dict"])[key], {})


class SimulatedJoins(SimulatedFaults):
    """Lets learners in as planned; the clock is in `Simulator`."""

    _group: Group

    def __init__(self, experiment: Experiment, cost: CostModel) -> None:
        super().__init__(experiment, cost)
        self._memory = KeptParts()
        self._knocking: list[Joining] = []
        self._leaving: dict[int, Deliver] = {}
        self.regrouped = False  # this phase is over

    def _plan_joins(self) -> None:
        for join in self._group.joins:
            self._at(max(join.at_s, self.now), partial(self._knock, join))

    def joins_to_come(self) -> list[Joining]:
        """Return the planned joinings that have not happened."""
        return list(self._group.joins)

    def _knock(self, join: Joining) -> None:
        self._knocking.append(join)
        self._call_if_they_fit()

    def _call_if_they_fit(self) -> None:
        """Let all meet, if the strategy can use as many learners as there would be."""
        self._end_phase_if_all_left()
        wanted = self._knocking and self._fits(len(self._living_learners) + self._num_knocking)
        for rank in self.alive:
            self.context(rank).agenda.meet_wanted = bool(wanted)

    @property
    def _num_knocking(self) -> int:
        return sum(join.count for join in self._knocking)

    def _fits(self, num_learners: int) -> bool:
        try:
            self._experiment.with_learners(num_learners)
        except ConfigError:  # an odd number for a strategy of pairs: they wait for another one
            return False
        return True

    def _regroup(self, fiber: Fiber, effect: Regroup, deliver: Deliver) -> None:
        self._leaving[fiber.rank] = deliver
        self._end_phase_if_all_left()

    def _end_phase_if_all_left(self) -> None:
        """End this phase: all have left their parts, and nothing is under way."""
        if not self._leaving or not self._living <= self._leaving.keys():
            return
        if self._fits(len(self._living_learners) + self._num_knocking):
            self.regrouped = True
            return
        leaving, self._leaving = self._leaving, {}  # one was lost since they met
        self._memory = KeptParts()
        self._call_if_they_fit()
        for rank in self.alive:
            leaving[rank](None, None)

    # ------------------------------------------------------------------ the next phase

    def next_phase(self) -> Simulator:
        """Return the simulator of the group with its newcomers."""
        assert self._memory.saved is not None
        group, members = self._group, self._living_learners
        self._remember()
        group.jitter = dict(zip(group.names, self._cost.state_dict(), strict=True))
        newcomers = [group.seat(join) for join in self._knocking for _ in range(join.count)]
        experiment = self._experiment.with_learners(len(members) + len(newcomers))
        attending = [name for rank, name in enumerate(group.names) if self._attends(rank)]
        wanted = experiment.num_ranks - experiment.options.learners
        attending = attending[:wanted] + [group.seat(Joining(0.0, 0)) for _ in attending[wanted:]]
        old = [group.names[rank] for rank in members]
        names = (*old, *newcomers, *attending)
        joins = tuple(join for join in group.joins if join not in self._knocking)
        new = replace(group, names=names, joins=joins, phase=group.phase + 1)
        new.trace.names = names
        pause_s = max((join.pause_s for join in self._knocking), default=0.0)
        saved = self._memory.saved
        others = [rank for rank in saved.ranks if rank not in members]
        saved.run |= {"ranks": [*members, *others], "time_s": self.now + pause_s}
        saved.staying = len(members)
        for name in newcomers:
            new.past[name] = LearnerPast(Books(), joined_s=self.now + pause_s)
        simulator = self._again(experiment, saved, new)
        for name in newcomers:
            simulator.note_joining(name)
        return simulator

    def _again(self, experiment: Experiment, saved: Saved, group: Group) -> Simulator:
        raise NotImplementedError

    def _attends(self, rank: int) -> bool:
        return rank >= self._experiment.options.learners

    def _remember(self) -> None:
        """Keep what is known of each learner, and what those who live go on with."""
        group = self._group
        for rank, name in enumerate(group.names):
            before = group.past.get(name)
            books = self.context(rank).account.books
            joined_s = before.joined_s if before else None
            group.past[name] = LearnerPast(books, self.learners[rank].lost_s, joined_s)

    def past(self) -> dict[int, LearnerPast]:
        """Return what is known of every learner there ever was, by name."""
        self._remember()
        return dict(sorted(self._group.past.items()))

    def attending(self) -> list[int]:
        """Return the names of the ranks that only attend."""
        return [name for rank, name in enumerate(self._group.names) if self._attends(rank)]

    def note_joining(self, name: int) -> None:
        """Put a joining into the record, with the names of all ranks from now on."""
        account = self.context(self.alive[0]).account
        self._report_event(
            {
                "event": "joined",
                "frames": account.ledger.committed_frames,
                "epoch": account.ledger.epoch,
                "rank": name,
                "learners": list(self._group.names[: self._experiment.options.learners]),
            }
        )

    def _report_event(self, event: dict[str, Any]) -> None:
        raise NotImplementedError
