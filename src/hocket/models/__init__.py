"""Acoustic models: feed-forward networks with ReLU, sigmoid or p-norm hidden layers.

May import core, support, errors: a model knows neither its data nor who trains it.
"""

from __future__ import annotations

from typing import Final

from hocket.models.dnn import DNN
from hocket.models.model import Model
from hocket.models.pnorm import PNorm

MODELS: Final[dict[str, type[Model]]] = {c.name: c for c in (DNN, PNorm)}

__all__ = ["DNN", "MODELS", "Model", "PNorm"]
