"""Scores of a whole utterance from a network, in bounded memory.

A network that reads windows scores each frame by itself. One that reads sequences in one direction
is given the utterance in pieces and carries its state from one to the next, so that the scores are
those of the whole. One in both directions gets pieces that overlap: MARGIN frames on both sides
fill its states, and only what lies between them counts.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
import torch
from torch import nn

from hocket.models.sequence import SequenceNetwork
from hocket.models.streaming import Streaming
from hocket.speech.chunk_task import SpeechChunks
from hocket.speech.features.store import FeatureStore
from hocket.speech.task import SpeechTask

PIECE: Final = 1000  # frames scored at once: 10 s
MARGIN: Final = 100  # frames; farther ones change the score of a trained network very little
AnySpeechTask: TypeAlias = SpeechTask | SpeechChunks


@torch.inference_mode()
def scores_of(
    model: nn.Module, task: AnySpeechTask, store: FeatureStore, number: int
) -> torch.Tensor:
    """Return the network's outputs for every frame of an utterance, (frames, senones)."""
    if isinstance(task, SpeechTask):
        return _of_windows(model, task, store, number)
    assert isinstance(model, SequenceNetwork)
    return (_streamed if model.streams else _overlapping)(model, task, store, number)


def _of_windows(
    model: nn.Module, task: SpeechTask, store: FeatureStore, number: int
) -> torch.Tensor:
    pieces = []
    for first in range(0, int(store.frames[number]), PIECE):
        frames = np.arange(first, min(first + PIECE, int(store.frames[number])))
        x = store.gather(np.full(len(frames), number), frames, task.context)
        pieces.append(model(torch.from_numpy(x)))
    return torch.cat(pieces)


def _streamed(
    model: SequenceNetwork, task: SpeechChunks, store: FeatureStore, number: int
) -> torch.Tensor:
    stream = Streaming(model, task.cutting.left)
    x = torch.from_numpy(store.utterance(number))
    return torch.cat([*(stream.push(piece) for piece in torch.split(x, PIECE)), stream.finish()])


def _overlapping(
    model: SequenceNetwork, task: SpeechChunks, store: FeatureStore, number: int
) -> torch.Tensor:
    length, cutting = int(store.frames[number]), task.cutting
    pieces = []
    for first in range(0, length, PIECE):
        last = min(first + PIECE, length)
        begin = max(first - MARGIN, -cutting.left)
        end = min(last + MARGIN, length + cutting.right)
        x = store.stretches(np.array([number]), np.array([begin]), end - begin)
        skipped = first - begin - model.left
        pieces.append(model(torch.from_numpy(x))[0, skipped : skipped + last - first])
    return torch.cat(pieces)
