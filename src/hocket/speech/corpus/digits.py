"""Sentences of the digits corpus: strings of 1 to 7 English digits, with both 'zero' and 'oh'."""

from __future__ import annotations

import numpy as np

WORDS = ("zero", "oh", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def sentence(rng: np.random.Generator) -> list[str]:
    """Draw a digit string; all lengths and all digits are equally likely."""
    return [WORDS[i] for i in rng.integers(len(WORDS), size=rng.integers(1, 8))]
