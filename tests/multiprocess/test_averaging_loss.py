"""The averaging family in real processes goes on without a learner that is killed."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.runs import OPTIONS, same_model, simulated
from helpers.tasks import WithBuffers

from hocket import ADMM, BMUF, EASGD, SGD, AdaptiveKStep, Cluster, Constant, KStep, api
from hocket.experiment import Experiment, RuntimeOptions
from hocket.runtime.real.faults import Fault
from hocket.runtime.sim.cost import Death

TASK = WithBuffers(num_items=37, uneven=True)
OPTIMIZER, SCHEDULE = SGD(lr=0.005, momentum=0.9), Constant(epochs=2)
PLAN = {2: 3, 0: 7}  # rank: the draw at which it dies


@pytest.mark.parametrize(
    "strategy",
    [
        KStep(sync_every=2, local_momentum="average"),
        AdaptiveKStep(sync_every=2, accept=True),
        BMUF(sync_every=2),
        EASGD(sync_every=2),
        ADMM(sync_every=2),
    ],
    ids=lambda s: s.name,
)
def test_deaths_give_the_same_model_as_in_the_simulator(strategy: Any) -> None:
    """To the bit: who contributed, what came back to the pool, and the rate afterwards."""
    options = RuntimeOptions(learners=5, **OPTIONS)
    experiment = Experiment(TASK, strategy, OPTIMIZER, SCHEDULE, options=options)
    faults = tuple(Fault(rank, at_draw=draw) for rank, draw in PLAN.items())
    real = api.run_real(experiment, None, progress=False, faults=faults)
    assert [one.rank for one in real.learners if one.lost] == [0, 2]
    deaths = tuple(Death(rank, at_draw=draw) for rank, draw in PLAN.items())
    cluster = Cluster(Cluster.even(5).hosts, deaths=deaths)
    twin = simulated(TASK, strategy, cluster, optimizer=OPTIMIZER, schedule=SCHEDULE)
    assert same_model(real, twin)
    frames = 2 * sum(item.frames for item in TASK.items("train"))
    for result in (real, twin):
        assert result.frames + result.discarded_frames == frames
