"""The base of all acoustic models: the `[model]` table, and how a network is built from it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from hocket.models.input_transform import estimate
from hocket.support.memory import require_room

InputTransform: TypeAlias = Literal["none", "lda"]
_COPIES = 3  # of every parameter, in float32: itself, its gradient, the optimizer's memory of it
# Some of `nn.init` are one function to torch, others the method that they call.
_DRAWS = (nn.init.normal_, nn.init.uniform_, torch.Tensor.normal_, torch.Tensor.uniform_)
TRANSFORM_FRAMES = 50_000  # of the training data, evenly spaced; enough for some hundred dimensions


@dataclass(frozen=True, kw_only=True)
class Model(ABC):
    """A kind of network; its fields are the keys of the `[model]` table."""

    input_transform: InputTransform = "none"  # lda: fixed, from the training data

    name: ClassVar[str]
    sequential: ClassVar[bool] = False  # it reads sequences of frames, not windows
    clip_norm: ClassVar[float | None] = None  # limit on the gradient that it usually needs

    @abstractmethod
    def network(self, num_inputs: int, num_outputs: int) -> nn.Module:
        """Return a new network without an input transform."""

    def build(
        self,
        num_inputs: int,
        num_outputs: int,
        sample: Callable[[], tuple[torch.Tensor, torch.Tensor]] | None = None,
    ) -> nn.Module:
        """Return a new network; an input transform needs `sample`: frames and their classes."""
        self._require_room(num_inputs, num_outputs)
        network = self.network(num_inputs, num_outputs)
        if self.input_transform == "none":
            return network
        if sample is None:
            raise ValueError("model.input_transform = 'lda' needs a sample of the training data")
        assert isinstance(network, nn.Sequential)
        return nn.Sequential(estimate(*sample(), num_outputs), *network)

    def _require_room(self, num_inputs: int, num_outputs: int) -> None:
        """Refuse a network that this machine cannot hold, before memory is taken for it."""
        with torch.random.fork_rng(devices=[]), torch.device("meta"), _Unfilled():  # sizes only
            sizes = [p.numel() for p in self.network(num_inputs, num_outputs).parameters()]
        require_room(
            _COPIES * 4 * sum(sizes),
            f"a network of {sum(sizes):,} parameters (model.width, model.layers), its gradient and "
            "its optimizer",
            "make it smaller",
        )


class _Unfilled(TorchFunctionMode):
    """Draws no values for parameters.

    Where they have none (the meta device), torch would load its compiler for it: some seconds, some
    hundred megabytes, and a folder in the temporary folder that nobody removes.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> torch.Tensor:
        """Do anything but draw."""
        named = kwargs or {}
        if func in _DRAWS:
            return named["tensor"] if "tensor" in named else args[0]  # type: ignore[no-any-return]
        return func(*args, **named)  # type: ignore[no-any-return]


def evenly_spaced(
    num_frames: int, at_most: int = TRANSFORM_FRAMES
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the numbers of at most `at_most` frames, evenly spaced among `num_frames`."""
    count = min(num_frames, at_most)
    return np.arange(count, dtype=np.int64) * num_frames // count
