"""The Gauss-Newton product: curvature of a loss along a direction, without the matrix.

A loss L(z(w)) of a network's outputs z has the generalised Gauss-Newton matrix

    G = J' H J,      J = dz/dw,   H = d2L/dz2,      G v = J' (H (J v))                      (1)

which is positive semidefinite where L is convex in z, as cross-entropy is. Forward-mode
differentiation carries J v along with the outputs; H times it is a second derivative of the loss
alone; J' times that is one ordinary backward pass.

Reference: N. Schraudolph, "Fast curvature matrix-vector products for second-order gradient
descent", Neural Computation 14 (2002); B. Pearlmutter, Neural Computation 6 (1994).

A task only says `loss(model, batch)`. So the call of the model inside it is intercepted: the loss
gets outputs that have been cut off from the network, and the two parts are differentiated apart.
It follows that the loss must call the model once, and that a penalty on weights in the loss has no
part in G.

Three ways, the first that the model's operations allow (ratios of time to a gradient's, one
thread, `benchmarks/curvature.py`): together, outputs and J v in one pass (1.7 to 1.9); apart, J v
alone without fused kernels of LSTMs and of attention, which have no forward mode, and the outputs
with them (3.4 for an LSTM); twice backward, J v as the derivative of u -> J' u (2.4; an LSTM: 7).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.autograd import forward_ad
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from hocket.core.task import Loss
from hocket.errors import TaskError

Tensors: TypeAlias = list[torch.Tensor]
Args: TypeAlias = tuple[Any, ...]
Kwargs: TypeAlias = dict[str, Any]

PRODUCT_COST = 1.8  # of a product to a gradient: DNNs have 1.7 to 1.9, benchmarks/curvature.py
LSTM_COST = 3.4  # the same with torch's LSTM, measured there, too


class Outputs:
    """What a call of the model gave: its outputs, J v of each, and the tree they came in."""

    def __init__(self, tree: Any, tangents: Tensors) -> None:
        self.tree = tree
        self.values = _leaves(tree)
        self.tangents = tangents
        self.cut = [z.detach().requires_grad_() for z in self.values]

    def handed_over(self) -> Any:
        """Return the outputs as the loss sees them: cut off from the network."""
        return _rebuilt(self.tree, iter(self.cut))


class GaussNewton:
    """Products for one model; it remembers which of the three ways the model allows."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        self._ways: list[Callable[[Args, Kwargs], Outputs]] = [
            self._together,
            self._apart,
            self._twice_backward,
        ]
        self._direction: Tensors = []
        fused = any(
            isinstance(module, nn.LSTM) or getattr(module, "uses_lstm_kernel", False)
            for module in model.modules()
        )
        self.cost = LSTM_COST if fused else PRODUCT_COST  # of a product, relative to a gradient

    def product(
        self, compute: Callable[[], Loss], direction: Sequence[torch.Tensor], scale: float = 1.0
    ) -> tuple[list[torch.Tensor | None], Loss]:
        """Return G v (summed over frames), one tensor for each parameter that is trained; eq. 1.

        `compute` is the task's loss at the model's own parameters; it calls the model once. The
        product is multiplied by `scale` where that costs least: at the outputs.
        """
        self._direction = list(direction)
        calls: list[Outputs] = []
        with torch.enable_grad():
            with self._intercepted(calls):
                loss = compute()
            if not calls:
                raise TaskError(
                    "the loss does not call the model, so there are no outputs between the two: a "
                    "Gauss-Newton product needs loss() to call `model(...)` once"
                )
            bent = [b * scale for b in _bent(loss.total, calls[0])]
            parameters = [p for _, p in self._named]
            reached = [
                (z, b) for z, b in zip(calls[0].values, bent, strict=True) if z.requires_grad
            ]
            if not reached:
                return [None] * len(parameters), loss
            values, along = zip(*reached, strict=True)
            return list(torch.autograd.grad(values, parameters, along, allow_unused=True)), loss

    @contextmanager
    def _intercepted(self, calls: list[Outputs]) -> Iterator[None]:
        """Answer the call of the model with outputs that are cut off, and keep them."""
        model = self._model
        own = model.__dict__.get("forward")  # an instance may have one beside its class

        def forward(*args: Any, **kwargs: Any) -> Any:
            if calls:
                raise TaskError(
                    "the loss calls the model more than once for one item: a Gauss-Newton product "
                    "needs one call of `model(...)`, for example with both inputs in one batch"
                )
            restore()
            calls.append(self._outputs(args, kwargs))
            model.__dict__["forward"] = forward
            return calls[0].handed_over()

        def restore() -> None:
            model.__dict__.pop("forward", None)
            if own is not None:
                model.__dict__["forward"] = own

        model.__dict__["forward"] = forward
        try:
            yield
        finally:
            restore()

    def _outputs(self, args: Args, kwargs: Kwargs) -> Outputs:
        """Go the first way that the model's operations allow, and remember it."""
        while True:
            try:
                return self._ways[0](args, kwargs)
            except NotImplementedError:  # an operation without forward mode
                if len(self._ways) == 1:
                    raise
                del self._ways[0]

    def _together(self, args: Args, kwargs: Kwargs) -> Outputs:
        """Outputs and J v in one pass, by dual numbers."""
        with forward_ad.dual_level():
            duals = {
                name: forward_ad.make_dual(p, v)  # type: ignore[no-untyped-call]
                for (name, p), v in zip(self._named, self._direction, strict=True)
            }
            tree = functional_call(self._model, duals, args, kwargs)
            return _unpacked(tree)

    def _apart(self, args: Args, kwargs: Kwargs) -> Outputs:
        """J v by operations that have a forward mode, the outputs by the usual ones."""
        with torch.no_grad(), _unfused():
            slopes = self._together(args, kwargs).tangents
        return Outputs(self._model(*args, **kwargs), slopes)

    def _twice_backward(self, args: Args, kwargs: Kwargs) -> Outputs:
        """J v as the derivative of u -> J' u, which is linear in u, along v."""
        tree = self._model(*args, **kwargs)
        values = _leaves(tree)
        probes = [torch.zeros_like(z, requires_grad=True) for z in values]
        parameters = [p for _, p in self._named]
        back = torch.autograd.grad(values, parameters, probes, create_graph=True, allow_unused=True)
        used = [(b, v) for b, v in zip(back, self._direction, strict=True) if b is not None]
        along = torch.autograd.grad(
            [b for b, _ in used], probes, [v for _, v in used], retain_graph=True, allow_unused=True
        )
        zipped = zip(along, values, strict=True)
        return Outputs(tree, [torch.zeros_like(z) if t is None else t for t, z in zipped])


@contextmanager
def _unfused() -> Iterator[None]:
    """Do without the fused kernels of recurrent layers and of attention."""
    flags: Any = torch.backends.mkldnn.set_flags
    fast_path: Any = torch.backends.mha.set_fastpath_enabled
    before, fast = flags(False, _fp32_precision=None), torch.backends.mha.get_fastpath_enabled()
    fast_path(False)
    try:
        with torch.backends.cudnn.flags(enabled=False), sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        flags(before[0], _fp32_precision=None)
        fast_path(fast)


def _bent(total: torch.Tensor, outputs: Outputs) -> Tensors:
    """H J v: the second derivative of the loss in the outputs, along J v."""
    slopes = torch.autograd.grad(total, outputs.cut, create_graph=True, allow_unused=True)
    pairs = [
        (s, t)
        for s, t in zip(slopes, outputs.tangents, strict=True)
        if s is not None and s.requires_grad  # else the loss is linear there: no curvature
    ]
    if not pairs:
        return [torch.zeros_like(z) for z in outputs.cut]
    some, along = zip(*pairs, strict=True)
    bent = torch.autograd.grad(some, outputs.cut, along, allow_unused=True)
    zipped = zip(bent, outputs.cut, strict=True)
    return [torch.zeros_like(z) if b is None else b for b, z in zipped]


def _unpacked(tree: Any) -> Outputs:
    """Split a tree of dual numbers into outputs and their slopes."""
    slopes: Tensors = []

    def primal(dual: torch.Tensor) -> torch.Tensor:
        value: torch.Tensor
        value, slope = forward_ad.unpack_dual(dual)  # type: ignore[no-untyped-call]
        slopes.append(torch.zeros_like(value) if slope is None else slope.detach())
        return value

    return Outputs(_mapped(tree, primal), slopes)


def _leaves(tree: Any) -> Tensors:
    """Return the floating-point tensors of a model's output, in order."""
    found: Tensors = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        found.append(tensor)
        return tensor

    _mapped(tree, keep)
    return found


def _rebuilt(tree: Any, tensors: Iterator[torch.Tensor]) -> Any:
    """Return the same tree with other tensors."""
    return _mapped(tree, lambda _: next(tensors))


def _mapped(tree: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Change every floating-point tensor of a tree; anything else stays as it is."""
    if isinstance(tree, torch.Tensor):
        return change(tree) if tree.is_floating_point() else tree
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(_mapped(child, change) for child in tree))
    if isinstance(tree, list | tuple):
        return type(tree)(_mapped(child, change) for child in tree)
    if isinstance(tree, dict):
        return {key: _mapped(child, change) for key, child in tree.items()}
    return tree
