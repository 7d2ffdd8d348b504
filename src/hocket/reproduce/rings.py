"""The methods that all claims on decentralised training compare, and their speed."""

from __future__ import annotations

from typing import Any

from hocket.core.strategy import Strategy
from hocket.reproduce.outcome import Arm
from hocket.strategies import ADPSGD, AllReduceSGD, DelayByOne

METHODS: dict[str, Strategy[Any]] = {
    "allreduce": AllReduceSGD(),
    "delay-by-one": DelayByOne(),
    "fixed ring": ADPSGD(ring="fixed"),
    "random ring": ADPSGD(ring="random"),
}


def speed(arm: Arm) -> float:
    """Return frames per second, the mean over the seeds."""
    return arm.mean(lambda o: o.frames_per_s).value
