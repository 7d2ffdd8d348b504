"""Acoustic models: feed-forward, time-delay and recurrent networks; curvature of any model.

May import core, support, errors: a model knows neither its data nor who trains it.
"""

from __future__ import annotations

from typing import Final

from hocket.models.cldnn import CLDNN
from hocket.models.dnn import DNN
from hocket.models.lstm import LSTM
from hocket.models.model import Model
from hocket.models.pnorm import PNorm
from hocket.models.tdnn import TDNN

MODELS: Final[dict[str, type[Model]]] = {c.name: c for c in (DNN, PNorm, LSTM, TDNN, CLDNN)}

__all__ = ["CLDNN", "DNN", "LSTM", "MODELS", "TDNN", "Model", "PNorm"]
