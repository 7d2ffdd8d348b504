"""The ledger cannot be fooled: what is settled was computed, whatever a strategy says.

A synchronous strategy counts for all learners. If it settles what no collective vouches for, the
items of the dead count as learnt: the frames add up, and nobody has ever seen them.
"""

from __future__ import annotations

from typing import Any

import pytest
from helpers.audit import Auditor
from helpers.runs import real, simulated, simulator
from helpers.tasks import Quadratic, Slow
from helpers.unruly import SETTLE_TOO_SOON, SETTLE_UNCOMPUTED, Hearsay, TooEarly, UnderWay

from hocket import Cluster, Constant, Death
from hocket.core.learner import Learner
from hocket.core.strategy import State
from hocket.errors import ContractError
from hocket.experiment import Experiment, RuntimeOptions
from hocket.runtime.shared.context.hand import Hand

both_worlds = pytest.mark.parametrize("world", [simulated, real], ids=["simulated", "real"])


@both_worlds
@pytest.mark.parametrize("strategy", SETTLE_TOO_SOON, ids=lambda s: type(s).__name__)
def test_what_no_collective_vouches_for_cannot_be_settled(strategy: Any, world: Any) -> None:
    said = r"'hearsay' settles .*no collective of all learners has been completed since.*rule 10"
    with pytest.raises(ContractError, match=said):
        world(Quadratic(num_items=40), strategy, 4)


@both_worlds
@pytest.mark.parametrize("strategy", SETTLE_UNCOMPUTED, ids=lambda s: type(s).__name__)
def test_what_is_not_computed_cannot_be_settled(strategy: Any, world: Any) -> None:
    with pytest.raises(ContractError, match=r"settles item .*whose gradient is not there yet"):
        world(Slow(num_items=8, seconds=0.2), strategy, 4)


@pytest.mark.parametrize("strategy", SETTLE_TOO_SOON, ids=lambda s: type(s).__name__)
def test_one_learner_alone_needs_nobody_to_vouch(strategy: Any) -> None:
    result = simulated(Quadratic(num_items=40), strategy, 1, schedule=Constant(epochs=1))
    assert result.frames == 80


def test_only_a_synchronous_strategy_may_leave_it_to_the_next_collective() -> None:
    class Hasty(Hearsay):
        synchronous = False

        async def round(self, me: Learner, state: State) -> None:
            await me.gradient(state.params)
            await me.commit_with_next()

    with pytest.raises(ContractError, match=r"is not synchronous.*use `await me.commit\(\)`"):
        simulated(Quadratic(), Hasty(), 2)


# ------------------------------------------------------------------ the auditor's own test


COMPUTING = Death(2, at_s=0.00018)  # its first item; the collective begun before it is over


@pytest.mark.parametrize(
    ("strategy", "death", "missed"),
    [
        (Hearsay(), Death(2, at_draw=2), 9),
        (TooEarly(), Death(2, at_draw=2), 1),
        (UnderWay(), COMPUTING, 1),
    ],
    ids=lambda x: type(x).__name__,
)
def test_the_auditor_sees_what_the_sum_of_frames_does_not(
    strategy: Any, death: Death, missed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the rule: one death, every frame is accounted for, and items are missing."""
    monkeypatch.setattr(Hand, "settle", lambda self, tickets, *, alone: None)
    experiment = Experiment(
        Quadratic(num_items=40),
        strategy,
        schedule=Constant(epochs=1),
        options=RuntimeOptions(learners=4),
    )
    cluster = Cluster(Cluster.even(4).hosts, deaths=(death,))
    sim = simulator(experiment, cluster)
    auditor = Auditor(sim)
    sim.run()
    assert sim.context(0).account.ledger.committed_frames == 80
    assert len(auditor.computed()) == 40 - missed
    with pytest.raises(AssertionError, match="settled and never computed"):
        auditor.check()
