"""What the servers of `asgd` saw: how late gradients came, from whom, and what became of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from hocket.record.rundir import number

HISTOGRAM: Final = "_histogram"  # how whole numbers that a strategy counts are named in an event
BY_RANK: Final = "pushes"  # the one of them that counts by rank
MAX_PLACE: Final = 1_000_000  # of a histogram: updates late, or a rank
_BARS: Final = " ▁▂▃▄▅▆▇█"
_MAX_BARS: Final = 48  # characters of a histogram in the terminal
_MAX_RANKS: Final = 16  # learners that are listed one by one


@dataclass(frozen=True)
class Pushes:
    """All pushes of a run."""

    late: dict[int, int]  # how many came so many updates late
    by_rank: dict[int, int]
    partial: int  # minibatches of which some shards had no gradient
    queue: float  # pushes that waited at a server, on average
    queue_max: float
    discarded_frames: int
    frames: int
    seconds: float

    @classmethod
    def of(
        cls, evaluations: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]
    ) -> Pushes | None:
        """Add up what every evaluation tells; None of a run that has no servers."""
        found = histograms(evaluations)
        by_rank, late = found.get(BY_RANK, {}), found.get("staleness", {})
        if not sum(by_rank.values()) or not sum(late.values()):
            return None
        seen = [
            (sum(row[BY_RANK + HISTOGRAM].values()), number(row["queue"]), number(row["queue_max"]))
            for row in evaluations
            if "queue" in row
        ]
        return cls(
            late=late,
            by_rank=by_rank,
            partial=found.get("partial", {}).get(1, 0),
            queue=sum(n * queue for n, queue, _ in seen) / max(1, sum(n for n, _, _ in seen)),
            queue_max=max((most for _, _, most in seen), default=0.0),
            discarded_frames=summary["discarded_frames"],
            frames=summary["frames"],
            seconds=summary["train_s"] or 1.0,
        )

    def lines(self) -> list[str]:
        """Say it in words, for the terminal and for the page."""
        total = sum(self.by_rank.values())
        return [
            f"pushes: {total:,}, {total / self.seconds:,.1f}/s; {self._each()}",
            f"staleness: {self.staleness:.1f} updates on average, at most {max(self.late)}; "
            f"{_spark(self.late)}",
            f"discarded as too late: {self.discarded_frames:,} frames ({self.discarded:.1%}); "
            f"applied in part: {self.partial:,} minibatches",
            f"queue at the servers: {self.queue:.2f} pushes on average, at most "
            f"{self.queue_max:.0f}",
        ]

    @property
    def staleness(self) -> float:
        """The mean over all pushes, in updates."""
        return sum(v * n for v, n in self.late.items()) / max(1, sum(self.late.values()))

    @property
    def discarded(self) -> float:
        """The share of all frames that was discarded."""
        return self.discarded_frames / max(1, self.discarded_frames + self.frames)

    def _each(self) -> str:
        listed = sorted(self.by_rank.items())[:_MAX_RANKS]
        each = ", ".join(f"rank {rank}: {n:,} ({n / self.seconds:,.1f}/s)" for rank, n in listed)
        return each + (", ..." if len(self.by_rank) > _MAX_RANKS else "")


def histograms(evaluations: Iterable[Mapping[str, Any]]) -> dict[str, dict[int, int]]:
    """Add up the histograms of all evaluations, by name."""
    found: dict[str, dict[int, int]] = {}
    for row in evaluations:
        for key, counts in row.items():
            if key.endswith(HISTOGRAM):
                whole = found.setdefault(key.removesuffix(HISTOGRAM), {})
                for value, count in counts.items():
                    place = int(value)
                    if not 0 <= place <= MAX_PLACE or int(count) < 0:
                        raise ValueError(f"a histogram counts {place} {count} times")
                    whole[place] = whole.get(place, 0) + int(count)
    return found


def with_rate(event: dict[str, Any], before_s: float) -> dict[str, Any]:
    """Return an evaluation with the pushes per second since the one before."""
    counts, seconds = event.get(BY_RANK + HISTOGRAM), event["train_s"] - before_s
    if not counts or seconds <= 0:
        return event
    return event | {"pushes_per_s": sum(counts.values()) / seconds}


def _spark(counts: Mapping[int, int]) -> str:
    """Draw a histogram in one line, with the numbers at its ends."""
    low, high = min(counts), max(counts)
    wide = -(-(high - low + 1) // _MAX_BARS)  # values of one bar
    bars = [0] * ((high - low) // wide + 1)
    for value, count in counts.items():
        bars[(value - low) // wide] += count
    top = max(bars)
    drawn = "".join(_BARS[-(-n * (len(_BARS) - 1) // top)] for n in bars)
    return f"{low} {drawn} {high}"
