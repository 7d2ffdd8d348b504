"""What goes on the wire: one axis of three (docs/architecture.md). May import core, errors.

`columns` is what all share: where columns are, and where a code may be cut. `onebit`, `half` and
`topk` say what is sent of a column; `kernels` and `compiled` are the fast loops. `coded`: a
mean over learners that travels coded. docs/codecs.md has the mathematics and says which one pays
when.
"""

from __future__ import annotations

from typing import Final

from hocket.codecs.half import BFloat16, Float16
from hocket.codecs.onebit import OneBit
from hocket.codecs.topk import TopK
from hocket.core.codec import FLOAT32, Codec, Float32

CODECS: Final[dict[str, type[Codec]]] = {
    kind.name: kind for kind in (Float32, Float16, BFloat16, OneBit, TopK)
}

__all__ = ["CODECS", "FLOAT32", "BFloat16", "Codec", "Float16", "Float32", "OneBit", "TopK"]
