"""Several launchers: usually one on each host, and how they talk to each other.

    torchrun --nnodes=2 --nproc-per-node=1 ... -m hocket train TASK --learners 8 --out RUN
    mpirun -n 4 hocket train TASK --learners 4 --out RUN

With torchrun, one process per host is that host's launcher and starts its share of the learners,
because torchrun's agent ends all its processes when one of them dies, which must not happen when a
learner dies. The first launcher, the *head*, serves the store of the run and keeps the record; the
others pass on what their learners report. RUN must be on a file system that all hosts share.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hocket.errors import ConfigError, LearnerFailedError, StoreLostError
from hocket.runtime.launch import engines, meeting
from hocket.runtime.net.links import VANISHED_S
from hocket.runtime.net.store import Place, Store

_BEAT_EVERY_S = 1.0
_POLL_S = 0.2
_STORE_LIMIT_S = 30.0  # longer than it takes to give up the connections of a vanished host
_FAREWELL_S = 10.0  # how long the head stays for others to read how the run ended
_MARK = ".hosts"  # a file that shows whether all hosts see the same run directory


@dataclass
class LearnerHost:
    """This host among several, and its end of what launchers tell each other."""

    number: int
    count: int
    store: Store
    place: Place  # of the store, for learners
    silence_s: float  # a host that gives no sign of life for longer is lost
    is_open: bool = False  # there is no token: anybody may join
    engine: str = engines.TORCHRUN.name
    _told: int = 0
    _heard: Counter[int] = field(default_factory=Counter)  # messages of each host
    _beaten: float = 0.0
    _beats: dict[int, tuple[int, float]] = field(default_factory=dict)

    @classmethod
    def from_environment(cls, timeout_s: float, silence_s: float) -> LearnerHost | None:
        """Return this launcher if an engine has started several of them, else None.

        There may be one on each host, or several on one: each starts its share of the learners.
        """
        engines.refuse_separate_torchruns()
        started = engines.started_by()
        if started is None or started.engine is engines.OURS or started.size < 2:
            engines.refuse_several("hocket train")
            return None
        met = meeting.meet(started, timeout_s)
        store = met.place.store(timeout_s).limited(_STORE_LIMIT_S)
        name = started.engine.name
        return cls(started.rank, started.size, store, met.place, silence_s, met.is_open, name)

    @property
    def is_head(self) -> bool:
        """True for the host that keeps the record."""
        return self.number == 0

    def ranks(self, learners: int, attendants: int = 0) -> list[int]:
        """Return who runs on this host: consecutive learners, as even as possible, then attendants.

        Attendants are dealt to the hosts in turn, the first host first, as in the simulator.
        """
        if learners < self.count:
            raise ConfigError(
                f"{learners} learner(s) cannot be divided among {self.count} hosts: give "
                f"--learners {self.count} or more, or use fewer hosts (the ranks of a learner, "
                "runtime.ranks_per_learner, share a host)"
            )
        cuts = [learners * i // self.count for i in range(self.count + 1)]
        mine = range(cuts[self.number], cuts[self.number + 1])
        return [*mine, *range(learners + self.number, learners + attendants, self.count)]

    # ------------------------------------------------------------------ the run directory

    def open_directory(self, path: Path) -> None:
        """Head: say that the run directory is there. Others: wait for it, and check it."""
        mark = path / _MARK
        if self.is_head:
            mark.write_text(self.store.name())
            self.store.add("directory", 1)
            return
        while not self.store.add("directory", 0):
            self.check_head()
            time.sleep(_POLL_S)
        if not mark.exists() or mark.read_text() != self.store.name():
            raise ConfigError(
                f"host {self.number} does not see the run directory {path} that the first host "
                "made: --out must be on a file system that all hosts share"
            )

    # ------------------------------------------------------------------ telling and hearing

    def tell(self, kind: str, rank: int | None, body: Any) -> None:
        """Others: send something to the head."""
        self._told += 1
        self.store.put(f"told/{self.number}/{self._told}", json.dumps([kind, rank, body]))

    def hear(self) -> list[tuple[str, int, Any]]:
        """Head: return what the other hosts have sent since the last call.

        Each host has numbers of its own: one that is killed leaves no number without a message.
        """
        news = []
        for host in range(self.count):
            while (sent := self.store.look(f"told/{host}/{self._heard[host] + 1}")) is not None:
                kind, rank, body = json.loads(sent)
                news.append((kind, rank, body))
                self._heard[host] += 1
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
        self._see_off()

    def fail(self, why: str) -> None:
        """Head: tell the others that the run failed."""
        self.store.put("why", why)
        self.store.add("failed", 1)
        self._see_off()

    def _see_off(self) -> None:
        """Wait a while until the others have left: with the head, the store ends."""
        until = time.monotonic() + _FAREWELL_S
        while time.monotonic() < until and self.store.add("left", 0) < self.count - 1:
            time.sleep(_POLL_S)

    def leave(self) -> None:
        """Others: say that this host knows how the run ended."""
        self.store.add("left", 1)

    def outcome(self) -> dict[str, Any]:
        """Others: wait until the head says how the run ended, and return it."""
        while not self.store.add("finished", 0):
            self.check_head()
            time.sleep(_POLL_S)
        told: dict[str, Any] = json.loads(self.store.get("outcome"))
        with suppress(StoreLostError):  # the head has not waited
            self.leave()
        return told
