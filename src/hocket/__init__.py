"""Hocket: train one acoustic model on many learners.

In music a hocket is one melody shared out among several voices. Here one model is trained by
several learners, with every parallel method of the speech literature, in real processes or in a
deterministic simulator.

What users need is here, without the rooms; nothing inside may import from here.
"""

from types import ModuleType as _ModuleType

from hocket.api import Result as Result, simulate as simulate, train as train
from hocket.attach import attach as attach
from hocket.codecs import (
    BFloat16 as BFloat16,
    Float16 as Float16,
    Float32 as Float32,
    OneBit as OneBit,
    TopK as TopK,
)
from hocket.core.strategy import State as State, Strategy as Strategy
from hocket.core.task import Item as Item, Loss as Loss, Task as Task
from hocket.data.stream import Stream as Stream
from hocket.data.synthetic import Synthetic as Synthetic
from hocket.data.synthetic_chunks import SyntheticChunks as SyntheticChunks
from hocket.errors import HocketError as HocketError
from hocket.models import (
    CLDNN as CLDNN,
    DNN as DNN,
    LSTM as LSTM,
    TDNN as TDNN,
    PNorm as PNorm,
)
from hocket.optim import (
    NGSGD as NGSGD,
    SGD as SGD,
    AdaGrad as AdaGrad,
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

# Not a list: a line of the registry is all that a new strategy needs. And not an assignment,
# because mypy takes an `__all__` that it cannot read for an empty one.
globals()["__all__"] = sorted(
    name
    for name, thing in globals().items()
    if not name.startswith("_") and not isinstance(thing, _ModuleType)
)
