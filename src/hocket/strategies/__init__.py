"""One file per algorithm. To add one: its file, a line here, a row in the conformance table."""

from __future__ import annotations

from typing import Final

from hocket.core.strategy import Strategy
from hocket.strategies.adaptive_kstep import AdaptiveKStep
from hocket.strategies.admm import ADMM
from hocket.strategies.adpsgd import ADPSGD
from hocket.strategies.allreduce import AllReduceSGD
from hocket.strategies.averaging import ModelAveraging
from hocket.strategies.bmuf import BMUF
from hocket.strategies.delay_by_one import DelayByOne
from hocket.strategies.diloco import DiLoCo
from hocket.strategies.dpsgd import DPSGD
from hocket.strategies.easgd import EASGD, AsyncEASGD
from hocket.strategies.hadpsgd import HADPSGD
from hocket.strategies.kaldi import Kaldi
from hocket.strategies.kstep import KStep
from hocket.strategies.sequential import Sequential

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
        DelayByOne,
        DPSGD,
        ADPSGD,
        HADPSGD,
        Kaldi,
    )
}

__all__ = [
    "ADMM",
    "ADPSGD",
    "BMUF",
    "DPSGD",
    "EASGD",
    "HADPSGD",
    "STRATEGIES",
    "AdaptiveKStep",
    "AllReduceSGD",
    "AsyncEASGD",
    "DelayByOne",
    "DiLoCo",
    "KStep",
    "Kaldi",
    "ModelAveraging",
    "Sequential",
]
