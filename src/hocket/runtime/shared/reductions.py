"""The arithmetic of collectives, given the contributions of all members in rank order.

The simulator calls it with what its learners posted; real learners call it with what they gathered.
The same function in the same order gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from hocket.codecs import coded
from hocket.codecs.coded import Contribution
from hocket.core.accounts import Piggyback, Tally
from hocket.core.effects import (
    AllReduce,
    AllToAll,
    Broadcast,
    CodedMean,
    Deliver,
    Effect,
    Evaluate,
    Grad,
    Group,
    Mean,
    MeanGradient,
    Scores,
)
from hocket.core.flat import Flat
from hocket.core.numerics import shares, weighted_sum
from hocket.core.packing import num_bytes
from hocket.data.pool import Pool
from hocket.errors import require
from hocket.runtime.shared.boundary_effects import Gather, Quiet


@dataclass
class Post:
    """One learner's contribution to a collective, and where its answer goes."""

    effect: Any  # a collective effect; the same kind on all members
    arrived_s: float
    deliver: Deliver
    value: Any = None  # the gradient of MeanGradient, the tally of Evaluate
    weight: float = 0.0
    group: Group | None = None  # None: all learners
    piggyback: Piggyback | None = None  # None: nothing travels with this kind of collective
    root: int | None = None  # who must be alive, or there is no answer
    lends: bool = False  # the answer is lent until the next collective
    waits_for_quiet: bool = False  # until no message is in flight and services are idle
    number: int | None = None  # of a collective of all, among those that the learner has begun


def total(tallies: Sequence[Tally]) -> Tally:
    """Add tallies up in rank order."""
    result = Tally()
    for t in tallies:
        result.add(t.loss_sum, t.frames, t.correct)
    return result


def scores(tallies: Sequence[Tally]) -> Scores:
    """Turn the learners' slices into mean loss and accuracy."""
    t = total(tallies)
    frames = max(t.frames, 1)  # 0: whoever had the items was lost; the caller asks again
    return Scores(t.loss_sum / frames, t.correct / frames, t.frames)


def num_scored(effect: Evaluate, pool: Pool) -> int:
    """Return how many items of a split an evaluation looks at."""
    have = len(pool.items(effect.which))
    return have if effect.num_items is None else min(have, effect.num_items)


def slice_of(num_items: int, member: int, members: int) -> range:
    """Return the items that one of `members` learners evaluates."""
    return range(member, num_items, members)


def slice_for(rank: int, learners: tuple[int, ...], effect: Evaluate, pool: Pool) -> range:
    """Return the items that a rank evaluates: a share of a learner, nothing of an attendant."""
    if rank not in learners:
        return range(0)
    return slice_of(num_scored(effect, pool), learners.index(rank), len(learners))


# Every member's answer, the bytes of one contribution, and the trips around a ring.
Answers: TypeAlias = tuple[list[Any], int, float]


def answer(members: tuple[int, ...], posts: list[Post]) -> Answers:
    """Return the result of a collective, given all contributions in rank order."""
    return _ANSWERS[type(posts[0].effect)](members, posts)


def answer_alone(rank: int, effect: Effect[Any], weight: float = 0.0) -> Any:
    """Return the result of a collective with one member."""
    if isinstance(effect, CodedMean):  # nothing travels, so nothing is coded
        return coded.alone_(effect, weight)
    (only,), _, _ = answer((rank,), [Post(effect, 0.0, _nowhere, weight=weight)])
    return only


def _nowhere(value: Any, error: BaseException | None) -> None:
    """Drop the answer."""


def _all_reduce(members: tuple[int, ...], posts: list[Post]) -> Answers:
    value = weighted_sum([p.effect.x for p in posts], shares([p.weight for p in posts]))
    contributors = sum(p.weight > 0 for p in posts) or len(posts)
    weight = float(sum(p.weight for p in posts))
    means = [Mean(_own(p.effect, value), contributors, weight) for p in posts]
    return means, value.numel() * 4, 2.0


def _own(effect: AllReduce, value: Flat) -> Flat:
    """Return a learner's own copy of the mean, where it asked for it."""
    return effect.x.copy_(value) if effect.in_place else value.clone()


def _mean_gradient(members: tuple[int, ...], posts: list[Post]) -> Answers:
    grads: list[Grad] = [p.value for p in posts]
    vector = weighted_sum([g.vector for g in grads], shares([g.frames for g in grads]))
    t = total([Tally(g.loss_sum, g.frames, g.correct) for g in grads])
    answers = [Grad(vector, t.frames, t.loss_sum, t.correct, g.tickets) for g in grads]
    return answers, vector.numel() * 4, 2.0


def _coded_mean(members: tuple[int, ...], posts: list[Post]) -> Answers:
    parts = [Contribution(r, p.effect, p.weight) for r, p in zip(members, posts, strict=True)]
    means = coded.mean_(parts)
    return means, parts[0].effect.coder.size.total if len(parts) > 1 else 0, 2.0


def _broadcast(members: tuple[int, ...], posts: list[Post]) -> Answers:
    root = posts[0].effect.root
    require(root in members, f"broadcast from rank {root}, which is not in {members}")
    value = posts[members.index(root)].effect.x
    return [value.clone() for _ in posts], value.numel() * 4, 1.0


def _all_to_all(members: tuple[int, ...], posts: list[Post]) -> Answers:
    stripes, first = [p.effect.stripes for p in posts], posts[0].effect
    group = first.group or tuple(range(len(first.stripes)))
    places = [group.index(rank) for rank in members]  # a stripe keeps its owner after a loss
    exchanged = [[row[i].clone() for row in stripes] for i in places]
    return exchanged, num_bytes(stripes[0]), 1.0


def _evaluate(members: tuple[int, ...], posts: list[Post]) -> Answers:
    return [scores([p.value for p in posts])] * len(posts), 0, 0.0


def _gather(members: tuple[int, ...], posts: list[Post]) -> Answers:
    return [[p.effect.value for p in posts]] * len(posts), 0, 0.0


def _quiet(members: tuple[int, ...], posts: list[Post]) -> Answers:
    return [None] * len(posts), 0, 0.0


_ANSWERS: Final[dict[type[Effect[Any]], Callable[[tuple[int, ...], list[Post]], Answers]]] = {
    AllReduce: _all_reduce,
    MeanGradient: _mean_gradient,
    CodedMean: _coded_mean,
    Broadcast: _broadcast,
    AllToAll: _all_to_all,
    Evaluate: _evaluate,
    Gather: _gather,
    Quiet: _quiet,
}
