"""Every effect has a handler in every world (`hocket.runtime.shared.dispatch`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from helpers.runs import simulator
from helpers.tasks import Quadratic

from hocket import Cluster, Sequential
from hocket.core import effects, stage_effects
from hocket.core.effects import Effect
from hocket.errors import ContractError
from hocket.experiment import Experiment
from hocket.runtime.net.store import Store
from hocket.runtime.net.store_server import StoreServer
from hocket.runtime.real.process import ProcessRuntime
from hocket.runtime.real.user_loop import LoopRuntime, UserLoop
from hocket.runtime.shared import boundary_effects
from hocket.runtime.shared.dispatch import Fiber, handler_of
from hocket.runtime.shared.trampoline import Trampoline


def effects_in(module: Any) -> set[type[Effect[Any]]]:
    classes = {c for c in vars(module).values() if isinstance(c, type)}
    return {c for c in classes if issubclass(c, Effect) and c.__module__ == module.__name__} - {
        Effect
    }


FOR_STRATEGIES = effects_in(effects) | effects_in(stage_effects)
FOR_BOUNDARIES = effects_in(boundary_effects)


def experiment() -> Experiment:
    return Experiment(Quadratic(), Sequential())


def simulated() -> Trampoline:
    return simulator(experiment(), Cluster.even(1))


def real() -> Trampoline:
    server = StoreServer.nearby(bytes(32))
    store = Store.connect(server.address, server.token, timeout_s=10.0)
    return ProcessRuntime(experiment(), 0, store, "127.0.0.1", lambda event: None)


def user_loop() -> Trampoline:
    task = UserLoop(Quadratic().build_model())
    return LoopRuntime(Experiment(task, Sequential()), 0, None, "127.0.0.1")


@pytest.mark.parametrize(
    ("world", "answered"),
    [
        (simulated, FOR_STRATEGIES | FOR_BOUNDARIES),
        (real, FOR_STRATEGIES | FOR_BOUNDARIES),
        (user_loop, FOR_STRATEGIES | {boundary_effects.Gather}),  # it has no quiet points
    ],
)
def test_every_effect_has_a_handler(
    world: Callable[[], Trampoline], answered: set[type[Effect[Any]]]
) -> None:
    trampoline = world()
    assert set(trampoline.handlers) | set(trampoline._on_the_spot) == answered
    assert not set(trampoline.handlers) & set(trampoline._on_the_spot)


def test_what_is_in_no_table_is_no_effect() -> None:
    class Unknown(Effect[None]):
        pass

    async def nothing() -> None:
        return None

    coroutine = nothing()
    fiber = Fiber(3, "main", coroutine, lambda value, error: None)
    with pytest.raises(ContractError, match=r"rank 3 awaited .* not an effect"):
        handler_of({}, fiber, Unknown())
    coroutine.close()
