"""What goes on the wire: one axis of three (docs/architecture.md). May import core, errors.

Only `float32` exists so far; 1-bit with error feedback is to come.
"""

from __future__ import annotations

from typing import Final

from hocket.core.codec import FLOAT32, Codec, Float32

CODECS: Final[dict[str, type[Float32]]] = {Float32.name: Float32}

__all__ = ["CODECS", "FLOAT32", "Codec", "Float32"]
