"""The error that all speech modules raise."""

from __future__ import annotations

from hocket.errors import InputError


class SpeechError(InputError):
    """Audio, data, a lexicon or a model is wrong; the message names it and says what to do."""
