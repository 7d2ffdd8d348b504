"""One row per strategy: what section 'conformance' of docs/architecture.md holds it to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from helpers.strategies import PushPull

from hocket import (
    ADMM,
    ADPSGD,
    BMUF,
    DPSGD,
    EASGD,
    HADPSGD,
    SGP,
    AdaptiveKStep,
    AllReduceSGD,
    AsyncEASGD,
    DelayByOne,
    DiLoCo,
    Kaldi,
    KStep,
    ModelAveraging,
    Sequential,
    SlowMo,
    Strategy,
)
from hocket.runtime.sim.cost import Death
from hocket.runtime.sim.simulator import Simulator


@dataclass(frozen=True)
class Case:
    """A strategy, and on how many learners it is tried."""

    strategy: Strategy[Any]
    learners: tuple[int, ...]
    one_learner_is_sgd: bool = True  # to the bit
    everyone_draws: bool = True  # from the start
    draws_first: bool = True  # nothing of a block has been sent when its first item is drawn
    # A loop of one's own gives the model of a run, bit for bit. False: leaving the loop makes one
    # more exchange, or a block goes on over the end of an epoch, which a loop does not know of.
    loop_is_run: bool = True
    thorough: bool = True  # False: its effects are much like another row's, so fewer seeds do

    @property
    def seeds(self) -> int:
        """How many random clusters and fault plans; 1000 in the long form."""
        return 200 if self.thorough else 30

    def unfired(self, sim: Simulator) -> list[Death]:
        """Return the planned deaths that should have come to pass and did not."""
        return [
            d
            for d in sim.deaths_to_come()
            if self.everyone_draws
            or d.at_draw is None
            or sim.context(d.rank).account.books.draws >= d.at_draw
        ]

    @property
    def id(self) -> str:
        usual = type(self.strategy)().parameters()
        return self.strategy.name + "".join(
            f"-{key}{value}"
            for key, value in self.strategy.parameters().items()
            if value != usual[key]
        )


CASES = [
    Case(Sequential(), (1,)),
    Case(AllReduceSGD(), (2, 4)),
    Case(KStep(sync_every=1), (2, 4), thorough=False),
    Case(KStep(sync_every=3), (2, 4)),
    Case(AdaptiveKStep(sync_every=4, accept=True), (4,), one_learner_is_sgd=False),
    Case(ModelAveraging(sync_every=2), (4,), thorough=False),
    Case(BMUF(sync_every=2, local_momentum="keep"), (2, 4), thorough=False),
    Case(
        BMUF(sync_every=3, block_momentum=0.5, nesterov=False, warm_start_frames=12),
        (4,),
        one_learner_is_sgd=False,
        loop_is_run=False,
        thorough=False,
    ),
    Case(
        SlowMo(sync_every=3, slow_momentum=0.5),
        (4,),
        one_learner_is_sgd=False,
        thorough=False,
    ),
    Case(
        DiLoCo(sync_every=3, outer_lr=1.0, outer_momentum=0.6),
        (4,),
        one_learner_is_sgd=False,
        thorough=False,
    ),
    Case(EASGD(sync_every=2), (2, 4), one_learner_is_sgd=False, loop_is_run=False),
    Case(AsyncEASGD(sync_every=2), (2, 4), one_learner_is_sgd=False),
    Case(ADMM(sync_every=1), (4,), loop_is_run=False, thorough=False),
    Case(
        ADMM(sync_every=3),
        (4,),
        one_learner_is_sgd=False,
        loop_is_run=False,
        thorough=False,
    ),
    Case(
        Kaldi(sync_every=3, combine_items=3),
        (4,),
        one_learner_is_sgd=False,
        everyone_draws=False,
    ),
    Case(DelayByOne(), (2, 4), draws_first=False),
    Case(DPSGD(), (2, 4)),
    Case(DPSGD(mixing="random_ring"), (5,), thorough=False),
    Case(DPSGD(mixing="exponential"), (4,), thorough=False),
    Case(SGP(), (2, 5)),
    Case(ADPSGD(), (2, 4)),
    Case(ADPSGD(ring="fixed"), (5,), thorough=False),
    Case(HADPSGD(), (5,)),
    # not a product, but it proves the vocabulary, so it is held to the same
    Case(PushPull(), (2, 4)),
]
PARALLEL = [c for c in CASES if c.strategy.max_learners != 1]
SYNCHRONOUS = [c for c in CASES if c.strategy.synchronous]
