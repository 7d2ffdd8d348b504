"""A learner's desk: its account of the run, its rate, and what is due at a boundary.

Both runtimes keep one per learner. For synchronous strategies the desks of all learners hold the
same account (their numbers travel with collectives), so all take the same decision at the same
boundary without asking one another.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hocket.core.accounts import Books, Note, Outcome, Tally, Ticket
from hocket.core.effects import Grad, Progress, Scores, Verdict
from hocket.core.flat import Layout
from hocket.core.learner import Learner
from hocket.core.numerics import stable_seed
from hocket.data.ledger import ReplicatedLedger
from hocket.data.pool import Pool
from hocket.data.shared_ledger import SharedLedger
from hocket.errors import ContractError, DivergedError
from hocket.experiment import Experiment
from hocket.optim.compensation import ramp
from hocket.optim.schedules import ScheduleState
from hocket.runtime.shared.worker import WorkerState

GUARD_WINDOW = 0.02  # epochs, and at least so many items: one noisy minibatch must not stop a run
GUARD_ITEMS = 20
MAX_IDLE_BOUNDARIES = 10  # a strategy may hold a gradient or two over a boundary


@dataclass(frozen=True, slots=True)
class Due:
    """What a boundary has to do."""

    evaluate: bool
    checkpoint: bool
    stop: bool
    finished: bool
    wait: bool  # asynchronous: nothing left to draw, but others have not settled

    @property
    def quiet(self) -> bool:
        """True if all learners must meet."""
        return self.evaluate or self.checkpoint or self.stop or self.finished or self.wait


@dataclass
class Measure:
    """A figure that a strategy notes again and again."""

    count: int = 0
    total: float = 0.0
    largest: float = -math.inf

    def add(self, value: float) -> None:
        """Note it once more."""
        self.count += 1
        self.total += value
        self.largest = max(self.largest, value)


class Desk:
    """Everything the runtime keeps for one learner."""

    def __init__(
        self,
        experiment: Experiment,
        pool: Pool,
        rank: int,
        ledger: ReplicatedLedger | SharedLedger,
        worker_state: WorkerState,
        report: Callable[[dict[str, Any]], None],
    ) -> None:
        options = experiment.options
        self.rank = rank
        self.experiment = experiment
        self.pool = pool
        self.ledger = ledger
        self.worker_state = worker_state
        self.scoring_state: WorkerState | None = None  # of the evaluated model, if it has buffers
        self.rng = random.Random(stable_seed(options.seed, "learner", rank))
        self.report = report
        self.tick: Callable[[], None] = lambda: None  # called often; the runtime may show progress
        self.record: Callable[[str, str], None] = lambda what, detail: None  # for the trace
        self.meets: Callable[[], bool] | None = None  # a replay knows when all met
        self.alive: tuple[int, ...] = tuple(range(options.learners))
        self.books = Books()
        self.measures: dict[str, Measure] = {}
        self.forks = 0  # of the main task, in flight
        self.group_wishes = False  # to meet all: rode along with the group's last collective
        self.stop_wanted = False  # by this learner's own signals
        self.stop_agreed = False  # by all
        self.aside_s = 0.0  # spent evaluating and checkpointing
        self.scores: Scores | None = None
        self.schedule_state = ScheduleState()
        self._idle_boundaries = 0
        self.own_tally = Tally()  # since the last collective
        self._target = experiment.lr_factor()
        self._window = Tally()  # of the guard
        self._log = Tally()  # since the last train event
        self._reference: float | None = None
        items = max(GUARD_ITEMS, GUARD_WINDOW * len(pool))
        self._guard_frames = int(items * pool.epoch_frames / len(pool))
        self._evaluate_every = _interval(options.evaluate_every, pool)
        self._checkpoint_every = _interval(options.checkpoint_every, pool)
        self._log_every = _interval(options.log_every, pool)
        self._next_evaluation = self._evaluate_every
        self._next_checkpoint = self._checkpoint_every
        self._next_log = self._log_every

    # ------------------------------------------------------------------ progress and rate

    @property
    def frames(self) -> int:
        """Frames settled by all learners, as far as this one knows."""
        return self.ledger.committed_frames + self.ledger.discarded_frames

    @property
    def progress(self) -> Progress:
        """Return how far the run is."""
        return Progress(self.ledger.committed_frames, self.ledger.epoch, self.pool.total_frames)

    def learner(self, layout: Layout) -> Learner:
        """Return what the strategy sees of this learner."""
        experiment = self.experiment
        return Learner(
            self.rank,
            experiment.options.learners,
            layout=layout,
            optimizer=experiment.optimizer,
            rate=self.rate,
            rng=self.rng,
            codec=experiment.codec,
            alive=lambda: self.alive,
            measure=self._measure,
            skip=None if experiment.options.precision == "float32" else self._skipped,
        )

    def _measure(self, name: str, value: float) -> None:
        self.measures.setdefault(name, Measure()).add(value)

    def take_measures(self) -> dict[str, list[float]]:
        """Return what the strategy has measured since the last evaluation, as plain numbers."""
        taken, self.measures = self.measures, {}
        return {name: [m.count, m.total, m.largest] for name, m in sorted(taken.items())}

    def _skipped(self) -> None:
        self.books.skipped += 1

    def rate(self) -> float:
        """Return the local learning rate now."""
        epochs_done = self.frames / self.pool.epoch_frames
        factor = self.experiment.schedule.factor(epochs_done, self.schedule_state)
        return self.experiment.optimizer.lr * factor * ramp(self._target, epochs_done)

    # ------------------------------------------------------------------ what happens to it

    def drew(self, grad: Grad) -> None:
        """Count a gradient this learner has taken."""
        self.books.frames += grad.frames
        self.own_tally.add(grad.loss_sum, grad.frames, grad.correct)
        if not self.experiment.strategy.synchronous:
            self.count(self.own_tally.take())

    def settle(self, outcome: Outcome, tickets: tuple[Ticket, ...] | None) -> None:
        """Enter a settlement, and if there is nobody to share it with, the own tally."""
        self._idle_boundaries = 0
        if isinstance(self.ledger, ReplicatedLedger):
            self.ledger.settle(outcome, tickets, self.alive)
        else:
            self.ledger.settle(outcome, tickets)
        if len(self.alive) == 1 and self.experiment.strategy.synchronous:
            self.count(self.own_tally.take())

    def deal(self, num_learners: int) -> None:
        """Let the first so many learners draw, and nobody else."""
        if isinstance(self.ledger, ReplicatedLedger):
            self.ledger.deal_to(num_learners)
        elif num_learners < len(self.alive):
            raise ContractError(
                f"rank {self.rank}: only a synchronous strategy whose data Hocket draws can deal "
                f"items to some of its learners; {self.experiment.strategy.name!r} here cannot: "
                "let all learners take part from the start (strategy kaldi: initial_learners)"
            )

    def took_part(self, note: Note) -> None:
        """Enter what rode along with a collective; every member enters the same."""
        if note.members != self.alive:  # fewer learners: the local rate is derived anew
            self.alive = note.members
            self._target = self.experiment.lr_factor(len(self.alive))
        self.stop_agreed = self.stop_agreed or note.stop
        if note.tally.frames:
            self.count(note.tally)

    def count(self, tally: Tally) -> None:
        """Enter what was learnt: everybody's if synchronous, else this learner's own."""
        if self.experiment.strategy.drops_diverged and not math.isfinite(tally.loss_sum):
            return  # the strategy goes on without whoever it was
        for total in (self._window, self._log):
            total.add(tally.loss_sum, tally.frames, tally.correct)
        self._guard()
        if self.frames >= self._next_log and self._log.frames:
            self._next_log = _next(self.frames, self._log_every)
            self._report_training()
        else:
            self.tick()

    def _guard(self) -> None:
        window = self._window
        if math.isfinite(window.loss_sum) and window.frames < self._guard_frames:
            return
        loss = window.loss_sum / max(window.frames, 1)
        self._window = Tally()
        if self._reference is None and math.isfinite(loss):
            self._reference = loss
        reference = self._reference if self._reference is not None else math.inf
        limit = self.experiment.options.guard_factor * reference if reference > 0 else math.inf
        if math.isfinite(loss) and loss <= limit:
            return
        options = self.experiment.optimizer
        start = f", from {reference:.4g} at the start" if math.isfinite(reference) else ""
        gentler = "set schedule.lr_compensation to 'sqrt', " if self._target != 1 else ""
        raise DivergedError(
            f"rank {self.rank}: the training loss is {loss:.4g} per frame after {self.frames} "
            f"committed frames{start}. The local rate is "
            f"{self.rate():.4g} (optimizer.lr = {options.lr:g}, times the schedule, times a "
            f"compensation of up to {self._target:g} for {len(self.alive)} "
            f"learners). Lower optimizer.lr, {gentler}add optimizer.clip_norm, or look for bad "
            "values in the data; checkpoints written so far are kept."
        )

    def _report_training(self) -> None:
        if self.reports:
            self.report(self.training("train"))
        self._log = Tally()

    def say(self, notes: Sequence[str]) -> None:
        """Put what a user should know of this run into its record."""
        where = {"frames": self.ledger.committed_frames, "epoch": self.ledger.epoch, "rank": None}
        for text in notes:
            self.report({"event": "note", **where, "text": text})

    @property
    def reports(self) -> bool:
        """True if this learner speaks for the run: one for all if synchronous, else each."""
        return not self.experiment.strategy.synchronous or self.rank == self.alive[0]

    def training(self, event: str) -> dict[str, Any]:
        """Return the training figures since the last train event."""
        log = self._log
        return {
            "event": event,
            "frames": self.ledger.committed_frames,
            "epoch": min(self.ledger.epoch, self.pool.epochs - 1),
            "rank": None if self.experiment.strategy.synchronous else self.rank,
            "loss": log.loss_sum / max(log.frames, 1),
            "accuracy": log.correct / max(log.frames, 1),
            "lr": self.rate(),
        }

    # ------------------------------------------------------------------ boundaries

    def check_progress(self) -> None:
        """Catch a strategy that draws everything and never says what became of it."""
        self._idle_boundaries = self._idle_boundaries + 1 if self.ledger.dry() else 0
        if self._idle_boundaries > MAX_IDLE_BOUNDARIES and not self.ledger.closed():
            raise ContractError(
                f"rank {self.rank}: everything has been drawn, but nothing was settled over "
                f"{MAX_IDLE_BOUNDARIES} boundaries: the strategy "
                f"{self.experiment.strategy.name!r} must `await me.commit()` at its commit point"
            )

    def due(self, *, agreed: bool = False) -> Due:
        """Return what this boundary has to do; once all have agreed, nobody's own wish counts."""
        if self.meets is not None and not agreed:
            return Due(False, False, False, False, wait=self.meets())
        if self.experiment.strategy.moves_in_groups and not agreed:
            return Due(False, False, False, False, wait=self.group_wishes)
        return self.wish(agreed=agreed)

    def wish(self, *, agreed: bool = False) -> Due:
        """Return what this learner, as far as it knows, would have to do at a boundary."""
        finished = self.ledger.closed() or self.schedule_state.stop
        stop = self.stop_agreed
        if not agreed and (len(self.alive) == 1 or not self.experiment.strategy.synchronous):
            stop = stop or self.stop_wanted
        return Due(
            evaluate=self.frames >= self._next_evaluation or finished,
            checkpoint=self.frames >= self._next_checkpoint or stop or finished,
            stop=stop,
            finished=finished,
            wait=not self.experiment.strategy.synchronous and self.ledger.exhausted(),
        )

    def verdict(self, go_on: bool) -> Verdict:
        """Return the world's answer."""
        return Verdict(go_on, self.progress, self.scores)

    def evaluated(self, scores: Scores) -> None:
        """Take note of an evaluation."""
        self.scores = scores
        self._next_evaluation = _next(self.frames, self._evaluate_every)
        self.experiment.schedule.evaluated(scores.loss, self.schedule_state)

    def checkpointed(self) -> None:
        """Take note that a checkpoint is being written."""
        self._next_checkpoint = _next(self.frames, self._checkpoint_every)

    # ------------------------------------------------------------------ saving

    def state_dict(self) -> dict[str, Any]:
        """Return what all desks hold in common at a quiet point, and the random state."""
        return {
            "schedule": asdict(self.schedule_state),
            "scores": asdict(self.scores) if self.scores else None,
            "reference": self._reference,
            "window": asdict(self._window),
            "log": asdict(self._log),
            "own_tally": asdict(self.own_tally),
            "rng": self.rng.getstate(),
            "aside_s": self.aside_s,
            "books": asdict(self.books),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.schedule_state = ScheduleState(**state["schedule"])
        self.scores = Scores(**state["scores"]) if state["scores"] else None
        self._reference = state["reference"]
        self._window, self._log = Tally(**state["window"]), Tally(**state["log"])
        self.own_tally = Tally(**state["own_tally"])
        self.rng.setstate(state["rng"])
        self.aside_s = state["aside_s"]
        self.books = Books(**state["books"])
        self._next_evaluation = _next(self.frames, self._evaluate_every)
        self._next_checkpoint = _next(self.frames, self._checkpoint_every)
        self._next_log = _next(self.frames, self._log_every)

    def begin_anew(self, time_s: float) -> None:
        """Shed what belonged to the learner whose part was taken over."""
        options = self.experiment.options
        self.own_tally, self.books = Tally(), Books(since_s=time_s - self.aside_s)
        self.rng.seed(stable_seed(options.seed, "learner", self.rank, self.frames))


def _interval(epochs: float, pool: Pool) -> int:
    """Return an interval in frames; an infinite one lies beyond any run."""
    if math.isinf(epochs):
        return pool.total_frames + 1
    return max(1, round(epochs * pool.epoch_frames))


def _next(frames: int, every: int) -> int:
    return (frames // every + 1) * every
