"""Acoustic features as Kaldi computes them, their extraction, and the store they are kept in.

May import speech.input, core, support, errors; training needs only this room of speech.
"""

from __future__ import annotations

from hocket.speech.features.spectral import KINDS, FeatureError, Kind, add_deltas, extract, num_dims

__all__ = ["KINDS", "FeatureError", "Kind", "add_deltas", "extract", "num_dims"]
