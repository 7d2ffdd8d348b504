"""K-AVG: P learners take K local steps each, then average their models.

    w_j(0) = w~;   w_j(i+1) = w_j(i) - gamma * g_j(w_j(i)),   i = 0 .. K-1               (1)
    w~ <- sum_j n_j w_j(K) / sum_j n_j                                                  (2)

Reference: F. Zhou and G. Cong, "On the convergence properties of a K-step averaging stochastic
gradient descent algorithm for nonconvex optimization", IJCAI 2018 (arXiv:1708.01012); for acoustic
models, G. Cong, B. Kingsbury, S. Ghosh, G. Saon, F. Zhou, MLHPC 2017.

| symbol | here             |                                                    |
|--------|------------------|----------------------------------------------------|
| K      | `sync_every`     | local steps between two averages                   |
| P      | `me.size`        | learners                                           |
| w~     | `mean.value`     | the averaged model, from which all start again     |
| n_j    | (weight)         | frames learner j has drawn since the last average  |
| gamma  | `me.lr`          | derived from the sequential rate, gain 1/P         |

K = 1 without momentum is synchronous SGD with minibatches P times as large. With momentum each
learner keeps its own velocity: heavy-ball SGD is linear in (w, v, g), so the *mean* velocity stays
right, and while all learners have equal items, K = 1 is still exactly synchronous momentum SGD for
the averaged model.

Differences from the paper: the mean is weighted by frames; the last block of an epoch is shorter,
so that an epoch's data are exactly used up. What the paper does with local momentum is not known to
us: `local_momentum` offers all three (`hocket.strategies.periodic`). The adaptive measures are a
strategy of their own, `adaptive-kstep`.
Limits: every average waits for the slowest learner; too large a K late in training leaves a plateau
above the sequential loss.

When to use it: when the network is too slow for an exchange per minibatch: traffic falls as 1/K.
Start with a small K (4 to 16); a larger one costs accuracy, the more so with many learners.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hocket.core.strategy import State
from hocket.strategies.periodic import Averaging


@dataclass(frozen=True)
class KStep(Averaging[State]):
    """K local steps, then the average of the models (eqs. 1 and 2 are `Averaging.run`)."""

    name: ClassVar[str] = "kstep"
    paper: ClassVar[str] = "Zhou and Cong, IJCAI 2018 (arXiv:1708.01012); Cong et al., MLHPC 2017"
    summary: ClassVar[str] = "K local steps on each learner, then the average of the models"
