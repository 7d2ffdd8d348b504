"""What a strategy is, and what it may rely on.

A strategy says who talks to whom and when. It is written once, as a coroutine over the effects of
`hocket.core.effects`, and runs in two worlds: real processes, and a deterministic simulator.

The runtime contract
--------------------
1.  Between two awaits nothing else runs on that rank.
2.  Messages of one (source, destination, tag) arrive in order; nothing else is promised.
3.  `Send` takes ownership of its payload: the sender may not touch it again (the simulator checks).
    The vector of a `Grad` may be shared between learners: it is read only (the simulator checks).
    A mean gradient that a step was made with is spent when the next collective begins.
4.  `Gradient` and collectives read what they are given at any time until they are answered; a
    strategy that mixes meanwhile passes a copy.
5.  A service begun with `Start` lives until *every* rank's main task has returned.
6.  `Boundary` is the only place where a run is stopped or checkpointed. Every forked effect has
    been awaited before it.
7.  A group's collectives are issued in the same order by all members. Both runtimes sum in rank
    order with the same thread count, so results match bit for bit.
8.  A strategy never reads a clock, and draws randomness only from `me.rng`. Randomness inside a
    minibatch (dropout, augmentation) is keyed by (seed, epoch, item), not by rank.
9.  A learner that dies is *lost*: a collective completes over the survivors and says how many
    contributed; a receive from it raises `PeerLostError`; what it had drawn and not committed
    returns to the pool. Whoever is declared lost is fenced: its messages count no more. A broadcast
    from it raises `PeerLostError` on everybody; a message to it is dropped.
10. A synchronous strategy issues the same effects in the same order on every rank; a learner with
    nothing left to draw gets gradients of 0 frames. Where a collective is weighted by frames (no
    weight given), it contributes nothing; an explicit weight counts as it is given.

All of them hold in both worlds. What a lost learner of an asynchronous strategy had drawn returns
at once in the simulator, at the next quiet point in real processes. A strategy that cannot do
without the lost one lets `PeerLostError` pass, which ends the run.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar

from hocket.core.flat import Flat
from hocket.core.optimizer import Optimizer
from hocket.errors import require

if TYPE_CHECKING:
    from hocket.core.learner import Learner


@dataclass
class State:
    """Everything a learner needs to resume, and nothing else. Strategies extend it."""

    params: Flat
    optimizer: Any


S = TypeVar("S", bound=State)


@dataclass(frozen=True)
class Strategy(ABC, Generic[S]):
    """A parallel training method. Its fields are its parameters, checked on construction.

    `S` is the state of its learners: `Strategy[State]`, or a state of its own, which `init` makes.
    """

    name: ClassVar[str]
    paper: ClassVar[str]
    summary: ClassVar[str]
    commits_when: ClassVar[str]  # the point at which drawn items count as learnt
    synchronous: ClassVar[bool]  # same effects in the same order everywhere; draws by number
    uses_messages: ClassVar[bool] = False  # asynchronous ones always may
    moves_in_groups: ClassVar[bool] = False  # asynchronous, with an allreduce of its group per step
    evaluates: ClassVar[Literal["replica", "average", "root"]] = "replica"
    max_learners: ClassVar[int | None] = None
    needs_even_world: ClassVar[bool] = False
    compensates: ClassVar[bool] = True  # False: the local rate is the given one, whatever the gain
    drops_diverged: ClassVar[bool] = False  # leaves out learners whose loss is not finite by itself
    usual_optimizer: ClassVar[str] = "sgd"  # when none is configured

    @abstractmethod
    def gain(self, num_learners: int) -> float:
        """Movement per minibatch relative to sequential SGD at the same rate."""

    @abstractmethod
    async def run(self, me: Learner, state: S) -> S:
        """Train until a boundary says stop."""

    def init(self: Strategy[State], params: Flat, optimizer: Optimizer) -> State:
        """Return the state before the first step; `params` belongs to it from now on."""
        return State(params, optimizer.init(params))

    def model(self, state: S) -> Flat:
        """Return this learner's part of the model that is evaluated and saved."""
        return state.params

    def adopt(self, old: Sequence[S], model: Flat, rank: int) -> S:
        """Return the state of `rank` when a checkpoint is resumed with other learners.

        The documented mapping: everybody starts from the saved model; what was private to a learner
        (momentum) is taken over from old rank `rank mod P_old`.
        """
        return replace(old[rank % len(old)], params=model.clone())

    def check_world(self, num_learners: int) -> None:
        """Refuse a number of learners the method cannot use."""
        require(num_learners >= 1, f"learners must be at least 1, not {num_learners}")
        require(
            self.max_learners is None or num_learners <= self.max_learners,
            f"strategy {self.name!r} runs on at most {self.max_learners} learner(s), not "
            f"{num_learners}; `hocket strategies` lists those that run on more",
        )
        require(
            not self.needs_even_world or num_learners % 2 == 0 or num_learners == 1,
            f"strategy {self.name!r} pairs learners and needs an even number, not {num_learners}; "
            f"use {num_learners - 1} or {num_learners + 1}",
        )

    def check_optimizer(self, optimizer: Optimizer) -> None:
        """Refuse an optimizer the method cannot use."""

    def rate_rule(self) -> str:
        """Say, for the log, what a learner's rate is if the method itself derives it."""
        return ""

    @property
    def needs_scores(self) -> bool:
        """True if the method looks at held-out loss, which a loop of one's own does not have."""
        return False

    def parameters(self) -> dict[str, Any]:
        """Return the parameters and their values."""
        return {f.name: getattr(self, f.name) for f in fields(self)}
