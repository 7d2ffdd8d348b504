"""Plans of joinings and of everything that can go wrong, together; an auditor watches all phases.

A plan names learners by their number in the record, which they keep when ranks are numbered anew.
So a fault may strike a newcomer, or one of the first learners in a later phase.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast

import numpy as np
from conformance.cases import Case

from helpers.audit import Auditor, Place
from helpers.fault_plans import SILENCE_S, Kind, SimFault, kinds_of, pillars
from helpers.faults import EPOCHS, ITEMS, FaultySimulator, Shelf, experiment_of
from helpers.runs import uneven
from hocket import Death, Pause
from hocket.core.effects import Deliver
from hocket.errors import HocketError, LearnerFailedError, PeerLostError
from hocket.experiment import Experiment
from hocket.record.checkpoint import Saved
from hocket.runtime.shared.boundary_effects import Regroup
from hocket.runtime.shared.dispatch import Fiber
from hocket.runtime.sim.cost import Cluster, Joining
from hocket.runtime.sim.joins import Group
from hocket.runtime.sim.simulator import Simulator

# As its part has been handed over, and the others have not all left the group.
IN_A_JOINING: Final = cast(Kind, "death in a joining")
PLANNED: Final = ("death at a time", "death at a draw", "pause", "freeze")  # by the cluster itself
LATEST: Final = {
    "death at a draw": 5,
    "death at a collective": 15,
    "death in recovery": 1,
    "death in an evaluation": 6,
    "death in a checkpoint": 6,
    "death in the ledger": 90,
    IN_A_JOINING: 1,
}


@dataclass
class Plan:
    """Who joins, what goes wrong; and what has happened so far, over all phases."""

    joins: tuple[Joining, ...]
    faults: tuple[SimFault, ...]
    fired: list[SimFault] = field(default_factory=list)
    settled: Counter[Place] = field(default_factory=Counter)
    computed: set[Place] = field(default_factory=set)
    joined: int = 0
    lost: set[int] = field(default_factory=set)  # by name

    def cluster(self, experiment: Experiment, seed: int) -> Cluster:
        """The cluster in which it happens; all names are known to it."""
        learners = experiment.options.learners
        cluster = uneven(learners, seed)
        first = replace(cluster.hosts[0], attendants=experiment.num_ranks - learners)
        deaths = [
            Death(f.rank, at_draw=int(f.when))
            if f.kind == "death at a draw"
            else Death(f.rank, at_s=f.when)
            for f in self.faults
            if f.kind in ("death at a time", "death at a draw")
        ]
        asleep = [
            Pause(f.rank, f.when, f.for_s) for f in self.faults if f.kind in ("pause", "freeze")
        ]
        return replace(
            cluster,
            hosts=(first, *cluster.hosts[1:]),
            joins=self.joins,
            deaths=tuple(deaths),
            pauses=tuple(asleep),
        )


def make_plan(case: Case, experiment: Experiment, seed: int) -> Plan:
    """Draw a plan: one kind of fault after the other in turn, others and joinings beside it."""
    rng = np.random.default_rng([13, seed])
    learners = experiment.options.learners
    joins = tuple(_join(rng, learners) for _ in range(int(rng.integers(1, 4))))
    vital = pillars(case, experiment)
    there = [r for r in range(learners) if r not in vital]
    first_new = experiment.num_ranks
    new = range(first_new, first_new + sum(join.count for join in joins))
    spare = [int(r) for r in rng.permutation([*there, *new])]
    if len(there) == learners:
        spare.remove(there[seed % len(there)])  # one who was there from the start stays
    able = [*kinds_of(case), IN_A_JOINING]
    kinds = [able[seed % len(able)]]
    kinds += [able[int(rng.integers(len(able)))] for _ in range(int(rng.integers(0, 3)))]
    if kinds[0] == "death in recovery":
        kinds.insert(0, "death at a draw")
    faults = [_fault(rank, kind, rng) for rank, kind in zip(spare, kinds, strict=False)]
    if vital and seed % 8 == 0:
        kind = ("death at a time", "freeze")[seed // 8 % 2]
        faults.append(_fault(int(rng.choice(sorted(vital))), cast(Kind, kind), rng))
    return Plan(joins, tuple(faults))


def _join(rng: np.random.Generator, learners: int) -> Joining:
    host = int(rng.integers(learners)) if rng.random() < 0.5 else None
    at_s = float(rng.choice([0.0, rng.uniform(0.0, 0.15), rng.uniform(0.0, 0.6)]))
    return Joining(at_s, host, count=int(rng.integers(1, 3)), pause_s=0.001)


def _fault(rank: int, kind: Kind, rng: np.random.Generator) -> SimFault:
    at_s = float(rng.uniform(0.0, 0.1))
    if kind == "pause":
        return SimFault(rank, kind, at_s, float(rng.choice([rng.uniform(0.01, 0.3), 7.0])))
    if kind == "freeze":
        return SimFault(rank, kind, at_s, SILENCE_S + float(rng.uniform(0.001, 2.0)))
    if kind == "death at a time":
        return SimFault(rank, kind, at_s)
    return SimFault(rank, kind, float(rng.integers(1, 1 + LATEST[kind])))


class JoiningSimulator(FaultySimulator):
    """One phase of a run in which a plan happens."""

    def __init__(
        self,
        experiment: Experiment,
        cluster: Cluster,
        plan: Plan,
        checkpoints: Any,
        saved: Saved | None = None,
        group: Group | None = None,
    ) -> None:
        self.plan, self.fired, self._plan_of_all = plan, plan.fired, plan.faults
        self._counts, self._advancing = Counter(), None
        self._aimed: dict[int, SimFault] = {}
        Simulator.__init__(self, experiment, cluster, self._heard, checkpoints, saved, group=group)
        rank_of = {name: rank for rank, name in enumerate(self._group.names)}
        self._aimed = {
            rank_of[f.rank]: f
            for f in plan.faults
            if f.kind not in PLANNED and f.rank in rank_of and f not in plan.fired
        }
        self._arm_the_ledger()
        self.auditor = Auditor(self)
        self.auditor.before = plan.computed

    def _heard(self, event: dict[str, Any]) -> None:
        self.plan.joined += event["event"] == "joined"
        if event["event"] == "lost":
            self.plan.lost.add(event["rank"])

    def _struck(self, rank: int, *, pause: bool) -> None:
        """Note which faults of a learner have happened now."""
        name = self._group.names[rank]
        self.fired += [
            f
            for f in self.plan.faults
            if f.rank == name and (f.kind == "pause") == pause and f not in self.fired
        ]

    def _die(self, rank: int, reason: str = "planned fault") -> None:
        alive = rank in self._living
        Simulator._die(self, rank, reason)
        if alive and rank not in self._living:
            self._struck(rank, pause=False)

    def _fall_asleep(self, pause: Pause) -> None:
        before = len(self._pauses_to_come)
        Simulator._fall_asleep(self, pause)
        if len(self._pauses_to_come) < before:
            self._struck(pause.rank, pause=True)

    def _regroup(self, fiber: Fiber, effect: Regroup, deliver: Deliver) -> None:
        if self._strikes(fiber.rank, IN_A_JOINING):
            self._die(fiber.rank)
        else:
            super()._regroup(fiber, effect, deliver)

    def _again(self, experiment: Experiment, saved: Saved, group: Group) -> Simulator:
        phase = group.phase_of(experiment.options.learners)
        return JoiningSimulator(experiment, phase, self.plan, self._checkpoints, saved, group)

    def close(self) -> None:
        """Add this phase to the books."""
        audit = self.auditor
        assert not audit.uncomputed, f"settled and never computed: {audit.uncomputed}"
        audit.check_repeats()
        self.plan.settled += audit.book()
        self.plan.computed = audit.computed()


def run_plan(case: Case, seed: int) -> tuple[JoiningSimulator, Plan, HocketError | None]:
    """Run a plan to its end: every item is settled once, or it says who cannot be spared."""
    experiment = experiment_of(case, seed)
    plan = make_plan(case, experiment, seed)
    sim = JoiningSimulator(experiment, plan.cluster(experiment, seed), plan, Shelf())
    ended: HocketError | None = None
    try:
        sim.run()
        while sim.regrouped:
            sim.close()
            sim = cast(JoiningSimulator, sim.next_phase())
            sim.run()
    except (LearnerFailedError, PeerLostError) as error:
        ended = error
    if ended is not None:
        assert plan.lost & pillars(case, experiment), f"a run that misses nobody ended: {ended}"
        return sim, plan, ended
    before = plan.settled
    for rank in sim._living_learners:
        total = before + sim.auditor.book(rank)
        wrong = {place: n for place, n in total.items() if n != 1}
        assert not wrong, f"settled so many times instead of once: {wrong}"
        assert len(total) == EPOCHS * ITEMS, f"{len(total)} items were settled"
    sim.close()
    for rank in sim.alive:
        assert sim.context(rank).account.frames == EPOCHS * experiment.pool().epoch_frames
    return sim, plan, None


@dataclass
class JoiningTally:
    """What happened in many plans of one row."""

    planned: Counter[str] = field(default_factory=Counter)
    fired: Counter[str] = field(default_factory=Counter)
    joined: int = 0  # plans in which somebody joined
    both: int = 0  # ... and somebody was lost
    newcomers_lost: int = 0
    ended: int = 0


def run_plans(case: Case, seeds: Iterable[int]) -> JoiningTally:
    """Run many plans of one row; a failure names its seed."""
    tally = JoiningTally()
    for seed in seeds:
        try:
            _, plan, error = run_plan(case, seed)
        except Exception as error:
            error.add_note(f"(plan {seed} of {case.id})")
            raise
        tally.planned.update(f.kind for f in plan.faults)
        tally.fired.update(f.kind for f in plan.fired)
        tally.joined += plan.joined > 0
        tally.both += plan.joined > 0 and bool(plan.lost)
        tally.newcomers_lost += any(
            name >= experiment_of(case, seed).num_ranks for name in plan.lost
        )
        tally.ended += error is not None
    return tally
