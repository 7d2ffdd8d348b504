"""Acoustic models."""

from __future__ import annotations

from hocket.models.dnn import DNN

__all__ = ["DNN"]
