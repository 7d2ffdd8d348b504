"""What goes on the wire. A codec is one axis of three; see docs/architecture.md.

Only `float32` exists so far; 1-bit with error feedback is to come.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, Protocol


class Codec(Protocol):
    """How a vector travels, and what that costs."""

    name: ClassVar[str]

    def coded_bytes(self, num_values: int) -> int:
        """Bytes on the wire for a vector of `num_values`."""
        ...


@dataclass(frozen=True)
class Float32:
    """Every value as it is: 4 bytes."""

    name: ClassVar[str] = "float32"

    def coded_bytes(self, num_values: int) -> int:
        """Four bytes each."""
        return 4 * num_values


FLOAT32: Final = Float32()
CODECS: Final[dict[str, type[Float32]]] = {Float32.name: Float32}
