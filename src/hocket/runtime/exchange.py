"""A real learner's end of every collective: blocking calls over the groups it belongs to.

With every collective a few numbers are gathered first: which one it is and how large (to name a
learner that is out of step), everybody's weight, and what rides along. Shares are therefore exact
before the vectors move.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from hocket.effects import AllReduce, AllToAll, Broadcast, Effect, Grad, Mean, MeanGradient, Scores
from hocket.errors import ContractError, require
from hocket.numerics import shares
from hocket.runtime import collectives
from hocket.runtime.desk import Note
from hocket.runtime.packing import from_bytes, to_bytes
from hocket.runtime.transport import Group, Store
from hocket.worker import Tally

_KINDS = ("AllReduce", "MeanGradient", "Broadcast", "AllToAll", "Evaluate", "Gather", "Wait")
_ROW = 8  # numbers, whatever the collective: gloo ends the process where lengths differ


@dataclass(frozen=True)
class Riding:
    """What this learner sends along with a collective of all."""

    alive: tuple[int, ...]
    tally: Tally
    stop: bool


class Exchange:
    """Blocking collectives. Members of a group must call in the same order."""

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        *,
        address: str,
        timeout_s: float,
        deterministic: bool,
    ) -> None:
        self._store = store
        self._rank = rank
        self._address = address
        self._timeout_s = timeout_s
        self._deterministic = deterministic
        self._groups: dict[tuple[int, ...] | None, Group] = {}
        if size > 1:
            self._groups[None] = self._open(tuple(range(size)), "all")

    def _open(self, members: tuple[int, ...], name: str) -> Group:
        return Group(
            self._store.prefix(f"group/{name}"),
            members.index(self._rank),
            len(members),
            address=self._address,
            timeout_s=self._timeout_s,
        )

    @property
    def world(self) -> Group:
        """The group of all learners."""
        return self._groups[None]

    def group(self, members: tuple[int, ...] | None) -> Group:
        """Return a group, opened when it is first used."""
        if members not in self._groups:
            assert members is not None
            require(
                self._rank in members, f"rank {self._rank} issued a collective of group {members}"
            )
            self._groups[members] = self._open(members, "-".join(map(str, members)))
        return self._groups[members]

    # ------------------------------------------------------------------ collectives

    def all_reduce(
        self, effect: AllReduce, weight: float, riding: Riding | None
    ) -> tuple[Mean, Note | None]:
        """Return the weighted mean, and what rode along."""
        group = self.group(effect.group)
        weights, note = self._notes(group, AllReduce, effect.x.numel(), weight, riding)
        value = self._weighted_sum(group, effect.x, weights)
        contributors = sum(w > 0 for w in weights) or len(weights)
        return Mean(value, contributors, float(sum(weights))), note

    def mean_gradient(self, grad: Grad, riding: Riding | None) -> tuple[Grad, Note | None]:
        """Return the frame-weighted mean gradient, and what rode along."""
        weights, note = self._notes(
            self.world, MeanGradient, grad.vector.numel(), float(grad.frames), riding
        )
        vector = self._weighted_sum(self.world, grad.vector, weights)
        tally = note.tally if note is not None else Tally()
        return Grad(vector, int(sum(weights)), tally.loss_sum, tally.correct, grad.tickets), note

    def broadcast(self, effect: Broadcast, members: tuple[int, ...]) -> torch.Tensor:
        """Return the root's vector."""
        require(effect.root in members, f"broadcast from rank {effect.root}, not in {members}")
        group = self.group(effect.group)
        self._notes(group, Broadcast, effect.x.numel(), 0.0, None)
        return group.broadcast(effect.x, members.index(effect.root))

    def all_to_all(self, effect: AllToAll) -> list[torch.Tensor]:
        """Return everybody's stripe for me."""
        group = self.group(effect.group)
        self._notes(group, AllToAll, sum(s.numel() for s in effect.stripes), 0.0, None)
        return group.all_to_all(effect.stripes)

    def scores(self, tally: Tally) -> Scores:
        """Add up everybody's slice of an evaluation."""
        sums = [tally.loss_sum, float(tally.frames), tally.correct]
        rows = self._rows(self.world, "Evaluate", 0, sums)
        return collectives.scores([Tally(r[0], int(r[1]), r[2]) for r in rows])

    def gather(self, value: Any) -> list[Any]:
        """Return everybody's value, in rank order."""
        data = to_bytes(value)
        lengths = [int(row[0]) for row in self._rows(self.world, "Gather", 0, [len(data)])]
        return [from_bytes(row) for row in self.world.all_gather_bytes(data, lengths)]

    def wait(self, *values: float) -> list[list[float]]:
        """Wait for everybody, and return everybody's values."""
        return self._rows(self.world, "Wait", 0, list(values))

    # ------------------------------------------------------------------ what travels

    def _notes(
        self,
        group: Group,
        kind: type[Effect[Any]],
        size: int,
        weight: float,
        riding: Riding | None,
    ) -> tuple[list[float], Note | None]:
        """Gather everybody's weight and, if all take part, what rides along."""
        tally = riding.tally if riding is not None else Tally()
        stop = riding is not None and riding.stop
        sums = [tally.loss_sum, float(tally.frames), tally.correct]
        rows = self._rows(group, kind.__name__, size, [weight, *sums, float(stop)])
        note = None
        if riding is not None:
            together = collectives.total([Tally(r[1], int(r[2]), r[3]) for r in rows])
            note = Note(riding.alive, together, any(r[4] for r in rows))
        return [r[0] for r in rows], note

    def _rows(self, group: Group, kind: str, size: int, values: list[float]) -> list[list[float]]:
        """Gather everybody's few numbers, and name a learner that is out of step."""
        what = [float(_KINDS.index(kind)), float(size)]
        padding = [0.0] * (_ROW - len(what) - len(values))
        rows = group.all_gather_numbers([*what, *values, *padding])
        for member, row in enumerate(rows):
            if row[:2] != what:
                raise ContractError(
                    f"rank {self._rank} issued {kind} of {size} values while member {member} "
                    f"issued {_KINDS[int(row[0])]} of {int(row[1])}: a group's collectives must "
                    "come in the same order on all members (contract rule 7)"
                )
        return [row[2 : 2 + len(values)] for row in rows]

    def _weighted_sum(self, group: Group, x: torch.Tensor, weights: list[float]) -> torch.Tensor:
        return group.weighted_sum(x, shares(weights), deterministic=self._deterministic)

    def reduced_bytes(self, num_bytes: int, members: tuple[int, ...] | None = None) -> int:
        """What a learner sends: its vector to everybody, or twice around a ring."""
        size = self.group(members).size
        if self._deterministic:
            return num_bytes * (size - 1)
        return 2 * num_bytes * (size - 1) // size
