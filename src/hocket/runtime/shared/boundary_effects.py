"""Effects that only the boundary uses. Strategies never see them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hocket.core.effects import Effect


@dataclass(slots=True, eq=False)
class Quiet(Effect[None]):
    """All learners are here, messages in flight are delivered, services are idle."""


@dataclass(slots=True, eq=False)
class Gather(Effect[list[Any]]):
    """Everybody's value, in rank order, on every learner."""

    value: Any
