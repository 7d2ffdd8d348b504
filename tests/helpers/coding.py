"""Vectors to be coded, and learners in one process that exchange them."""

from __future__ import annotations

import torch
from torch import nn

from hocket import BFloat16, Float16, OneBit, TopK
from hocket.codecs import coded
from hocket.codecs.coded import Contribution
from hocket.core.codec import Coder, Lossy, Memory
from hocket.core.effects import CodedMean
from hocket.core.flat import Flat, Layout

SMALL = 4  # columns of so many values are coded here
CODECS: list[Lossy] = [
    Float16(float_below=SMALL),
    BFloat16(float_below=SMALL),
    OneBit(float_below=SMALL),
    TopK(float_below=SMALL, share=0.2),
]


def layout() -> Layout:
    """Matrices with columns of odd lengths, biases, and a convolution."""
    model = nn.Sequential(nn.Linear(37, 10), nn.Linear(10, 9), nn.Linear(9, 2), nn.Conv1d(2, 6, 5))
    return Layout.of(model)


def coder_of(codec: Lossy, of: Layout | None = None) -> Coder:
    coder = codec.fitted(of or layout())
    assert coder is not None
    return coder


def vector(of: Layout, *key: int) -> Flat:
    """Random values; zero in the gaps between parameters, as in every flat vector."""
    seed = sum(k * 1000**i for i, k in enumerate(key))
    rng = torch.Generator().manual_seed(seed)
    return of.pack(torch.randn(e.shape, generator=rng) for e in of.entries)


class Learners:
    """Learners that exchange coded vectors, in the simulator's way."""

    def __init__(self, codec: Lossy, size: int) -> None:
        self.layout = layout()
        self.coder = coder_of(codec, self.layout)
        self.memories = [self.coder.memory() for _ in range(size)]

    def mean_(self, vectors: list[Flat], weights: list[float]) -> list[Flat]:
        parts = [
            Contribution(rank, CodedMean(x, self.coder, memory), weight)
            for rank, (x, memory, weight) in enumerate(
                zip(vectors, self.memories, weights, strict=True)
            )
        ]
        return [mean.value for mean in coded.mean_(parts)]

    def kept(self) -> torch.Tensor:
        """All residuals of all learners, added up in float64."""
        return sum((whole(m) for m in self.memories if m), torch.zeros(self.layout.size).double())


def whole(memory: Memory) -> torch.Tensor:
    """Both residuals of a learner as one vector, in float64."""
    total = memory.unsent.double()
    total[memory.first : memory.first + memory.owned.numel()] += memory.owned.double()
    return total
