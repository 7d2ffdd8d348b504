"""What claims on networks for sequences share: equal data in chunks, and equal parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from hocket.core.task import Task
from hocket.data.synthetic import Synthetic
from hocket.data.synthetic_chunks import SyntheticChunks
from hocket.errors import ConfigError
from hocket.models.model import Model
from hocket.models.sequence import SequenceModel
from hocket.reproduce.tasks import Scale, Size
from hocket.speech.chunk_task import SpeechChunks
from hocket.speech.task import SpeechTask

LARGEST_WIDTH = 4096


def small(model: Model, frames: int, dev_frames: int) -> Synthetic:
    """Return synthetic frames whose classes show over a long context."""
    return Synthetic(
        num_frames=frames,
        dev_frames=dev_frames,
        batch_frames=64,
        num_classes=24,
        num_features=12,
        noise=1.2,
        context=5,
        model=model,
    )


def in_chunks(task: Task, model: SequenceModel, **more: Any) -> Task:
    """Return the task of chunks on the same data."""
    if isinstance(task, Synthetic):
        shared = ("num_frames", "dev_frames", "num_classes", "num_features", "noise", "data_seed")
        return SyntheticChunks(**{k: getattr(task, k) for k in shared}, model=model, **more)
    if isinstance(task, SpeechTask):
        speech = ("experiment", "features", "normalisation", "volume_db", "noise_share",
                  "echo_share", "mask_bins")  # fmt: skip
        return SpeechChunks(**{k: getattr(task, k) for k in speech}, model=model, **more)
    if isinstance(task, SyntheticChunks | SpeechChunks):
        return replace(task, model=model, **more)
    raise ConfigError(
        f"this claim needs sequences, which {type(task).__name__} does not have: give --task "
        "synthetic or a prepared experiment"
    )


def num_parameters(task: Any) -> int:
    """Count the parameters of a task's network, without values."""
    with torch.device("meta"):
        network = task.build_model()
    return sum(p.numel() for p in network.parameters())


def of_size(make: Callable[[int], Any], parameters: int) -> Any:
    """Return the task whose network comes closest to so many parameters; `make` takes a width."""
    low, high = 2, LARGEST_WIDTH
    while low < high:
        middle = (low + high) // 2
        low, high = (
            (middle + 1, high) if num_parameters(make(middle)) < parameters else (low, middle)
        )
    return min(
        (make(max(2, low - 1)), make(low)), key=lambda t: abs(num_parameters(t) - parameters)
    )


def sized(scale: Scale, model: Model) -> Size:
    """Return a task of synthetic frames, its epochs and seeds."""
    sizes = {
        "smoke": Size(small(model, 1_500, 400), epochs=1, judges=0),
        "quick": Size(small(model, 24_000, 4_000), epochs=4, judges=3),
        "full": Size(small(model, 120_000, 10_000), epochs=6, judges=5),
    }
    return sizes[scale]
