"""One file per algorithm. To add one: its file, a line here, a row in the conformance table."""

from __future__ import annotations

from typing import Final

from hocket.strategies.adaptive_kstep import AdaptiveKStep
from hocket.strategies.admm import ADMM
from hocket.strategies.allreduce import AllReduceSGD
from hocket.strategies.bmuf import BMUF
from hocket.strategies.diloco import DiLoCo
from hocket.strategies.easgd import EASGD, AsyncEASGD
from hocket.strategies.kaldi import Kaldi
from hocket.strategies.kstep import KStep
from hocket.strategies.model_averaging import ModelAveraging
from hocket.strategies.sequential import Sequential
from hocket.strategy import Strategy

STRATEGIES: Final[dict[str, type[Strategy]]] = {
    c.name: c
    for c in (
        Sequential,
        AllReduceSGD,
        KStep,
        AdaptiveKStep,
        ModelAveraging,
        BMUF,
        DiLoCo,
        EASGD,
        AsyncEASGD,
        ADMM,
        Kaldi,
    )
}

__all__ = [
    "ADMM",
    "BMUF",
    "EASGD",
    "STRATEGIES",
    "AdaptiveKStep",
    "AllReduceSGD",
    "AsyncEASGD",
    "DiLoCo",
    "KStep",
    "Kaldi",
    "ModelAveraging",
    "Sequential",
]
