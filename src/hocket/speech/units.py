"""In which units text is modelled and errors are counted: words, or characters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

Words: TypeAlias = Sequence[str]
Unit: TypeAlias = Literal["word", "character"]


def characters(words: Words) -> list[str]:
    """Cut words into characters; spaces do not count."""
    return list("".join(words))
