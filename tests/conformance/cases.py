"""One row per strategy: what section 'conformance' of docs/architecture.md holds it to."""

from __future__ import annotations

from dataclasses import dataclass

from helpers.strategies import PushPull

from hocket import ADPSGD, DPSGD, HADPSGD, AllReduceSGD, DelayByOne, KStep, Sequential, Strategy


@dataclass(frozen=True)
class Case:
    """A strategy, and on how many learners it is tried."""

    strategy: Strategy
    learners: tuple[int, ...]
    one_learner_is_sgd: bool = True  # to the bit

    @property
    def id(self) -> str:
        return self.strategy.name + "".join(
            f"-{key}{value}" for key, value in self.strategy.parameters().items()
        )


CASES = [
    Case(Sequential(), (1,)),
    Case(AllReduceSGD(), (2, 4)),
    Case(KStep(sync_every=1), (2, 4)),
    Case(KStep(sync_every=3), (2, 4)),
    Case(DelayByOne(), (2, 4)),
    Case(DPSGD(), (2, 4)),
    Case(DPSGD(mixing="random_ring"), (4, 5)),
    Case(DPSGD(mixing="exponential"), (4,)),
    Case(ADPSGD(), (2, 4)),
    Case(ADPSGD(ring="fixed"), (4, 5)),
    Case(HADPSGD(), (4, 5)),
    # not a product, but it proves the vocabulary, so it is held to the same
    Case(PushPull(), (2, 4)),
]
SYNCHRONOUS = [c for c in CASES if c.strategy.synchronous]
