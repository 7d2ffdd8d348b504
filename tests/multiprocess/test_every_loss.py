"""Every strategy in real processes goes on without learners that are killed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from conformance.cases import PARALLEL, Case, sparingly
from helpers.audit import check_witnessed, witnessed
from helpers.runs import OPTIONS, fitting, same_model, simulated
from helpers.strategies import PushPull
from helpers.tasks import WithBuffers, WitnessWithBuffers

from hocket import ASGD, SGD, Cluster, Constant, Host, Result, api
from hocket.experiment import Experiment, RuntimeOptions
from hocket.runtime.real.faults import Fault
from hocket.runtime.sim.cost import Death

TASK = WithBuffers(num_items=37, uneven=True)
OPTIMIZER, SCHEDULE = SGD(lr=0.005, momentum=0.9), Constant(epochs=2)
SLOW = SGD(lr=0.0005)  # at the other's rate stale gradients and momentum diverge here
FRAMES = 2 * sum(item.frames for item in TASK.items("train"))
EXACT = [c for c in PARALLEL if c.strategy.synchronous and not c.strategy.uses_messages]


def plan_of(case: Case) -> dict[int, int]:
    """Return the draw at which a rank dies; the server of push-pull cannot be spared."""
    return {2: 3, 3: 7} if isinstance(case.strategy, PushPull) else {2: 3, 0: 7}


def with_deaths(case: Case, tmp_path: Path) -> Result:
    """Train, and see that what was settled had been computed, also what the dead had drawn."""
    task = WitnessWithBuffers(TASK.num_items, TASK.uneven, path=str(tmp_path / "computed"))
    options = RuntimeOptions(learners=5, **OPTIONS)
    optimizer = SLOW if isinstance(case.strategy, ASGD) else OPTIMIZER
    parts = fitting(case.strategy, {"optimizer": optimizer, "schedule": SCHEDULE})
    experiment = Experiment(task, case.strategy, **parts, codec=case.codec, options=options)
    faults = tuple(
        Fault(rank, at_draw=n) if case.draws_first else Fault(rank, at_collective=collective)
        for (rank, n), collective in zip(
            plan_of(case).items(), case.collectives_before, strict=True
        )
    )
    result = api.run_real(experiment, None, progress=False, faults=faults)
    check_witnessed(task, result, epochs=2)
    done = Counter(rank for ranks in witnessed(task).values() for rank in ranks)
    for rank, draw in plan_of(case).items():
        if case.draws_first and rank in lost(result):
            assert done[rank] == draw - 1, "its last item was drawn, and left to the others"
    return result


def lost(result: Result) -> list[int]:
    return [one.rank for one in result.learners if one.lost]


@sparingly(EXACT)
def test_deaths_give_the_same_model_as_in_the_simulator(case: Case, tmp_path: Path) -> None:
    """Bit for bit: who contributed, what came back to the pool, and the rate afterwards.

    A method that has sent something when it draws dies just before that instead: in the simulator
    this is the same as long as it is not the last to send (so it is fast there), while a process
    killed at the draw may or may not have been heard.
    """
    real = with_deaths(case, tmp_path)
    deaths = tuple(Death(rank, at_draw=draw) for rank, draw in plan_of(case).items())
    hosts = tuple(Host(frames_per_s=1e6 if r in plan_of(case) else 1e4) for r in range(5))
    cluster = Cluster(hosts, deaths=deaths)
    twin = simulated(TASK, case, cluster, optimizer=OPTIMIZER, schedule=SCHEDULE)
    assert lost(real) == lost(twin)
    assert case.everyone_draws is False or lost(real) == sorted(plan_of(case))
    assert same_model(real, twin)
    for result in (real, twin):
        assert result.frames + result.discarded_frames == FRAMES


SPARED = [c for c in PARALLEL if c not in EXACT and c.survives]


@sparingly(SPARED)
def test_learners_that_exchange_messages_go_on_too(case: Case, tmp_path: Path) -> None:
    """Whether the last message of one that was killed arrived is a matter of chance."""
    result = with_deaths(case, tmp_path)
    assert case.everyone_draws is False or lost(result) == sorted(plan_of(case))
    assert result.frames + result.discarded_frames == FRAMES
