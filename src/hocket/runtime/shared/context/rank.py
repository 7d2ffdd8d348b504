"""All that the runtime keeps for one rank, in either world.

Each part knows one thing. The account knows who is alive and what was settled, the guard whether
the loss is too high, the agenda what is due, and the reporter what goes into the record. The
context tells them what happens.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

from hocket.core.accounts import NOTHING, Note, Piggyback, Tally, Ticket
from hocket.core.effects import (
    AllReduce,
    CodedMean,
    Grad,
    Gradient,
    Group,
    Settle,
)
from hocket.core.flat import Layout
from hocket.core.learner import Learner
from hocket.core.numerics import stable_seed
from hocket.core.stage_effects import (
    Backward,
)
from hocket.errors import DivergedError
from hocket.runtime.shared.context.account import Account
from hocket.runtime.shared.context.agenda import Agenda
from hocket.runtime.shared.context.guard import Guard
from hocket.runtime.shared.context.reporter import Report, Reporter
from hocket.runtime.shared.worker import WorkerState


def _no_trace(what: str, detail: str) -> None:
    """Stand for a trace where none is kept."""


class RankContext:
    """One rank: the parts above, the worker's state, and the learner's random numbers."""

    def __init__(
        self,
        account: Account,
        worker_state: WorkerState,
        report: Report,
        *,
        progressed: Callable[[], None] = lambda: None,
        trace: Callable[[str, str], None] = _no_trace,
        meets: Callable[[], bool] | None = None,
        queued: Callable[[str], int] = lambda tag: 0,
    ) -> None:
        options = account.experiment.options
        self.rank = account.rank
        self.experiment = account.experiment
        self.account = account
        self.guard = Guard.of(account.pool, options.guard_factor)
        self.agenda = Agenda(account, meets)
        self.reporter = Reporter(account, report, progressed)
        self.trace = trace  # notes what reached this learner, for a replay
        self._queued = queued  # messages with a tag that wait to be received
        self.worker_state = worker_state
        self.scoring_state: WorkerState | None = None  # of the evaluated model, if it has buffers
        self.rng = random.Random(stable_seed(options.seed, "learner", account.rank))

    def learner(self, layout: Layout, place: range | None = None) -> Learner:
        """Return what the strategy sees of this rank; `place`: its part of the whole model."""
        experiment, account = self.experiment, self.account
        return Learner(
            self.rank,
            experiment.options.learners,
            layout=layout,
            optimizer=experiment.optimizer,
            rate=account.rate,
            rng=self.rng,
            codec=experiment.codec,
            alive=lambda: account.learners,
            measure=self.reporter.measure,
            count=self.reporter.count,
            queued=self._queued,
            epoch_frames=account.pool.epoch_frames,
            tell=self.reporter.tell,
            speed=account.speed,
            skip=None if experiment.options.precision == "float32" else self._skipped,
            place=place,
        )

    def _skipped(self) -> None:
        self.account.books.skipped += 1

    # ------------------------------------------------------------------ what happens to it

    def draw(self, effect: Gradient) -> Ticket:
        """Draw an item, or return the one whose next part is to be computed."""
        return self.draw_item() if effect.ticket is None else effect.ticket

    def draw_item(self) -> Ticket:
        """Draw the next item of the pool; it is in this rank's hand until it is settled."""
        ticket = self.account.ledger.draw()
        self.account.hand.draw(ticket)
        return ticket

    def came_back(self, effect: Backward, grad: Grad) -> None:
        """Count the gradient of this rank's stage; the first stage counts the loss for all."""
        if self.account.attends:
            self.account.books.frames += grad.frames
        else:
            self.computed(effect, effect.ticket, grad)

    def computed(self, effect: Gradient | Backward, ticket: Ticket, grad: Grad) -> None:
        """Count a gradient this learner has taken."""
        account = self.account
        account.hand.compute(ticket, effect.part)
        if ticket.dry:
            return
        account.books.frames += grad.frames
        account.tally.add(grad.loss_sum, grad.frames, grad.correct)
        if not self.experiment.strategy.synchronous:
            self.learnt(account.tally.take())

    def settle(self, effect: Settle) -> None:
        """Record a settlement; a learner that is alone also records its tally here."""
        self.account.settle(effect.outcome, effect.tickets, with_next=effect.with_next)
        if len(self.account.alive) == 1 and self.experiment.strategy.synchronous:
            self.learnt(self.account.tally.take())

    # ------------------------------------------------------------------ what travels along

    def weight_of(self, effect: AllReduce | CodedMean) -> float:
        """Return this learner's weight in a mean: by default the frames it has not settled."""
        pending = self.account.ledger.pending_frames
        return float(pending if effect.weight is None else effect.weight)

    def piggyback(self, group: Group | None) -> Piggyback:
        """Return what this learner sends along with a mean.

        With all learners: its tally, and its wish to stop. In a group: its wish to meet all, for
        the members of a group must reach the same boundary.
        """
        strategy = self.experiment.strategy
        if group is not None:
            meet = strategy.moves_in_groups and self.agenda.wish().quiet
            return Piggyback(Tally(), meet)
        if not strategy.synchronous:
            return NOTHING
        wishes = self.agenda.stop_wanted, self.agenda.meet_wanted
        return Piggyback(self.account.tally.take(), *wishes)

    def record(self, note: Note, number: int | None) -> None:
        """Record what the members of a collective sent along.

        `number`: of a collective of all, as `hand.begin_collective` gave it; None: of a group.
        """
        if number is not None:
            self.account.hand.complete_collective(number)
            self.took_part(note)
            return
        self.trace("joined", "")
        if note.piggybacked:
            self.agenda.group_wishes = note.stop

    def took_part(self, note: Note) -> None:
        """Record what was piggybacked on a collective of all; every learner records the same."""
        self.account.survived_by(note.members)
        self.agenda.stop_agreed = self.agenda.stop_agreed or note.stop
        self.agenda.meet_agreed = self.agenda.meet_agreed or note.meet
        if note.tally.frames:
            self.learnt(note.tally)

    def learnt(self, tally: Tally) -> None:
        """Count what was learnt: by all learners if synchronous, else by this one."""
        if self.experiment.strategy.drops_diverged and not math.isfinite(tally.loss_sum):
            return  # the strategy goes on without that learner
        loss = self.guard.watch(tally)
        if loss is not None:
            raise self._diverged(loss)
        self.reporter.learnt(tally)

    def _diverged(self, loss: float) -> DivergedError:
        account, reference = self.account, self.guard.reference
        start = "" if reference is None else f", from {reference:.4g} at the start"
        full = account.compensation
        gentler = "set schedule.lr_compensation to 'sqrt', " if full != 1 else ""
        return DivergedError(
            f"rank {self.rank}: the training loss is {loss:.4g} per frame after {account.frames} "
            f"committed frames{start}. The local rate is "
            f"{account.rate():.4g} (optimizer.lr = {self.experiment.optimizer.lr:g}, times the "
            f"schedule, times a compensation of up to {full:g} for {len(account.learners)} "
            f"learners). Lower optimizer.lr, {gentler}add optimizer.clip_norm, or look for bad "
            "values in the data; checkpoints written so far are kept."
        )

    # ------------------------------------------------------------------ saving

    def state_dict(self) -> dict[str, Any]:
        """Return what the parts need to go on from a quiet point, and the random state."""
        parts = (self.account, self.guard, self.reporter)
        saved: dict[str, Any] = {"rng": self.rng.getstate()}
        for part in parts:
            saved |= part.state_dict()
        return saved

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint; the ledger has been restored before."""
        self.rng.setstate(state["rng"])
        self.account.load_state_dict(state)
        self.guard.load_state_dict(state)
        self.reporter.load_state_dict(state)
        self.agenda.resume()

    def start_over(self, time_s: float, counted: Sequence[dict[str, Any]]) -> None:
        """Drop what belonged to the learner whose part of a checkpoint was taken over.

        What the strategy `counted` on the old ranks is kept.
        """
        self.account.start_over(time_s)
        self.reporter.take_over(counted)
        seed = self.experiment.options.seed
        self.rng.seed(stable_seed(seed, "learner", self.rank, self.account.frames))
