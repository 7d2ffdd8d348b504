"""Simulated runs that learners join: plans with deaths and pauses, and a resumption as referee."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from conformance.cases import Case

from helpers.fault_plans import SILENCE_S, pillars
from helpers.faults import EPOCHS, Shelf, experiment_of
from helpers.runs import uneven
from hocket import Death, Pause
from hocket.errors import HocketError, LearnerFailedError, PeerLostError
from hocket.experiment import Experiment
from hocket.record.checkpoint import Checkpoints
from hocket.runtime.sim.cost import Cluster, Host, Joining
from hocket.runtime.sim.joins import KeptParts
from hocket.runtime.sim.simulator import Simulator


def plan_of(case: Case, experiment: Experiment, seed: int) -> Cluster:
    """Draw one to three joinings, and deaths and pauses of whoever can be spared, by name."""
    rng = np.random.default_rng([12, seed])
    learners = experiment.options.learners
    joins = []
    for _ in range(int(rng.integers(1, 4))):
        host = int(rng.integers(learners)) if rng.random() < 0.5 else None
        at_s = float(rng.choice([0.0, rng.uniform(0.0, 0.15), rng.uniform(0.0, 0.6)]))
        joins.append(Joining(at_s, host, count=int(rng.integers(1, 3)), pause_s=0.001))
    vital = pillars(case, experiment)
    there = [r for r in range(experiment.num_ranks) if r not in vital]
    later = range(experiment.num_ranks, experiment.num_ranks + sum(j.count for j in joins))
    spare = [int(r) for r in rng.permutation([*there, *later])]
    deaths, pauses = [], []
    for name in spare[: int(rng.integers(0, max(1, len(spare) - 1)))]:
        at_s = float(rng.uniform(0.0, 0.6))
        kind = int(rng.integers(4))
        if kind == 0:
            pauses.append(Pause(name, at_s, float(rng.uniform(0.01, 0.3))))
        elif kind == 1:
            deaths.append(Death(name, at_draw=int(rng.integers(1, 4))))
        elif kind == 2 and seed % 4 == 0:
            pauses.append(Pause(name, at_s, SILENCE_S + 1))
        else:
            deaths.append(Death(name, at_s=at_s))
    if not vital and deaths and len(deaths) >= learners:
        deaths = deaths[: learners - 1]  # one who was there from the start stays
    struck = [death for death in deaths if death.rank < learners]
    if len(struck) == learners:
        deaths.remove(struck[-1])
    cluster = uneven(learners, seed)
    first = replace(cluster.hosts[0], attendants=experiment.num_ranks - learners)
    cluster = replace(cluster, hosts=(first, *cluster.hosts[1:]))  # it must know all names
    return replace(cluster, joins=tuple(joins), deaths=tuple(deaths), pauses=tuple(pauses))


@dataclass
class Outcome:
    """What happened in one plan."""

    frames: list[int] = field(default_factory=list)
    joined: int = 0
    waiting: int = 0  # joinings that did not happen before the end
    lost: int = 0
    digest: str = ""
    error: HocketError | None = None
    events: list[dict[str, Any]] = field(default_factory=list)


def run_joins(case: Case, seed: int) -> Outcome:
    """Run one plan to its end, over all phases."""
    experiment = experiment_of(case, seed)
    cluster = plan_of(case, experiment, seed)
    outcome = Outcome()
    sim = Simulator(experiment, cluster, outcome.events.append, Shelf())  # type: ignore[arg-type]
    try:
        sim.run()
        while sim.regrouped:
            sim = sim.next_phase()
            sim.run()
    except (LearnerFailedError, PeerLostError) as error:
        outcome.error = error
    outcome.frames = [sim.context(rank).account.frames for rank in sim.alive]
    kinds = Counter(event["event"] for event in outcome.events)
    outcome.joined, outcome.lost = kinds["joined"], kinds["lost"]
    outcome.waiting, outcome.digest = len(sim.joins_to_come()), sim.trace.digest
    return outcome


def check(case: Case, seed: int, outcome: Outcome) -> None:
    """The account is exact, or somebody is missing whom nobody could replace."""
    total = EPOCHS * experiment_of(case, seed).pool().epoch_frames
    if outcome.error is None:
        assert outcome.frames
        assert set(outcome.frames) == {total}, f"plan {seed}: {outcome.frames}, not {total}"
    else:
        assert outcome.lost, f"plan {seed}: a run that nobody is missing from ended"


class OnDisk(KeptParts):
    """Keeps parts as every joining does, and writes them as a checkpoint, too."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.checkpoints = Checkpoints(folder, keep=9)

    def write_part(self, frames: int, rank: int, tree: Any) -> None:
        super().write_part(frames, rank, tree)
        self.checkpoints.write_part(frames, rank, tree)

    def finish(self, frames: int, run: dict[str, Any], model: dict[str, torch.Tensor]) -> None:
        super().finish(frames, run, model)
        self.checkpoints.finish(frames, run, model)


def joined_and_resumed(case: Case, folder: Path) -> tuple[Simulator, Simulator]:
    """One run goes on with a newcomer; another is resumed with one learner more."""
    experiment = experiment_of(case, 1)
    joins = (Joining(0.05, count=2 if case.strategy.needs_even_world else 1),)
    cluster = Cluster((Host(count=experiment.options.learners, frames_per_s=100.0),), joins=joins)
    sim = Simulator(experiment, cluster, lambda event: None)
    sim._memory = OnDisk(folder)
    sim.run()
    assert sim.regrouped, "nobody has joined"
    joined = sim.next_phase()
    phase = joined._group.phase_of(joined._experiment.options.learners)
    saved = sim._memory.checkpoints.latest()
    resumed = Simulator(joined._experiment, phase, lambda event: None, None, saved)
    joined.run()
    resumed.run()
    return joined, resumed
