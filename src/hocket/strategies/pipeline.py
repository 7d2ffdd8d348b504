"""Pipelined back-propagation: each rank holds some layers, and works on another minibatch.

    stage s:  y_s(n) = f_s(y_(s-1)(n); w_s),  of minibatch n, on its way up                 (1)
              g_s(m), dy_(s-1)(m) = backward of f_s for minibatch m = n - delay(s)          (2)
              w_s <- w_s - lr g_s(m), at once                                               (3)
    delay(s) = 2 (S - s) minibatches                                                        (4)

Reference: X. Chen, A. Eversole, G. Li, D. Yu, F. Seide, "Pipelined back-propagation for
context-dependent deep neural networks", Interspeech 2012.

| symbol      | here                  |                                                        |
|-------------|-----------------------|--------------------------------------------------------|
| S, s        | `stages`, rank + 1    | consecutive parts of the model, the lowest one first   |
| f_s, w_s    | `me.forward`, `state.params` | the layers of a stage, and their parameters     |
| y_s, dy_s   | `out`, `dx`           | what goes up to the next stage, and what comes back    |
| delay(s)    | `delay`               | steps between a minibatch's forward and its own step   |
| n - m       | `queue`               | minibatches under way at a stage                       |
| lr          | `me.lr`               | of the first stage, when it drew the minibatch         |

Every stage alternates: one minibatch forward, an older one backward. When the top stage works on
minibatch n, the lowest one is already S - 1 minibatches ahead, and it gets the gradient of n as
many later. So all stages compute all the time, at the price of gradients that are late: of the
lowest layers by 2 (S - 1) minibatches, of the top one by none.

*Weights.* `as_they_are` (the paper's): backward uses the weights of its own time, while the
activations are those of the forward. `stashed` (PipeDream): it uses those of the forward, of which
a stage keeps a copy for every minibatch under way; then g_s is the gradient of a model that was.

*Window.* So many minibatches are under way at the lowest stage, delay + 1 of them; 2 S - 1 by
default. With S of them (PipeDream's 1F1B) delays are half as long, and a stage may have to wait for
what travels. With 1, stages take turns.

*Flush* (GPipe): all stages wait until a minibatch is back before the next one is begun. Nothing is
late, the step is that of SGD, and the stages idle (S - 1) / (M + S - 1) of the time when a
minibatch is cut into M `micro_batches`.

At a quiet point the pipeline runs empty. The schedule depends on nothing but counts: speeds cannot
change the result.

Differences from the paper: a minibatch is one message between two stages, and there is no copy that
is shared between devices; its softmax layer, striped over several of them, is one stage's here.
Limits: the model is a sequence of layers. Clipping needs the whole gradient, which nobody has; the
loss of a stage ends the run. A minibatch is forgotten by the rate's schedule as long as it is under
way. Dropout masks differ from those of one learner.

When to use it: when the model does not fit one device, or its gradients are too large for the
link: what travels is one layer's activations. With up to 4 stages, small minibatches and a rate
below the highest that sequential SGD bears; else use `allreduce` or `kstep` on whole models.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, TypeAlias

from hocket.core.accounts import Ticket
from hocket.core.effects import Grad, Message, Part
from hocket.core.flat import Flat
from hocket.core.learner import Learner
from hocket.core.optimizer import Optimizer, memory_of
from hocket.core.strategy import Extent, InStages, State
from hocket.errors import LearnerFailedError, PeerLostError, require

UP, DOWN = "forward", "backward"  # tags of what goes from stage to stage


@dataclass
class StageState(State):
    """One stage: its parameters, and where they begin in the whole model."""

    begins: int = 0


@dataclass
class UnderWay:
    """A minibatch, or a part of one, that has gone up and not come back."""

    ticket: Ticket
    part: Part
    lr: float
    params: Flat  # what backward is to use
    steps: int  # that the stage had made when it went up
    sums: tuple[int, float, float]  # of the loss; the last stage has them

    @property
    def completes(self) -> bool:
        """True if a step follows: it is the minibatch's last part."""
        which, of = self.part
        return which + 1 == of


@dataclass
class StageQueue:
    """What is under way at a stage, the oldest first, and the gradient of the parts that are back.

    It is empty at every quiet point, so no checkpoint needs it.
    """

    under_way: deque[UnderWay]
    steps: int = 0
    sum: Flat | None = None


Weights: TypeAlias = Literal["as_they_are", "stashed"]


@dataclass(frozen=True)
class Pipeline(InStages[StageState]):
    """Forward of one minibatch, backward of an older one."""

    weights: Weights = "as_they_are"  # of backward: those of now, or those of the forward
    window: int | None = None  # minibatches under way at the lowest stage. None: 2 stages - 1
    flush: bool = False  # each minibatch is back before the next one begins: GPipe, no delay
    micro_batches: int = 1  # with flush: parts of a minibatch that follow each other

    name: ClassVar[str] = "pipeline"
    paper: ClassVar[str] = "Chen, Eversole, Li, Yu, Seide, Interspeech 2012"
    summary: ClassVar[str] = "layers on different ranks, each working on another minibatch"
    uncoded_because: ClassVar[str] = (
        "what travels is activations and their derivatives, not gradients of parameters."
    )
    commits_when: ClassVar[str] = "the lowest stage has made its step"
    synchronous: ClassVar[bool] = False
    in_fixed_order: ClassVar[bool] = True
    attends_by: ClassVar[str] = "held a stage of the model"
    takes_nobody_in_because: ClassVar[str] = (
        "its ranks are the stages of one model; resume it with other strategy.stages"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.weights in ("as_they_are", "stashed"),
            f"strategy.weights must be 'as_they_are' or 'stashed', not {self.weights!r}",
        )
        require(
            self.window is None or self.window >= 1,
            f"strategy.window must be at least 1, not {self.window}",
        )
        require(
            self.micro_batches >= 1,
            f"strategy.micro_batches must be at least 1, not {self.micro_batches}",
        )
        require(
            self.flush or self.micro_batches == 1,
            "strategy.micro_batches has no effect without strategy.flush = true: use smaller "
            "minibatches, which have the same effect there",
        )
        require(
            not (self.flush and self.window is not None),
            "strategy.window has no effect with strategy.flush = true: all parts of one minibatch "
            "are under way, and of no other; leave it out",
        )
        require(
            self.stages > 1 or self.window in (None, 1),
            f"strategy.window = {self.window} has no effect with one stage; leave it out",
        )
        require(
            self.weights == "as_they_are" or any(map(self.delay, range(self.stages))),
            "strategy.weights = 'stashed' has no effect where no step is made between a "
            "minibatch's forward and its backward: leave it out",
        )

    def gain(self, num_learners: int) -> float:
        """Every gradient is applied in full."""
        return 1.0

    def check_optimizer(self, optimizer: Optimizer) -> None:
        """Clipping needs all stages' gradients."""
        require(
            optimizer.clip_norm is None or self.stages == 1,
            "optimizer.clip_norm needs the norm of the whole gradient, of which every stage has a "
            "part, at another time: leave it out, or use stages = 1",
        )

    def delay(self, rank: int) -> int:
        """Return how many steps a stage makes between a minibatch's forward and its step."""
        if self.flush or self.stages == 1:
            return 0
        window = 2 * self.stages - 1 if self.window is None else self.window
        return (window - 1) * (self.stages - 1 - rank) // (self.stages - 1)

    def remarks(self, extent: Extent) -> list[str]:
        """Say how late gradients are."""
        delays = [self.delay(rank) for rank in range(self.stages)]
        if not any(delays):
            return []
        listed = ", ".join(f"{late} (stage {n})" for n, late in enumerate(delays, 1))
        return [f"pipeline: gradients are late by {listed} minibatches"]

    # ------------------------------------------------------------------ state

    def init(self, params: Flat, optimizer: Optimizer) -> StageState:
        """The stage's own parameters."""
        return StageState(params, optimizer.init(params))

    def still_fits(self, state: StageState, place: range) -> bool:
        """True if it is of the same layers."""
        return range(state.begins, state.begins + state.params.numel()) == place

    def adopt(self, old: Sequence[StageState], model: Flat, rank: int) -> StageState:
        """Begin from the saved model; what optimizers remember is cut anew in `begin_`."""
        return StageState(model.clone(), [(one.optimizer, one.params.numel()) for one in old])

    def begin_(self, me: Learner, state: StageState) -> None:
        """Take one's own part of what the stages of an earlier run remembered."""
        state.begins = me.place.start
        if isinstance(state.optimizer, list):
            state.optimizer = memory_of(me.optimizer, state.optimizer, state.params, me.place)

    # ------------------------------------------------------------------ the stages

    async def run(self, me: Learner, state: StageState) -> StageState:
        """Feed the pipeline, or be a stage of it."""
        self.begin_(me, state)
        if me.attends:
            await me.start(self.serve(me, state))
            while (await me.attend(state)).go_on:
                pass
            return state
        while (await me.boundary(state)).go_on:
            await self.feed(me, state)
        return state

    async def feed(self, me: Learner, state: StageState) -> None:
        """The lowest stage: draw until a quiet point is needed, then let the pipeline run empty."""
        queue = StageQueue(deque())
        while await me.look(state):
            ticket = await me.draw()
            if ticket.dry:
                break
            parts = min(self.micro_batches, ticket.frames)
            for which in range(parts):
                await self.go_up(me, state, queue, (ticket, which, parts, me.lr, None))
        if me.rank + 1 < self.stages:
            await me.send(me.rank + 1, UP, None)
        await self.come_back(me, state, queue, 0)

    async def serve(self, me: Learner, state: StageState) -> None:
        """Every other stage: take what comes up; None: nothing more until the next quiet point."""
        queue = StageQueue(deque())
        while True:
            # While nothing is under way a neighbour may leave: the run may be over for it.
            idle = not queue.under_way
            source = me.rank - 1
            message = await (me.recv(UP, source) if idle else self.received(me, UP, source))
            what = message.payload
            if what is not None:
                await self.go_up(me, state, queue, what)
                continue
            if me.rank + 1 < self.stages:
                await me.send(me.rank + 1, UP, None)
            await self.come_back(me, state, queue, 0)

    async def go_up(
        self, me: Learner, state: StageState, queue: StageQueue, what: tuple[Any, ...]
    ) -> None:
        """Forward of a minibatch, or a part of it, and backward of what is due by then."""
        ticket, which, of, lr, x = what
        part, delay = (which, of), self.delay(me.rank)
        stash = self.weights == "stashed" and delay > 0
        params = state.params.clone() if stash else state.params
        passed = await me.forward(params, ticket, x, part)  # eq. 1
        if me.rank + 1 < self.stages:
            await me.send(me.rank + 1, UP, (ticket, which, of, lr, passed.out))
        one = UnderWay(ticket, part, lr, params, queue.steps, passed.sums)
        queue.under_way.append(one)
        if not self.flush:
            await self.come_back(me, state, queue, delay)
        elif one.completes or me.rank + 1 == self.stages:
            await self.come_back(me, state, queue, 0)

    async def come_back(self, me: Learner, state: StageState, queue: StageQueue, left: int) -> None:
        """Backward of the oldest, until so many are left under way."""
        while len(queue.under_way) > left:
            one = queue.under_way.popleft()
            sums, dy = one.sums, None
            if me.rank + 1 < self.stages:
                sums, dy = (await self.received(me, DOWN, me.rank + 1)).payload
            back = await me.backward(one.params, one.ticket, dy, sums, one.part)  # eq. 2
            if me.rank:
                await me.send(me.rank - 1, DOWN, (sums, back.dx))
            grad = add_(queue, back.grad, one)
            if one.completes:
                me.step_(state.params, grad, state.optimizer, lr=one.lr)  # eq. 3
                me.measure(f"delay_stage_{me.rank + 1}", float(queue.steps - one.steps))
                queue.steps += 1
                del back, grad  # else the next backward would have memory for another one
                if not me.rank:
                    await me.commit((one.ticket,))

    async def received(self, me: Learner, tag: str, source: int) -> Message:
        """Return the next message from a neighbour; without it the model is not whole."""
        try:
            return await me.recv(tag, source=source)
        except PeerLostError as error:
            raise LearnerFailedError(
                f"rank {source} is lost, and with it stage {source + 1} of the model (strategy "
                "pipeline): go on from the last checkpoint with --resume"
            ) from error


def add_(queue: StageQueue, grad: Grad, one: UnderWay) -> Grad:
    """Return the gradient of all parts that are back; each is a part of the minibatch's mean."""
    if one.part[1] == 1:
        return grad
    if queue.sum is None:
        queue.sum = grad.vector
    else:
        whole = grad.part(range(queue.sum.numel()))
        for start, piece in whole.pieces:
            queue.sum[start : start + piece.numel()].add_(piece)
    added = replace(grad, whole=queue.sum, frames=one.ticket.frames)
    if one.completes:
        queue.sum = None
    return added
