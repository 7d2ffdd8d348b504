"""Effects that only the boundary uses. Strategies never see them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hocket.core.effects import Effect


@dataclass(slots=True, eq=False)
class Quiet(Effect[None]):
    """All learners are here, messages in flight are delivered, services are idle."""


@dataclass(slots=True, eq=False)
class Attend(Effect[None]):
    """Wait until another rank calls a meeting, or one is lost."""


@dataclass(slots=True, eq=False)
class Gather(Effect[list[Any]]):
    """Everybody's value, in rank order, on every learner."""

    value: Any


@dataclass(slots=True, eq=False)
class Regroup(Effect[None]):
    """All have left their parts: the group ends here, and goes on with other learners.

    There is an answer only if nobody can be taken in after all; then all go on as they were.
    """


@dataclass(slots=True, eq=False)
class Resume(Effect[None]):
    """The meeting is over for this learner, and its strategy goes on.

    Others may have left it earlier, and their messages may have come in meanwhile: a replay waits
    here until all that reached this learner before has reached it again.
    """
