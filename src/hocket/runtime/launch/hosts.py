"""Several hosts: one launcher on each, and how the launchers talk to each other.

    torchrun --nnodes=2 --nproc-per-node=1 ... -m hocket train TASK --learners 8 --out RUN

One torchrun process per host is that host's launcher and starts its share of the learners, because
torchrun's agent ends all its processes when one of them dies, which must not happen when a learner
dies. Launchers talk through torchrun's own store: the first one, the *head*, keeps the record;
the others pass on what their learners report. RUN must be on a file system that all hosts share.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hocket.errors import ConfigError, LearnerFailedError
from hocket.runtime.net.links import VANISHED_S
from hocket.runtime.net.store import Store

_BEAT_EVERY_S = 1.0
_POLL_S = 0.2
_STORE_LIMIT_S = 30.0  # longer than it takes to give up the connections of a vanished host
_MARK = ".hosts"  # a file that shows whether all hosts see the same run directory


@dataclass
class LearnerHost:
    """This host among several, and its end of what launchers tell each other."""

    number: int
    count: int
    store: Store
    address: str  # of the host that serves the store
    port: int
    prefix: str
    silence_s: float  # a host that gives no sign of life for longer is lost
    _heard: int = 0
    _beaten: float = 0.0
    _beats: dict[int, tuple[int, float]] = field(default_factory=dict)

    @classmethod
    def from_environment(cls, timeout_s: float, silence_s: float) -> LearnerHost | None:
        """Return this host if torchrun has started several of them, else None."""
        env = os.environ
        if "TORCHELASTIC_RUN_ID" not in env or int(env.get("WORLD_SIZE", "1")) < 2:
            return None
        number, count = int(env["RANK"]), int(env["WORLD_SIZE"])
        address, port = env["MASTER_ADDR"], int(env["MASTER_PORT"])
        prefix = f"hocket/{env['TORCHELASTIC_RUN_ID']}/{env.get('TORCHELASTIC_RESTART_COUNT', 0)}"
        served = env.get("TORCHELASTIC_USE_AGENT_STORE") != "True" and number == 0
        store = (
            Store.serve(address, timeout_s, port)
            if served
            else Store.connect(address, port, timeout_s)
        )
        limited = store.prefix(prefix).limited(_STORE_LIMIT_S)
        return cls(number, count, limited, address, port, prefix, silence_s)

    @property
    def is_head(self) -> bool:
        """True for the host that keeps the record."""
        return self.number == 0

    def ranks(self, learners: int) -> range:
        """Return the learners of this host: consecutive ranks, as even as possible."""
        if learners < self.count:
            raise ConfigError(
                f"{learners} learner(s) cannot be divided among {self.count} hosts: give "
                f"--learners {self.count} or more, or use fewer hosts"
            )
        cuts = [learners * i // self.count for i in range(self.count + 1)]
        return range(cuts[self.number], cuts[self.number + 1])

    # ------------------------------------------------------------------ the run directory

    def open_directory(self, path: Path) -> None:
        """Head: say that the run directory is there. Others: wait for it, and check it."""
        mark = path / _MARK
        if self.is_head:
            mark.write_text(self.prefix)
            self.store.add("directory", 1)
            return
        while not self.store.add("directory", 0):
            self.check_head()
            time.sleep(_POLL_S)
        if not mark.exists() or mark.read_text() != self.prefix:
            raise ConfigError(
                f"host {self.number} does not see the run directory {path} that the first host "
                "made: --out must be on a file system that all hosts share"
            )

    # ------------------------------------------------------------------ telling and hearing

    def tell(self, kind: str, rank: int | None, body: Any) -> None:
        """Others: send something to the head."""
        number = self.store.add("told", 1)
        self.store.put(f"told/{number}", json.dumps([self.number, kind, rank, body]))

    def hear(self) -> list[tuple[str, int, Any]]:
        """Head: return what the other hosts have sent since the last call."""
        news = []
        for number in range(self._heard + 1, self.store.add("told", 0) + 1):
            _, kind, rank, body = json.loads(self.store.get(f"told/{number}"))
            news.append((kind, rank, body))
            self._heard = number
        return news

    def beat(self) -> None:
        """Give a sign of life, if the last one is a second old."""
        if time.monotonic() - self._beaten >= _BEAT_EVERY_S:
            self._beaten = time.monotonic()
            self.store.add(f"beat/{self.number}", 1)

    def silent(self) -> list[int]:
        """Return the hosts that have given no sign of life for too long."""
        now, quiet = time.monotonic(), []
        for host in range(self.count):
            beats = self.store.add(f"beat/{host}", 0)
            if host not in self._beats or self._beats[host][0] != beats:
                self._beats[host] = beats, now
            if now - self._beats[host][1] > self.silence_s + VANISHED_S:
                quiet.append(host)
        return quiet

    def check_head(self) -> None:
        """Others: raise an error if the head has failed or gives no sign of life."""
        self.beat()
        if self.store.add("failed", 0):
            raise LearnerFailedError(f"the first host ended the run: {self.store.get('why')}")
        if 0 in self.silent():
            raise LearnerFailedError(
                "the first host, which keeps the record of the run, gives no sign of life: the run "
                "ends here and can be continued with --resume"
            )

    # ------------------------------------------------------------------ the end

    def finish(self, outcome: dict[str, Any]) -> None:
        """Head: tell the others how the run ended."""
        self.store.put("outcome", json.dumps(outcome))
        self.store.add("finished", 1)

    def fail(self, why: str) -> None:
        """Head: tell the others that the run failed."""
        self.store.put("why", why)
        self.store.add("failed", 1)

    def outcome(self) -> dict[str, Any]:
        """Others: wait until the head says how the run ended, and return it."""
        while not self.store.add("finished", 0):
            self.check_head()
            time.sleep(_POLL_S)
        told: dict[str, Any] = json.loads(self.store.get("outcome"))
        return told
