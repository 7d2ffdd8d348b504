"""Kaldi's limits on a step, for each layer and for the whole model (`ngsgd`, eqs. 3 to 5)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import torch

from hocket.errors import require


@dataclass(frozen=True)
class Limits:
    """The limits of eqs. 3 and 4; 0 means no limit."""

    max_change: float = 0.75
    max_change_output: float = 1.5
    max_change_global: float = 2.0

    def __post_init__(self) -> None:
        for key, value in asdict(self).items():
            require(value >= 0, f"optimizer.{key} must be at least 0 (0: no limit), not {value}")

    @property
    def any(self) -> bool:
        """True if anything is limited."""
        return any(asdict(self).values())

    def factors(self, norms: Sequence[float]) -> list[float] | None:
        """Return c c_l for every layer, given |delta_l|; None if the change is not finite."""
        if not all(map(math.isfinite, norms)):
            return None
        last = len(norms) - 1
        factors = [
            within(norm, self.max_change_output if i == last else self.max_change)
            for i, norm in enumerate(norms)
        ]
        whole = math.hypot(*(f * norm for f, norm in zip(factors, norms, strict=True)))
        common = within(whole, self.max_change_global)
        return [f * common for f in factors]


def within(norm: float, limit: float) -> float:
    """Return the factor that brings a change within a limit; limit 0 means no limit."""
    return limit / norm if limit and norm > limit else 1.0


def layers_of(shapes: Mapping[str, Sequence[int]]) -> list[list[int]]:
    """Group parameters by module; the output layer (the last with a matrix) comes last."""
    groups: dict[str, list[int]] = {}
    output = ""
    for index, (name, shape) in enumerate(shapes.items()):
        module = name.rpartition(".")[0]
        groups.setdefault(module, []).append(index)
        output = module if len(shape) > 1 or not index else output
    last = groups.pop(output)
    return [*groups.values(), last]


def length_of(tensors: Sequence[torch.Tensor]) -> float:
    """Return the norm of all tensors together."""
    return math.sqrt(sum(float(torch.dot(t.reshape(-1), t.reshape(-1))) for t in tensors))


@torch.no_grad()
def limited_step_(
    params: Sequence[torch.Tensor],
    changes: Sequence[torch.Tensor],
    layers: Sequence[Sequence[int]],
    limits: Limits,
    rate: float,
) -> bool:
    """w_l -= c c_l rate change_l (eqs. 3 to 5); False if the change was not finite."""
    factors: list[float] | None = [1.0] * len(layers)
    if limits.any:
        factors = limits.factors(
            [rate * length_of([changes[i] for i in layer]) for layer in layers]
        )
    if factors is None:
        return False
    for layer, factor in zip(layers, factors, strict=True):
        for i in layer:
            params[i].add_(changes[i], alpha=-rate * factor)
    return True
