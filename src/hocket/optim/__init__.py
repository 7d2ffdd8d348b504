"""How one learner turns a gradient into a step: optimizers, schedules, rate compensation.

May import core, support, errors; never `record`, `data` or `codecs`, which are rooms beside it. It
knows nothing of strategies or of other learners.
"""

from __future__ import annotations

from typing import Final

from hocket.core.optimizer import Optimizer
from hocket.optim.adagrad import AdaGrad
from hocket.optim.adam import AdamW
from hocket.optim.natural_gradient.ngsgd import NGSGD, NaturalSGD
from hocket.optim.schedules import Constant, Exponential, Newbob, Schedule, Warmup
from hocket.optim.sgd import SGD

OPTIMIZERS: Final[dict[str, type[Optimizer]]] = {
    c.name: c for c in (SGD, NaturalSGD, AdamW, AdaGrad)
}
SCHEDULES: Final[dict[str, type[Schedule]]] = {
    c.name: c for c in (Constant, Exponential, Warmup, Newbob)
}

__all__ = [
    "NGSGD",
    "OPTIMIZERS",
    "SCHEDULES",
    "SGD",
    "AdaGrad",
    "AdamW",
    "Constant",
    "Exponential",
    "NaturalSGD",
    "Newbob",
    "Optimizer",
    "Schedule",
    "Warmup",
]
