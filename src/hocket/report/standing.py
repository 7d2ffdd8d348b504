"""How a run stands: every learner's speed and waiting, and which one is the slowest and why.

It is read from the run's own record alone, so any host that sees the run directory can tell. What
a learner does not spend on gradients it waits, exchanges or adds up. The learner that waits least
holds the others up, and nobody holds it up: what even this one does not spend on gradients is the
*exchange* (network and arithmetic). Whatever another one waits beyond that, it waits for others.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hocket.errors import ConfigError, UnreadableError
from hocket.record.rundir import Event, RunDirectory, number
from hocket.record.status import LearnerStatus, Status, read_status
from hocket.support.inputs import well_formed

SLOW: Final = 0.9  # of the median's pace: below it, a learner is slow because of its computing
NO_NEWS_S: Final = 10.0  # a launcher writes every second


@dataclass(frozen=True)
class Row:
    """One learner as it is shown."""

    rank: int
    state: str
    host: str
    serves: bool  # draws nothing
    frames: int
    frames_per_s: float
    pace: float  # frames per second while it computes
    waiting: float  # share of its time that is not spent on gradients
    bytes_sent: int
    bytes_per_s: float


@dataclass(frozen=True)
class Standing:
    """The whole run as it is shown."""

    strategy: str
    state: str  # running, ended, or what is known if it never said
    clock: str
    time_s: float
    frames: int
    total_frames: int
    epoch: int
    silent_s: float | None  # since the last news of a run that has not ended
    rows: tuple[Row, ...]
    loss: float | None  # of the last evaluation
    staleness: tuple[float, float] | None  # mean and maximum, before the last evaluation
    notes: tuple[str, ...]  # who was lost or joined, and when

    @property
    def working(self) -> list[Row]:
        """The learners that figures are compared over."""
        return [r for r in self.rows if r.state in ("working", "finished") and not r.serves]


def read_standing(path: Path) -> Standing:
    """Read how a run stands; it may be running, ended, cut off or begun a moment ago."""
    run = RunDirectory(path)
    events = _events(run)
    try:
        with well_formed(run.config_path):
            strategy = str(run.table("strategy")["name"])[:40]
            learners = int(number(run.table("runtime")["learners"]))
        status = read_status(run)
        with well_formed(run.metrics_path):
            return _standing(strategy, learners, status, events)
    except UnreadableError as error:
        raise ConfigError(f"{error}: copy {path} again") from error


def _events(run: RunDirectory) -> list[Event]:
    """Return the events that can be read: the last line of a running run may be cut off."""
    if not run.metrics_path.exists():
        run.config()  # else it is no run at all, and the error says so
        return []
    return [event for _, event in run.metrics_lines() if event is not None]


def _standing(
    strategy: str, learners: int, status: Status | None, events: Sequence[Event]
) -> Standing:
    last = events[-1] if events else {}
    ended = next((e for e in reversed(events) if e["event"] == "summary"), None)
    if status is None:
        status = _without_status(last, ended)
    elif ended is not None and status.state != "ended":
        status = _without_status(last, ended)  # the summary came after it
    scores = next((e for e in reversed(events) if e["event"] == "eval"), {})
    silent_s = None if ended or status.state == "ended" or not status.written else _age(status)
    loss, staleness = scores.get("loss"), scores.get("staleness")
    mixed = None
    if staleness is not None:
        mixed = number(staleness), number(scores.get("staleness_max", staleness))
    return Standing(
        strategy=strategy,
        state="stopped" if ended and ended.get("stopped") else status.state,
        clock=status.clock,
        time_s=status.time_s,
        frames=status.frames,
        total_frames=status.total_frames,
        epoch=status.epoch,
        silent_s=silent_s,
        rows=tuple(_row(one, status, learners) for one in status.learners),
        loss=None if loss is None else number(loss),
        staleness=mixed,
        notes=tuple(_told(e) for e in events if e["event"] in ("lost", "joined", "left")),
    )


def _age(status: Status) -> float | None:
    age = time.time() - status.written
    return age if age > NO_NEWS_S else None


def _row(one: LearnerStatus, status: Status, learners: int) -> Row:
    until = status.train_s if one.until_s is None else one.until_s
    there_s = until - one.since_s
    per_s = 1.0 / there_s if there_s > 0 else 0.0
    serves = one.rank >= learners and one.joined_s is None
    return Row(
        rank=one.rank,
        state=one.state,
        host=one.host,
        serves=serves,
        frames=one.frames,
        frames_per_s=one.frames * per_s,
        pace=one.frames / one.compute_s if one.compute_s > 0 else 0.0,
        waiting=min(1.0, max(0.0, 1.0 - one.compute_s * per_s)) if there_s > 0 else 0.0,
        bytes_sent=one.bytes_sent,
        bytes_per_s=one.bytes_sent * per_s,
    )


def _without_status(last: Event, ended: Event | None) -> Status:
    """Return what a record tells of learners: all of it is in the event that ends a run."""
    facts = ended or last
    train_s = number(facts.get("train_s", facts.get("time_s", 0.0)))
    frames = int(number(facts.get("frames", 0)))
    reports = [*facts.get("learners", ()), *facts.get("attendants", ())] if ended else []
    return Status(
        time_s=number(facts.get("time_s", 0.0)),
        train_s=train_s,
        clock=str(facts.get("clock", ""))[:20],
        frames=frames,
        total_frames=frames if ended else 0,
        epoch=int(number(facts.get("epoch", 0))),
        state="ended" if ended else "running",
        learners=tuple(_reported(one, train_s) for one in reports),
    )


def _reported(one: dict[str, Any], train_s: float) -> LearnerStatus:
    until = None if one["lost_s"] is None else number(one["lost_s"])
    busy_s = number(one["utilisation"]) * (train_s if until is None else until)
    frames, sent = int(number(one["frames"])), int(number(one["bytes_sent"]))
    state = "lost" if one["lost"] is True else "finished"
    return LearnerStatus(int(number(one["rank"])), state, frames, 0, sent, busy_s, until_s=until)  # type: ignore[arg-type]


def _told(event: Event) -> str:
    why = event.get("reason")
    at = f"rank {event.get('rank')} {event['event']} at {number(event.get('time_s')):.1f} s"
    return f"{at}: {str(why)[:120]}" if why else at


# ---------------------------------------------------------------------------- compared


def spread(rows: Sequence[Row], figure: Callable[[Row], float]) -> tuple[float, float, float]:
    """Return minimum, median and maximum of a figure."""
    values = [figure(row) for row in rows]
    return min(values), statistics.median(values), max(values)


def slowest(rows: Sequence[Row]) -> tuple[Row, str] | None:
    """Return the slowest learner and why it is slow; None if there are not two to compare.

    Where nobody waits, that is who has done least; where all wait for each other, all have done
    as much, and it is whose gradients take longest.
    """
    there = [row for row in rows if row.frames and row.pace > 0]
    if len(there) < 2:
        return None
    low, usual, _ = spread(there, lambda row: row.frames_per_s)
    in_step = low >= SLOW * usual
    last = min(there, key=lambda row: row.pace if in_step else row.frames_per_s)
    return last, _reason(last, there)


def _reason(last: Row, there: Sequence[Row]) -> str:
    pace = statistics.median(row.pace for row in there)
    exchange = min(row.waiting for row in there)
    beyond = last.waiting - exchange
    if last.pace < SLOW * pace:
        return f"computing: its gradients take {pace / last.pace:.1f} times as long as the median's"
    if beyond > exchange:
        return f"waiting: {beyond:.0%} of its time it waits for other learners"
    if exchange > 1 - SLOW:
        return f"network: even the learner that waits least spends {exchange:.0%} on exchanging"
    return "nothing in particular: all learners compute nearly all the time, at much the same pace"
