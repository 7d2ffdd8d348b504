"""A simulator in which random faults happen, and what must hold whatever happens.

A plan is data: who, what, when. Some faults are the simulator's own (deaths, pauses, freezes).
Others strike where only a test can aim: as a learner begins its n-th collective, inside the
recovery from another loss, inside an evaluation or a checkpoint, and between any two entries into
the shared ledger. A plan says what fired, and a test asserts that every kind has.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import CoroutineType
from typing import Any, Final

import torch
from conformance.cases import Case

from helpers.audit import Auditor
from helpers.fault_plans import PHASES, SILENCE_S, Kind, SimFault, make_plan, pillars
from helpers.runs import uneven
from hocket import Constant, Pause
from hocket.core.effects import Deliver, Effect, Settle
from hocket.errors import HocketError, LearnerFailedError, PeerLostError
from hocket.experiment import Experiment, RuntimeOptions
from hocket.record.checkpoint import Checkpoints
from hocket.record.rundir import RunDirectory
from hocket.record.tensor_file import Fact, TensorFile
from hocket.runtime.shared.dispatch import Fiber
from hocket.runtime.shared.reductions import Post
from hocket.runtime.sim.simulator import Simulator

ITEMS, EPOCHS = 14, 2
MAX_EVENTS: Final = 100_000  # a plan takes some hundreds: beyond this, it goes round in circles


class KilledError(BaseException):
    """The end of a simulated learner, in the middle of whatever it did."""


class FaultySimulator(Simulator):
    """A simulator in which a plan happens."""

    def __init__(
        self,
        experiment: Experiment,
        seed: int,
        faults: tuple[SimFault, ...],
        checkpoints: Any = None,
        saved: Any = None,
    ) -> None:
        self.fired: list[SimFault] = []
        self._aimed: dict[int, SimFault] = {
            f.rank: f for f in faults if not f.kind.endswith((" time", " draw", "pause", "freeze"))
        }
        self._counts: Counter[int] = Counter()
        self._advancing: int | None = None
        self._plan_of_all = faults
        cluster = uneven(experiment.options.learners, seed)
        super().__init__(experiment, cluster, lambda event: None, checkpoints, saved)
        self._plan_faults(faults)
        self._arm_the_ledger()
        self.auditor = Auditor(self)

    def _plan_faults(self, faults: tuple[SimFault, ...]) -> None:
        """Plan what the simulator can do by itself; attendants may be struck, too."""
        for fault in faults:
            if fault.kind == "death at a draw":
                self._deaths_at_draw[fault.rank] = int(fault.when)
            elif fault.kind == "death at a time":
                self._at(fault.when, lambda rank=fault.rank: self._die(rank))
            elif fault.kind in ("pause", "freeze"):
                pause = Pause(fault.rank, fault.when, fault.for_s)
                self._pauses_to_come.append(pause)
                self._cost._pauses[fault.rank].append((fault.when, fault.for_s))
                self._at(fault.when, lambda pause=pause: self._fall_asleep(pause))

    # ------------------------------------------------------------------ striking

    def _strikes(self, rank: int, *kinds: Kind) -> bool:
        """True if a fault of one of these kinds is planned for this rank, and its time has come."""
        fault = self._aimed.get(rank)
        if fault is None or fault.kind not in kinds or rank not in self._living:
            return False
        self._counts[rank] += 1
        if self._counts[rank] < fault.when:
            return False
        del self._aimed[rank]
        return True

    def _post(self, rank: int, post: Post) -> None:
        if self._strikes(rank, "death at a collective"):
            self._die(rank)
        else:
            super()._post(rank, post)

    def begin(self, fiber: Fiber, effect: Effect[Any], deliver: Deliver) -> None:
        if fiber.name == "boundary":
            inside = set(functions_of(fiber.coroutine))
            phases = [kind for kind, names in PHASES.items() if inside & set(names)]
            if self._strikes(fiber.rank, *phases):
                self._die(fiber.rank)
                return
        super().begin(fiber, effect, deliver)

    def _settle(self, fiber: Fiber, effect: Settle, resume: Deliver) -> None:
        account = self.context(fiber.rank).account
        behind = self._experiment.strategy.synchronous and (
            account.learners != account.ledger.members  # type: ignore[attr-defined]
        )
        if behind and self._strikes(fiber.rank, "death in recovery"):
            self._die(fiber.rank)  # as it was about to deal the items of another one anew
        else:
            super()._settle(fiber, effect, resume)

    def _arm_the_ledger(self) -> None:
        add, put = self._counters.add, self._counters.put

        def enter() -> None:
            rank = self._advancing
            if rank is not None and self._strikes(rank, "death in the ledger"):
                raise KilledError

        def armed_add(key: str, amount: int) -> int:
            enter()
            return add(key, amount)

        def armed_put(key: str, value: str) -> None:
            enter()
            put(key, value)

        self._counters.add, self._counters.put = armed_add, armed_put  # type: ignore[method-assign]

    def _advance(self, fiber: Fiber, value: Any, error: BaseException | None) -> None:
        self._advancing = fiber.rank
        try:
            super()._advance(fiber, value, error)
        except KilledError:
            self._die(fiber.rank)
        finally:
            self._advancing = None

    def _die(self, rank: int, reason: str = "planned fault") -> None:
        alive = rank in self._living
        super()._die(rank, reason)
        if alive and rank not in self._living:
            self.fired += [f for f in self._plan_of_all if f.rank == rank and f.kind != "pause"]

    def _fall_asleep(self, pause: Pause) -> None:
        before = len(self._pauses_to_come)
        super()._fall_asleep(pause)
        if len(self._pauses_to_come) < before:
            self.fired += [
                f for f in self._plan_of_all if f.rank == pause.rank and f.kind == "pause"
            ]

    def _at(self, when: float, happen: Any) -> None:
        assert self._sequence < MAX_EVENTS, "the run goes round in circles"
        super()._at(when, happen)


def functions_of(coroutine: Any) -> Iterator[str]:
    """Yield the names of the functions that a coroutine is in, outermost first."""
    while isinstance(coroutine, CoroutineType):
        yield coroutine.cr_code.co_name
        coroutine = coroutine.cr_await


# ---------------------------------------------------------------------------- what must hold


@dataclass
class Tally:
    """What happened in many plans of one row."""

    planned: Counter[str] = field(default_factory=Counter)
    fired: Counter[str] = field(default_factory=Counter)
    plans: int = 0
    ended: int = 0  # runs that ended with a clear error, for want of a rank that cannot be spared
    fenced: int = 0  # frozen learners that woke up while the others were at work
    repeated: int = 0  # items computed more than once

    def add(self, sim: FaultySimulator, error: HocketError | None) -> None:
        """Count one plan."""
        self.plans += 1
        self.ended += error is not None
        self.planned.update(f.kind for f in sim._plan_of_all)
        self.fired.update(f.kind for f in sim.fired)
        self.fenced += sum(s.kind == "fenced" for s in sim.trace.spans)
        self.repeated += sum(len(sim.auditor.whole(p)) > 1 for p in list(sim.auditor._frames))


def experiment_of(case: Case, seed: int) -> Experiment:
    """A short run of a tiny model, with an evaluation and a checkpoint now and then."""
    few = case.strategy.max_learners == 1
    learners = 1 if few else max(case.fewest, 2 + seed % 5)
    return Experiment(
        case.quadratic(num_items=ITEMS, uneven=True),
        case.strategy,
        codec=case.codec,
        schedule=Constant(
            epochs=EPOCHS, lr_compensation="none" if case.strategy.compensates else None
        ),
        options=RuntimeOptions(
            learners=learners,
            seed=seed,
            sharding="fixed" if seed % 3 == 0 else "pool",
            evaluate_every=0.5,
            checkpoint_every=0.7,
            silence_s=SILENCE_S,
            trace=True,
            **case.options,
        ),
    )


class Shelf:
    """Checkpoints in memory: what is written, and whether a finished one is whole."""

    dir = "memory"

    def __init__(self) -> None:
        self.parts: dict[int, set[int]] = {}
        self.finished: list[int] = []

    def write_part(self, frames: int, rank: int, tree: Any) -> None:
        self.parts.setdefault(frames, set()).add(rank)

    def open_model(self, frames: int, facts: Sequence[Fact]) -> TensorFile:
        return TensorFile(Path(os.devnull), facts)

    def finish(self, frames: int, run: dict[str, Any], model: dict[str, Any] | None) -> None:
        assert run["frames"] == frames
        assert self.parts[frames] >= set(run["ranks"]), "a learner's part is missing"
        self.finished.append(frames)

    def abandon(self, frames: int) -> None:
        self.parts.pop(frames, None)


def run_plan(
    case: Case, seed: int, checkpoints: Any = None
) -> tuple[FaultySimulator, HocketError | None]:
    """Run one plan: it ends, and either the account is exact or it says who cannot be spared."""
    experiment = experiment_of(case, seed)
    plan = make_plan(case, experiment, seed)
    sim = FaultySimulator(experiment, seed, plan, checkpoints or Shelf())
    error = None
    try:
        sim.run()
    except (LearnerFailedError, PeerLostError) as raised:
        error = raised
    if error is not None:
        lost = {r for r, one in enumerate(sim.learners) if one.lost_s is not None}
        missed = lost & pillars(case, experiment) if len(sim.learners) > 1 else lost
        assert missed, f"a run that nobody is missing from ended: {error}"
        assert any(f"rank {r}" in str(error) for r in missed), f"{error} names none of {missed}"
        return sim, error
    sim.auditor.check()
    for rank in sim.alive:
        assert sim.context(rank).account.frames == EPOCHS * experiment.pool().epoch_frames
    return sim, None


# ---------------------------------------------------------------------------- many of them


def run_plans(case: Case, seeds: Iterable[int]) -> Tally:
    """Run many plans of one row; a failure names its seed."""
    tally = Tally()
    for seed in seeds:
        try:
            tally.add(*run_plan(case, seed))
        except Exception as error:
            error.add_note(f"(plan {seed} of {case.id})")
            raise
    return tally


class Library(Checkpoints):
    """Checkpoints on disk, and what had been settled when each was written."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, keep=99)
        self.settled: dict[int, Counter[tuple[int, int]]] = {}
        self.computed: dict[int, set[tuple[int, int]]] = {}
        self.sim: FaultySimulator | None = None

    def finish(
        self, frames: int, run: dict[str, Any], model: dict[str, torch.Tensor] | None
    ) -> Path:
        assert self.sim is not None
        self.settled[frames] = self.sim.auditor.book()
        self.computed[frames] = self.sim.auditor.computed()
        return super().finish(frames, run, model)


def resume_after_faults(
    case: Case,
    seed: int,
    path: Path,
    plan: tuple[SimFault, ...] | None = None,
    learners: int | None = None,
) -> bool:
    """Let a plan happen, go on from one of its checkpoints: every item is settled once in all.

    Return False if the run ended before its first checkpoint.
    """
    before = experiment_of(case, seed)
    library = Library(path)
    plan = make_plan(case, before, seed) if plan is None else plan
    sim = FaultySimulator(before, seed, plan, library)
    library.sim = sim
    with suppress(LearnerFailedError, PeerLostError):
        sim.run()
    kept = RunDirectory(path).checkpoints()
    if not kept:
        return False
    chosen = kept[seed % len(kept)]
    for later in kept[kept.index(chosen) + 1 :]:
        shutil.rmtree(later)
    if learners is None:
        learners = 1 if case.strategy.max_learners == 1 else max(case.fewest, 1 + seed % 4)
    after = replace(before, options=replace(before.options, learners=learners))
    again = FaultySimulator(after, seed, (), Shelf(), library.latest())
    again.auditor.before = library.computed[int(chosen.name)]
    again.run()
    assert not again.auditor.uncomputed, again.auditor.uncomputed
    total = library.settled[int(chosen.name)] + again.auditor.book()
    wrong = {place: n for place, n in total.items() if n != 1}
    assert not wrong, f"settled so many times: {wrong}"
    assert len(total) == EPOCHS * ITEMS
    return True
