"""How much memory there is, and sizes that cannot fit: refused before they are allocated.

Linux grants memory that it does not have and ends the process when it is used. So whoever is about
to allocate what a user has asked for compares it with the machine first.
"""

from __future__ import annotations

import os

from hocket.errors import ConfigError, HocketError


def machine_bytes() -> int:
    """Return the memory of this machine; a control group may allow less."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def require_room(num_bytes: int, what: str, remedy: str) -> None:
    """Raise if a machine of this size can never hold so much."""
    there = machine_bytes()
    if num_bytes > there:
        raise ConfigError(
            f"{what} would take {num_bytes / 1e9:,.3g} GB, but this machine has "
            f"{there / 1e9:,.3g} GB of memory: {remedy}"
        )


def is_out_of_memory(error: BaseException) -> bool:
    """True if memory was refused, here or in a learner; torch says so with a RuntimeError."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError | HocketError) and any(
        word in str(error) for word in ("can't allocate memory", "MemoryError", "OutOfMemoryError")
    )
