"""Every strategy in real processes goes on without learners that are killed."""

from __future__ import annotations

import pytest
from conformance.cases import PARALLEL, Case
from helpers.runs import OPTIONS, same_model, simulated
from helpers.strategies import PushPull
from helpers.tasks import WithBuffers

from hocket import SGD, Cluster, Constant, Result, api
from hocket.experiment import Experiment, RuntimeOptions
from hocket.runtime.real.faults import Fault
from hocket.runtime.sim.cost import Death

TASK = WithBuffers(num_items=37, uneven=True)
OPTIMIZER, SCHEDULE = SGD(lr=0.005, momentum=0.9), Constant(epochs=2)
FRAMES = 2 * sum(item.frames for item in TASK.items("train"))
EXACT = [c for c in PARALLEL if c.strategy.synchronous and not c.strategy.uses_messages]


def plan_of(case: Case) -> dict[int, int]:
    """Return the draw at which a rank dies; the server of push-pull cannot be spared."""
    return {2: 3, 3: 7} if isinstance(case.strategy, PushPull) else {2: 3, 0: 7}


def with_deaths(case: Case) -> Result:
    options = RuntimeOptions(learners=5, **OPTIONS)
    experiment = Experiment(TASK, case.strategy, OPTIMIZER, SCHEDULE, options=options)
    faults = tuple(
        Fault(rank, at_draw=n) if case.draws_first else Fault(rank, at_collective=n)
        for rank, n in plan_of(case).items()
    )
    return api.run_real(experiment, None, progress=False, faults=faults)


def lost(result: Result) -> list[int]:
    return [one.rank for one in result.learners if one.lost]


@pytest.mark.parametrize("case", EXACT, ids=lambda c: c.id)
def test_deaths_give_the_same_model_as_in_the_simulator(case: Case) -> None:
    """Bit for bit: who contributed, what came back to the pool, and the rate afterwards.

    A method that has sent something when it draws dies just before that instead: in the simulator
    this is the same, while a process killed at the draw may or may not have been heard.
    """
    real = with_deaths(case)
    deaths = tuple(Death(rank, at_draw=draw) for rank, draw in plan_of(case).items())
    cluster = Cluster(Cluster.even(5).hosts, deaths=deaths)
    twin = simulated(TASK, case.strategy, cluster, optimizer=OPTIMIZER, schedule=SCHEDULE)
    assert lost(real) == lost(twin)
    assert case.everyone_draws is False or lost(real) == sorted(plan_of(case))
    assert same_model(real, twin)
    for result in (real, twin):
        assert result.frames + result.discarded_frames == FRAMES


@pytest.mark.parametrize("case", [c for c in PARALLEL if c not in EXACT], ids=lambda c: c.id)
def test_learners_that_exchange_messages_go_on_too(case: Case) -> None:
    """Whether the last message of one that was killed arrived is a matter of chance."""
    result = with_deaths(case)
    assert lost(result) == sorted(plan_of(case))
    assert result.frames + result.discarded_frames == FRAMES
