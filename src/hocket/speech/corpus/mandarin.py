"""Connected digits in Mandarin: 1 to 7 characters, written without spaces."""

from __future__ import annotations

import numpy as np

WORDS = tuple("零一二三四五六七八九幺")


def sentence(rng: np.random.Generator) -> list[str]:
    """Draw a digit string; every length and every digit alike."""
    return [WORDS[i] for i in rng.integers(len(WORDS), size=rng.integers(1, 8))]
