"""Which function begins which effect: one table of handlers per world.

A new effect is one dataclass in `hocket.core.effects`, and one line in the table of each world: the
simulator (`sim/simulator.py`), a real learner (`real/process.py`), and a training loop of the
user's (`real/user_loop.py`). `tests/unit/test_dispatch.py` asks every table for every effect.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeAlias

from hocket.core.effects import Deliver, Effect, Recv
from hocket.errors import ContractError


class Fiber:
    """One coroutine of one rank: its strategy's main task, a service, or a boundary."""

    __slots__ = ("awaiting", "coroutine", "name", "on_done", "rank", "ready")

    def __init__(
        self, rank: int, name: str, coroutine: Coroutine[Any, Any, Any], on_done: Deliver
    ) -> None:
        self.rank = rank
        self.name = name
        self.coroutine = coroutine
        self.on_done = on_done
        self.awaiting: Effect[Any] | None = None
        self.ready = False  # its answer is there; it has not gone on yet

    @property
    def is_main(self) -> bool:
        """True for the strategy's own coroutine, which drives the run."""
        return self.name == "main"

    @property
    def is_service(self) -> bool:
        """True for a second coroutine, which lives as long as the run."""
        return self.name == "service"

    @property
    def is_idle(self) -> bool:
        """True if it has ended or waits for a message: by itself it does nothing more."""
        return not self.ready and (self.awaiting is None or isinstance(self.awaiting, Recv))

    def describe(self) -> str:
        """Say what it awaits, for error messages."""
        return self.awaiting.describe() if self.awaiting is not None else "nothing"


# A handler begins an effect that a fiber awaits, and delivers the answer now or later.
Handler: TypeAlias = Callable[[Fiber, Any, Deliver], None]
Handlers: TypeAlias = Mapping[type[Effect[Any]], Handler]


def handler_of(handlers: Handlers, fiber: Fiber, effect: Effect[Any]) -> Handler:
    """Return the handler of an effect; what is in no table is refused."""
    handler = handlers.get(type(effect))
    if handler is None:
        raise ContractError(f"rank {fiber.rank} awaited {effect!r}, which is not an effect")
    return handler
