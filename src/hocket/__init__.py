"""Hocket: train one acoustic model on many learners.

In music a hocket is one melody shared out among several voices. Here one model is trained by
several learners, with every parallel method of the speech literature, in real processes or in a
deterministic simulator.
"""

from hocket.api import Result as Result, simulate as simulate, train as train
from hocket.attach import attach as attach
from hocket.core.strategy import State as State, Strategy as Strategy
from hocket.core.task import Item as Item, Loss as Loss, Task as Task
from hocket.data.synthetic import Synthetic as Synthetic
from hocket.errors import HocketError as HocketError
from hocket.models import DNN as DNN, PNorm as PNorm
from hocket.optim import (
    NGSGD as NGSGD,
    SGD as SGD,
    AdamW as AdamW,
    Constant as Constant,
    Exponential as Exponential,
    NaturalSGD as NaturalSGD,
    Newbob as Newbob,
    Warmup as Warmup,
)
from hocket.runtime.sim.cost import (
    Cluster as Cluster,
    Death as Death,
    Host as Host,
    Pause as Pause,
    Slow as Slow,
)
from hocket.strategies.registry import *  # noqa: F403  (every strategy)
