"""The runtime of a training loop that is the user's own (`hocket.attach`).

The same strategy, turned inside out: whenever it awaits a gradient, the loop goes on in the user's
code, and `step()` hands the gradient in. Between two steps the strategy's forked collectives go on
in their thread; its services are advanced within `step()`.

There is no pool: the data are the user's. A learner that has left its loop answers with gradients
of 0 frames until all have left; whether anybody is still at work travels with every collective.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from hocket.core.accounts import Note, Outcome, Ticket
from hocket.core.effects import (
    WHOLE,
    AllReduce,
    Broadcast,
    Deliver,
    Effect,
    Evaluate,
    Grad,
    Gradient,
    MeanGradient,
    Recv,
    Send,
    Verdict,
)
from hocket.core.flat import Flat, Layout
from hocket.core.numerics import stable_seed
from hocket.core.strategy import State
from hocket.core.task import Item, Loss
from hocket.core.task import Task as Job
from hocket.data.pool import Pool
from hocket.errors import ContractError, PeerLostError, WaitTimeoutError
from hocket.experiment import Experiment
from hocket.runtime.net.exchange import Exchange
from hocket.runtime.net.store import Store, own_address
from hocket.runtime.real.collective_effects import Together
from hocket.runtime.real.connect import meet, messages_come
from hocket.runtime.real.executors import Jobs
from hocket.runtime.real.faults import Fate
from hocket.runtime.real.messages import Correspondence
from hocket.runtime.shared.account import Desk
from hocket.runtime.shared.boundary_effects import Gather
from hocket.runtime.shared.trampoline import Task, Trampoline
from hocket.runtime.shared.worker import Worker, WorkerState, mean_buffers

LOOK_S = 1.0  # between two looks at the steps of those who have not left
IDLE_S = 0.002  # between two looks of a learner that has left, if its strategy does not wait


class OwnLoop(Job):
    """Stands where a task would: the model is the user's, and so are the data."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def build_model(self) -> nn.Module:
        """Return the user's model as it is."""
        return self._model

    def items(self, split: str) -> Sequence[Item]:
        """Nothing is drawn from here."""
        return [Item("the user's", 1)]

    def load(self, split: str, item: Item, epoch: int) -> Any:
        """Nothing is drawn from here."""
        raise ContractError("hocket.attach has no data of its own")

    def loss(self, model: nn.Module, batch: Any) -> Loss:
        """Nothing is drawn from here."""
        raise ContractError("hocket.attach has no data of its own")


class LoopLedger:
    """The account of steps that were handed in; nothing is ever drawn again."""

    def __init__(self) -> None:
        self.committed_frames = self.discarded_frames = 0
        self.epoch = 0
        self._pending: dict[int, int] = {}
        self._drawn = 0

    @property
    def pending_frames(self) -> int:
        """Frames handed in and not settled."""
        return sum(self._pending.values())

    def draw(self, frames: int) -> Ticket:
        """Number a step."""
        self._drawn += 1
        self._pending[self._drawn] = frames
        return Ticket(0, self._drawn, frames)

    def settle(self, outcome: Outcome, tickets: tuple[Ticket, ...] | None) -> None:
        """Settle steps; one that another learner handed in only that one can count."""
        numbers = [t.index for t in tickets] if tickets is not None else list(self._pending)
        frames = sum(self._pending.pop(n, 0) for n in numbers)
        if outcome == "commit":
            self.committed_frames += frames
        else:
            self.discarded_frames += frames

    def refresh(self) -> None:
        """Nothing to look up."""

    def closed(self) -> bool:
        """Only the user knows."""
        return False


class LoopDesk(Desk):
    """A desk without a pool: it knows who lives and whether anybody is still at work."""

    def __init__(self, experiment: Experiment, rank: int, worker_state: WorkerState) -> None:
        pool = Pool(experiment.task, epochs=1, seed=0)
        super().__init__(experiment, pool, rank, LoopLedger(), worker_state, lambda event: None)  # type: ignore[arg-type]
        self.stop_wanted = True  # rides along with collectives; here it means: still at work
        self.anybody_at_work: bool | None = None  # not heard since the last boundary

    def rate(self) -> float:
        """Return the factor on the user's own rate."""
        return self.experiment.lr_factor(len(self.alive))

    def settle(self, outcome: Outcome, tickets: tuple[Ticket, ...] | None) -> None:
        """Enter a settlement."""
        self.ledger.settle(outcome, tickets)

    def took_part(self, note: Note) -> None:
        """Enter who took part, and whether any of them is still at work."""
        self.alive = note.members
        if note.rode:
            self.anybody_at_work = note.stop


class LoopRuntime(Trampoline):
    """Runs one rank, a step at a time."""

    def __init__(
        self,
        experiment: Experiment,
        rank: int,
        store: Store | None,
        host: str,
        *,
        fate: Fate | None = None,
    ) -> None:
        super().__init__()
        self.rank = rank
        self.size = experiment.options.learners
        self.main: Task | None = None
        self.steps_since_boundary = 0
        self._experiment = experiment
        self._store = store
        self._services: list[Task] = []
        self._failure: BaseException | None = None
        self._wanted: tuple[Effect[Any], Deliver] | None = None
        self._ended: Any = None
        self._jobs = Jobs(experiment.options.threads, lambda: self.concurrent)
        self._letters = Correspondence(experiment, rank, self._jobs)
        self._fate = fate or Fate((), rank)
        self._exchange = self._meet(store, own_address(host)) if store is not None else None
        with torch.random.fork_rng(devices=[]):  # the user's random numbers are left alone
            pool = Pool(experiment.task, epochs=1, seed=0)
            on = next(experiment.task.build_model().parameters()).device  # where the user put it
            self._worker = Worker(experiment.task, pool, 0, on=on)
        self._desk = LoopDesk(experiment, rank, self._worker.new_state())
        self._desk.rng = random.Random(stable_seed(experiment.options.seed, "learner", rank))
        self._together = Together(
            self._desk, self._worker, self._exchange, self._jobs, lambda kind, began: None
        )
        self._together.issuing = self._fate.issuing
        initial = self._worker.initial
        if self._exchange is not None:
            initial = self._exchange.first_model(initial)
        self.state = experiment.strategy.init(initial, experiment.optimizer)

    def _meet(self, store: Store, address: str) -> Exchange:
        self.concurrent = messages_come(self._experiment)
        mesh = meet(
            self._experiment, self.rank, store, address, self._letters, self._fate, self._fail
        )
        return Exchange(mesh, self.size, timeout_s=self._experiment.options.timeout_s)

    # ------------------------------------------------------------------ what the user's loop calls

    @property
    def layout(self) -> Layout:
        """How the model lies in a flat vector."""
        return self._worker.layout

    @property
    def alive(self) -> tuple[int, ...]:
        """Who took part in the last collective."""
        return self._desk.alive

    @property
    def frames(self) -> int:
        """Frames of this learner that are committed."""
        return self._desk.ledger.committed_frames

    def start(self, state: State) -> None:
        """Begin (anew, with another state), and go on to the first gradient."""
        for task in ([self.main] if self.main else []) + self._services:
            task.coroutine.close()
        self._services, self._wanted, self._ready = [], None, type(self._ready)()
        self.state = state
        me = self._desk.learner(self.layout)
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
        effect, deliver = self._wanted
        self._wanted = None
        self.steps_since_boundary += 1
        grad.tickets = (self._desk.ledger.draw(grad.frames),)  # type: ignore[call-arg]
        self._desk.books.draws += 1
        self._fate.drawn(self._desk.books.draws)
        if isinstance(effect, MeanGradient):
            self._together.then_reduce(effect, deliver)(grad, None)
        else:
            deliver(grad, None)

    def leave(self) -> tuple[Flat, dict[str, torch.Tensor]]:
        """Answer the others until all have left; return the final model and its buffers."""
        self._desk.stop_wanted = False
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
        """Look now and then whether those who have not left still take steps; give up if not."""
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
        """Return how many boundaries those have passed who are still in their loops."""
        living = set(range(self.size)) - self._letters.inbox.lost - {self.rank}
        return {r: store.add(f"steps/{r}", 0) for r in living if not store.add(f"left/{r}", 0)}

    async def _final(self) -> tuple[Flat, dict[str, torch.Tensor]]:
        """Return the model the strategy declares, the same on every learner."""
        strategy, mine = self._experiment.strategy, self._experiment.strategy.model(self.state)
        if strategy.evaluates == "average":
            mine = (await AllReduce(mine, weight=1.0)).value
        elif strategy.evaluates == "root":
            mine = await Broadcast(mine, root=self._desk.alive[0])
        own = {k: b.detach().clone() for k, b in self._worker.model.named_buffers()}
        buffers = mean_buffers(await Gather(own)) if own else {}
        await Gather(None)  # nobody closes its connections before all have the model
        return mine, buffers

    def close(self) -> None:
        """Let go of the others."""
        for task in ([self.main] if self.main else []) + self._services:
            task.coroutine.close()
        self._jobs.close()
        self._letters.close()
        if self._exchange is not None:
            self._exchange.close()

    # ------------------------------------------------------------------ pumping

    def _pump(self) -> None:
        """Take in what has come, and advance until the main task wants a gradient or has ended.

        Services run here and nowhere else: between two calls the thread is the user's.
        """
        while True:
            self.drain()
            if self._failure is not None:
                raise self._failure
            if self.concurrent and self._jobs.take(0.0):
                continue
            if self._wanted is not None or self._ended is not None:
                return
            self._wait()

    def _wait(self) -> None:
        self._letters.wait(self._together.attend)

    def _fail(self, value: Any, error: BaseException | None) -> None:
        self._failure = self._failure or error

    def _main_ended(self, value: Any, error: BaseException | None) -> None:
        if error is not None:
            self._failure = self._failure or error
        else:
            self.state = self._ended = value

    def service_ended(self, value: Any, error: BaseException | None) -> None:
        """Take note if a service failed."""
        if error is not None and not isinstance(error, PeerLostError):
            self._failure = self._failure or error

    def started(self, service: Task) -> None:
        """Remember a service, to end it."""
        self._services.append(service)

    # ------------------------------------------------------------------ the trampoline's questions

    def desk(self, rank: int) -> Desk:
        """Return the only desk there is."""
        return self._desk

    async def _boundary(self) -> Verdict:
        self.steps_since_boundary = 0
        go_on = self._desk.stop_wanted
        if self._exchange is not None and self._experiment.strategy.synchronous:
            if self._desk.anybody_at_work is None and self._desk.books.draws:
                # No collective of all since the last boundary carried the news: ask.
                await AllReduce(torch.zeros(1), weight=1.0)
            go_on = self._desk.anybody_at_work is not False
            self._desk.anybody_at_work = None
        elif self._store is not None:
            self._store.add(f"steps/{self.rank}", 1)
            living = set(range(self.size)) - self._letters.inbox.lost
            go_on = any(not self._store.add(f"left/{rank}", 0) for rank in living)
        return self._desk.verdict(go_on)

    def boundary(self, rank: int, state: Any) -> Coroutine[Any, Any, Any]:
        """Return what happens at a boundary: stop once nobody is at work any more."""
        self.state = state
        return self._boundary()

    def begin(self, task: Task, effect: Effect[Any], deliver: Deliver) -> None:
        """Begin an effect of any kind; a gradient is the user's to make."""
        if isinstance(effect, Gradient | MeanGradient):
            if getattr(effect, "part", WHOLE) != WHOLE:
                raise ContractError(
                    f"strategy {self._experiment.strategy.name!r} divides minibatches, which are "
                    "the loop's own here: do without (strategy kaldi: first_parts = 1)"
                )
            self.bind(effect.params)
            self._wanted = effect, deliver
        elif isinstance(effect, Send):
            self._desk.books.bytes_sent += self._letters.send(effect, deliver)
        elif isinstance(effect, Recv):
            self._letters.receive(effect, deliver, limited=task.name != "service")
        elif isinstance(effect, Evaluate):
            raise ContractError(
                f"strategy {self._experiment.strategy.name!r} evaluates its model, but "
                "hocket.attach has no held-out data: use hocket.train"
            )
        else:
            self._together.begin(effect, deliver)

    def bind(self, params: Flat) -> None:
        """Make the user's parameters views of a vector."""
        model = self._worker.model
        trained = [p for p in model.parameters() if p.requires_grad]
        for p, view in zip(trained, self.layout.views(params), strict=True):
            p.data = view
