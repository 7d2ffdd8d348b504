"""The runtime of a training loop that is the user's own (`hocket.attach`).

Here the user's loop drives the strategy: whenever the strategy awaits a gradient, control returns
to the user's code, and `step()` hands the gradient in. Between two steps the strategy's forked
collectives go on in their thread; its services are advanced within `step()`.

There is no pool: the data are the user's. A learner that has left its loop answers with gradients
of 0 frames until all have left; every collective carries whether anybody is still at work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, Final

import torch
from torch import nn

from hocket.core.effects import (
    WHOLE,
    AllReduce,
    Boundary,
    Curvature,
    Deliver,
    Effect,
    Evaluate,
    Grad,
    Gradient,
    MeanGradient,
    Verdict,
)
from hocket.core.flat import Flat, Layout
from hocket.core.stage_effects import (
    Backward,
    Draw,
    Forward,
)
from hocket.core.strategy import State
from hocket.core.task import Item, Loss, Task
from hocket.data.pool import Pool
from hocket.errors import ContractError, WaitTimeoutError
from hocket.experiment import Experiment
from hocket.runtime.net.addresses import own_address
from hocket.runtime.net.exchange import Exchange
from hocket.runtime.net.store import Store
from hocket.runtime.real.connect import carrier
from hocket.runtime.real.faults import Fate
from hocket.runtime.real.loop_account import NO_DATA, LoopAccount, LoopContext, LoopLedger
from hocket.runtime.real.rank import RankRuntime
from hocket.runtime.shared.boundary import assembled, first_ones
from hocket.runtime.shared.boundary_effects import Gather
from hocket.runtime.shared.dispatch import Fiber, Handlers
from hocket.runtime.shared.worker import Worker, mean_buffers

LOOK_S: Final = 1.0  # how often to look at the steps of learners that have not left
IDLE_S: Final = 0.002  # the pause of a learner that has left, if its strategy does not wait


class UserLoop(Task):
    """Takes the place of a task: the model is the user's, and so are the data."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def build_model(self) -> nn.Module:
        """Return the user's model as it is."""
        return self._model

    def items(self, split: str) -> Sequence[Item]:
        """Return one item, which is never drawn: a pool must not be empty."""
        return [Item("the user's", 1)]

    def load(self, split: str, item: Item, epoch: int) -> Any:
        """Refuse: the data are the user's."""
        raise ContractError(NO_DATA)

    def loss(self, model: nn.Module, batch: Any) -> Loss:
        """Refuse: the user's loop computes the loss."""
        raise ContractError(NO_DATA)


class LoopRuntime(RankRuntime):
    """Runs one rank, a step at a time."""

    _context: LoopContext

    def __init__(
        self,
        experiment: Experiment,
        rank: int,
        store: Store | None,
        host: str,
        *,
        fate: Fate | None = None,
    ) -> None:
        on = next(experiment.task.build_model().parameters()).device  # where the user put it
        super().__init__(experiment, rank, on=on, fate=fate)
        self.steps_since_boundary = 0
        self._store = store
        self._wanted: Deliver | None = None  # where the next gradient goes
        self._ended: Any = None
        exchange = None if store is None else self._join_others(store, own_address(host), on)
        with torch.random.fork_rng(devices=[]):  # the user's random numbers are left alone
            worker = Worker(experiment.task, Pool(experiment.task, epochs=1, seed=0), 0, on=on)
        self._ledger = LoopLedger(rank)
        account = LoopAccount(experiment, worker.pool, rank, self._ledger)
        context = LoopContext(account, worker.new_state())
        self._serve(context, worker, exchange, lambda kind, began: None)
        initial = worker.initial if exchange is None else exchange.first_model(worker.initial)
        self.state = experiment.first_state(initial, worker.layout)

    def _join_others(self, store: Store, address: str, on: torch.device) -> Exchange:
        mesh = self._connect(store, address)
        vectors = carrier(self._experiment, self.rank, store, address, on)
        limit_s = self._experiment.options.timeout_s
        return Exchange(mesh, self.size, timeout_s=limit_s, vectors=vectors)

    def _own_handlers(self) -> Handlers:
        return {
            Gradient: self._want_gradient,
            MeanGradient: self._want_mean,
            Evaluate: self._has_no_data,
            Curvature: self._has_no_data,
            Draw: self._has_no_data,
            Forward: self._has_no_data,
            Backward: self._has_no_data,
        }

    # ------------------------------------------------------------------ what the user's loop calls

    @property
    def layout(self) -> Layout:
        """How the model lies in a flat vector."""
        return self._worker.layout

    @property
    def alive(self) -> tuple[int, ...]:
        """Who took part in the last collective."""
        return self._context.account.alive

    @property
    def frames(self) -> int:
        """Frames of this learner that are committed."""
        return self._ledger.committed_frames

    def start(self, state: State) -> None:
        """Begin, or begin again with another state, and go on to the first gradient."""
        self._close_fibers()
        self._services.clear()
        self._ready.clear()
        self._wanted = None
        self.state = state
        me = self._context.learner(self.layout)
        coroutine = self._experiment.strategy.run(me, state)
        self.main = self.spawn(self.rank, "main", coroutine, self._main_ended)
        self._pump()

    def step(self, gradient: Callable[[], Grad]) -> None:
        """Hand a gradient in, and go on until the next one is wanted."""
        self._answer(gradient())
        self._pump()

    def _answer(self, grad: Grad) -> None:
        if self._wanted is None:
            raise ContractError(
                f"strategy {self._experiment.strategy.name!r} has ended, but the loop goes on: it "
                "must loop `while (await me.boundary(state)).go_on:`"
            )
        deliver, self._wanted = self._wanted, None
        self.steps_since_boundary += 1
        ticket = self._ledger.hand_in(grad.frames)
        self._context.account.hand.compute(ticket, WHOLE)
        grad.tickets = (ticket,)
        books = self._context.account.books
        books.draws += 1
        self._fate.drawn(books.draws)
        deliver(grad, None)

    def leave(self) -> tuple[Flat, dict[str, torch.Tensor]]:
        """Answer the others until all have left; return the final model and its buffers."""
        self._context.agenda.stop_wanted = False
        if self._store is not None and not self._experiment.strategy.synchronous:
            self._store.add(f"left/{self.rank}", 1)  # others learn it from collectives
        watch = self._watch()
        while self._ended is None:
            if self._wanted is not None:
                if self.concurrent:
                    time.sleep(IDLE_S)
                    next(watch)
                self._answer(self._worker.dry())
            self._pump()
        finished: list[Any] = []
        self.spawn(self.rank, "main", self._final(), lambda v, e: finished.append((v, e)))
        while not finished:
            self.drain()
            if not finished:
                self._wait()
        value, error = finished[0]
        if error is not None:
            raise error
        return value  # type: ignore[no-any-return]

    def _watch(self) -> Iterator[None]:
        """Look at times whether learners that have not left still take steps; give up if not."""
        limit_s = self._experiment.options.timeout_s
        before, since, looked = {self.rank: 0}, time.monotonic(), 0.0
        while True:
            if self._store is not None and (now := time.monotonic()) - looked > LOOK_S:
                looked, busy = now, self._steps_at_work(self._store)
                if busy != before:
                    before, since = busy, now
                elif now - since > limit_s:
                    raise WaitTimeoutError(
                        f"rank {self.rank} has left its loop and waited {limit_s:g} s for ranks "
                        f"{sorted(busy)}, which took no step in that time: they are frozen, stuck "
                        "or slower than that. End them and the others finish, or raise timeout_s"
                    )
            yield

    def _steps_at_work(self, store: Store) -> dict[int, int]:
        """Return how many boundaries each learner that is still in its loop has passed."""
        living = set(range(self.size)) - self._messages.inbox.lost - {self.rank}
        return {r: store.add(f"steps/{r}", 0) for r in living if not store.add(f"left/{r}", 0)}

    async def _final(self) -> tuple[Flat, dict[str, torch.Tensor]]:
        """Return the model the strategy declares, the same on every learner."""
        strategy, mine = self._experiment.strategy, self._experiment.strategy.model(self.state)
        if strategy.evaluates == "parts":
            mine = await assembled(self.rank, self._experiment, self.state, self.layout)
        elif strategy.evaluates == "average":
            mine = (await AllReduce(mine, weight=1.0)).value
        elif strategy.evaluates == "root":
            mine = await first_ones(self._context.account, mine)
        own = {k: b.detach().clone() for k, b in self._worker.model.named_buffers()}
        buffers = mean_buffers(await Gather(own)) if own else {}
        await Gather(None)  # nobody closes its connections before all have the model
        return mine, buffers

    def close(self) -> None:
        """End the fibers and close the connections to the others."""
        self._close_fibers()
        self._disconnect(everybody_left=True)
        if self._store is not None:
            self._store.close()

    # ------------------------------------------------------------------ pumping

    def _pump(self) -> None:
        """Take in what has come, and advance until the strategy wants a gradient or has ended.

        Services run here and nowhere else: between two calls the thread is the user's.
        """
        while True:
            self.drain()
            if self._failure is not None:
                raise self._failure
            if self.concurrent and self._executors.take(0.0):
                continue
            if self._wanted is not None or self._ended is not None:
                return
            self._wait()

    def _main_ended(self, value: Any, error: BaseException | None) -> None:
        if error is not None:
            self._fail(None, error)
        else:
            self.state = self._ended = value

    # ------------------------------------------------------------------ the trampoline's questions

    def boundary(self, rank: int, effect: Boundary) -> Coroutine[Any, Any, Any]:
        """Return what happens at a boundary: stop once nobody is at work any more."""
        self.state = effect.state
        return self._at_boundary()

    async def _at_boundary(self) -> Verdict:
        self.steps_since_boundary = 0
        context = self._context
        go_on = context.agenda.stop_wanted
        if self._exchange is not None and self._experiment.strategy.synchronous:
            if context.anybody_at_work is None and context.account.books.draws:
                # No collective of all since the last boundary carried it: ask.
                await AllReduce(torch.zeros(1), weight=1.0)
            go_on = context.anybody_at_work is not False
            context.anybody_at_work = None
        elif self._store is not None:
            self._store.add(f"steps/{self.rank}", 1)
            living = set(range(self.size)) - self._messages.inbox.lost
            go_on = any(not self._store.add(f"left/{rank}", 0) for rank in living)
        return context.account.verdict(go_on)

    def _want_gradient(self, fiber: Fiber, effect: Gradient, deliver: Deliver) -> None:
        if effect.part != WHOLE:
            raise ContractError(
                f"strategy {self._experiment.strategy.name!r} divides minibatches, but "
                "here they are the loop's own: switch it off (strategy kaldi: first_parts = 1)"
            )
        self._want(effect.params, deliver)

    def _want_mean(self, fiber: Fiber, effect: MeanGradient, deliver: Deliver) -> None:
        self._want(effect.params, self._collectives.then_reduce(effect, deliver))

    def _want(self, params: Flat, deliver: Deliver) -> None:
        """Ask the user's loop for a gradient: it goes on until `step` hands the gradient in."""
        self.bind(params)
        self._wanted = deliver

    def _has_no_data(self, fiber: Fiber, effect: Effect[Any], deliver: Deliver) -> None:
        who = f"strategy {self._experiment.strategy.name!r}"
        raise ContractError(f"{who} awaits {effect.describe()}, but {NO_DATA}: use hocket.train")

    def bind(self, params: Flat) -> None:
        """Make the user's parameters views of a vector."""
        model = self._worker.model
        trained = [p for p in model.parameters() if p.requires_grad]
        for p, view in zip(trained, self.layout.views(params), strict=True):
            p.data = view
