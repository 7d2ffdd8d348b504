"""What a codec is, and the one that changes nothing. The table of codecs is `hocket.codecs`."""

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
