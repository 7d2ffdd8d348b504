"""What the claims on Hessian-free optimisation share: tasks, settings, a cluster, counted work.

*Passes and updates.* A pass over the data is as much work as taking gradients on all of it once.
A curvature product counts as 1.8 gradients on the same frames (`benchmarks/curvature.py`), scoring
as a third of one. SGD makes an update for every minibatch of all learners, Hessian-free one for
every gradient.

*The ratio of computing to communicating* of `hessian-free-scaling` is ours, in the papers' sizes
(300 h of speech; 64 to 4,096 processes): with 1,024 learners a product on a learner's share of the
curvature sample lasts 10 times as long as an allreduce of the model, and a learner's memory is 4
times as fast as its link.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

import torch

from hocket.core.flat import Layout
from hocket.core.task import Item, Task
from hocket.data.synthetic import Synthetic
from hocket.models.dnn import DNN
from hocket.models.gauss_newton import PRODUCT_COST
from hocket.reproduce.tasks import Scale, Size, synthetic
from hocket.runtime.sim.cost import Cluster, Host

FRAMES_PER_S: Final = 10_000.0  # of one learner
RATIO: Final = 10.0  # a product on 1/1,024 of the curvature sample, to an allreduce
AT: Final = 1_024  # learners of that ratio
WORK: Final = 6.0  # passes' worth of work in an iteration with 1/8 for curvature, as measured
SIZES_OF_NEWTON: Final[dict[Scale, Size]] = {
    "smoke": Size(synthetic(24, 12, 640, layers=1), epochs=1, judges=0),
    "quick": Size(synthetic(192, 32, 4_000, layers=1), epochs=6, judges=3),
    "full": Size(synthetic(1024, 96, 12_000), epochs=6, judges=5),
}


@dataclass(frozen=True)
class Utterances(Synthetic):
    """Synthetic frames, an utterance of 80 to 320 frames an item, as sequence criteria need it."""

    def items(self, split: str) -> Sequence[Item]:
        """Return utterances: the place of the first frame, and how many there are."""
        lengths = self.lengths(split)
        starts = accumulate(lengths[:-1], initial=0)
        return [Item(start, length) for start, length in zip(starts, lengths, strict=True)]

    def load(self, split: str, item: Item, epoch: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the spliced frames of one utterance."""
        frames, start = self.frames(split), int(str(item.id))
        chosen = torch.arange(start, start + item.frames)
        return self.splice(frames, chosen), frames.labels[chosen]


def utterances(num_frames: int) -> Utterances:
    """Return so many frames in utterances, with a network that costs little to simulate."""
    return Utterances(
        num_frames=num_frames,
        dev_frames=2_000,
        num_classes=8,
        num_features=8,
        context=1,
        model=DNN(layers=1, width=8),
    )


def cluster(task: Task, learners: int, curvature: float, net: float = 1.0) -> Cluster:
    """Return equal learners whose links keep the stated ratio for this task's model.

    `net`: the bandwidth as a multiple of that.
    """
    model_bits = Layout.of(task.build_model()).size * 32
    frames = sum(item.frames for item in task.items("train"))
    product_s = PRODUCT_COST * curvature * frames / AT / FRAMES_PER_S
    gbit = net * 2 * model_bits / (product_s / RATIO) / 1e9
    host = Host(
        count=learners, frames_per_s=FRAMES_PER_S, bandwidth_gbit=gbit, memory_gbit=4 * gbit
    )
    latency = product_s / RATIO / 100
    return Cluster((host,), latency_s=latency, local_latency_s=latency / 4)
