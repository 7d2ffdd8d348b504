"""The slow twin of pipelined back-propagation: it knows the schedule of delays, and nothing else.

There are no stages, no messages and no queues here. A sigmoid network in float64 keeps every
version of every layer. Minibatch n goes forward through layer l at the version that had learnt from
all minibatches up to n - 1 - delay(l) since the pipeline was last empty, and comes back at the
version that has learnt from all up to n - 1 (or, with stashed weights, at that of its forward).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Layer: TypeAlias = tuple[Floats, Floats]  # w (out, in) and b


@dataclass
class Twin:
    """Versions of a network's layers, the first version first."""

    versions: list[list[Layer]]  # by layer
    delays: Sequence[int]  # of each layer, in minibatches
    lr: float
    momentum: float = 0.0
    stashed: bool = False

    def __post_init__(self) -> None:
        self._moments = [
            (np.zeros_like(layer[0][0]), np.zeros_like(layer[0][1])) for layer in self.versions
        ]

    def learn(self, batches: Sequence[tuple[Floats, NDArray[np.int64]]]) -> None:
        """Learn from minibatches, from one moment at which the pipeline is empty to the next."""
        begin = len(self.versions[0]) - 1
        for n, (x, labels) in enumerate(batches):
            forward = [begin + max(0, n - late) for late in self.delays]
            inputs = [x]
            for number, version in enumerate(forward):
                w, b = self.versions[number][version]
                z = inputs[-1] @ w.T + b
                last = number + 1 == len(forward)
                inputs.append(z if last else 1.0 / (1.0 + np.exp(-z)))
            scores = inputs[-1] - inputs[-1].max(1, keepdims=True)
            delta = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
            delta[np.arange(len(labels)), labels] -= 1.0
            delta /= len(labels)
            new: list[Layer] = []
            for number in reversed(range(len(forward))):
                back = forward[number] if self.stashed else begin + n
                w_back = self.versions[number][back][0]
                grads = delta.T @ inputs[number], delta.sum(0)
                delta = (delta @ w_back) * inputs[number] * (1.0 - inputs[number])
                new.append(self._stepped(number, begin + n, grads))
            for number, layer in enumerate(reversed(new)):
                self.versions[number].append(layer)

    def _stepped(self, number: int, version: int, grads: Layer) -> Layer:
        m_w, m_b = (
            self.momentum * m + g for m, g in zip(self._moments[number], grads, strict=True)
        )
        self._moments[number] = m_w, m_b
        w, b = self.versions[number][version]
        return w - self.lr * m_w, b - self.lr * m_b
