"""A strategy made of one function, to say one thing to the simulator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from helpers.runs import (
    simulator,
)
from helpers.tasks import Quadratic
from hocket import (
    Cluster,
)
from hocket.core.learner import Learner
from hocket.core.strategy import State, Strategy
from hocket.experiment import Experiment, RuntimeOptions


@dataclass(frozen=True)
class Scripted(Strategy[State]):
    """A strategy made of one function."""

    body: Callable[[Learner, State], Any]
    name: ClassVar[str] = "scripted"
    paper: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    commits_when: ClassVar[str] = ""
    synchronous: ClassVar[bool] = False
    evaluates: ClassVar = "root"

    def gain(self, num_learners: int) -> float:
        return 1.0

    async def run(self, me: Learner, state: State) -> State:
        await self.body(me, state)
        return state


def play(body: Any, learners: int = 2, cluster: Cluster | None = None) -> Any:
    options = RuntimeOptions(learners=learners, trace=True)
    sim = simulator(
        Experiment(Quadratic(), Scripted(body), options=options),
        cluster or Cluster.even(learners),
    )
    sim.run()
    return sim
