"""One file per algorithm: who talks to whom, and when. CONTRIBUTING.md tells how to add one.

Strategies import core and errors only, and each other: no optimizers or codecs, no runtime, no
data, no clock.
`periodic` is the base of the averaging methods; `registry` has a line for every strategy.
"""

from __future__ import annotations

from typing import Any, Final

from hocket.core.strategy import Strategy
from hocket.strategies import registry
from hocket.strategies.registry import *  # noqa: F403

STRATEGIES: Final[dict[str, type[Strategy[Any]]]] = {
    kind.name: kind
    for kind in vars(registry).values()
    if isinstance(kind, type) and issubclass(kind, Strategy)
}
