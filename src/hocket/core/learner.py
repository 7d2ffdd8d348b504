"""What a strategy sees of its own learner: a typed way to await effects, and its own rate.

Every method that must be awaited is an `async def`, so that Python itself warns of a forgotten
`await` and mypy refuses it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

import torch

from hocket.core.accounts import Ticket
from hocket.core.codec import FLOAT32, Codec, encode_of_
from hocket.core.effects import (
    ANYONE,
    WHOLE,
    AllReduce,
    AllToAll,
    Block,
    Boundary,
    Broadcast,
    CodedMean,
    Curvature,
    Deal,
    DealBlock,
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
    Product,
    Recv,
    Scores,
    Send,
    Settle,
    Spend,
    Start,
    Verdict,
)
from hocket.core.flat import Flat, Layout
from hocket.core.numerics import finite
from hocket.core.optimizer import Optimizer
from hocket.core.stage_effects import (
    Backward,
    Draw,
    Forward,
    Passed,
    Returned,
)
from hocket.core.strategy import State

T = TypeVar("T")


class Rate(Protocol):
    """The local learning rate now: at the strategy's gain, or at that of a phase of its own."""

    def __call__(self, gain: float | None = None) -> float:
        """Return the rate; `gain`: of the phase, if it is not the strategy's."""
        ...


class Learner:
    """One rank. Holds no state of the algorithm: that is the strategy's `State`."""

    def __init__(
        self,
        rank: int,
        size: int,
        *,
        layout: Layout,
        optimizer: Optimizer,
        rate: Rate,
        rng: random.Random,
        codec: Codec = FLOAT32,
        alive: Callable[[], tuple[int, ...]] | None = None,
        measure: Callable[[str, float], None] = lambda name, value: None,
        count: Callable[[str, int], None] = lambda name, value: None,
        queued: Callable[[str], int] = lambda tag: 0,
        epoch_frames: int = 0,
        tell: Callable[[str], None] = lambda text: None,
        speed: Callable[[], float] = lambda: 0.0,
        skip: Callable[[], None] | None = None,
        place: range | None = None,
    ) -> None:
        self.rank = rank
        self.size = size  # learners; ranks from here on attend to them
        self.layout = layout
        self.place = range(layout.size) if place is None else place  # in the whole model
        self.optimizer = optimizer.fitted(layout)
        self.rng = rng
        self.codec = codec
        self.coder = codec.fitted(layout)  # None: vectors travel as they are
        self._rate = rate
        self._alive = alive or (lambda: tuple(range(size)))
        self.measure = measure  # notes a figure of the method: its mean and maximum are logged
        self.count = count  # notes a whole number of the method: its histogram is logged
        self.queued = queued  # messages with a tag that have arrived and are not received
        self.epoch_frames = epoch_frames  # of one pass over the pool
        self.tell = tell  # shows, now, what the method is doing: for the display only
        self._speed = speed
        self._skip = skip  # counts a gradient that is not finite; None: it is not looked at

    @property
    def lr(self) -> float:
        """The local rate now: schedule by committed frames, times the compensation.

        It may change inside a collective that sees a death: with fewer learners the compensation is
        another. A rule that needs the rate of the steps before must keep it. Under `hocket.attach`
        it is the rate of the user's optimizer, the largest if its groups have several.
        """
        return self._rate()

    def lr_at(self, gain: float) -> float:
        """The local rate of a phase that has another gain than the strategy declares.

        A warm start by plain averages, say, in a method whose momentum makes up for them later.
        """
        return self._rate(gain)

    @property
    def speed(self) -> float:
        """Frames that this learner takes gradients on in a second of computing, as measured.

        0 before its first. For dealing items only: in real processes no two runs measure the same.
        """
        return self._speed()

    @property
    def attends(self) -> bool:
        """True of a rank that is no learner: it draws nothing and serves the others."""
        return self.rank >= self.size

    @property
    def alive(self) -> tuple[int, ...]:
        """The learners in the last collective of all; the same on every synchronous learner.

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
        lr: float | None = None,
    ) -> None:
        """One optimizer step, at `scale` times the current rate. A dry gradient moves nothing.

        `rule`: a variant of the optimizer for this step, such as one with tighter limits. `lr`:
        another rate than this learner's own, such as one that was sent to it.

        In lower precision one that is not finite is skipped and counted. A mean is the same
        on all learners, bit for bit, so all of them skip it or none.
        """
        if not grad.frames:
            return
        whole = grad.vector if grad.whole is None else grad.whole
        if self._skip is not None and not finite(whole):
            self._skip()
        else:
            rate = self.lr if lr is None else lr
            (rule or self.optimizer).apply_(params, whole, optimizer_state, rate * scale)
        grad.spent = True

    async def gradient(self, params: Flat) -> Grad:
        """Draw one item and take its mean gradient at `params`."""
        return await Gradient(params)

    async def gradient_of_part(self, params: Flat, part: Part, ticket: Ticket | None) -> Grad:
        """Take the mean gradient of a part of an item: the first part draws it."""
        return await Gradient(params, part, ticket)

    async def curvature(
        self, params: Flat, direction: Flat, tickets: tuple[Ticket, ...]
    ) -> Product:
        """Take this learner's part of a Gauss-Newton product, on items drawn before."""
        return await Curvature(params, direction, tickets)

    async def draw(self) -> Ticket:
        """Draw one item, to go through the stages of a model."""
        return await Draw()

    async def forward(
        self, params: Flat, ticket: Ticket, x: torch.Tensor | None, part: Part = WHOLE
    ) -> Passed:
        """Let an item go through this rank's stage of the model."""
        return await Forward(params, ticket, x, part)

    async def backward(
        self,
        params: Flat,
        ticket: Ticket,
        dy: torch.Tensor | None,
        sums: tuple[int, float, float],
        part: Part = WHOLE,
    ) -> Returned:
        """Let an item go back through this rank's stage: its gradient."""
        return await Backward(params, ticket, dy, sums, part)

    async def mean_gradient(self, params: Flat) -> Grad:
        """Draw one item each; the frame-weighted mean gradient over all learners."""
        return await MeanGradient(params)

    def codes(self, frames: int, state: State) -> bool:
        """True if what travels is coded once all have learnt so many frames.

        Alone nothing is, but what learners of an earlier run have kept is delivered first.
        """
        if self.coder is None or frames < self.codec.starts_at:
            return False
        return self.size > 1 or (state.memory is not None and state.memory.keeps)

    def coded_mean(self, x: Flat, state: State, weight: float | None = None) -> CodedMean:
        """Return the effect: the mean over all learners, coded, into `x`.

        In lower precision a vector that is not finite is skipped and counted: this learner then
        contributes nothing, and what it has kept stays as it was.
        """
        assert self.coder is not None
        if self._skipped_(x):
            weight = 0.0
        return CodedMean(x, self.coder, state.memory, weight)

    def coded_push(
        self, x: Flat, place: range, state: State, weight: float, share: float = 1.0
    ) -> torch.Tensor:
        """Return what goes to the server of a range; what it does not say stays with `state`.

        `share` of what was kept goes along: `state.memory.share_` gives it, once for all ranges.
        In lower precision a part that is not finite is skipped and counted: what was kept goes.
        """
        assert self.coder is not None
        self._skipped_(x)
        memory, stripe = state.memory, self.coder.stripe(place)
        unsent = None if memory is None else memory.unsent[stripe.place]
        return encode_of_(f"rank {self.rank}", self.coder, x, unsent, stripe, weight, share)

    def _skipped_(self, x: Flat) -> bool:
        """In lower precision: count a vector that is not finite, and make it zero."""
        if self._skip is None or finite(x):
            return False
        self._skip()
        x.zero_()
        return True

    def decoded_push(self, code: torch.Tensor, place: range, weight: float) -> Flat:
        """Return what was pushed for a range, per frame."""
        assert self.coder is not None
        vector = torch.zeros(len(place), device=code.device)
        self.coder.decode_(code, self.coder.stripe(place), vector, 1.0 / weight, add=False)
        return vector

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

    async def deal_block(
        self,
        num_frames: int | None = None,
        speeds: tuple[float, ...] | None = None,
        *,
        balanced: bool = True,
    ) -> Block:
        """Deal the next items, as much work for each learner; return how many draws they are."""
        return await DealBlock(num_frames, speeds, balanced)

    async def speeds(self) -> tuple[float, ...] | None:
        """Return everybody's measured speed, the same on all learners; None: not all are known."""
        table = torch.zeros(self.size)
        table[self.rank] = self.speed
        mean = await AllReduce(table, weight=1.0, in_place=True)
        known = (mean.value * mean.contributors).tolist()
        slowest = min(known[rank] for rank in self.alive)
        if slowest <= 0.0:
            return None
        return tuple(max(speed, slowest) for speed in known)  # those of the lost are 0

    async def commit(self, tickets: tuple[Ticket, ...] | None = None) -> None:
        """What was drawn has been learnt: the method's commit point."""
        await Settle("commit", tickets)

    async def commit_with_next(self, tickets: tuple[Ticket, ...] | None = None) -> None:
        """As `commit`; it counts when the next collective of all is complete.

        For a synchronous method whose collective is under way while it draws: that one says nothing
        about who has computed what was drawn; the next one does.
        """
        await Settle("commit", tickets, with_next=True)

    async def discard(self, tickets: tuple[Ticket, ...] | None = None) -> None:
        """What was drawn is dropped, counted, and not drawn again."""
        await Settle("discard", tickets)

    async def give_back(self, tickets: tuple[Ticket, ...] | None = None) -> None:
        """What was drawn returns to the pool."""
        await Settle("return", tickets)

    async def spend(self, num_values: int) -> None:
        """Let the simulator charge arithmetic on so many values."""
        await Spend(num_values)

    async def boundary(self, state: Any) -> Verdict:
        """Let the world intervene, and ask whether to go on."""
        return await Boundary(state)

    async def look(self, state: Any) -> bool:
        """Say whether a boundary would go on at once: nobody needs a quiet point yet."""
        return (await Boundary(state, "look")).go_on

    async def meet(self, state: Any) -> Verdict:
        """A boundary to which all others are called: asynchronous strategies only."""
        return await Boundary(state, "meet")

    async def attend(self, state: Any) -> Verdict:
        """A boundary that waits until another rank calls a meeting, or one is lost.

        Of ranks that draw nothing, or not yet: nobody waits for them, and they wait for nobody.
        """
        return await Boundary(state, "attend")
