"""Sequences as items: utterances cut into chunks, or left whole.

An utterance of L frames becomes ceil(L / W) chunks of nearly equal length, at most W; a chunk
brings some frames before and after it, which the network reads and nobody scores. Chunks are
sorted by length, and neighbours share a minibatch, so that there is next to no padding (whole
utterances: *bucketing*). In every epoch, chunks of one length change places at random. So an
item's number of frames never changes, as the ledger needs, while its company does; whole
utterances, few of which are equally long, mostly stay together.

No state goes from one item to another: any learner can compute any item.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.functional import cross_entropy

from hocket.core.numerics import stable_seed
from hocket.core.task import Loss
from hocket.errors import require
from hocket.models.model import Model
from hocket.models.sequence import SequenceModel

Ints: TypeAlias = NDArray[np.int64]
DEV_BATCH: Final = 4096  # frames of a dev item; it is evaluated without a backward pass


class Pieces(NamedTuple):
    """The chunks of one item, one row each, longest first or all alike."""

    utterances: Ints
    first: Ints  # frame of the utterance
    frames: Ints  # that count


class Chunks(NamedTuple):
    """A minibatch: (N, T, D) frames, shorter chunks padded at their end; the labels of all frames
    that count, chunk after chunk; how many of them each chunk has; the context on either side.
    """

    x: torch.Tensor
    labels: torch.Tensor
    counts: tuple[int, ...]
    left: int
    right: int

    @property
    def lengths(self) -> list[int] | None:
        """Frames of each sequence that are no padding; None if nothing is padded."""
        if len(set(self.counts)) == 1:
            return None
        return [self.left + count + self.right for count in self.counts]

    def places(self, reach: tuple[int, int]) -> torch.Tensor:
        """Return where, among all N (T - reach) scores, those of the labelled frames are."""
        size = self.x.shape[1] - sum(reach)
        skipped = self.left - reach[0]
        starts = [n * size + skipped for n in range(len(self.counts))]
        rows = [torch.arange(s, s + c) for s, c in zip(starts, self.counts, strict=True)]
        return torch.cat(rows).to(self.x.device)

    def cut(self, which: int, of: int) -> tuple[Chunks, int]:
        """Return one of several parts, and its frames: whole chunks, since rows hang together."""
        rows = slice(which * len(self.counts) // of, (which + 1) * len(self.counts) // of)
        counts = self.counts[rows]
        begin = sum(self.counts[: rows.start])
        longest = self.left + max(counts, default=0) + self.right
        labels = self.labels[begin : begin + sum(counts)]
        part = Chunks(self.x[rows, :longest], labels, counts, self.left, self.right)
        return part, sum(counts)


@dataclass(frozen=True)
class Cutting:
    """How utterances are cut: the options that tasks of sequences share."""

    chunk_frames: int
    left: int
    right: int
    batch_frames: int

    @classmethod
    def of(cls, task: Any, model: SequenceModel) -> Cutting:
        """Check the options of a `[task]` table together, and fill in what follows."""
        width, batch = task.chunk_frames, task.batch_frames
        require(width >= 0, f"task.chunk_frames must be at least 0 (0: whole), not {width}")
        require(batch >= 1, f"task.batch_frames must be at least 1, not {batch}")
        given = task.left_context, task.right_context
        reach, usual = model.reach, model.usual_context
        for side, asked, needed in zip(("left", "right"), given, reach, strict=True):
            key = f"task.{side}_context"
            require(
                asked is None or width > 0,
                f"{key} has no effect on whole utterances (task.chunk_frames = 0): leave it out",
            )
            require(
                asked is None or asked >= needed,
                f"{key} = {asked} is less than the {needed} frames that model {model.name!r} "
                "reads on that side: leave it out, or give more",
            )
        sides = [u if g is None else g for g, u in zip(given, usual, strict=True)]
        left, right = sides if width else reach
        return cls(width, left, right, batch)


class Plan:
    """Which chunks the items of a split hold."""

    def __init__(self, lengths: Ints, cutting: Cutting, batch_frames: int, key: int) -> None:
        pieces = [_cut(int(n), cutting.chunk_frames) for n in lengths]
        count = np.array([len(p) for p in pieces], dtype=np.int64)
        frames = np.concatenate(
            [np.diff(p, append=n) for p, n in zip(pieces, lengths, strict=True)]
        )
        order = np.argsort(-frames, kind="stable")
        self._utterances = np.repeat(np.arange(len(lengths)), count)[order]
        self._first = np.concatenate(pieces)[order]
        self._frames = frames[order]
        self._key = key
        self._starts = _batches(self._frames, batch_frames)
        self._held: tuple[int, Ints] = (-1, order[:0])

    @property
    def frames(self) -> list[int]:
        """Return the frames of every item."""
        return [int(n) for n in np.add.reduceat(self._frames, self._starts[:-1])]

    def pieces(self, item: int, epoch: int | None) -> Pieces:
        """Return an item's chunks in an epoch; None: in the order of the data."""
        places = np.arange(self._starts[item], self._starts[item + 1])
        if epoch is not None:
            places = self._order(epoch)[places]
        return Pieces(self._utterances[places], self._first[places], self._frames[places])

    def _order(self, epoch: int) -> Ints:
        """Return a new order of the chunks, those of one length among themselves."""
        if self._held[0] != epoch:
            rng = np.random.default_rng(stable_seed("chunks", self._key, epoch))
            drawn = rng.random(len(self._frames))
            self._held = epoch, np.lexsort((drawn, -self._frames))
        return self._held[1]


def _cut(frames: int, at_most: int) -> Ints:
    """Return where the chunks of an utterance begin."""
    count = -(-frames // at_most) if at_most else 1
    return np.arange(count, dtype=np.int64) * frames // count


def _batches(frames: Ints, at_most: int) -> list[int]:
    """Return where minibatches begin, and the end: as many of the longest as `at_most` allows."""
    starts = [0]
    while starts[-1] < len(frames):
        held = max(1, at_most // int(frames[starts[-1]]))
        starts.append(min(starts[-1] + held, len(frames)))
    return starts


def sequence_model(model: Model, instead: str) -> SequenceModel:
    """Return the model if it reads sequences; refuse it otherwise."""
    require(
        isinstance(model, SequenceModel),
        f"model {model.name!r} reads windows of frames, but this task gives it chunks: choose "
        f"lstm, tdnn or cldnn, or task {instead!r}",
    )
    assert isinstance(model, SequenceModel)
    return model


def places_of(pieces: Pieces, cutting: Cutting) -> tuple[Ints, int]:
    """Return the frame of its utterance where each row begins, and how long the rows are."""
    longest = int(pieces.frames.max())
    return pieces.first - cutting.left, cutting.left + longest + cutting.right


def labels_of(pieces: Pieces, starts: Ints) -> Ints:
    """Return where the labels are, given where each chunk's utterance starts among all frames."""
    begin = np.repeat(starts + pieces.first, pieces.frames)
    within = np.arange(int(pieces.frames.sum())) - np.repeat(
        np.cumsum(pieces.frames) - pieces.frames, pieces.frames
    )
    return begin + within


def chunk_loss(model: nn.Module, batch: Chunks, reach: tuple[int, int]) -> Loss:
    """Return the cross-entropy summed over the frames that count."""
    scores = model(batch.x, batch.lengths, batch.places(reach))
    total = cross_entropy(scores, batch.labels, reduction="sum")
    correct = (scores.detach().argmax(1) == batch.labels).sum()
    return Loss(total, len(batch.labels), correct)
