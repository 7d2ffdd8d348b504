"""The one door to `torch.distributed`: nothing else in Hocket names it.

Nothing is built from the global state of `init_process_group`. It is only
asked whether the user has set that up, and for the store in which its processes met.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed

dist: Any = torch.distributed  # its stubs lack the group objects that are used here


def initialised() -> tuple[int, int] | None:
    """Return rank and size of the user's own `init_process_group`; None if there is none."""
    if not (dist.is_available() and dist.is_initialized()):
        return None
    return int(dist.get_rank()), int(dist.get_world_size())


def num_processes() -> int:
    """Return how many processes the user's own `init_process_group` has joined; 1 if none."""
    return int(dist.get_world_size()) if dist.is_available() and dist.is_initialized() else 1


def initialised_store() -> Any:
    """Return the store in which the user's own process group has met."""
    return dist.distributed_c10d._get_default_store()


def connect_store(host: str, port: int, timeout_s: float) -> Any:
    """Connect to a store of torch's that another program serves, such as torchrun."""
    return dist.TCPStore(host, port, None, False, timedelta(seconds=timeout_s))
