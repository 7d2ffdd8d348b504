"""Scores while an utterance is still being spoken: frames in as they come, scores out.

A network in one direction needs no more of the future than its reach (`hocket.models.sequence`).
So its score of a frame is known `right` frames later, whatever the length of the pieces, and equals
the score in the whole utterance. Memory is that of a piece.
"""

from __future__ import annotations

from typing import Any

import torch

from hocket.errors import require
from hocket.models.sequence import SequenceNetwork


class Streaming:
    """One utterance on its way through a network."""

    def __init__(self, network: SequenceNetwork, left: int | None = None) -> None:
        """`left`: how often the first frame is repeated before it, as in training."""
        require(
            network.streams,
            "a bidirectional network reads the end of an utterance first: it cannot be streamed; "
            "train one with model.bidirectional = false",
        )
        self._network = network
        self._before = network.left if left is None else left
        self._held = torch.empty(0)  # frames that the next scores need
        self._state: Any = None
        self._skip = self._before - network.left  # scores of repeated frames
        self._last = torch.empty(0)

    @torch.inference_mode()
    def push(self, frames: torch.Tensor) -> torch.Tensor:
        """Take the next frames (T, D); return the scores that have become known, (T', C)."""
        if not len(frames):
            return frames.new_empty(0, self._network.output.out_features)
        if not self._last.numel():  # the utterance begins
            frames = torch.cat([frames[:1].expand(self._before, -1), frames])
            self._held = frames[:0]
        self._last = frames[-1:]
        window = torch.cat([self._held, frames])
        overlap = self._network.left + self._network.right
        self._held = window[max(0, len(window) - overlap) :]
        if len(window) <= overlap:
            return frames.new_empty(0, self._network.output.out_features)
        scores, self._state = self._network.advance(window[None], self._state)
        first = min(self._skip, scores.shape[1])
        self._skip -= first
        known: torch.Tensor = scores[0, first:]
        return known

    def finish(self) -> torch.Tensor:
        """Return the scores of the last frames; the last one is repeated behind them."""
        return self.push(self._last.expand(self._network.right, -1))
