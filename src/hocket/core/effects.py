"""The vocabulary: all that a strategy can ask of the world. No logic lives here.

A strategy is an `async def` that awaits these effects. It never learns who answers: real
processes (`hocket.runtime.real`) or the simulator (`hocket.runtime.sim`). What each answer promises
is written down in `hocket.core.strategy`, the runtime contract.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Literal, TypeAlias, TypeVar

from hocket.core.accounts import (
    Outcome,
    Progress as Progress,
    Scores as Scores,
    Ticket,
    Verdict as Verdict,
)
from hocket.core.codec import Coder, Memory
from hocket.core.flat import Flat, Parts
from hocket.errors import ContractError

T = TypeVar("T", covariant=True)

Group: TypeAlias = tuple[int, ...]  # ranks in ascending order; None stands for all learners

ANYONE: Final = -1

Part: TypeAlias = tuple[int, int]  # which of how many
WHOLE: Final[Part] = (0, 1)

# How a runtime hands an answer over: a value, or what went wrong.
Deliver: TypeAlias = Callable[[Any, BaseException | None], None]


class Effect(Generic[T]):
    """Something awaited. `await effect` hands it to the runtime and returns its answer."""

    __slots__ = ()

    def __await__(self) -> Generator[Effect[Any], Any, T]:
        answer: T = yield self
        return answer

    def describe(self) -> str:
        """Say, for error messages, what is being awaited."""
        return type(self).__name__.lower()


# ---------------------------------------------------------------------------- answers


@dataclass(slots=True)
class Grad:
    """The mean gradient over `frames` frames. `frames == 0`: the learner was dry."""

    whole: Flat | Parts | None  # as it was made; `vector` lays it out
    frames: int
    loss_sum: float
    correct: float
    tickets: tuple[Ticket, ...] = ()
    spent: bool = False  # a step was made with it

    @property
    def vector(self) -> Flat:
        """The gradient as one vector; perhaps shared between learners: read it, never write it."""
        if isinstance(self.whole, Parts):
            self.whole = self.whole.join()
        if self.whole is None:
            raise ContractError(
                "a mean gradient was used again after its step and the next collective: take "
                "`grad.vector` before the step if it is needed later (contract rule 3)"
            )
        return self.whole

    def part(self, place: range) -> Parts:
        """Return a range of it that was cut between parameters; nothing is laid out or copied."""
        if isinstance(self.whole, Parts):
            return self.whole.part(place)
        return Parts(len(place), [(0, self.vector[place.start : place.stop])])

    def give_back(self) -> None:
        """Let go of memory that was lent, as the next collective will write to it."""
        self.whole = None if self.spent else self.vector


@dataclass(slots=True)
class Product:
    """The mean of a Gauss-Newton product over `frames` frames of one learner."""

    vector: Flat
    frames: int
    cost: float  # of a product of this model, relative to a gradient of the same frames


@dataclass(slots=True, frozen=True)
class Block:
    """Items that were dealt together: how many draws they are for each learner, and their frames.

    A learner with less to do gets dry gradients in its last draws.
    """

    draws: int
    frames: int


@dataclass(slots=True)
class Mean:
    """A weighted mean over learners; `contributors` had a weight above zero."""

    value: Flat
    contributors: int
    weight: float


@dataclass(slots=True, eq=False)
class Message:
    """What `Recv` returns."""

    source: int
    tag: str
    payload: Any


# ---------------------------------------------------------------------------- computing


@dataclass(slots=True, eq=False)
class Gradient(Effect[Grad]):
    """Draw one item of the pool and take the mean gradient on it, at `params`.

    `part` (i, n): on the i-th of n parts of the item; for parts after the first, `ticket` says
    which item was drawn.
    """

    params: Flat
    part: Part = WHOLE
    ticket: Ticket | None = None


@dataclass(slots=True, eq=False)
class MeanGradient(Effect[Grad]):
    """A gradient, then its frame-weighted mean over all learners."""

    params: Flat


@dataclass(slots=True, eq=False)
class Curvature(Effect[Product]):
    """The Gauss-Newton product at `params` along `direction`, on items that were drawn before.

    This learner's own part: the mean over learners is an `AllReduce` weighted by its frames. Units
    are not dropped and batch-norm uses what it has learnt, so the same items give the same product.
    """

    params: Flat
    direction: Flat
    tickets: tuple[Ticket, ...]


@dataclass(slots=True, eq=False)
class Evaluate(Effect[Scores]):
    """Score `params` on a held-out split; every learner calls it and takes a slice."""

    params: Flat
    which: str = "dev"
    num_items: int | None = None  # the first so many of the split; None: all


@dataclass(slots=True, eq=False)
class Spend(Effect[None]):
    """Arithmetic on so many values was done beside gradients; the simulator charges its time."""

    num_values: int


# ---------------------------------------------------------------------------- collectives


@dataclass(slots=True, eq=False)
class AllReduce(Effect[Mean]):
    """Weighted mean over the group. Weight `None`: the frames drawn since the last settlement."""

    x: Flat
    weight: float | None = None
    group: Group | None = None
    in_place: bool = False  # `x` becomes the mean: no new memory, one copy less


@dataclass(slots=True, eq=False)
class CodedMean(Effect[Mean]):
    """Weighted mean over all learners of what a codec makes of their vectors; `x` becomes it.

    Each learner codes its vector with what it kept; the owner of a stripe adds up the codes, codes
    the sum with what it kept of such sums, and all decode the same bytes. `memory` becomes what is
    still kept; None: nothing is. A learner of weight 0 sends nothing and keeps what it has.
    """

    x: Flat
    coder: Coder
    memory: Memory | None
    weight: float | None = None  # None: the frames drawn since the last settlement

    def describe(self) -> str:
        """Name it as the records do."""
        return "coded_mean"


@dataclass(slots=True, eq=False)
class Broadcast(Effect[Flat]):
    """`root`'s vector, on every member of the group."""

    x: Flat
    root: int = 0
    group: Group | None = None


@dataclass(slots=True, eq=False)
class AllToAll(Effect[list[Flat]]):
    """Stripe s of every member goes to member s; the answer is in the order of the members.

    After a loss a stripe keeps its owner; the answer has the stripes of the survivors.
    """

    stripes: list[Flat]
    group: Group | None = None


# ---------------------------------------------------------------------------- messages


@dataclass(slots=True, eq=False)
class Send(Effect[None]):
    """Hand `payload` (a tree of tensors, numbers, strings) to `to`. Ownership moves."""

    to: int
    tag: str
    payload: Any

    def describe(self) -> str:
        """Name the receiver and the tag."""
        return f"send(to={self.to}, tag={self.tag!r})"


@dataclass(slots=True, eq=False)
class Recv(Effect[Message]):
    """The next message with this tag, from `source` or from anyone."""

    tag: str
    source: int = ANYONE
    timeout_s: float | None = None

    def describe(self) -> str:
        """Name the tag and the source."""
        source = "anyone" if self.source == ANYONE else self.source
        return f"recv(tag={self.tag!r}, source={source})"


# ---------------------------------------------------------------------------- concurrency


@dataclass(slots=True, eq=False)
class Handle(Generic[T]):
    """A forked effect under way. `await handle` waits for its answer."""

    effect: Effect[T]
    done: bool = False
    answer: Any = None
    error: BaseException | None = None
    waiter: Any = field(default=None, repr=False)  # the runtime's

    def __await__(self) -> Generator[Effect[Any], Any, T]:
        answer: T = yield Join(self)
        return answer


@dataclass(slots=True, eq=False)
class Fork(Effect[Handle[Any]]):
    """Begin `effect` and go on at once; several may be in flight."""

    effect: Effect[Any]


@dataclass(slots=True, eq=False)
class Join(Effect[Any]):
    """What awaiting a `Handle` amounts to; strategies write `await handle`."""

    handle: Handle[Any]

    def describe(self) -> str:
        """Name the effect that was forked."""
        return f"a forked {self.handle.effect.describe()}"


@dataclass(slots=True, eq=False)
class Start(Effect[None]):
    """Begin a second task of this learner; it lives until every rank's main task has returned."""

    service: Coroutine[Any, Any, None]


# ---------------------------------------------------------------------------- the ledger, the world


@dataclass(slots=True, eq=False)
class Settle(Effect[None]):
    """Say what became of drawn items. `tickets` None: all this learner drew and has not settled."""

    outcome: Outcome
    tickets: tuple[Ticket, ...] | None = None
    with_next: bool = False  # it counts when the next collective of all is complete


@dataclass(slots=True, eq=False)
class Deal(Effect[None]):
    """From now on items are dealt to the first so many learners alive; the others draw nothing.

    Synchronous strategies only, all alike, and with nothing drawn that is not settled.
    """

    num_learners: int


@dataclass(slots=True, eq=False)
class DealBlock(Effect[Block]):
    """Deal the next items of the epoch so that all learners have as much to do.

    As many items as have `num_frames` in all, or a little more (None: all that is left of the
    epoch, beyond which no block goes). With `speeds` by rank a faster learner gets more. `balanced`
    False: in turn, whatever their frames.
    Synchronous strategies only, all alike, and with nothing drawn that is not settled.
    """

    num_frames: int | None = None
    speeds: tuple[float, ...] | None = None
    balanced: bool = True


BoundaryKind: TypeAlias = Literal["pass", "meet", "attend", "look"]


@dataclass(slots=True, eq=False)
class Boundary(Effect[Verdict]):
    """Where the world may intervene: evaluate, checkpoint, stop.

    pass: go on at once unless something is due. meet: call all others together. attend: wait
    until somebody else does, or somebody is lost, and meet them. look: only say whether one that
    passes would go on at once.
    """

    state: Any
    kind: BoundaryKind = "pass"

    def describe(self) -> str:
        """Say whom it waits for."""
        return "others to call a meeting" if self.kind == "attend" else "boundary"
