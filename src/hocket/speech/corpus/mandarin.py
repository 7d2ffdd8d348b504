"""Sentences of the Mandarin corpus: strings of 1 to 7 digits, written without spaces."""

from __future__ import annotations

import numpy as np

WORDS = tuple("零一二三四五六七八九幺")


def sentence(rng: np.random.Generator) -> list[str]:
    """Draw a digit string; all lengths and all digits are equally likely."""
    return [WORDS[i] for i in rng.integers(len(WORDS), size=rng.integers(1, 8))]
