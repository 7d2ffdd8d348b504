"""One file per algorithm. To add one: its file, a line here, a row in the conformance table."""

from __future__ import annotations

from typing import Final

from hocket.strategies.adpsgd import ADPSGD
from hocket.strategies.allreduce import AllReduceSGD
from hocket.strategies.delay_by_one import DelayByOne
from hocket.strategies.dpsgd import DPSGD
from hocket.strategies.hadpsgd import HADPSGD
from hocket.strategies.kstep import KStep
from hocket.strategies.sequential import Sequential
from hocket.strategy import Strategy

STRATEGIES: Final[dict[str, type[Strategy]]] = {
    c.name: c for c in (Sequential, AllReduceSGD, KStep, DelayByOne, DPSGD, ADPSGD, HADPSGD)
}

__all__ = [
    "ADPSGD",
    "DPSGD",
    "HADPSGD",
    "STRATEGIES",
    "AllReduceSGD",
    "DelayByOne",
    "KStep",
    "Sequential",
]
