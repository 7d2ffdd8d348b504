"""What a strategy sees of its own learner: a typed way to await effects, and its own rate.

Every method that must be awaited is an `async def`, so that Python itself warns of a forgotten
`await` and mypy refuses it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from hocket.core.accounts import Ticket
from hocket.core.codec import FLOAT32, Codec
from hocket.core.effects import (
    ANYONE,
    AllReduce,
    AllToAll,
    Boundary,
    Broadcast,
    Deal,
    Effect,
    Evaluate,
    Fork,
    Grad,
    Gradient,
    Group,
    Handle,
    Mean,
    MeanGradient,
    Message,
    Part,
    Recv,
    Scores,
    Send,
    Settle,
    Start,
    Verdict,
)
from hocket.core.flat import Flat, Layout
from hocket.core.numerics import finite
from hocket.core.optimizer import Optimizer

T = TypeVar("T")


class Learner:
    """One rank. Holds no state of the algorithm: that is the strategy's `State`."""

    def __init__(
        self,
        rank: int,
        size: int,
        *,
        layout: Layout,
        optimizer: Optimizer,
        rate: Callable[[], float],
        rng: random.Random,
        codec: Codec = FLOAT32,
        alive: Callable[[], tuple[int, ...]] | None = None,
        measure: Callable[[str, float], None] = lambda name, value: None,
        skip: Callable[[], None] | None = None,
    ) -> None:
        self.rank = rank
        self.size = size
        self.layout = layout
        self.optimizer = optimizer.fitted(layout)
        self.rng = rng
        self.codec = codec
        self._rate = rate
        self._alive = alive or (lambda: tuple(range(size)))
        self.measure = measure  # notes a figure of the method: its mean and maximum are logged
        self._skip = skip  # counts a gradient that is not finite; None: it is not looked at

    @property
    def lr(self) -> float:
        """The local rate now: schedule by committed frames, times the compensation.

        It may change inside a collective that sees a death: with fewer learners the compensation is
        another. A rule that needs the rate of the steps before must keep it. Under `hocket.attach`
        it is the rate of the user's optimizer, the largest if its groups have several.
        """
        return self._rate()

    @property
    def alive(self) -> tuple[int, ...]:
        """Who took part in the last collective of all; the same on every synchronous learner.

        A death since then is not in it yet.
        """
        return self._alive()

    def step_(
        self,
        params: Flat,
        grad: Grad,
        optimizer_state: Any,
        scale: float = 1.0,
        rule: Optimizer | None = None,
    ) -> None:
        """One optimizer step, at `scale` times the current rate. A dry gradient moves nothing.

        `rule`: a variant of the optimizer for this step, such as one with tighter limits.

        In lower precision one that is not finite is skipped and counted. A mean is the same
        on all learners, bit for bit, so all of them skip it or none.
        """
        if not grad.frames:
            return
        whole = grad.vector if grad.whole is None else grad.whole
        if self._skip is not None and not finite(whole):
            self._skip()
        else:
            (rule or self.optimizer).apply_(params, whole, optimizer_state, self.lr * scale)
        grad.spent = True

    async def gradient(self, params: Flat) -> Grad:
        """Draw one item and take its mean gradient at `params`."""
        return await Gradient(params)

    async def gradient_of_part(self, params: Flat, part: Part, ticket: Ticket | None) -> Grad:
        """Take the mean gradient of a part of an item: the first part draws it."""
        return await Gradient(params, part, ticket)

    async def mean_gradient(self, params: Flat) -> Grad:
        """Draw one item each; the frame-weighted mean gradient over all learners."""
        return await MeanGradient(params, self.codec)

    async def allreduce(
        self, x: Flat, weight: float | None = None, group: Group | None = None
    ) -> Mean:
        """Weighted mean over learners; by default weighted by frames since the last settlement."""
        return await AllReduce(x, weight, group)

    async def allreduce_(
        self, x: Flat, weight: float | None = None, group: Group | None = None
    ) -> Mean:
        """As `allreduce`; `x` itself becomes the mean, and is the answer's `value`."""
        return await AllReduce(x, weight, group, in_place=True)

    async def broadcast(self, x: Flat, root: int = 0, group: Group | None = None) -> Flat:
        """Return the root's vector."""
        return await Broadcast(x, root, group)

    async def all_to_all(self, stripes: list[Flat], group: Group | None = None) -> list[Flat]:
        """Exchange stripes: mine is s of everybody."""
        return await AllToAll(stripes, group)

    async def send(self, to: int, tag: str, payload: Any) -> None:
        """Hand a payload over; it is not ours any more."""
        await Send(to, tag, payload)

    async def recv(self, tag: str, source: int = ANYONE, timeout_s: float | None = None) -> Message:
        """Wait for the next message with this tag."""
        return await Recv(tag, source, timeout_s)

    async def fork(self, effect: Effect[T]) -> Handle[T]:
        """Begin an effect and go on; `await` the handle for its answer."""
        return await Fork(effect)

    async def start(self, service: Coroutine[Any, Any, None]) -> None:
        """Begin a second task of this learner."""
        await Start(service)

    async def evaluate(
        self, params: Flat, which: str = "dev", num_items: int | None = None
    ) -> Scores:
        """Score a model; all learners call it and take a slice each."""
        return await Evaluate(params, which, num_items)

    async def deal(self, num_learners: int) -> None:
        """Let only the first so many learners draw from now on."""
        await Deal(num_learners)

    async def commit(self, tickets: tuple[Ticket, ...] | None = None) -> None:
        """What was drawn has been learnt: the method's commit point."""
        await Settle("commit", tickets)

    async def discard(self, tickets: tuple[Ticket, ...] | None = None) -> None:
        """What was drawn is dropped, counted, and not drawn again."""
        await Settle("discard", tickets)

    async def give_back(self, tickets: tuple[Ticket, ...] | None = None) -> None:
        """What was drawn returns to the pool."""
        await Settle("return", tickets)

    async def boundary(self, state: Any) -> Verdict:
        """Let the world intervene, and ask whether to go on."""
        return await Boundary(state)
