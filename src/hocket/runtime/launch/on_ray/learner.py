"""What runs in an actor of Ray: one learner.

It calls the launcher, says where it is, and is told its number. If its node is lost, Ray makes the
actor again elsewhere and calls `run` again: the launcher then hears from it anew, and lets it join.
"""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from hocket.errors import UnreadableError
from hocket.runtime.launch.guests.arrivals import LauncherPlace
from hocket.runtime.launch.guests.line import Assignment, Hello
from hocket.runtime.launch.learner_process import Orders, serve
from hocket.support import inputs

MARK: Final = ".ray"  # a file that shows whether a node sees the run directory


class RayLearner:
    """The actor."""

    def run(self, number: int, launcher: LauncherPlace, orders: Orders) -> int:
        """Run one learner to its end; the launcher says which one."""
        line = launcher.call(number)
        line.send(Hello(_node(), socket.gethostname()))
        told: Assignment = line.recv()
        problem = _unseen(orders.run_dir, told.directory)
        if problem:
            line.send(("failed", ("ConfigError", problem, "was starting", "")))
            return 1
        return serve(replace(orders, rank=told.rank, joins=told.joins), line)


def _node() -> str:
    import ray

    context: Any = ray.get_runtime_context()
    return str(context.get_node_id())


def _unseen(run_dir: Path | None, written: str) -> str:
    """Return what is wrong with the run directory, if this node does not see it."""
    if run_dir is None:
        return ""
    try:
        seen = inputs.read_text(run_dir / MARK) == written
    except (OSError, UnreadableError):
        seen = False
    if seen:
        return ""
    return (
        f"the node {socket.gethostname()} does not see the run directory {run_dir} of the "
        "launcher: --out must be on a file system that all nodes share, under the same path"
    )
