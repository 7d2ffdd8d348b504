"""Model averaging: learners train alone for a while, then all go on from the mean of their models.

    w <- sum_j n_j w_j / sum_j n_j                                                      (1)

References: H. Su and H. Chen, "Experiments on parallel training of deep neural network using model
averaging", arXiv:1507.01239 (2015): every few minibatches, by allreduce. Also known as BSP (J. Li
et al., Interspeech 2017: after 25,600 frames) and, once per archive of about 400,000 frames, as the
averaging of Kaldi (D. Povey, X. Zhang, S. Khudanpur, arXiv:1410.7455).

| symbol | here         |                                                        |
|--------|--------------|--------------------------------------------------------|
| n_j    | (weight)     | frames learner j has used since the last average       |
| (few)  | `sync_every` | minibatches between two averages; default 10           |

It is the code of `kstep` with another period. For the once-per-archive form set `sync_every` to the
minibatches of an archive (400,000 frames in minibatches of 512: 781), or beyond those of an epoch
for one average an epoch: a block ends with its epoch at the latest. As in both papers the rate is
multiplied by the number of learners (gain 1/P).

Differences from the papers: no pre-training and no natural gradient here (Su and Chen report that
both help averaging; natural gradient is a matter of the worker). Kaldi leaves jobs with a poor
objective out of the mean and does not average at all at first; that is not done here.
Limits: as `kstep`. The sheer average converges more slowly with more learners; see `bmuf`.

When to use it: when the network is too slow for an exchange per minibatch, and you want the
simplest method with few exchanges. With few learners `bmuf` reached a lower loss with the same
traffic in our runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hocket.core.strategy import State
from hocket.strategies.periodic import Averaging


@dataclass(frozen=True)
class ModelAveraging(Averaging[State]):
    """The mean of the models every few minibatches, or once per archive."""

    sync_every: int = 10

    name: ClassVar[str] = "averaging"
    paper: ClassVar[str] = "Su and Chen 2015 (arXiv:1507.01239); Povey et al. 2014"
    summary: ClassVar[str] = "the mean of the models every few minibatches, or once per archive"
