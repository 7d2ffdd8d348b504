"""Random fault plans: who, what, when. `helpers.faults` makes them happen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

import numpy as np
from conformance.cases import Case

from hocket.experiment import Experiment

Kind = Literal[
    "death at a time",
    "death at a draw",
    "death at a collective",
    "death in recovery",
    "death in an evaluation",
    "death in a checkpoint",
    "death in the ledger",
    "pause",
    "freeze",
]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
PHASES: Final[dict[Kind, tuple[str, ...]]] = {  # functions of runtime/shared/boundary.py
    "death in recovery": ("_recover",),
    "death in an evaluation": ("_figures", "_evaluate"),
    "death in a checkpoint": ("_save",),
}
LATEST: Final[dict[Kind, int]] = {  # so early that it happens within a short run
    "death at a draw": 3,
    "death at a collective": 11,
    "death in recovery": 1,
    "death in an evaluation": 6,
    "death in a checkpoint": 5,
    "death in the ledger": 90,
}
SILENCE_S: Final = 10.0  # runtime.silence_s as it comes


@dataclass(frozen=True)
class SimFault:
    """One thing that goes wrong."""

    rank: int
    kind: Kind
    when: float  # seconds; or which draw, collective, effect of the phase, entry into the ledger
    for_s: float = 0.0


def kinds_of(case: Case) -> list[Kind]:
    """Return what can go wrong in a row: one learner recovers from nobody, and so on."""
    able = [k for k in KINDS if k != "death in the ledger" or not case.strategy.synchronous]
    return [k for k in able if k != "death in recovery" or case.strategy.max_learners != 1]


def pillars(case: Case, experiment: Experiment) -> set[int]:
    """Return the ranks whose loss must end the run: they have what nobody else has."""
    learners = experiment.options.learners
    if case.keeper:
        return {0}
    if experiment.strategy.evaluates == "parts" and experiment.num_ranks == learners:
        return {0, 1}  # the tiny model has two parameters, so there are two shards
    return set(range(learners, experiment.num_ranks))


def make_plan(case: Case, experiment: Experiment, seed: int) -> tuple[SimFault, ...]:
    """Draw a plan: one kind of fault after the other in turn, and others beside it."""
    rng = np.random.default_rng([11, seed])
    learners, vital = experiment.options.learners, pillars(case, experiment)
    spare = [r for r in range(learners) if r not in vital]
    spare = [int(r) for r in rng.permutation(spare)]
    able = kinds_of(case)
    kinds = [able[seed % len(able)]]
    kinds += [able[int(rng.integers(len(able)))] for _ in range(int(rng.integers(0, 3)))]
    if kinds[0] == "death in recovery":
        kinds.insert(0, "death at a draw")
    one_stays = learners > 1 and not vital & set(range(learners))
    most = len(spare) - one_stays
    faults = []
    for kind in kinds:
        if spare and (kind == "pause" or most > 0):
            faults.append(_fault(spare.pop(), kind, rng))
            most -= kind != "pause"
    if vital and seed % 8 == 0:
        strike: tuple[Kind, ...] = ("death at a time", "freeze", "pause", "death in a checkpoint")
        faults.append(_fault(int(rng.choice(sorted(vital))), strike[seed // 8 % 4], rng))
    return tuple(faults)


def _fault(rank: int, kind: Kind, rng: np.random.Generator) -> SimFault:
    early = float(rng.uniform(0.0, 0.1))
    if kind == "pause":
        long = rng.uniform(5.5, 0.95 * SILENCE_S)  # longer than a ring waits for a partner
        return SimFault(rank, kind, early, float(rng.choice([rng.uniform(0.01, 0.2), long])))
    if kind == "freeze":
        soon, late = SILENCE_S + rng.uniform(0.001, 0.5), rng.uniform(12.0, 40.0)
        return SimFault(rank, kind, early, float(rng.choice([soon, late])))
    if kind == "death at a time":
        return SimFault(rank, kind, early)
    return SimFault(rank, kind, float(rng.integers(1, 1 + LATEST[kind])))
