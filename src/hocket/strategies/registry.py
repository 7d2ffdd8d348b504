"""Every strategy: one line each, in the order in which they are listed. Register a new one here.

A line makes it a name of `hocket`, of `hocket.strategies`, of the command line and of the tests.
"""
# ruff: isort: off

from hocket.strategies.sequential import Sequential as Sequential
from hocket.strategies.allreduce import AllReduceSGD as AllReduceSGD
from hocket.strategies.kstep import KStep as KStep
from hocket.strategies.adaptive_kstep import AdaptiveKStep as AdaptiveKStep
from hocket.strategies.averaging import ModelAveraging as ModelAveraging
from hocket.strategies.bmuf import BMUF as BMUF
from hocket.strategies.slowmo import SlowMo as SlowMo
from hocket.strategies.diloco import DiLoCo as DiLoCo
from hocket.strategies.easgd import EASGD as EASGD, AsyncEASGD as AsyncEASGD
from hocket.strategies.admm import ADMM as ADMM
from hocket.strategies.hessian_free import HessianFree as HessianFree
from hocket.strategies.asgd import ASGD as ASGD
from hocket.strategies.delay_by_one import DelayByOne as DelayByOne
from hocket.strategies.dpsgd import DPSGD as DPSGD
from hocket.strategies.sgp import SGP as SGP
from hocket.strategies.adpsgd import ADPSGD as ADPSGD
from hocket.strategies.hadpsgd import HADPSGD as HADPSGD
from hocket.strategies.kaldi import Kaldi as Kaldi
from hocket.strategies.pipeline import Pipeline as Pipeline
