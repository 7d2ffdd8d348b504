"""Hocket: train one acoustic model on many learners.

In music a hocket is one melody shared out among several voices. Here one model is trained by
several learners, with every parallel method of the speech literature, in real processes or in a
deterministic simulator.
"""

from hocket.api import Result, simulate, train
from hocket.attach import attach
from hocket.core.strategy import State, Strategy
from hocket.core.task import Item, Loss, Task
from hocket.data.synthetic import Synthetic
from hocket.errors import HocketError
from hocket.models import DNN, PNorm
from hocket.optim import NGSGD, SGD, AdamW, Constant, Exponential, NaturalSGD, Newbob, Warmup
from hocket.runtime.sim.cost import Cluster, Death, Host, Pause, Slow
from hocket.strategies import (
    ADMM,
    ADPSGD,
    BMUF,
    DPSGD,
    EASGD,
    HADPSGD,
    AdaptiveKStep,
    AllReduceSGD,
    AsyncEASGD,
    DelayByOne,
    DiLoCo,
    Kaldi,
    KStep,
    ModelAveraging,
    Sequential,
)

__all__ = [
    "ADMM",
    "ADPSGD",
    "BMUF",
    "DNN",
    "DPSGD",
    "EASGD",
    "HADPSGD",
    "NGSGD",
    "SGD",
    "AdamW",
    "AdaptiveKStep",
    "AllReduceSGD",
    "AsyncEASGD",
    "Cluster",
    "Constant",
    "Death",
    "DelayByOne",
    "DiLoCo",
    "Exponential",
    "HocketError",
    "Host",
    "Item",
    "KStep",
    "Kaldi",
    "Loss",
    "ModelAveraging",
    "NaturalSGD",
    "Newbob",
    "PNorm",
    "Pause",
    "Result",
    "Sequential",
    "Slow",
    "State",
    "Strategy",
    "Synthetic",
    "Task",
    "Warmup",
    "attach",
    "simulate",
    "train",
]
