"""Rate compensation: the local learning rate of a strategy, from the sequential rate.

A strategy declares its *gain*: how far P learners move per P minibatches, relative to sequential
SGD at the same rate (plain averaging: 1/P, because each step is divided by P). Users give the
sequential rate; the local rate is derived from it:

    full: lr / gain      sqrt: lr / sqrt(gain)      none: lr

It is reached in a linear ramp over the first epoch, because the full rate on an untrained model is
the most common reason to diverge. All this is for optimizers whose step grows with the rate times
the gradient (SGD); Adam uses the given rate unchanged.
"""

from __future__ import annotations

import math

from hocket.core.optimizer import Optimizer
from hocket.errors import require
from hocket.optim.schedules import Compensation, Schedule


def target_factor(schedule: Schedule, optimizer: Optimizer, gain: float) -> float:
    """Return the factor on the rate after the ramp."""
    asked = schedule.lr_compensation
    require(
        optimizer.scales_with_gain or asked in (None, "none"),
        f"schedule.lr_compensation = {asked!r} has no effect with optimizer "
        f"{optimizer.name!r}, whose step does not grow with the gradient: leave it out",
    )
    require(gain > 0, f"a strategy declared the gain {gain}; it must be above 0")
    kind: Compensation = asked or ("full" if optimizer.scales_with_gain else "none")
    return {"full": 1 / gain, "sqrt": 1 / math.sqrt(gain), "none": 1.0}[kind]


def ramp(target: float, epochs_done: float) -> float:
    """Return the factor on the rate: from 1 to the target, linearly over the first epoch."""
    return 1.0 + (target - 1.0) * min(1.0, epochs_done)
