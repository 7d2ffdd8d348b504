"""Steps of natural-gradient SGD while the backward pass runs: no gradient is ever stored.

As soon as both sides of a layer are known,

    w_l <- w_l - c_l lr s_x s_y Y^' X^                                                     (1)

goes into the weight as one product, when that weight is in the caches (the derivative for the layer
below has just been multiplied by it). A model's gradient need not be written, read for its norm and
read once more for the step; nor need there be memory for it.

The limits on a step (`ngsgd`, eqs. 3 and 4) are kept without looking at the change first. Because s
gives each side the length back that its preconditioner took,

    |lr s_x s_y Y^' X^|  <=  lr s_x |X^| s_y |Y^|  =  lr |X| |Y|                           (2)

and both norms are known. Only where (2) is above a layer's limit is the product formed apart and
measured. The limit M of the whole model cannot be known before the last layer's change is. It is
kept by tightening each layer's, so that all of them together cannot exceed it:

    M_l <- M_l min(1, M / |M_1, M_2, ...|)                                                 (3)

Differences from stepping afterwards: (3) in place of the common factor, so steps near the limits
are shorter. A layer whose change is not finite keeps its weight; the others do not wait for that.
Limits: whatever needs gradients before a step (clipping, accumulation, loss scaling, averaging over
learners, momentum, weight decay) needs them stored; a layer may be used once in a forward pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from torch import nn

from hocket.errors import ContractError, require
from hocket.optim.natural_gradient import Turned
from hocket.optim.preconditioning import Preconditioner, product


class LayerStep:
    """Eq. 1 for one layer, once for every step of the model."""

    def __init__(
        self, name: str, linear: nn.Linear, limit: float, rate: Callable[[], float]
    ) -> None:
        self._name = name
        self._linear = linear
        self._limit = limit
        self._rate = rate
        self.done = False

    def begin(self) -> None:
        """Notice whoever comes by twice: the weight is not any more what its output was made of."""
        if self.done:
            raise ContractError(
                f"in_backward: layer {self._name!r} came by twice before step(). Either backward() "
                "was called twice, or the model uses the layer twice; both need gradients that are "
                "added up: use NGSGD(..., in_backward=False)"
            )
        self.done = True

    def __call__(self, inputs: Turned, outputs: Turned) -> None:
        """Change weight and bias."""
        weight, rate = self._linear.weight, self._rate()
        bound = rate * math.sqrt(float(inputs.before) * float(outputs.before))  # eq. 2
        step = -rate * inputs.scale_here() * outputs.scale_here()
        if not math.isfinite(bound) or not math.isfinite(step):
            return
        if (self._limit and bound > self._limit) or weight.dtype != inputs.x_hat.dtype:
            self._step_apart(inputs, outputs, rate)
            return
        weight.addmm_(outputs.x_hat.T, inputs.x_hat, alpha=step)  # eq. 1
        if inputs.ones_hat is not None and self._linear.bias.requires_grad:
            self._linear.bias.addmv_(outputs.x_hat.T, inputs.ones_hat, alpha=step)

    def _step_apart(self, inputs: Turned, outputs: Turned, rate: float) -> None:
        """Eq. 1 with the change at hand: only so can its length be told, or it be rounded."""
        params = [self._linear.weight, self._linear.bias]
        pairs = zip(params, product(inputs, outputs), strict=True)
        changes = [(p, piece) for p, piece in pairs if piece is not None and p.requires_grad]
        length = rate * math.hypot(*(float(piece.norm()) for _, piece in changes))
        if not math.isfinite(length):
            return
        factor = self._limit / length if self._limit and length > self._limit else 1.0
        for p, piece in changes:
            p.add_(piece, alpha=-rate * factor)


def tightened(limits: Sequence[float], whole: float) -> list[float]:
    """Return the layers' limits such that all together cannot exceed that of the whole, eq. 3."""
    if not whole:
        return list(limits)
    require(
        all(limits),
        "in_backward: max_change_global is kept by limiting every layer, so max_change and "
        "max_change_output cannot be 0 unless max_change_global is, too",
    )
    factor = min(1.0, whole / math.hypot(*limits))
    return [factor * limit for limit in limits]


def begin(
    model: nn.Module,
    preconditioner: Preconditioner,
    limits: Mapping[str, float],
    rate: Callable[[], float],
) -> list[LayerStep]:
    """Let all preconditioned layers be changed as soon as their change is known."""
    steps = []
    for name, layer in preconditioner.layers.items():
        linear = model.get_submodule(name)
        assert isinstance(linear, nn.Linear)
        layer.take = LayerStep(name, linear, limits[name], rate)
        steps.append(layer.take)
    return steps
