"""Small tasks with known answers, in a module of their own: learner processes import it."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import nn

from hocket import DNN, LSTM, Item, Loss, Synthetic, SyntheticChunks, Task
from hocket.models import Model

DIM = 5
CURVATURE = torch.from_numpy(np.linspace(0.7, 1.5, DIM).astype(np.float32))


@cache
def _targets(index: int, frames: int, spread: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Drawn once: thousands of runs ask for the same."""
    rng = np.random.default_rng([7, index])
    drawn: np.ndarray[Any, np.dtype[np.float64]] = 1.0 + spread * rng.normal(size=(frames, DIM))
    drawn.flags.writeable = False
    return drawn


class Point(nn.Module):
    """A model that is nothing but a vector."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(DIM))
        self.idle = nn.Parameter(torch.zeros(1))  # nothing depends on it; so there are two to cut

    def forward(self) -> torch.Tensor:
        return self.w


@dataclass(frozen=True)
class Quadratic(Task):
    """Frame t costs 1/2 |A (w - b_t)|^2; the optimum is the mean of all b_t, whatever A."""

    num_items: int = 22
    uneven: bool = False  # items of 1 to 4 frames instead of 2
    spread: float = 0.5

    def frames_of(self, index: int) -> int:
        return 1 + index * 7 % 4 if self.uneven else 2

    def targets(self, index: int) -> np.ndarray[Any, np.dtype[np.float64]]:
        return _targets(index, self.frames_of(index), self.spread)

    @property
    def optimum(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        mean: np.ndarray[Any, np.dtype[np.float64]] = np.concatenate(
            [self.targets(i) for i in range(self.num_items)]
        ).mean(0)
        return mean

    @staticmethod
    def curvature() -> np.ndarray[Any, np.dtype[np.float64]]:
        return np.linspace(0.7, 1.5, DIM)

    def build_model(self) -> nn.Module:
        return Point()

    def items(self, split: str) -> Sequence[Item]:
        count = self.num_items if split == "train" else 5
        return [Item(i, self.frames_of(i)) for i in range(count)]

    def load(self, split: str, item: Item, epoch: int) -> torch.Tensor:
        return torch.from_numpy(self.targets(int(str(item.id))).astype(np.float32))

    def loss(self, model: nn.Module, batch: Any) -> Loss:
        assert isinstance(model, Point)
        errors = 0.5 * (CURVATURE * (model() - batch)) ** 2
        return Loss(errors.sum(), len(batch))


class Row(Point):
    """The same as a column of a matrix, so that a codec has something to code."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1, DIM))

    def forward(self) -> torch.Tensor:
        return self.w[0]


@dataclass(frozen=True)
class InRows(Quadratic):
    """The same with a model of one column."""

    def build_model(self) -> nn.Module:
        return Row()


class Shift(nn.Module):
    """Takes a vector away from what comes in."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(DIM))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - self.w


class Idle(nn.Module):
    """Has a parameter that nothing depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.idle = nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


@dataclass(frozen=True)
class InLayers(Quadratic):
    """The same with a model that can be cut in two."""

    def build_model(self) -> nn.Module:
        return nn.Sequential(Shift(), Idle())

    def loss(self, model: nn.Module, batch: Any) -> Loss:
        errors = 0.5 * (CURVATURE * model(batch)) ** 2
        return Loss(errors.sum(), len(batch))


@dataclass(frozen=True)
class WithBuffers(Quadratic):
    """The same with a batch-norm layer, whose statistics are not parameters."""

    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.BatchNorm1d(DIM), nn.Linear(DIM, 2))

    def loss(self, model: nn.Module, batch: Any) -> Loss:
        return Loss((model(torch.cat([batch, batch + 1])) ** 2).sum(), len(batch))


@dataclass(frozen=True)
class WithDropout(Quadratic):
    """The same with noise inside the minibatch, which must not depend on who computes it."""

    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(DIM, 4), nn.Dropout(0.5), nn.Linear(4, 1))

    def loss(self, model: nn.Module, batch: Any) -> Loss:
        return Loss((model(batch) ** 2).sum(), len(batch))


@dataclass(frozen=True)
class Witness(Quadratic):
    """Writes down who computes which training item, at once: a learner may be killed any time."""

    path: str = ""

    def load(self, split: str, item: Item, epoch: int) -> torch.Tensor:
        object.__setattr__(self, "_at", (split, epoch, item.id))
        return super().load(split, item, epoch)

    def loss(self, model: nn.Module, batch: Any) -> Loss:
        loss = super().loss(model, batch)
        split, epoch, index = self.__dict__["_at"]
        if split == "train" and model.training and torch.is_grad_enabled():  # no product
            who = multiprocessing.current_process().name
            line = f"{who}\t{epoch}\t{index}\t{loss.frames}\n".encode()
            descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.write(descriptor, line)  # one write: lines of several learners do not mix
            os.close(descriptor)
        return loss


@dataclass(frozen=True)
class WitnessInRows(Witness, InRows):
    """The same with a model of one column."""


@dataclass(frozen=True)
class WitnessInLayers(Witness, InLayers):
    """The same with a model that can be cut in two."""


@dataclass(frozen=True)
class WitnessWithBuffers(Witness, WithBuffers):
    """The same with a batch-norm layer."""


@dataclass(frozen=True)
class Broken(Quadratic):
    """Fails in a chosen way at item `at`."""

    at: int = 3
    how: str = "nan"

    def loss(self, model: nn.Module, batch: Any) -> Loss:
        loss = super().loss(model, batch)
        if self.how == "miscount":
            return Loss(loss.total, loss.frames + 1)
        if torch.equal(batch, self.load("train", Item(self.at, 2), 0)) and torch.is_grad_enabled():
            if self.how == "nan":
                return Loss(loss.total * float("nan"), loss.frames)
            if self.how == "raise":
                raise RuntimeError("the disk with item 3 has gone")
        return loss


@dataclass(frozen=True)
class BrokenRow(Broken, InRows):
    """The same with a model of one column."""


@dataclass(frozen=True)
class Steep(Quadratic):
    """One item's loss is fine, but its gradient is infinite."""

    def loss(self, model: nn.Module, batch: Any) -> Loss:
        usual = super().loss(model, batch)
        if torch.equal(batch, self.load("train", self.items("train")[3], 0)):
            zero = next(model.parameters()).sum() * 0.0
            return Loss(usual.total + zero.sqrt(), usual.frames)
        return usual


@dataclass(frozen=True)
class SteepRow(Steep, InRows):
    """The same with a model of one column."""


@dataclass(frozen=True)
class Slow(Quadratic):
    """Takes its time over every item."""

    seconds: float = 0.02

    def load(self, split: str, item: Item, epoch: int) -> torch.Tensor:
        import time

        time.sleep(self.seconds)
        return super().load(split, item, epoch)


@dataclass(frozen=True)
class Forking(Quadratic):
    """Starts a child process with its first item, as a data loader does, which outlives it."""

    def load(self, split: str, item: Item, epoch: int) -> torch.Tensor:
        import time

        if split == "train" and not self.__dict__.get("child"):
            child = os.fork()
            if child == 0:
                time.sleep(15)
                os._exit(0)
            object.__setattr__(self, "child", child)
        return super().load(split, item, epoch)


def acoustic(
    num_frames: int = 3000,
    batch_frames: int = 64,
    dev_frames: int = 1000,
    width: int = 24,
    noise: float = 1.0,
) -> Synthetic:
    """A small acoustic problem with a known Bayes error."""
    return Synthetic(
        num_frames=num_frames,
        dev_frames=dev_frames,
        batch_frames=batch_frames,
        num_classes=6,
        num_features=6,
        context=1,
        noise=noise,
        model=DNN(layers=1, width=width),
    )


@dataclass(frozen=True)
class Late(Quadratic):
    """One learner comes two seconds after the others, who listen for it meanwhile."""

    late: int = 2

    def __setstate__(self, state: dict[str, Any]) -> None:
        import multiprocessing
        import time

        self.__dict__.update(state)
        if multiprocessing.current_process().name == f"hocket learner {self.late}":
            time.sleep(2.0)


def spoken(model: Model | None = None, num_frames: int = 1500, **more: Any) -> SyntheticChunks:
    """A small acoustic problem in chunks, for networks that read sequences."""
    sizes: dict[str, Any] = {"dev_frames": 400, "batch_frames": 126, "chunk_frames": 21}
    return SyntheticChunks(
        num_frames=num_frames,
        num_classes=6,
        num_features=6,
        model=model or LSTM(layers=1, cells=8, look_ahead=1),
        **(sizes | more),
    )
