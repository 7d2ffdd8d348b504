"""A recorded asynchronous run, played again in the simulator.

What an asynchronous learner does depends on nothing but what it drew, the order in which answers
and messages reached it, when it met the others, and how far it knew the run to be (its rate). A
real run with `runtime.trace = true` records that, learner by learner; here the simulator delivers
everything in that order. Times do not matter, so the clocks of several hosts need not agree.
The models come out as they were, up to rounding where kernels or machines differ.

Use it to study a run that happened only once: every draw and every exchange.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from hocket.core.accounts import DRY, Note, Ticket
from hocket.core.effects import Deliver, Gradient, Message, Recv, Send, Spend
from hocket.data.counters import Counters, Place
from hocket.data.pool import Pool
from hocket.data.shared_ledger import SharedLedger
from hocket.errors import ConfigError, DeadlockError, require
from hocket.experiment import Experiment
from hocket.record.rundir import RunDirectory
from hocket.runtime.shared.boundary_effects import Attend, Resume
from hocket.runtime.shared.dispatch import Fiber
from hocket.runtime.shared.inbox import Waiting
from hocket.runtime.shared.reductions import Post
from hocket.runtime.sim.cost import Cluster
from hocket.runtime.sim.simulator import Simulator

TOOK, NOTHING_LEFT = "took", "dry"  # a draw that gave an item, and one that found none left
ARRIVED, EXPIRED, MET, JOINED = "arrived", "expired", "met", "joined"
RESUMED, PASSED = "resumed", "passed"  # after a meeting; a boundary was reached
KINDS = (TOOK, NOTHING_LEFT, ARRIVED, EXPIRED, MET, JOINED, RESUMED, PASSED)


@dataclass
class Script:
    """What reached one learner, in order, and how many frames it knew to be settled then."""

    steps: deque[str] = field(default_factory=deque)
    frames: deque[int] = field(default_factory=deque)
    draws: deque[Place] = field(default_factory=deque)

    @classmethod
    def read(cls, run: RunDirectory, rank: int) -> Script:
        """Read a learner's part of a trace."""
        path = run.trace_path(rank)
        require(
            path.exists(),
            f"{path} is missing: only a real run with runtime.trace = true can be played again",
        )
        script = cls()
        for span in run.spans(path):
            if span.kind in KINDS:
                detail, _, frames = span.detail.rpartition(" ")
                script.steps.append(f"{span.kind} {detail}")
                script.frames.append(int(frames))
            if span.kind == TOOK:
                epoch, index = detail.split("/")
                script.draws.append((int(epoch), int(index)))
        return script

    @property
    def next(self) -> str | None:
        """What must reach the learner next, as `kind detail`; None at the end of the record."""
        return self.steps[0] if self.steps else None

    def take(self) -> int:
        """Remove the next step, and return the frames that the learner knew of by then."""
        self.steps.popleft()
        return self.frames.popleft()


def read_scripts(run: Path, learners: int) -> list[Script]:
    """Read what a real run left behind; one that lost a learner is refused."""
    directory = RunDirectory(run)
    require(
        all(event["event"] not in ("joined", "left") for event in directory.metrics()),
        f"learners of {run} joined or left while it went on: such a run cannot be played again",
    )
    require(
        all(event["event"] != "lost" for event in directory.metrics()),
        f"{run} lost a learner, and what that learner had received was not recorded: such a "
        "run cannot be played again",
    )
    return [Script.read(directory, rank) for rank in range(learners)]


class RecordedLedger(SharedLedger):
    """Draws the items that were drawn in the recorded run."""

    def __init__(
        self,
        pool: Pool,
        rank: int,
        members: tuple[int, ...],
        counters: Counters,
        script: Script,
    ) -> None:
        self._script = script
        super().__init__(pool, rank, members, counters)

    def draw(self) -> Ticket:
        """Take the next item on record."""
        if self._script.next == f"{NOTHING_LEFT} ":
            self._script.take()
            return Ticket(self.epoch, DRY, 0)
        require(
            bool(self._script.draws),
            "the record does not fit this experiment: more is drawn than was recorded",
        )
        place = self._script.draws.popleft()
        self._counters.add("drawn", 1)
        ticket = Ticket(*place, int(self._pool.frames[place[1]]))
        self._pending[place] = ticket
        return ticket

    def refresh(self) -> None:
        """Read the common counters; what is left to draw is on record."""
        super().refresh()
        self._left = bool(self._script.draws)


class Replay(Simulator):
    """A simulator that delivers everything in the recorded order."""

    def __init__(
        self, experiment: Experiment, cluster: Cluster, report: Any, checkpoints: Any, run: Path
    ) -> None:
        if experiment.strategy.synchronous or experiment.strategy.in_fixed_order:
            why = "is synchronous" if experiment.strategy.synchronous else "has a fixed order"
            raise ConfigError(
                f"{experiment.strategy.name!r} {why}: simulate it again with the same "
                "seed, and it will be the same bit for bit; there is nothing to play again"
            )
        self._scripts = read_scripts(run, experiment.num_ranks)
        self._ready_for: list[dict[str, deque[Callable[[], bool]]]] = [
            defaultdict(deque) for _ in self._scripts
        ]
        super().__init__(experiment, cluster, report, checkpoints)

    def _noted(self, rank: int) -> Callable[[str, str], None]:
        """At a boundary, let a learner know of as many frames as it knew of then."""

        def note(what: str, detail: str) -> None:
            script = self._scripts[rank]
            if what == PASSED and script.next == f"{PASSED} ":
                ledger = self.context(rank).account.ledger
                ledger.committed_frames = script.take() - ledger.discarded_frames
                self._at(self.now, lambda: self._proceed(rank))

        return note

    def _meeting_rule(self, rank: int) -> Callable[[], bool]:
        return partial(self._meets_now, rank)

    def _meets_now(self, rank: int) -> bool:
        """True if this is where the learner met the others."""
        script = self._scripts[rank]
        if script.next != f"{MET} ":
            return False
        script.take()
        self._at(self.now, lambda: self._proceed(rank))
        return True

    def _ledger(self, rank: int) -> RecordedLedger:
        learners = tuple(range(self._experiment.options.learners))
        return RecordedLedger(self._pool, rank, learners, self._counters, self._scripts[rank])

    def _enable(self, rank: int, step: str, happen: Callable[[], bool]) -> None:
        """Keep something that could reach a learner now, until it is next on record.

        `happen` returns False if it cannot happen any more: a receive that was answered meanwhile.
        """
        self._ready_for[rank][step].append(happen)
        self._at(self.now, lambda: self._proceed(rank))

    def _proceed(self, rank: int) -> None:
        script, ready = self._scripts[rank], self._ready_for[rank]
        ledger = self.context(rank).account.ledger
        while script.steps and ready[script.steps[0]]:
            ledger.committed_frames = script.frames[0] - ledger.discarded_frames
            if ready[script.steps[0]].popleft()():
                script.take()
                self._at(self.now, lambda: self._proceed(rank))  # after what this step sets off
                return

    # ------------------------------------------------------------------ what reaches a learner

    def _gradient(self, fiber: Fiber, effect: Gradient, deliver: Deliver) -> None:
        rank = fiber.rank

        def hand_over(value: Any, error: BaseException | None) -> None:
            place = value.tickets[0]
            if place.dry:
                self._at(self.now, lambda: self._proceed(rank))
                deliver(value, error)
            else:
                step = f"{TOOK} {place.epoch}/{place.index}"
                self._enable(rank, step, lambda: _done(deliver, value, error))

        super()._gradient(fiber, effect, hand_over)

    def _send(self, fiber: Fiber, effect: Send, deliver: Deliver) -> None:
        rank = fiber.rank
        message = Message(rank, effect.tag, effect.payload)
        self.messages_in_flight += 1

        def arrive() -> bool:
            self.messages_in_flight -= 1
            self.learners[effect.to].inbox.arrive(message)
            return True

        self._enable(effect.to, f"{ARRIVED} {rank}/{effect.tag}", arrive)
        deliver(None, None)

    def _spend(self, fiber: Fiber, effect: Spend, deliver: Deliver) -> None:
        """Take no time, as nothing may reach a learner in the middle of a step on record."""
        deliver(None, None)

    def _recording(self, rank: int, note: Note, post: Post) -> Deliver:
        handed = super()._recording(rank, note, post)
        if post.group is None:
            return handed

        def arrive(answer: Any, error: BaseException | None) -> None:
            self._enable(rank, f"{JOINED} ", lambda: _done(handed, answer, error))

        return arrive

    def _attend(self, fiber: Fiber, effect: Attend, deliver: Deliver) -> None:
        self._enable(fiber.rank, f"{MET} ", lambda: _done(deliver, None, None))

    def _resume(self, fiber: Fiber, effect: Resume, deliver: Deliver) -> None:
        self._enable(fiber.rank, f"{RESUMED} ", lambda: _done(deliver, None, None))

    def _recv(self, fiber: Fiber, effect: Recv, deliver: Deliver) -> None:
        rank = fiber.rank
        waiting, inbox = Waiting(effect, deliver), self.learners[rank].inbox
        inbox.receive(waiting)

        def expire() -> bool:
            if waiting not in inbox.waiting:
                return False
            self._time_out(rank, waiting)
            return True

        if effect.timeout_s is not None:
            self._enable(rank, f"{EXPIRED} {effect.source}/{effect.tag}", expire)

    def _deadlock(self) -> str:
        next_steps = {r: s.steps[0] for r, s in enumerate(self._scripts) if s.steps}
        raise DeadlockError(
            f"the record does not fit this experiment: next on record is {next_steps}, which "
            "cannot happen here. Was the run made with other settings, or by other code?"
        )


def _done(deliver: Deliver, value: Any, error: BaseException | None) -> bool:
    deliver(value, error)
    return True
