"""A coded mean between real learners: two exchanges, each survivable.

Phase 0 brings every learner's code to the owners of stripes, phase 1 the code of each stripe's sum
to everybody, phase 2 (between hosts) says that all have arrived. The vector is coded once, before
anybody is known to be lost: a collective that is rerun among survivors sends other slices of the
same bytes. What an owner keeps is replaced only when the collective is complete, so an exchange
that was interrupted leaves it as it was.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hocket.codecs import coded
from hocket.codecs.coded import Contribution
from hocket.core.codec import Stripe
from hocket.core.effects import Mean
from hocket.core.packing import Buffer
from hocket.runtime.net.agreement import Ranks
from hocket.runtime.net.links import Frame
from hocket.runtime.net.operations import GroupMemory, PostedCollective, as_bytes


class ReduceCoded(PostedCollective):
    """The weighted mean of what codecs make of the members' vectors."""

    def __init__(
        self, memory: GroupMemory, part: Contribution, row: Sequence[float], *, all_near: bool
    ) -> None:
        self._coder, self._effect = part.effect.coder, part.effect
        super().__init__(memory, "CodedMean", self._coder.size.total, row)
        self.num_phases = 2 if all_near else 3
        sent = part.encode_()
        self._sent = None if sent is None else sent.cpu()
        room = torch.zeros(self._size, dtype=torch.uint8) if self._sent is None else self._sent
        self._post(room)
        self._kept = coded.Kept()
        self._arrived: dict[int, memoryview] = {}

    def begin(self, members: Ranks) -> None:
        """Cut the vector among these members."""
        super().begin(members)
        self._stripes = self._coder.cut(len(members))
        self._mine = self._stripes[self.me]
        if self._effect.memory is not None:
            self._effect.memory.own_(self._mine)

    def _data(self, to: int) -> list[Buffer]:
        """Send a member of another host its stripe."""
        if to in self._memory.near or self._sent is None:
            return []
        stripe = self._stripes[self.members.index(to)]
        return [as_bytes(self._coder.part(self._sent, stripe))]

    def sends(self, phase: int, to: int) -> tuple[Buffer, int]:
        """Send members of other hosts the sum of this learner's stripe."""
        if phase != 1 or to in self._memory.near:
            return super().sends(phase, to)
        return (as_bytes(self._code) if self._code.numel() else b""), -1

    def receives(self, phase: int, frames: dict[int, Frame]) -> None:
        """Phase 0: add up and code this learner's stripe. Phase 1: take in those of the others."""
        if phase > 0:
            self._arrived = {r: memoryview(f.body) for r, f in frames.items()}
            return
        super().receives(phase, frames)
        on = self._effect.x
        codes = [self._code_of(r).to(on.device) if w else None for r, w in self._weights()]
        self._total = total = coded.total_of(self._coder, self._mine, codes, on)
        learnt = sum(weight for _, weight in self._weights())
        code, self._kept = coded.encode_total(
            self._memory.rank, self._coder, self._mine, total, self._effect.memory, learnt
        )
        length = code.numel()
        self._code = self._memory.own(self._memory.result_place, length, torch.uint8)
        self._code.copy_(code)

    def _weights(self) -> list[tuple[int, float]]:
        return [(r, row[0]) for r, row in zip(self.members, self.rows, strict=True)]

    def _code_of(self, rank: int) -> torch.Tensor:
        """Return what a member sent for this learner's stripe."""
        if rank not in self._memory.near:
            return self._read(rank, 0, self._coder.num_bytes(self._mine), torch.uint8)
        return self._coder.part(self._read(rank, 0, self._size, torch.uint8), self._mine)

    def _sum_of(self, rank: int, stripe: Stripe) -> torch.Tensor:
        """Return the code of the sum of a member's stripe."""
        place, length = self._places[rank][1], self._coder.num_bytes(stripe)
        return self._values_of(rank, place, self._arrived.get(rank), length, torch.uint8)

    def _answer(self) -> tuple[Mean, list[list[float]]]:
        weights = [weight for _, weight in self._weights()]
        x, total = self._effect.x, sum(weights)
        if total and len(weights) == 1:
            coded.survivor_(self._effect, self._total, total)
        elif total:
            coded.keep_(self._effect.memory, self._kept)
            codes = [
                self._sum_of(r, s).to(x.device)
                for r, s in zip(self.members, self._stripes, strict=True)
            ]
            coded.spread_(self._coder, self._stripes, codes, total, x)
        else:
            x.zero_()
        return coded.summary(self._effect, weights), self.rows
