"""Priors of the senones, re-estimated from the network itself.

    P(senone) = mean over training frames of P(senone | x)                                (1)

A network has biases of its own: it may give a rare senone more than its share of the training
frames. Decoding divides posteriors by priors, so a bias that is in both cancels. Kaldi does this at
the end of training, on 20,000 frames.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from hocket.speech.chunk_task import SpeechChunks
from hocket.speech.task import SpeechTask

Priors: TypeAlias = Literal["alignment", "posterior"]
NUM_FRAMES = 20_000  # Kaldi's
BATCH = 1024
FLOOR = 1e-8  # a senone that the network never predicts must not win by this division


def mean_posteriors(
    model: nn.Module, task: SpeechTask | SpeechChunks, num_frames: int = NUM_FRAMES
) -> NDArray[np.float64]:
    """Return eq. 1 over frames that are evenly spaced in the training data."""
    total = torch.zeros(task.num_senones, dtype=torch.float64)
    count = 0
    with torch.inference_mode():
        for scores in _scores(model, task, num_frames):
            total += torch.softmax(scores, dim=1).sum(0, dtype=torch.float64)
            count += len(scores)
    mean = np.maximum((total / count).numpy(), FLOOR)
    return np.asarray(mean / mean.sum())


def _scores(
    model: nn.Module, task: SpeechTask | SpeechChunks, num_frames: int
) -> Iterator[torch.Tensor]:
    """Yield the network's outputs for frames, or chunks, evenly spaced in the training data."""
    if isinstance(task, SpeechTask):
        for x in torch.split(task.sample(num_frames)[0], BATCH):
            yield model(x)
        return
    for batch in task.sampled_chunks(num_frames):
        yield model(batch.x, batch.lengths, batch.places(task.sequences.reach))
