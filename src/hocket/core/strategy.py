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
4.  `Gradient`, `Curvature` and collectives read what they are given at any time until they are
    answered; a strategy that mixes meanwhile passes a copy.
5.  A service begun with `Start` lives until *every* rank's main task has returned.
6.  `Boundary` is the only place where a run is stopped or checkpointed. Every forked effect has
    been awaited before it.
7.  A group's collectives are issued in the same order by all members. Both runtimes sum in rank
    order with the same thread count, so results match bit for bit.
8.  A strategy never reads a clock (`me.speed`, which the world measures, is for dealing items
    only), and draws randomness only from `me.rng`. Randomness inside a
    minibatch (dropout, augmentation) is keyed by (seed, epoch, item), not by rank.
9.  A learner that dies is *lost*: a collective completes over the survivors and says how many
    contributed; a receive from it raises `PeerLostError`; what it had drawn and not committed
    returns to the pool. Whoever is declared lost is fenced: its messages count no more. A broadcast
    from it raises `PeerLostError` on everybody; a message to it is dropped.
10. A synchronous strategy issues the same effects in the same order on every rank; a learner with
    nothing left to draw gets gradients of 0 frames. Where a collective is weighted by frames (no
    weight given), it contributes nothing; an explicit weight counts as it is given.
    It settles an item only after a collective of all learners that was begun when the item had been
    computed: who took part in it has computed what it had drawn, and who is missing gets no credit.
    To settle without one is a `ContractError` in both worlds (one learner alone needs none).
    `commit_with_next` leaves the settlement to the next collective.

All of them hold in both worlds. What a lost learner of an asynchronous strategy had drawn returns
at the next quiet point. A strategy that cannot do without the lost one lets `PeerLostError` pass,
which ends the run.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Literal, TypeAlias, TypeVar

from hocket.core.codec import Codec, Float32, Memory, refuse_codec
from hocket.core.flat import Flat, Layout
from hocket.core.optimizer import Optimizer
from hocket.errors import require

if TYPE_CHECKING:
    from hocket.core.learner import Learner


@dataclass
class State:
    """Everything a learner needs to resume, and nothing else. Strategies extend it."""

    params: Flat
    optimizer: Any
    memory: Memory | None = field(default=None, kw_only=True)  # what the codec has not delivered


S = TypeVar("S", bound=State)

Coded: TypeAlias = Literal["gradients", "steps", "pushes"]
# Parts are put together by everybody; stages never are, as no rank may have room for all of them.
Evaluated: TypeAlias = Literal["replica", "average", "root", "parts", "stages"]
MIXES_MODELS: Final = (
    "learners exchange whole models that differ from each other: there is no common point from "
    "which a step could be coded, and coding a model itself loses more than its steps are large."
)
NO_FEEDBACK: Final = (
    "without error feedback (codec.error_feedback = false) what rounding takes from a model's step "
    "is lost for good: learners move where none of them wanted to go."
)


@dataclass(frozen=True)
class Extent:
    """How long a run is: what a strategy may remark on before it begins."""

    num_learners: int
    num_items: int  # minibatches of all epochs
    num_epochs: int
    share_of_rate: Callable[[float], float]  # of the rate's integral, in the first share of the run

    @property
    def steps(self) -> int:
        """Minibatches of one learner, if all are equally fast."""
        return self.num_items // self.num_learners


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
    evaluates: ClassVar[Evaluated] = "replica"
    max_learners: ClassVar[int | None] = None
    needs_even_world: ClassVar[bool] = False
    compensates: ClassVar[bool] = True  # False: the local rate is the given one, whatever the gain
    uses_rate: ClassVar[bool] = True  # False: its steps need no optimizer, rate or schedule of it
    drops_diverged: ClassVar[bool] = False  # leaves out learners whose loss is not finite by itself
    usual_optimizer: ClassVar[str] = "sgd"  # when none is configured
    codes: ClassVar[Coded | None] = None  # what a codec is applied to
    uncoded_because: ClassVar[str] = ""  # if nothing is: why
    in_fixed_order: ClassVar[bool] = False  # asynchronous, but speeds change nothing
    attends_by: ClassVar[str] = "served the others"  # what ranks that draw nothing do
    takes_products: ClassVar[bool] = False  # asks for `Curvature`
    takes_nobody_in_because: ClassVar[str] = ""  # if no learner can join a running group: why

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

    # ------------------------------------------------------------------ ranks that only attend

    def attendants(self, num_learners: int) -> int:
        """Return how many ranks the method needs beyond its learners; they draw nothing."""
        return 0

    def on_hosts(self, num_hosts: int) -> Strategy[S]:
        """Return the method as it is to run on so many hosts, where a default depends on that."""
        return self

    def parts(self, layout: Layout, num_learners: int) -> list[tuple[int, range]]:
        """`evaluates = "parts"`: return which rank has which range of the model, in its order."""
        return []

    def placement(self, layout: Layout, num_learners: int) -> list[str]:
        """Say, for the record, which rank does what, if not all do the same."""
        return []

    @property
    def needs_attendance(self) -> bool:
        """True if some rank must wait for others, which a training loop of a user's cannot."""
        return False

    def still_fits(self, state: S, place: range) -> bool:
        """True unless what a rank has saved is of another part of the model than it holds now."""
        return True

    # ------------------------------------------------------------------ other learners, refusals

    def adopt(self, old: Sequence[S], model: Flat, rank: int) -> S:
        """Return the state of `rank` when a checkpoint is resumed with other learners.

        The documented mapping: everybody starts from the saved model; what was private to a learner
        (momentum) is taken over from old rank `rank mod P_old`.
        """
        return replace(old[rank % len(old)], params=model.clone())

    def welcome(self, old: Sequence[S], model: Flat, rank: int, staying: int) -> S:
        """Return the state of `rank` when learners have joined a running group.

        The first `staying` ranks were there before and go on, in the order of `old`; the others
        are new. As it comes, all begin from the model that is evaluated, as after a resumption.
        """
        return self.adopt(old, model, rank)

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

    def check_codec(self, codec: Codec) -> None:
        """Refuse a codec the method cannot use."""
        why = self.refuses(codec)
        if why:
            refuse_codec(self.name, codec, why)

    @classmethod
    def refuses(cls, codec: Codec) -> str:
        """Return why a codec cannot be used; empty if it can."""
        if isinstance(codec, Float32):
            return ""
        if cls.codes is None:
            return cls.uncoded_because
        if cls.codes == "steps" and not codec.feeds_back:
            return NO_FEEDBACK
        return ""

    def rate_rule(self) -> str:
        """Say, for the log, what a learner's rate is if the method itself derives it."""
        return ""

    def remarks(self, extent: Extent) -> list[str]:
        """Say what a user should know before a run of this length; one sentence each."""
        return []

    @property
    def needs_scores(self) -> bool:
        """True if the method looks at held-out loss, which a loop of one's own does not have."""
        return False

    @property
    def evaluate_every(self) -> float:
        """Return the epochs between two evaluations, if `runtime.evaluate_every` is not given."""
        return 1.0

    def parameters(self) -> dict[str, Any]:
        """Return the parameters and their values."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


@dataclass(frozen=True)
class InStages(Strategy[S]):
    """A method whose ranks hold one stage of the model each; the first one is the learner."""

    stages: int = 2  # consecutive parts of the model, each on a rank of its own
    cut: tuple[int, ...] | None = None  # first layer of each stage but the first. None: balanced

    evaluates: ClassVar[Evaluated] = "stages"
    max_learners: ClassVar[int | None] = 1

    def __post_init__(self) -> None:
        require(self.stages >= 1, f"strategy.stages must be at least 1, not {self.stages}")
        require(
            self.cut is None or len(self.cut) == self.stages - 1,
            f"strategy.cut = {list(self.cut or ())} makes {len(self.cut or ()) + 1} stages, and "
            f"strategy.stages is {self.stages}",
        )

    def check_world(self, num_learners: int) -> None:
        """Refuse several learners: the stages are one."""
        require(
            num_learners == 1,
            f"strategy {self.name!r} has one learner, whose model lies on several ranks, not "
            f"{num_learners}: set strategy.stages (--set strategy.stages={num_learners}) instead",
        )

    def attendants(self, num_learners: int) -> int:
        """All stages but the first draw nothing."""
        return self.stages - 1

    @property
    def needs_attendance(self) -> bool:
        """True: a loop of one's own has the whole model, and takes whole gradients."""
        return True
