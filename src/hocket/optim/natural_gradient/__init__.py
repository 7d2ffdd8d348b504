"""Natural gradient as in Kaldi: the estimate, the layers that use it, and SGD built on it.

`OnlineNaturalGradient` is the mathematics (`online.py`); `NGSGD` is a `torch.optim` optimizer for
any loop, `NaturalSGD` the optimizer of Hocket's own runs. May import core, support, errors.
"""

from __future__ import annotations

from hocket.optim.natural_gradient.ngsgd import NGSGD, NaturalSGD
from hocket.optim.natural_gradient.online import OnlineNaturalGradient
from hocket.optim.natural_gradient.simple import simple_natural_gradient

__all__ = ["NGSGD", "NaturalSGD", "OnlineNaturalGradient", "simple_natural_gradient"]
