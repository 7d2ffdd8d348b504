"""The one door to `torch.distributed`: nothing else in Hocket names it.

Nothing is built from the global state of `init_process_group`. It is only
asked whether the user has set that up.
"""

from __future__ import annotations

from typing import Any

import torch.distributed

dist: Any = torch.distributed  # its stubs lack the group objects that are used here


def num_processes() -> int:
    """Return how many processes the user's own `init_process_group` has joined; 1 if none."""
    if not (dist.is_available() and dist.is_initialized()):
        return 1
    return int(dist.get_world_size())
