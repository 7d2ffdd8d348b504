"""The task that claims are tried on when none is given: synthetic frames, hard enough to tell.

48 classes that overlap, minibatches of 64 frames, so that 16 learners with 16 local steps still
meet several times an epoch. The network does not reach the Bayes error in the epochs it is given,
so methods that learn more slowly show it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from hocket.core.task import Task
from hocket.data.synthetic import Synthetic
from hocket.models.dnn import DNN
from hocket.reproduce.claim import Scale


@dataclass(frozen=True)
class Size:
    """The task, the epochs and the seeds of an experiment of one scale."""

    task: Task
    epochs: int
    seeds: int


def synthetic(items: int, width: int, dev_frames: int, layers: int = 2) -> Synthetic:
    """Return synthetic frames in so many minibatches of 64."""
    return Synthetic(
        num_frames=64 * items,
        dev_frames=dev_frames,
        batch_frames=64,
        num_classes=48,
        num_features=16,
        noise=0.9,
        model=DNN(layers=layers, width=width),
    )


SIZES: Final[dict[Scale, Size]] = {
    "smoke": Size(synthetic(64, 16, 640, layers=1), epochs=1, seeds=1),
    "quick": Size(synthetic(768, 96, 4_000), epochs=2, seeds=2),
    "full": Size(synthetic(2048, 128, 12_000), epochs=4, seeds=3),
}
LR: Final = 0.2  # sequential: from 0.05 to 0.4 the dev loss falls, at 0.2 every method is stable
