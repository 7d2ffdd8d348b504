"""One row per strategy: what section 'conformance' of docs/architecture.md holds it to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pytest
from helpers.strategies import PushPull
from helpers.tasks import InLayers, InRows, Quadratic

from hocket import (
    ADMM,
    ADPSGD,
    ASGD,
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
    Float16,
    HessianFree,
    Kaldi,
    KStep,
    ModelAveraging,
    OneBit,
    Pipeline,
    Sequential,
    SlowMo,
    Strategy,
    TopK,
)
from hocket.core.codec import FLOAT32, Codec


@dataclass(frozen=True)
class Case:
    """A strategy, and on how many learners it is tried."""

    strategy: Strategy[Any]
    learners: tuple[int, ...]
    fewest: int = 1  # learners that it makes sense with
    one_learner_is_sgd: bool = True  # bit for bit
    everyone_draws: bool = True  # from the start
    draws_first: bool = True  # nothing of a block has been sent when its first item is drawn
    # A loop of one's own gives the model of a run, bit for bit. False: leaving the loop makes one
    # more exchange, or a block goes on over the end of an epoch, which a loop does not know of.
    loop_is_run: bool = True
    divides: bool = False  # minibatches, which a loop of one's own does not allow
    survives: bool = True  # False: every learner holds a part of the model, and none can be spared
    # If something has been sent by then: which collectives come just before draws 3 and 7.
    collectives_before: tuple[int, int] = (3, 7)
    codec: Codec = FLOAT32
    keeper: bool = False  # rank 0 has what nobody else has
    thorough: bool = True  # False: its effects are much like another row's, so fewer seeds do
    many: int = 1000  # seeds of the long form
    ranks_per_learner: int = 1

    @property
    def task_type(self) -> type[Quadratic]:
        """A small task: its model can be cut, or the codec of the row has something to code."""
        if self.ranks_per_learner > 1:
            return InLayers
        return Quadratic if self.codec is FLOAT32 else InRows

    def quadratic(self, **more: Any) -> Quadratic:
        """Such a task."""
        return self.task_type(**more)

    @property
    def options(self) -> dict[str, Any]:
        """What a row sets in the `[runtime]` table."""
        size = self.ranks_per_learner
        return {} if size == 1 else {"ranks_per_learner": size}

    @property
    def seeds(self) -> int:
        """How many random clusters; `many` in the long form."""
        return 200 if self.thorough else 30 if self.ranks_per_learner == 1 else 8

    @property
    def plans(self) -> int:
        """How many fault plans; 1,000 in the long form."""
        return 90 if self.thorough else 30 if self.ranks_per_learner == 1 else 20

    @property
    def id(self) -> str:
        usual = type(self.strategy)().parameters()
        coded = "" if self.codec is FLOAT32 else f"+{self.codec.name}"
        coded += f"-groups{self.ranks_per_learner}" if self.ranks_per_learner > 1 else ""
        return (
            self.strategy.name
            + coded
            + "".join(
                f"-{key}{value}"
                for key, value in self.strategy.parameters().items()
                if value != usual[key]
            )
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
    Case(
        HessianFree(
            sample=0.5, sample_growth=1.5, curvature=0.1, cg_iterations=4, preconditioner="lbfgs"
        ),
        (2, 4),
        one_learner_is_sgd=False,
        thorough=False,
        many=150,  # every iteration is dozens of products
    ),
    Case(ASGD(servers=1, overlap=0), (2, 4)),
    Case(ASGD(servers=2, delay_compensation=0.04), (4,), one_learner_is_sgd=False),
    Case(
        ASGD(servers=1, warm_start_frames=10, ramp_frames=4, barrier_frames=12, softsync=2),
        (3,),
        fewest=2,
        one_learner_is_sgd=False,
        everyone_draws=False,
    ),
    Case(ASGD(servers=0, overlap=0), (2, 4), survives=False, thorough=False),
    Case(DelayByOne(), (2, 4), draws_first=False),
    Case(DPSGD(), (2, 4)),
    Case(DPSGD(mixing="random_ring"), (5,), thorough=False),
    Case(DPSGD(mixing="exponential"), (4,), thorough=False),
    Case(SGP(), (2, 5)),
    Case(ADPSGD(), (2, 4)),
    Case(ADPSGD(ring="fixed"), (5,), thorough=False),
    Case(ADPSGD(mixes_with="both"), (6,)),
    Case(HADPSGD(), (5,)),
    Case(Pipeline(stages=1), (1,), thorough=False),  # more stages: test_pipeline.py
    Case(AllReduceSGD(), (4,), codec=OneBit(float_below=4), thorough=False),
    Case(AllReduceSGD(), (3,), codec=TopK(share=0.3, float_below=4), thorough=False),
    Case(
        AllReduceSGD(double_buffering=True),
        (4,),
        one_learner_is_sgd=False,
        draws_first=False,
        collectives_before=(4, 12),
        divides=True,
        codec=OneBit(float_below=4, start_frames=12),
        thorough=False,
    ),
    Case(
        ASGD(servers=2, half_pulls=True),
        (3,),
        one_learner_is_sgd=False,
        codec=OneBit(float_below=4),
        thorough=False,
    ),
    Case(KStep(sync_every=3), (4,), codec=OneBit(float_below=4), thorough=False),
    Case(
        BMUF(sync_every=2, local_momentum="keep"),
        (4,),
        codec=TopK(share=0.3, float_below=4),
        thorough=False,
    ),
    Case(
        DiLoCo(sync_every=3, outer_lr=1.0, outer_momentum=0.6),
        (4,),
        one_learner_is_sgd=False,
        codec=Float16(float_below=4),
        thorough=False,
    ),
    # not a product, but it proves the vocabulary, so it is held to the same
    Case(PushPull(), (2, 4), keeper=True),
]
# Learners that are groups of ranks. What does not depend on where a gradient comes from (joinings,
# replays, loops of one's own, which refuse them or never see them) is held by the rows above.
GROUPS = [
    Case(KStep(sync_every=3), (2,), ranks_per_learner=2, thorough=False),
    Case(ASGD(servers=2), (2,), one_learner_is_sgd=False, ranks_per_learner=2, thorough=False),
    Case(ADPSGD(), (4,), ranks_per_learner=2, thorough=False),
]
ROWS = [*CASES, *GROUPS]
PARALLEL = [c for c in CASES if c.strategy.max_learners != 1]
SYNCHRONOUS = [c for c in ROWS if c.strategy.synchronous]


def each(cases: Iterable[Case]) -> pytest.MarkDecorator:
    """Parametrize a test by these rows."""
    return pytest.mark.parametrize("case", cases, ids=lambda c: c.id)


def sparingly(cases: Iterable[Case]) -> pytest.MarkDecorator:
    """Parametrize a slow test: rows that are much like another one are for the long form."""
    return pytest.mark.parametrize(
        "case", [pytest.param(c, id=c.id, marks=waits(c)) for c in cases]
    )


def waits(case: Case) -> tuple[pytest.MarkDecorator, ...]:
    """Mark a row as long, unless it is its strategy's first or has effects of its own."""
    first = next(c for c in CASES if c.strategy.name == case.strategy.name)
    return () if case.thorough or case is first else (pytest.mark.long,)
