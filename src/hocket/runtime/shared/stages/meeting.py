"""What happens at a quiet point to a model that is in stages: it is scored and saved in passing.

No rank puts it together. Held-out items go through the stages as minibatches do; the file of the
model is written by the first rank, which asks the others for it piece by piece.
"""

from __future__ import annotations

import math
from typing import Any, Final

import torch

from hocket.core.accounts import Scores, Tally, Ticket
from hocket.core.effects import (
    Recv,
    Send,
)
from hocket.core.flat import Layout
from hocket.core.stage_effects import (
    Forward,
)
from hocket.core.strategy import State
from hocket.record.checkpoint import Checkpoints
from hocket.record.tensor_file import TensorFile, width
from hocket.runtime.shared import reductions
from hocket.runtime.shared.boundary_effects import Gather
from hocket.runtime.shared.context import RankContext

PIECE: Final = 1 << 18  # values that travel at once: what is held beside a stage is little
AHEAD: Final = 2  # held-out items between two stages: one is computed while the next one travels


async def scored(rank: RankContext, state: State) -> Scores:
    """Score the dev split: every item goes through all stages, in its order."""
    stage, last = rank.rank, rank.experiment.num_ranks - 1
    tally = Tally()
    for number, item in enumerate(rank.account.pool.items("dev")):
        x = None
        if stage:
            x = (await Recv("scored", source=stage - 1)).payload
            await Send(stage - 1, "taken", None)
        passed = await Forward(state.params, Ticket(0, number, item.frames), x, split="dev")
        if stage == last:
            tally.add(passed.loss_sum, passed.frames, passed.correct)
            continue
        if number >= AHEAD:
            await Recv("taken", source=stage + 1)
        await Send(stage + 1, "scored", passed.out)
    if stage < last:
        for _ in range(min(AHEAD, len(rank.account.pool.items("dev")))):
            await Recv("taken", source=stage + 1)
    rows = await Gather([tally.loss_sum, tally.frames, tally.correct])
    return reductions.scores([Tally(*row) for row in rows])


async def written(
    rank: RankContext,
    state: State,
    layout: Layout,
    others: dict[str, torch.Tensor],
    checkpoints: Checkpoints,
) -> str | None:
    """Write the model's file, all ranks together; return what went wrong, on the first rank.

    `others`: what this rank holds beside its parameters, buffers and what is not trained.
    """
    mine = layout.named(state.params) | others
    facts: Any = [[name, str(t.dtype), list(t.shape)] for name, t in mine.items()]
    holders = await Gather(facts)
    if rank.rank:
        for _ in range(sum(map(_num_pieces, mine.values()))):
            name, piece = (await Recv("wanted", source=0)).payload
            await Send(0, "piece", _piece(mine[name], piece))
        return None
    plan = [(holder, fact) for holder, own in enumerate(holders) for fact in own]
    plan.sort(key=lambda one: -width(one[1]))
    writing = _Writing(checkpoints, rank.account.frames, [fact for _, fact in plan])
    for holder, (name, _, shape) in plan:
        if not holder:
            writing.add(mine[name])
            continue
        for piece in range(_num_pieces(math.prod(shape))):
            await Send(holder, "wanted", (name, piece))
            writing.add((await Recv("piece", source=holder)).payload)
    return writing.end()


def _num_pieces(what: torch.Tensor | int) -> int:
    size = what if isinstance(what, int) else what.numel()
    return -(-size // PIECE)


def _piece(tensor: torch.Tensor, number: int) -> torch.Tensor:
    """Return some values of a tensor; it does not change before all have met again."""
    return tensor.detach().reshape(-1)[number * PIECE : (number + 1) * PIECE]


class _Writing:
    """Writes a file; after something went wrong, it only remembers what."""

    def __init__(self, checkpoints: Checkpoints, frames: int, facts: list[Any]) -> None:
        self._problem: str | None = None
        self._file: TensorFile | None = None
        try:
            self._file = checkpoints.open_model(frames, facts)
        except OSError as error:
            self._fail(error)

    def _fail(self, error: OSError) -> None:
        self._problem = self._problem or f"{type(error).__name__}: {error}"

    def add(self, tensor: torch.Tensor) -> None:
        """Write one tensor."""
        if self._problem is None and self._file is not None:
            try:
                self._file.add(tensor)
            except OSError as error:
                self._fail(error)

    def end(self) -> str | None:
        """Close the file; say what went wrong."""
        try:
            if self._file is not None:
                self._file.close()
        except OSError as error:
            self._fail(error)
        return self._problem
