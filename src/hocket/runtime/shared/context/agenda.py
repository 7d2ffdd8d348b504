"""What is due at a boundary: evaluation, checkpoint, the end; and who wants to stop.

For synchronous strategies all learners hold the same agenda (the numbers it depends on travel with
collectives), so all take the same decision at the same boundary without asking each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from hocket.core.effects import Scores
from hocket.data.pool import Pool
from hocket.runtime.shared.context.account import Account


@dataclass(frozen=True, slots=True)
class Due:
    """What a boundary has to do."""

    evaluate: bool
    checkpoint: bool
    stop: bool
    finished: bool
    wait: bool  # asynchronous: nothing left to draw; or somebody waits to be let in

    @property
    def quiet(self) -> bool:
        """True if all learners must meet."""
        return self.evaluate or self.checkpoint or self.stop or self.finished or self.wait


class FrameInterval:
    """Something that is due every so many frames."""

    def __init__(self, epochs: float, pool: Pool) -> None:
        self._every = (
            pool.total_frames + 1  # an infinite interval lies beyond any run
            if math.isinf(epochs)
            else max(1, round(epochs * pool.epoch_frames))
        )
        self._next = self._every

    def due(self, frames: int) -> bool:
        """True if it is due at this number of frames."""
        return frames >= self._next

    def done(self, frames: int) -> None:
        """Count from here: it was done now, or the run is resumed here."""
        self._next = (frames // self._every + 1) * self._every


class Agenda:
    """One learner's list of what is due."""

    def __init__(self, account: Account, meets: Callable[[], bool] | None = None) -> None:
        options, pool = account.experiment.options, account.pool
        self._account = account
        self._strategy = account.experiment.strategy
        self._meets = meets  # a replay knows when all met
        every = options.evaluate_every
        self._evaluation = FrameInterval(
            self._strategy.evaluate_every if every is None else every, pool
        )
        self._checkpoint = FrameInterval(options.checkpoint_every, pool)
        self.group_wishes = False  # to meet all: piggybacked on the group's last collective
        self.stop_wanted = False  # by this learner's own signals
        self.stop_agreed = False  # by all
        self.meet_wanted = False  # somebody waits to be let in, as far as this learner knows
        self.meet_agreed = False  # all know it

    def due(self, *, agreed: bool = False) -> Due:
        """Return what this boundary has to do; once all have agreed, own wishes do not count."""
        if self._meets is not None and not agreed:
            return Due(False, False, False, False, wait=self._meets())
        if self._strategy.moves_in_groups and not agreed:
            return Due(False, False, False, False, wait=self.group_wishes)
        return self.wish(agreed=agreed)

    def wish(self, *, agreed: bool = False) -> Due:
        """Return what this learner, as far as it knows, would have to do at a boundary."""
        account, asynchronous = self._account, not self._strategy.synchronous
        finished = account.ledger.closed() or account.schedule_state.stop
        stop, meet = self.stop_agreed, self.meet_agreed
        if not agreed and (len(account.alive) == 1 or asynchronous):
            stop = stop or self.stop_wanted
            meet = meet or self.meet_wanted
        return Due(
            evaluate=self._evaluation.due(account.frames) or finished,
            checkpoint=self._checkpoint.due(account.frames) or stop or finished,
            stop=stop,
            finished=finished,
            wait=meet or (asynchronous and account.ledger.exhausted()),
        )

    def evaluated(self, scores: Scores) -> None:
        """Take note of an evaluation; the schedule may decide by it."""
        self._account.evaluated(scores)
        self._evaluation.done(self._account.frames)

    def checkpointed(self) -> None:
        """Take note that a checkpoint is being written."""
        self._checkpoint.done(self._account.frames)

    def resume(self) -> None:
        """Go on from where the account is."""
        self._evaluation.done(self._account.frames)
        self._checkpoint.done(self._account.frames)
