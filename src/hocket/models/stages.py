"""Cuts a model that is a sequence of layers into consecutive stages, one for each device.

A model can be cut if it is an `nn.Sequential` (of layers, or of further sequences), so that nothing
but the output of one layer goes into the next one. With the cost c_i of layer i, the cut into S
stages is the one whose slowest stage is fastest,

    best(i, s) = min over j of max(best(j, s - 1), c_j + ... + c_(i-1))                     (1)

found by dynamic programming. Every stage has parameters that are trained. The costs are measured
seconds, or counted operations: these are the same on every machine.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from hocket.errors import TaskError, require

Cut: TypeAlias = tuple[int, ...]  # the first layer of each stage but the first
Costs: TypeAlias = Callable[[Callable[[], Any]], float]  # what it costs to do something

REPEATS = 5  # of a measurement: the middle one counts


class Elsewhere(nn.Module):
    """Takes the place of a layer that another rank holds; what comes in goes out."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return it as it is."""
        return x


@dataclass(frozen=True)
class SequenceLayer:
    """One layer of a sequence: where it is in the model, and what it holds."""

    owner: nn.Sequential
    place: int  # in its owner
    name: str  # in the model
    module: nn.Module

    @property
    def num_trained(self) -> int:
        """Values that are trained."""
        return sum(p.numel() for p in self.module.parameters() if p.requires_grad)


@dataclass(frozen=True)
class Profile:
    """What each layer costs, and how many bytes come out of it, for the same input."""

    costs: list[float]
    bytes_out: list[int]


def layers_of(model: nn.Module) -> list[SequenceLayer]:
    """Return the layers of a model in their order; refuse one that is no sequence of layers."""
    if not _is_sequence(model):
        inside = ", ".join(name for name, _ in model.named_children()) or "none"
        raise TaskError(
            f"the model cannot be cut into stages: it is a {type(model).__name__} (of {inside}), "
            "whose forward may use its layers in any order; only an nn.Sequential says that the "
            "output of each layer is the input of the next. Write it as one, or use one stage"
        )
    assert isinstance(model, nn.Sequential)
    found = _layers(model, "")
    _refuse_shared(found)
    return found


def _is_sequence(module: nn.Module) -> bool:
    """True if its forward is that of `nn.Sequential`, and nothing else."""
    return isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward


def _layers(owner: nn.Sequential, path: str) -> list[SequenceLayer]:
    found = []
    for place, (name, module) in enumerate(owner._modules.items()):  # one may be there twice
        full = f"{path}{name}"
        if _is_sequence(module):
            assert isinstance(module, nn.Sequential)
            found += _layers(module, f"{full}.")
        else:
            found.append(SequenceLayer(owner, place, full, module))
    return found


def _refuse_shared(layers: list[SequenceLayer]) -> None:
    """Refuse a parameter that two layers have in common: two stages would each change it."""
    whose: dict[int, str] = {}
    for layer in layers:
        for name, p in layer.module.named_parameters():
            before = whose.setdefault(id(p), layer.name)
            require(
                before == layer.name,
                f"the model cannot be cut into stages: layers {before!r} and {layer.name!r} share "
                f"the parameter {name!r}, and two stages would change it independently",
            )


# ---------------------------------------------------------------------------- where to cut


def balanced(costs: Sequence[float], trained: Sequence[bool], num_stages: int) -> Cut:
    """Return the cut whose slowest stage is fastest (eq. 1); of several, the one that cuts last.

    So what costs nothing, such as the units of a layer, stays with the layer before. `trained`:
    whether a layer has parameters that are; every stage gets one that has.
    """
    num_trained = sum(trained)
    require(
        1 <= num_stages <= max(1, num_trained),
        f"a model of {num_trained} layers with parameters cannot be cut into {num_stages} stages: "
        "each needs one at least",
    )
    ends = list(itertools.accumulate(costs, initial=0.0))
    learns = list(itertools.accumulate(map(int, trained), initial=0))
    # best[i]: the slowest stage, and the cut, of the first i layers in the stages so far.
    best: list[tuple[float, Cut]] = [
        (ends[i], ()) if learns[i] else (math.inf, ()) for i in range(len(ends))
    ]
    for _ in range(num_stages - 1):
        best = [
            min(
                (
                    (max(best[j][0], ends[i] - ends[j]), (*best[j][1], j))
                    for j in range(i)
                    if learns[i] > learns[j] and best[j][0] < math.inf
                ),
                key=_late,
                default=(math.inf, ()),
            )
            for i in range(len(ends))
        ]
    return best[-1][1]


def _late(found: tuple[float, Cut]) -> tuple[float, list[int]]:
    return found[0], [-edge for edge in found[1]]


def check_cut(
    cut: Cut, layers: Sequence[SequenceLayer], num_stages: int, asked: str = "strategy.stages"
) -> None:
    """Refuse a cut that was given and does not fit; `asked`: the option of their number."""
    named = f"{asked.partition('.')[0]}.cut = {list(cut)}"
    require(
        len(cut) == num_stages - 1,
        f"{named} makes {len(cut) + 1} stages, and {asked} is {num_stages}",
    )
    edges = [0, *cut, len(layers)]
    require(
        all(a < b for a, b in itertools.pairwise(edges)),
        f"{named} must be ascending numbers of layers between 1 and {len(layers) - 1}: the model "
        f"has layers 0 to {len(layers) - 1} (`hocket split` lists them)",
    )
    for number, (a, b) in enumerate(itertools.pairwise(edges), 1):
        require(
            any(layer.num_trained for layer in layers[a:b]),
            f"{named} leaves stage {number} (layers {a} to {b - 1}) without parameters that are "
            "trained: move its edges",
        )


def stages_of(cut: Cut, num_layers: int) -> list[range]:
    """Return the layers of each stage."""
    return [range(a, b) for a, b in itertools.pairwise([0, *cut, num_layers])]


def keep_only_(model: nn.Module, kept: range) -> None:
    """Let go of all layers but these; the names of what stays are those of the whole model."""
    for number, layer in enumerate(layers_of(model)):
        if number not in kept:
            layer.owner[layer.place] = Elsewhere()


# ---------------------------------------------------------------------------- what layers cost


def counted(work: Callable[[], Any]) -> float:
    """Count the operations of matrix products: the same on every machine."""
    with FlopCounterMode(display=False) as counter:
        work()
    return float(counter.get_total_flops())


def measured(timer: Callable[[], float] = time.perf_counter) -> Costs:
    """Return a way to measure seconds: the middle one of several times, after one to warm up."""

    def cost(work: Callable[[], Any]) -> float:
        work()
        return statistics.median(_seconds(work, timer) for _ in range(REPEATS))

    return cost


def _seconds(work: Callable[[], Any], timer: Callable[[], float]) -> float:
    began = timer()
    work()
    return timer() - began


def profile(model: nn.Module, x: torch.Tensor, cost: Costs) -> Profile:
    """Measure every layer, forward and backward, on an input of the model."""
    model.train()
    found = Profile([], [])
    for number, layer in enumerate(layers_of(model)):
        x = x.detach().clone().requires_grad_(number > 0 and x.is_floating_point())
        out = layer.module(x.clone())  # some layers write to what they are given
        if not isinstance(out, torch.Tensor):
            raise TaskError(
                f"the model cannot be cut into stages: its layer {layer.name!r} "
                f"({type(layer.module).__name__}) returns a {type(out).__name__}, and one tensor "
                "is what goes from one stage to the next"
            )
        found.costs.append(cost(_LayerWork(layer.module, x, torch.ones_like(out))))
        found.bytes_out.append(out.numel() * out.element_size())
        x = out
    return found


class HandedDown(torch.autograd.Function):
    """A scalar whose derivative is the one that came from the stage above.

    To hand a derivative to `torch.autograd.grad` itself would load sympy: seconds, and 40 MB.
    """

    @staticmethod
    def forward(ctx: Any, left: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
        """Stand for all that the stages above make of what has left this one."""
        ctx.dy = dy
        return left.new_zeros(())

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Return what they have sent."""
        return ctx.dy, None


def handed_down(left: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
    """Return the scalar of `HandedDown`."""
    scalar: torch.Tensor = HandedDown.apply(left, dy)  # type: ignore[no-untyped-call]
    return scalar


class _LayerWork:
    """Forward and backward of one layer."""

    def __init__(self, module: nn.Module, x: torch.Tensor, dy: torch.Tensor) -> None:
        self._module, self._x, self._dy = module, x, dy
        wanted = [x, *module.parameters()]
        self._wanted = [one for one in wanted if one.requires_grad]

    def __call__(self) -> None:
        """Do it once."""
        out = self._module(self._x.clone())
        if self._wanted:
            down = handed_down(out, self._dy)
            torch.autograd.grad(down, self._wanted, allow_unused=True)


# ---------------------------------------------------------------------------- inputs of a model


class Tap:
    """Stands at the entrance of a model: takes what comes in, or puts something in its place.

    So a task's own `loss` does for a stage: of the first one its input is taken, and of the last
    one the input is what the stage before has sent.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._fed: torch.Tensor | None = None
        self._calls = 0
        model.register_forward_pre_hook(self._enter, with_kwargs=True)

    def input_of(self, loss: Callable[[], Any]) -> torch.Tensor:
        """Return what a loss hands to the model."""
        self._fed = None
        try:
            loss()
        except _TakenError as taken:
            return taken.x
        raise TaskError(
            "the model cannot be cut into stages: the task's loss() does not call the model, so "
            "there is no input for the first stage"
        )

    def fed(self, loss: Callable[[], Any], x: torch.Tensor) -> Any:
        """Return a loss whose model is given `x`, whatever the loss hands to it."""
        self._fed, self._calls = x, 0
        found = loss()
        self._fed = None
        if self._calls != 1:
            raise TaskError(
                f"the model cannot be cut into stages: the task's loss() calls it {self._calls} "
                "times, and what went through the stages before is one input"
            )
        return found

    def _enter(self, model: nn.Module, args: Any, kwargs: Any) -> Any:
        if self._fed is not None:
            self._calls += 1
            return (self._fed,), {}
        if len(args) != 1 or kwargs or not isinstance(args[0], torch.Tensor):
            raise TaskError(
                f"the model cannot be cut into stages: the task's loss() gives it {len(args)} "
                f"arguments and {len(kwargs)} named ones; stages take one tensor"
            )
        raise _TakenError(args[0])


class _TakenError(BaseException):
    """Ends a loss whose input has been taken; no error, so a task does not catch it."""

    def __init__(self, x: torch.Tensor) -> None:
        super().__init__()
        self.x = x
