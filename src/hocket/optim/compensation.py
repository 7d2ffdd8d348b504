"""Rate compensation: the local learning rate of a strategy, from the sequential rate.

A strategy declares its *gain*: how far P learners move per P minibatches, relative to sequential
SGD at the same rate (plain averaging: 1/P, because each step is divided by P). Users give the
sequential rate; the local rate is derived from it by a factor:

    full: 1 / gain      sqrt: 1 / sqrt(gain)      none: 1          and at most `lr_limit`

It is reached in a linear ramp over the first `lr_ramp_frames` frames, because the full rate on an
untrained model is the most common reason to diverge. All this is for optimizers whose step grows
with the rate times the gradient (SGD); Adam uses the given rate unchanged.

Ramp and limit cost movement. What is left of it is the *share of the integral*:

    share = integral of (gain * factor * schedule) / integral of schedule,  over the frames of a run

1 means that the method moves as far as sequential SGD would, if gradients were constant.
"""

from __future__ import annotations

import math
from typing import Final

from hocket.core.optimizer import Optimizer
from hocket.errors import require
from hocket.optim.schedules import Compensation, Schedule, ScheduleState

RAMP_SHARE: Final = 0.05  # of a run; at P = 8 and a rate that decays to a tenth it costs 6 %
BOLD: Final = 10.0  # published large-batch training: 0.1 to 1.0 for 32 times the batch, no more
_POINTS: Final = 2000  # of the integral: its error is far below the 1 % that is shown


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
    for key in ("lr_limit", "lr_ramp_frames"):
        require(
            kind != "none" or getattr(schedule, key) is None,
            f"schedule.{key} has no effect where no rate is derived (lr_compensation 'none', or "
            f"optimizer {optimizer.name!r}): leave it out",
        )
    factor = {"full": 1 / gain, "sqrt": 1 / math.sqrt(gain), "none": 1.0}[kind]
    return factor if schedule.lr_limit is None else min(factor, schedule.lr_limit)


def ramp_frames(schedule: Schedule, epoch_frames: int) -> int:
    """Return the length of the ramp: as given, or a twentieth of the run, at most an epoch."""
    if schedule.lr_ramp_frames is not None:
        return schedule.lr_ramp_frames
    return round(min(1.0, RAMP_SHARE * schedule.epochs) * epoch_frames)


def ramp(target: float, frames_done: float, length: int) -> float:
    """Return the factor on the rate: from 1 to the target, linearly over so many frames."""
    return target if frames_done >= length else 1.0 + (target - 1.0) * frames_done / length


def share_of_integral(
    schedule: Schedule, epoch_frames: int, target: float, gain: float, upto: float = 1.0
) -> float:
    """Return how far a method moves in the first `upto` of a run, as a share of sequential SGD's.

    Newbob's rate depends on losses that are not known before the run: it is taken as constant.
    """
    length, state = ramp_frames(schedule, epoch_frames), ScheduleState()
    whole = moved = 0.0
    for n in range(_POINTS):
        done = (n + 0.5) / _POINTS
        rate = schedule.factor(done * schedule.epochs, state)
        whole += rate
        if done < upto:
            moved += rate * gain * ramp(target, done * schedule.epochs * epoch_frames, length)
    return moved / whole
