"""Files that are there in full or not at all."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from hocket.errors import HocketError

NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def atomically(path: Path) -> Iterator[Path]:
    """Yield where to write; it takes PATH's place when all is written, else nothing is left of it.

    >>> with atomically(path) as partial:
    ...     partial.write_text(page)
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        yield partial
        partial.replace(path)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        raise HocketError(
            f"{path}: no room on its disk: free some and give the same command again"
        ) from error
    finally:
        partial.unlink(missing_ok=True)
