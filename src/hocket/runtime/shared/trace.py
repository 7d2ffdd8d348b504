"""What happened when: spans of each learner's time, and every draw.

The simulator's trace is exact: the same seed gives the same trace, bit for bit, and `digest` makes
one number of it to compare. A real run's trace holds what its clocks showed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from hocket.record.rundir import Span
from hocket.support.files import write_atomically


@dataclass
class Trace:
    """A list of spans in the order in which they were noted."""

    spans: list[Span] = field(default_factory=list)
    keep: bool = True
    names: tuple[int, ...] | None = None  # the number of each rank in the record, if another
    _hash: hashlib.blake2b = field(default_factory=lambda: hashlib.blake2b(digest_size=16))

    def note(self, rank: int, kind: str, start_s: float, end_s: float, detail: str = "") -> None:
        """Add a span, if a trace is kept at all."""
        rank = rank if self.names is None else self.names[rank]
        self._hash.update(f"{rank}|{kind}|{start_s!r}|{end_s!r}|{detail}\n".encode())
        if self.keep:
            self.spans.append(Span(rank, kind, start_s, end_s, detail))

    @property
    def digest(self) -> str:
        """Return a fingerprint of all that was noted."""
        return self._hash.hexdigest()

    def lines(self) -> Iterator[str]:
        """Return the spans as JSON lines."""
        for s in self.spans:
            row = {"rank": s.rank, "kind": s.kind, "start_s": s.start_s, "end_s": s.end_s}
            yield json.dumps(row | ({"detail": s.detail} if s.detail else {}))

    def write(self, path: Path) -> None:
        """Write one span a line, as `RunDirectory.spans` reads them."""
        write_atomically(path, "".join(line + "\n" for line in self.lines()))
