"""What goes wrong in a simulated run: deaths, pauses, freezes.

*Death*: the learner is gone at once, and the others know it at once (real ones see its connections
break). What it had drawn returns to the pool as in real processes: with the next settlement of a
synchronous strategy, at the next quiet point of an asynchronous one.

*Pause*: the whole learner stands still, its strategy and its services. What reaches it meanwhile
waits until it goes on; the gradient that it was computing takes so much longer.

*Freeze*: a pause longer than `runtime.silence_s`. After that time without a sign of life it is
declared lost, as by a launcher. When it wakes up it does not know that, and goes on with what has
reached it; but it is fenced: whatever it sends, settles or asks for reaches nobody.

A learner that is a group is lost with any of its ranks (`stage`).

The loss of a rank that only attends ends the run, as a launcher does, and so does the loss of the
last learner.
"""

from __future__ import annotations

from abc import abstractmethod
from functools import partial
from typing import Any

from hocket.core.effects import Deliver, Effect
from hocket.errors import LearnerFailedError
from hocket.experiment import Experiment
from hocket.record.checkpoint import Saved
from hocket.runtime.shared.dispatch import Fiber
from hocket.runtime.sim.cost import Cluster, CostModel, Death, Pause
from hocket.runtime.sim.exchange import SimulatedExchange


class SimulatedFaults(SimulatedExchange):
    """Learners that die or stand still as planned; the clock is in `Simulator`."""

    def __init__(self, experiment: Experiment, cost: CostModel) -> None:
        super().__init__(experiment, cost)
        self._deaths_at_draw: dict[int, int] = {}
        self._planned: list[Death] = []
        self._pauses_to_come: list[Pause] = []

    @abstractmethod
    def _call_if_they_fit(self) -> None:
        """See whether those who wait can be let in, now that there are fewer."""

    @abstractmethod
    def _note_event(self, event: dict[str, Any]) -> None:
        """Put an event into the record."""

    def _plan(self, cluster: Cluster, saved: Saved | None) -> None:
        """Schedule what is planned; what happened before a resumption is left out."""
        for death in cluster.deaths:
            if saved is not None and death.rank not in saved.ranks:
                continue
            if death.at_draw is not None:
                self._deaths_at_draw[death.rank] = death.at_draw
            elif death.at_s is not None and death.at_s >= self.now:
                self._at(death.at_s, partial(self._die_as_planned, death.rank))
            else:
                continue
            self._planned.append(death)
        for pause in cluster.pauses:
            if pause.at_s >= self.now:
                self._pauses_to_come.append(pause)
                self._at(pause.at_s, partial(self._fall_asleep, pause))

    def deaths_to_come(self) -> list[Death]:
        """Return the planned deaths of learners that are still alive."""
        return [d for d in self._planned if d.rank in self._living]

    # ------------------------------------------------------------------ standing still

    def _fall_asleep(self, pause: Pause) -> None:
        rank = pause.rank
        if rank not in self._living or self.learners[rank].returned:
            return
        self._pauses_to_come.remove(pause)
        self._asleep[rank] = []
        self.trace.note(rank, "pause", self.now, self.now, f"{pause.for_s:g} s")
        self._at(pause.at_s + pause.for_s, partial(self._wake_up, rank))
        limit_s = self._experiment.options.silence_s
        if pause.for_s > limit_s:
            reason = f"gave no sign of life for {limit_s:g} s (runtime.silence_s)"
            self._at(pause.at_s + limit_s, partial(self._die, rank, reason))

    def _wake_up(self, rank: int) -> None:
        if rank not in self._living:
            self.trace.note(rank, "fenced", self.now, self.now)
        self._ready.extend(self._asleep.pop(rank))

    def _advance(self, fiber: Fiber, value: Any, error: BaseException | None) -> None:
        asleep = self._asleep.get(fiber.rank)
        if asleep is None:
            super()._advance(fiber, value, error)
        else:
            asleep.append((fiber, value, error))

    def begin(self, fiber: Fiber, effect: Effect[Any], deliver: Deliver) -> None:
        """Begin an effect, unless its rank is lost: nobody hears what it asks for."""
        if fiber.rank in self._living:
            super().begin(fiber, effect, deliver)

    # ------------------------------------------------------------------ deaths

    def _die_as_planned(self, rank: int) -> None:
        """Let a learner die, or one of the ranks that it consists of: that is the same."""
        stage = next((d.stage for d in self._planned if d.rank == rank), 1)
        self._die(rank, "planned fault" + (f" of its stage {stage}" if stage > 1 else ""))

    def _die(self, rank: int, reason: str = "planned fault") -> None:
        if rank not in self._living or self.learners[rank].returned:
            return
        self.alive = tuple(r for r in self.alive if r != rank)
        self._living.discard(rank)
        self.learners[rank].lost_s = self.now
        self._call_if_they_fit()
        self.trace.note(rank, "lost", self.now, self.now)
        self._note_loss(rank, reason)
        if rank >= self._experiment.options.learners or not self._living_learners:
            self._failure = self._failure or self._unbearable(rank, reason)
            return
        self._wake_attending()
        for r in self.alive:
            self.learners[r].inbox.lose(rank)
        for gathering in self._gatherings.values():
            gathering.posts.pop(rank, None)
        for key in list(self._gatherings):
            self._retry(*key)

    def _note_loss(self, rank: int, reason: str) -> None:
        ledger = self.context(self.alive[0] if self.alive else rank).account.ledger
        self._note_event(
            {
                "event": "lost",
                "frames": ledger.committed_frames,
                "epoch": ledger.epoch,
                "rank": rank,
                "reason": reason,
            }
        )

    def _unbearable(self, rank: int, reason: str) -> LearnerFailedError:
        attends = rank >= self._experiment.options.learners
        role = f" (which {self._experiment.strategy.attends_by})" if attends else ""
        nobody = "" if self._living_learners else self._nobody_left(rank)
        return LearnerFailedError(
            f"rank {rank}{role} was lost at virtual time {self.now:.6f} s ({reason}) before its "
            f"work was done{nobody}, so the run was stopped. A checkpoint, if there is one, is "
            "continued by --resume"
        )

    def _nobody_left(self, last: int) -> str:
        before = [f"rank {r}" for r, one in enumerate(self.learners) if one.lost_s is not None]
        before.remove(f"rank {last}")
        return "; no learner is left" + (f" ({', '.join(before)} before it)" if before else "")

    @property
    def _living_learners(self) -> tuple[int, ...]:
        return tuple(r for r in self.alive if r < self._experiment.options.learners)
