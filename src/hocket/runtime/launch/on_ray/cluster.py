"""A Ray cluster, and the actors in it: all calls of `ray` are here and in the actor itself."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from hocket.errors import ConfigError, require
from hocket.runtime.launch.guests.arrivals import LauncherPlace
from hocket.runtime.launch.learner_process import Orders
from hocket.runtime.launch.on_ray.learner import RayLearner

ADDRESS: Final = "RAY_ADDRESS"
RESTARTS: Final = 10  # of each actor: one that dies again and again is not worth a pause each time


def _library() -> Any:
    try:
        import ray
    except ImportError as error:
        raise ConfigError(
            "--engine ray needs Ray, on this host and on all nodes: pip install 'hocket[ray]'"
        ) from error
    return ray


@dataclass(frozen=True)
class Resources:
    """What Ray keeps free for each learner."""

    cpus: float = 1.0
    gpus: float = 0.0

    def __post_init__(self) -> None:
        require(0 <= self.cpus < 1e6, f"--cpus must be 0 or more, not {self.cpus}")
        require(0 <= self.gpus < 1e6, f"--gpus must be 0 or more, not {self.gpus}")

    def __str__(self) -> str:
        return f"{self.cpus:g} CPU(s) and {self.gpus:g} GPU(s)"


@dataclass
class RayCluster:
    """The cluster that this program is connected to."""

    resources: Resources
    _ray: Any = field(repr=False)

    @classmethod
    @contextmanager
    def connected(cls, resources: Resources) -> Iterator[RayCluster]:
        """Connect to the cluster of RAY_ADDRESS, or to the one on this host, and let go of it."""
        ray, where = _library(), os.environ.get(ADDRESS, "auto")
        require(
            not where.startswith("ray://"),
            f"{ADDRESS}={where}: a client outside the cluster cannot be reached by its learners: "
            "run `hocket train --engine ray` on a node, or with `ray job submit`",
        )
        try:
            ray.init(
                address=where,
                log_to_driver=False,
                logging_level=logging.WARNING,
                namespace="hocket",
            )
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise ConfigError(
                f"--engine ray finds no Ray cluster at {where!r} ({error}): start one with `ray "
                f"start --head` and, on the other nodes, `ray start --address=HEAD:6379`; or set "
                f"{ADDRESS}"
            ) from error
        try:
            yield cls(resources, ray)
        finally:
            ray.shutdown()

    @property
    def name(self) -> str:
        """The engine, for the record."""
        return f"Ray {self._ray.__version__}, {self.num_nodes} nodes"

    @property
    def num_nodes(self) -> int:
        """How many nodes can take learners."""
        alive = [one["Resources"] for one in self._ray.nodes() if one["Alive"]]
        asked = self.resources
        return sum(
            have.get("CPU", 0) >= asked.cpus and have.get("GPU", 0) >= asked.gpus for have in alive
        )

    def own_address(self) -> str:
        """Return the address by which the cluster knows this node."""
        return str(self._ray.util.get_node_ip_address())

    def has(self) -> str:
        """Say what the cluster has."""
        total = self._ray.cluster_resources()
        cpus, gpus = total.get("CPU", 0), total.get("GPU", 0)
        return f"{self.num_nodes} node(s) for learners, {cpus:g} CPU(s) and {gpus:g} GPU(s) in all"

    @staticmethod
    def failed(actors: Iterable[RayActor]) -> str:
        """Return why one of these could not run; empty if all could."""
        return next((why for one in actors if (why := one.why_it_failed())), "")

    def await_return(self, actors: Iterable[RayActor], limit_s: float) -> None:
        """Wait until these have returned: Ray complains of those that are ended before."""
        running = [one.running for one in actors]
        if running:
            self._ray.wait(running, num_returns=len(running), timeout=limit_s)

    def begin(
        self, number: int, launcher: LauncherPlace, orders: Orders, *, restarts: bool
    ) -> RayActor:
        """Let Ray place a learner, now or when there is room, and again when its node is lost."""
        kind = self._ray.remote(
            num_cpus=self.resources.cpus,
            num_gpus=self.resources.gpus,
            max_restarts=RESTARTS if restarts else 0,
            max_task_retries=-1 if restarts else 0,
        )(RayLearner)
        actor = kind.remote()
        return RayActor(self._ray, actor, actor.run.remote(number, launcher, orders))


@dataclass
class RayActor:
    """One actor of ours, wherever it is."""

    _ray: Any = field(repr=False)
    _actor: Any = field(repr=False)
    running: Any = field(repr=False)  # what stands for its return
    dismissed: bool = False

    def why_it_failed(self) -> str:
        """Return why it could not run, if it could not: its learner has no line to say so."""
        ended, _ = self._ray.wait([self.running], timeout=0)
        try:
            self._ray.get(ended)
        except self._ray.exceptions.RayError as error:
            return f"a learner did not start on Ray: {error}\nHave all nodes the same Hocket?"
        return ""

    def restart(self) -> None:
        """End its process; Ray starts it anew."""
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._ray.kill(self._actor, no_restart=False)

    def dismiss(self) -> None:
        """End it for good."""
        if not self.dismissed:
            self.dismissed = True
            with contextlib.suppress(self._ray.exceptions.RayError):
                self._ray.kill(self._actor, no_restart=True)
