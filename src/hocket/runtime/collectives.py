"""The arithmetic of collectives, given everybody's contribution in rank order.

The simulator calls it with what its learners posted; real learners call it with what they gathered.
Same function, same order, same bits.
"""

from __future__ import annotations

from collections.abc import Sequence

from hocket.effects import Scores
from hocket.worker import Tally


def total(tallies: Sequence[Tally]) -> Tally:
    """Add tallies up in rank order."""
    result = Tally()
    for t in tallies:
        result.add(t.loss_sum, t.frames, t.correct)
    return result


def scores(tallies: Sequence[Tally]) -> Scores:
    """Turn the learners' slices into mean loss and accuracy."""
    t = total(tallies)
    return Scores(t.loss_sum / t.frames, t.correct / t.frames, t.frames)


def slice_of(num_items: int, member: int, members: int) -> range:
    """Return the items that one of `members` learners evaluates."""
    return range(member, num_items, members)
