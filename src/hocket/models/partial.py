"""Builds a model of which only some layers get memory, with the values they have in the whole.

A layer's first values depend on the random numbers that the layers before it have drawn. So the
model is built twice. The first time no parameter gets memory, and it is seen which one ends up in
which layer. The second time a parameter of another rank's layer has none either; whoever draws its
values draws into memory that is given back at once, so that the random numbers are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.overrides import TorchFunctionMode

from hocket.models.stages import layers_of

META: Final = torch.device("meta")
_INIT: Final = {getattr(nn.init, n) for n in dir(nn.init) if n.endswith("_") and n[0] != "_"}
_METHODS: Final = {
    getattr(torch.Tensor, f"{n}_")
    for n in (
        *("normal", "uniform", "random", "bernoulli", "exponential"),
        *("log_normal", "geometric", "cauchy"),
    )
}


class _Draws(TorchFunctionMode):
    """Lets what draws values of a parameter without memory draw them into memory of its own."""

    def __init__(self, *, really: bool) -> None:
        super().__init__()
        self._really = really

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> torch.Tensor:
        """Do it, elsewhere if it draws."""
        named = kwargs or {}
        if func not in _INIT and func not in _METHODS:
            return func(*args, **named)  # type: ignore[no-any-return]
        tensor: torch.Tensor = named["tensor"] if "tensor" in named else args[0]
        if tensor.device != META:
            return func(*args, **named)  # type: ignore[no-any-return]
        if self._really:
            room = torch.empty(tensor.shape, dtype=tensor.dtype)
            if "tensor" in named:
                func(*args, **named | {"tensor": room})
            else:
                func(room, *args[1:], **named)
        return tensor


@contextmanager
def _registering(hook: Callable[[nn.Parameter], nn.Parameter]) -> Iterator[None]:
    """Let every parameter that a module gets go through a function."""

    def called(module: nn.Module, name: str, p: nn.Parameter) -> Any:
        return hook(p)

    handle = register_module_parameter_registration_hook(called)
    try:
        yield
    finally:
        handle.remove()


def _without_memory(p: nn.Parameter) -> nn.Parameter:
    return nn.Parameter(p.detach().to(META), requires_grad=p.requires_grad)


def partially(build: Callable[[], nn.Module], kept: slice) -> nn.Module:
    """Build a sequence of layers, of which those that are not kept have no memory.

    `build` seeds what it draws from. A model that looks at its parameters while it is built cannot
    be built so: then all of it is built.
    """
    try:
        return _partially(build, kept)
    except (RuntimeError, NotImplementedError):  # what torch says of values that are not there
        return build()


def _partially(build: Callable[[], nn.Module], kept: slice) -> nn.Module:
    made: list[nn.Parameter] = []

    def note(p: nn.Parameter) -> nn.Parameter:
        made.append(p if p.device == META else _without_memory(p))
        return made[-1]

    with _registering(note), _Draws(really=False):
        layers = layers_of(build())
    ours = {id(p) for layer in layers[kept] for p in layer.module.parameters()}
    wanted = [id(p) in ours for p in made]
    order = iter(wanted)

    def keep(p: nn.Parameter) -> nn.Parameter:
        return p if next(order, True) else _without_memory(p)

    with _registering(keep), _Draws(really=True):
        model = build()
    held = [p for layer in layers_of(model)[kept] for p in layer.module.parameters()]
    if any(p.is_meta for p in held) or next(order, None) is not None:
        return build()  # it was not built as it was the first time
    return model
