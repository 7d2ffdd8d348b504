"""Joinings together with every kind of fault, thousands of times: `make test-long`.

An auditor watches all phases of a run: every item is settled once, after it was computed, whoever
joined and whoever was lost, also in the middle of a joining.
"""

from __future__ import annotations

import pytest
from conformance.cases import PARALLEL, Case, each
from helpers.fault_plans import kinds_of
from helpers.joining_plans import IN_A_JOINING, run_plan, run_plans

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]
NUM_PLANS = 100  # of a row
NUM_PLANS_ALIKE = 60  # ... whose effects are those of another row


def plans(case: Case) -> int:
    return NUM_PLANS if case.thorough else NUM_PLANS_ALIKE


@each(PARALLEL)
def test_plans_of_joinings_with_every_kind_of_fault(case: Case) -> None:
    number = plans(case)
    tally = run_plans(case, range(1000, 1000 + number))
    for kind in [*kinds_of(case), IN_A_JOINING]:
        assert tally.fired[kind] >= number // 30, f"{kind}: {tally.fired} of {tally.planned}"
    assert tally.joined > 0.8 * number
    assert tally.both > 0.5 * number
    assert tally.newcomers_lost > number // 10
    assert tally.ended <= number // 6, "few plans strike one who cannot be spared, which ends a run"


def test_there_are_thousands() -> None:
    assert sum(plans(case) for case in PARALLEL) >= 2000


def test_a_plan_is_the_same_every_time() -> None:
    for case in PARALLEL[:3]:
        (first, one, _), (second, other, _) = run_plan(case, 1010), run_plan(case, 1010)
        assert first.trace.digest == second.trace.digest
        assert (one.fired, one.joined, one.lost) == (other.fired, other.joined, other.lost)
