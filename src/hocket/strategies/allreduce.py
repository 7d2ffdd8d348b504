"""Synchronous SGD: P learners, one gradient each, the mean of them for everybody.

    g_bar = sum_j n_j g_j(w; item kP+j) / sum_j n_j                                     (1)
    w(k+1) = w(k) - gamma * g_bar                                                       (2)

Reference: J. Chen, X. Pan, R. Monga, S. Bengio, R. Jozefowicz, "Revisiting distributed synchronous
SGD", ICLR workshop 2016; in speech, the baseline (SC-PSGD) of X. Cui et al., IEEE/ACM TASLP 2021.

| symbol | here             |                                             |
|--------|------------------|---------------------------------------------|
| P      | `me.size`        | learners                                    |
| g_j    | of each learner  | mean gradient over the n_j frames it drew   |
| g_bar  | `grad`           | the same on every learner                   |
| gamma  | `me.lr`          | derived from the sequential rate, gain 1/P  |

It equals sequential SGD with minibatches P times as large. Replicas stay identical, because all
apply the same mean to the same model.

*Codecs.* With `[codec]` the mean goes through the two exchanges of 1-bit SGD (F. Seide et al.,
Interspeech 2014; `hocket.codecs.coded`): every learner codes its gradient with what it has
not sent yet, the owner of a stripe codes the sum with what it has kept of earlier sums, and all use
what was decoded. Replicas stay identical, and what was ever applied is the sum of all gradients
less what is still kept (tested).

*Double buffering* (same paper). Every minibatch is divided in halves; while a learner computes on
one, the gradients of the half before are exchanged:

    g_bar(h-1) is exchanged while g_j(w(h); half h) is computed,   w(h+1) = w(h) - gamma g_bar(h-1)

so every gradient is applied half a minibatch late, and a minibatch makes two steps: gain 2/P.
After a loss the survivors exchange the half that waits as they would have. When a run is resumed
with other learners it is dropped: its item is dealt again.

Differences from the paper: no backup workers; the mean is weighted by frames, so that unequal items
count as they would in one large minibatch. AdaGrad after the exchange, as in 1-bit SGD, is an
optimizer (`optimizer.name = "adagrad"`).
Limits: every step waits for the slowest learner. Double buffering needs items that can be divided,
so it is not for a training loop of one's own.

When to use it: first, whenever learners are equally fast and the network is fast enough for one
gradient per minibatch. It has no parameters to tune, and in our runs it reached a lower loss with
large batches than the rings. A codec makes slower networks fast enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from hocket.core.accounts import Ticket
from hocket.core.effects import AllReduce, CodedMean, Grad, Mean
from hocket.core.flat import Flat
from hocket.core.learner import Learner
from hocket.core.optimizer import Optimizer
from hocket.core.strategy import Coded, State, Strategy

HALVES = 2  # of a minibatch, as published


@dataclass
class BufferedState(State):
    """With double buffering: the half whose gradient is not exchanged yet."""

    waiting: Flat
    frames: int = 0  # of this learner's part; it may be 0 while others have some
    tickets: tuple[Ticket, ...] = ()
    begun: bool = False  # there is a half to exchange


@dataclass(frozen=True)
class AllReduceSGD(Strategy[State]):
    """Synchronous SGD by allreduce of gradients."""

    double_buffering: bool = False  # exchange one half of a minibatch while computing on the next

    name: ClassVar[str] = "allreduce"
    paper: ClassVar[str] = "Chen et al., ICLR workshop 2016 (arXiv:1604.00981)"
    summary: ClassVar[str] = "synchronous SGD: the mean gradient of all learners, every minibatch"
    commits_when: ClassVar[str] = "the step is applied"
    synchronous: ClassVar[bool] = True
    codes: ClassVar[Coded | None] = "gradients"

    def gain(self, num_learners: int) -> float:
        """P minibatches make one step, or two half steps' worth of data make one each."""
        return (HALVES if self.double_buffering else 1) / num_learners

    def init(self, params: Flat, optimizer: Optimizer) -> State:
        """With double buffering nothing waits at first."""
        if not self.double_buffering:
            return super().init(params, optimizer)
        return BufferedState(params, optimizer.init(params), torch.zeros_like(params))

    def adopt(self, old: Sequence[State], model: Flat, rank: int) -> State:
        """Start from the saved model; a half that waits is dropped, as its item is dealt again."""
        state = super().adopt(old, model, rank)
        if not isinstance(state, BufferedState):
            return state
        return replace(state, frames=0, tickets=(), begun=False)

    async def run(self, me: Learner, state: State) -> State:
        """Mean gradient, step, commit."""
        if isinstance(state, BufferedState):
            return await self._run_buffered(me, state)
        while (verdict := await me.boundary(state)).go_on:
            if me.codes(verdict.progress.frames, state):
                grad = await coded_gradient(me, state)
            else:
                grad = await me.mean_gradient(state.params)  # eq. 1
            me.step_(state.params, grad, state.optimizer)  # eq. 2
            await me.commit()
        return state

    async def _run_buffered(self, me: Learner, state: BufferedState) -> BufferedState:
        """Exchange a half while computing on the next, step, commit what is complete."""
        while (verdict := await me.boundary(state)).go_on:
            ticket = None
            for half in range(HALVES):
                waiting = mean_of_waiting(me, state, verdict.progress.frames)
                exchange = await me.fork(waiting) if state.begun else None
                grad = await me.gradient_of_part(state.params, (half, HALVES), ticket)
                ticket = grad.tickets[0]
                if exchange is not None:
                    mean = await exchange
                    me.step_(state.params, as_gradient(mean), state.optimizer)
                if exchange is not None and half == 0:
                    await me.commit(state.tickets)  # the item before: the exchange vouches for it
                wait_for_(state, grad)
        return state


async def coded_gradient(me: Learner, state: State) -> Grad:
    """Draw one item each; the mean gradient over all learners, coded."""
    grad = await me.gradient(state.params)
    mean = await me.coded_mean(grad.vector, state, grad.frames)
    return replace(as_gradient(mean), tickets=grad.tickets)


def as_gradient(mean: Mean) -> Grad:
    """Return the mean of all learners as the gradient of one step."""
    return Grad(mean.value, int(mean.weight), 0.0, 0.0)


def mean_of_waiting(me: Learner, state: BufferedState, frames: int) -> CodedMean | AllReduce:
    """Return the exchange of the half that waits; its vector becomes the mean."""
    if me.codes(frames, state):
        return me.coded_mean(state.waiting, state, state.frames)
    return AllReduce(state.waiting, weight=state.frames, in_place=True)


def wait_for_(state: BufferedState, grad: Grad) -> None:
    """Let a half wait for its exchange."""
    state.waiting, state.tickets, state.begun = grad.vector, grad.tickets, True
    state.frames = grad.frames
