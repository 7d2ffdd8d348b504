"""Connected digit strings: 1 to 7 words, 'oh' beside 'zero'."""

from __future__ import annotations

import numpy as np

WORDS = ("zero", "oh", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def sentence(rng: np.random.Generator) -> list[str]:
    """Draw a digit string; every length and every digit alike."""
    return [WORDS[i] for i in rng.integers(len(WORDS), size=rng.integers(1, 8))]
