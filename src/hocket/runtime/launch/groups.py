"""Learners that are groups, as their launcher sees them: one is lost with any of its ranks.

A rank of a group that is not its first has a process, but no number of a learner's: it is in no
record. Its launcher is that of its first rank, as both are on one host.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from hocket.runtime.launch.children import Child

NOTICED_S: Final = 0.1  # at most, from the end of a connection to that of its process


def learners_of(children: Iterable[Child]) -> list[Child]:
    """Return those who are ranks of their own: learners, and who attends to them."""
    return [child for child in children if child.belongs_to is None]


def others_of(children: Iterable[Child], learner: Child) -> list[Child]:
    """Return the other ranks of a learner."""
    seats = ((child, child.belongs_to) for child in children)
    return [child for child, seat in seats if seat is not None and seat.rank == learner.rank]


def first_of(children: Iterable[Child], member: Child) -> Child:
    """Return the first rank of the learner that a process belongs to."""
    assert member.belongs_to is not None
    rank = member.belongs_to.rank
    return next(one for one in children if one.belongs_to is None and one.rank == rank)


def ended_first(learner: Child, others: Iterable[Child]) -> Child:
    """Return which rank of a learner that is lost has ended by itself: the others follow it.

    Those that are not the first wait to be ended, so one that has ended is the cause.
    """
    noticed = learner.failure is not None  # it has seen the end of a connection
    for other in others:
        if noticed:
            other.process.join(NOTICED_S)
        if other.process.exitcode not in (None, 0):
            return other
    return learner


def why_lost(member: Child) -> str:
    """Say why a learner is lost that has lost one of its ranks."""
    assert member.belongs_to is not None
    stage = member.belongs_to.stage + 1
    return f"process {member.rank}, which held stage {stage} of its model, {member.ended_by()}"


def dismiss(members: Iterable[Child]) -> None:
    """End what is left of a learner that is lost."""
    for member in members:
        if member.working:
            member.left = True
            member.process.kill()


def failed_before(members: Iterable[Child]) -> bool:
    """Return whether one of them has said that it failed: then that is why the learner ended."""
    for member in members:
        while member.working and member.failure is None and member.pipe_has_news():
            if member.receive() is None:
                break
    return any(member.failure for member in members)
