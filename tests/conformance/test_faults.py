"""What every strategy is held to when learners die, stand still, freeze and wake up.

`make test` runs some plans of every row, `make test-long` a thousand (`test_long.py`). What is
asked of each: it ends; every item is settled once, after it was computed, and computed twice only
if somebody was lost with it; or it says which rank cannot be spared.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from conformance.cases import CASES, GROUPS, Case, each
from helpers.fault_plans import SimFault, kinds_of
from helpers.faults import (
    FaultySimulator,
    Shelf,
    Tally,
    experiment_of,
    resume_after_faults,
    run_plans,
)
from helpers.runs import simulator
from helpers.strategies import Ahead, AheadTogether
from helpers.tasks import Quadratic

from hocket import ASGD, HADPSGD, AsyncEASGD, Cluster, Constant, DelayByOne, KStep, Pause
from hocket.errors import ConfigError, LearnerFailedError
from hocket.experiment import Experiment, RuntimeOptions

HOLDING = [Case(Ahead(), (2, 4)), Case(AheadTogether(), (2, 4))]  # items in hand at quiet points
ROWS = [*CASES, *GROUPS, *HOLDING]
NUM_RESUMED = 2  # plans of a row after which a run is resumed from one of its checkpoints


def every_kind_fired(case: Case, tally: Tally, at_least: int) -> None:
    """Hardly a fault is planned in vain, and none of a kind for nothing."""
    for kind in kinds_of(case):
        assert tally.fired[kind] >= at_least, f"{kind}: {tally.fired} of {tally.planned}"
    assert tally.fired.total() > 0.8 * tally.planned.total()


@each(ROWS)
def test_plans_of_every_kind(case: Case) -> None:
    tally = run_plans(case, range(case.plans))
    every_kind_fired(case, tally, at_least=1)


@each(ROWS)
def test_a_run_that_met_faults_is_resumed_with_an_exact_ledger(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    for seed in range(3, 3 + NUM_RESUMED):
        resume_after_faults(case, seed, tmp_path / f"{seed}")


# ------------------------------------------------------------------ what plans have found


def faulty(strategy: Any, learners: int, *faults: SimFault, **options: Any) -> FaultySimulator:
    more = {"silence_s": 10.0, "trace": True, **options}
    experiment = Experiment(
        Quadratic(num_items=12),
        strategy,
        schedule=Constant(epochs=1),
        options=RuntimeOptions(learners=learners, **more),
    )
    return FaultySimulator(experiment, 1, faults, Shelf())


def test_the_next_learner_gives_the_model_if_the_first_dies_while_giving_it() -> None:
    """Its death, as all waited for its model to be scored, ended the run."""
    fired = 0
    for collective in range(1, 16):
        sim = faulty(AsyncEASGD(sync_every=2), 3, SimFault(0, "death at a collective", collective))
        sim.run()
        sim.auditor.check()
        fired += len(sim.fired)
    assert 5 < fired < 15, "at every collective of the last quiet point"


def test_a_checkpoint_has_what_a_learner_held_that_died_during_the_evaluation(
    tmp_path: Path,
) -> None:
    """Its item was in nobody's part: a run resumed from there waited for it for ever."""
    case = Case(Ahead(), (2,))
    for effect in range(1, 7):
        plan = (SimFault(1, "death in an evaluation", effect),)
        assert resume_after_faults(case, 1, tmp_path / f"{effect}", plan)


def test_a_run_is_resumed_with_fewer_after_the_last_one_died(tmp_path: Path) -> None:
    """The state of the dead learner's clock was in the way."""
    plan = (SimFault(2, "death at a draw", 1),)
    assert experiment_of(Case(KStep(), (2,)), 1).options.learners == 3
    assert resume_after_faults(Case(KStep(), (2,)), 1, tmp_path, plan)


def test_what_is_left_of_fixed_shards_is_shared_out_when_other_learners_resume(
    tmp_path: Path,
) -> None:
    """After a loss nobody could go on: neither as many as before, nor as many as were left."""
    case = Case(AsyncEASGD(), (2,))
    options = experiment_of(case, 0).options
    assert (options.sharding, options.learners) == ("fixed", 2)
    for dies in (0, 1):  # without the last one, the others were taken for a group of their own
        plan = (SimFault(dies, "death at a draw", 2),)
        for learners in (1, 2, 3):
            path = tmp_path / f"{dies}-{learners}"
            assert resume_after_faults(case, 0, path, plan, learners)


def test_survivors_do_not_compute_again_what_they_have_in_hand() -> None:
    """Delay-by-one has a round in hand that the next average will settle."""
    sim = faulty(DelayByOne(), 3, SimFault(1, "death at a draw", 2))
    sim.run()
    sim.auditor.check()
    assert all(len(sim.auditor.whole(place)) == 1 for place in sim.auditor.computed())


def test_nobody_goes_on_from_a_recovery_before_all_have_read_the_account() -> None:
    """Rank 0 settled what it had in hand; rank 4 then read that the run was over, it alone."""
    experiment = experiment_of(HOLDING[0], 9)
    assert experiment.options.learners == 6
    for entry in range(80, 100):  # near the end, when the last one has nothing left to draw
        death = SimFault(5, "death in the ledger", entry)
        sim = FaultySimulator(experiment, 9, (death,), Shelf())
        sim.run()
        sim.auditor.check()
        assert sim.fired == [death]


def test_a_whole_node_may_die_in_a_collective_of_its_own() -> None:
    """Rank 2 dies waiting for rank 3, which then dies, too: nobody is left to get the answer."""
    sleep, second = SimFault(3, "pause", 0.0005, 5.0), SimFault(3, "death at a time", 2.0)
    sim = faulty(HADPSGD(node_size=2), 4, sleep, SimFault(2, "death at a time", 1.0), second)
    sim.run()
    sim.auditor.check()
    assert sim.alive == (0, 1)


# ------------------------------------------------------------------ pauses and freezes


def test_a_pause_stops_the_whole_learner_its_services_too() -> None:
    """Rank 0 keeps the centre: while it stands still, nobody gets an answer."""
    sim = faulty(AsyncEASGD(sync_every=1), 3, SimFault(0, "pause", 0.02, 5.0))
    sim.run()
    sim.auditor.check()
    arrivals = [s.end_s for s in sim.trace.spans if s.kind == "send" and s.detail == "0/elastic"]
    answers = [s.start_s for s in sim.trace.spans if s.kind == "send" and s.rank == 0]
    assert any(0.02 < at < 5.02 for at in arrivals), "it was asked meanwhile"
    assert not any(0.02 < at < 5.02 for at in answers)
    assert not sim._pauses_to_come


def test_a_pause_is_over_before_a_quiet_point_is_reached() -> None:
    """What has reached a sleeping service is neither in its inbox nor done: all wait for it."""
    for at in range(40):
        sim = faulty(ASGD(servers=2), 2, SimFault(3, "pause", at / 200, 0.3), evaluate_every=0.1)
        sim.run()
        sim.auditor.check()


def test_a_message_that_a_server_has_not_looked_at_keeps_a_quiet_point_waiting() -> None:
    """Woken up, it met the others first; the push that had come meanwhile was settled after that.

    So it alone counted these frames, took the model for saved, and was out of step ever after.
    """
    for at in range(40):
        sleep = SimFault(2, "pause", at / 200, 1.0)
        sim = faulty(ASGD(servers=1), 2, sleep, evaluate_every=0.1, checkpoint_every=0.1)
        sim.run()
        sim.auditor.check()


def test_whoever_stands_still_up_to_the_limit_is_not_lost() -> None:
    sim = faulty(AsyncEASGD(sync_every=1), 2, SimFault(1, "pause", 0.03, 9.9))
    sim.run()
    sim.auditor.check()
    assert sim.alive == (0, 1)


def test_whoever_stands_still_for_longer_is_lost_and_fenced() -> None:
    """Rank 1 waits for the centre, with an item in hand, and freezes; the answer comes meanwhile.

    When it wakes up, its item belongs to rank 0. It steps and commits, and nobody sees it.
    """
    pause, freeze = SimFault(0, "pause", 0.03, 1.0), SimFault(1, "freeze", 0.5, 10.001)
    sim = faulty(AsyncEASGD(sync_every=1), 2, pause, freeze)
    events: list[dict[str, Any]] = []
    sim._report = events.append
    sim.run()
    sim.auditor.check()
    (lost,) = (e for e in events if e["event"] == "lost")
    assert lost["reason"] == "gave no sign of life for 10 s (runtime.silence_s)"
    assert lost["time_s"] == pytest.approx(10.5)
    assert [s.rank for s in sim.trace.spans if s.kind == "fenced"] == [1]
    both = set(marks(sim, "")) & set(marks(sim, "volume1/"))
    assert both, "rank 1 settled an item that had been given to rank 0"


def marks(sim: FaultySimulator, volume: str) -> list[str]:
    """Return the items that are marked in a volume of the ledger."""
    keys = [k.removeprefix(volume) for k in sim._counters.numbers if k.startswith(volume)]
    return [k for k in keys if k.startswith("item/") and sim._counters.numbers[volume + k]]


def test_pauses_of_one_learner_may_not_overlap() -> None:
    with pytest.raises(ConfigError, match=r"\[\[pauses\]\] of rank 1 overlap"):
        Cluster(Cluster.even(2).hosts, pauses=(Pause(1, 0.0, 2.0), Pause(1, 1.0, 2.0)))


# ------------------------------------------------------------------ who cannot be spared


def test_the_run_ends_at_once_when_a_server_freezes() -> None:
    sim = faulty(ASGD(servers=1), 2, SimFault(2, "freeze", 0.05, 100.0))
    said = r"rank 2 \(which served the others\) was lost .*runtime.silence_s.*--resume"
    with pytest.raises(LearnerFailedError, match=said):
        sim.run()
    assert sim.now == pytest.approx(10.05)


def test_the_last_learner_is_not_the_only_one_that_is_named() -> None:
    sim = faulty(KStep(), 2, *(SimFault(r, "death at a time", 0.01 * (r + 1)) for r in (0, 1)))
    said = r"rank 1 was lost .*no learner is left \(rank 0 before it\)"
    with pytest.raises(LearnerFailedError, match=said):
        sim.run()


def test_the_run_ends_with_the_last_learner() -> None:
    cluster = Cluster(Cluster.even(1).hosts, pauses=(Pause(0, 1e-4, 99.0),))
    options = RuntimeOptions(learners=1)
    sim = simulator(Experiment(Quadratic(), KStep(), options=options), cluster)
    with pytest.raises(LearnerFailedError, match=r"rank 0 was lost .*no learner is left"):
        sim.run()
