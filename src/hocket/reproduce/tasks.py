"""The tasks that claims are tried on when none is given, and how large an experiment is.

*The regime.* Most claims run on `stream`: frames that never repeat, minibatches of 16, one small
layer. One core makes 4,400 updates a second, so that the full form's sequential run has 61,440 of
them in 14 s, and each of 16 learners still makes thousands: as in the papers. With seed 0 it ends
at a dev loss of 0.964, 0.940 and 0.947 at rates of 0.1, 0.2 and 0.4; at 0.2, seeds 1 to 3 end at
0.938, 0.934 and 0.923. The teacher itself has 0.895.

*Synthetic frames* (48 classes that overlap, minibatches of 64, ReLU or p-norm networks) are what
claims on natural gradient and on real processes are tried on, and `--task synthetic` any other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from hocket.core.task import Task
from hocket.data.stream import Stream
from hocket.data.synthetic import Synthetic
from hocket.models.dnn import DNN

Scale: TypeAlias = Literal["smoke", "quick", "full"]


@dataclass(frozen=True)
class Size:
    """The task, the epochs and the seeds of an experiment of one scale."""

    task: Task
    epochs: int
    judges: int  # seeds that judge, beside the one that tunes; 0: that one does both


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
    "smoke": Size(Stream(epoch_frames=1_024, dev_frames=1_024), epochs=2, judges=0),
    # Many short epochs, because budgets are whole ones.
    "quick": Size(Stream(epoch_frames=16_384, dev_frames=8_192), epochs=12, judges=3),
    "full": Size(Stream(epoch_frames=49_152, dev_frames=16_384), epochs=20, judges=5),
}
SYNTHETIC: Final[dict[Scale, Size]] = {
    "smoke": Size(synthetic(32, 16, 640, layers=1), epochs=1, judges=0),
    "quick": Size(synthetic(768, 96, 4_000), epochs=2, judges=3),
    "full": Size(synthetic(2048, 128, 12_000), epochs=4, judges=5),
}
LR: Final = 0.2  # a good sequential rate for both
EVALUATIONS: Final = 50  # in a run: times to a loss are good to 2 % of it
STALL: Final = 0.005  # adaptive K: less than 0.5 % better from one of these to the next
FEW_EVALUATIONS: Final = 20  # of speech, where they cost more: 5 %
