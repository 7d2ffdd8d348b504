"""Errors of the speech side."""

from __future__ import annotations

from hocket.errors import HocketError


class SpeechError(HocketError):
    """Something is wrong with audio, data, lexicon or models; names the thing and the remedy."""
