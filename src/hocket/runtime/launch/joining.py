"""How somebody asks a running run to take learners in: `hocket join RUN`.

Whoever asks must prove the run's token, as every connection does. The launcher of a run leaves it,
with the address of its store, in a file of the run directory that only its owner can read
(`RUN/.join`); the file goes when the run ends. The launcher decides, starts the newcomers or seats
those that another host has brought (`guests/`), and answers. Nothing that is read here decides
anything: a file that was forged leads to a store that cannot prove itself, or to none.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hocket.core.limits import MOST_PROCESSES
from hocket.errors import ConfigError, HocketError, UnreadableError, WaitTimeoutError, require
from hocket.runtime.net.store import Place, Store
from hocket.support.inputs import CONFIG_LIMIT, read_table

NAME: Final = ".join"
ASKED: Final = "join/asked"
CONNECT_S: Final = 10.0
_LOOK_S: Final = 0.5
_OWNER: Final = stat.S_IRUSR | stat.S_IWUSR


@dataclass(frozen=True)
class Door:
    """How a run can be asked, and by whom."""

    place: Place  # of its store
    host: str  # of its launcher
    guests: str = ""  # where learners of other hosts call the launcher; empty: none may come

    @property
    def is_here(self) -> bool:
        """True if the launcher runs on this host."""
        return self.host == socket.gethostname()

    def connect(self, run_dir: Path) -> Store:
        """Connect to the store of the run."""
        try:
            return self.place.store(CONNECT_S)
        except (HocketError, OSError, ValueError) as error:  # ValueError: an address that is none
            raise HocketError(
                f"the launcher of the run in {run_dir} does not answer ({error}): it has ended, or "
                f"it runs on {self.host} and takes nobody in from other hosts (--listen)"
            ) from error


def leave_door_open(run_dir: Path, place: Place, guests: str = "") -> None:
    """Write where the store is, for the owner of the run alone."""
    path = run_dir / NAME
    path.unlink(missing_ok=True)  # of a run that was killed; a link is removed, not followed
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, _OWNER)
    with os.fdopen(descriptor, "w") as file:
        table = {"address": place.address, "token": place.token.hex(), "towards": place.towards}
        json.dump(table | {"host": socket.gethostname(), "guests": guests}, file)


def close_door(run_dir: Path) -> None:
    """Remove the file."""
    with contextlib.suppress(OSError):
        (run_dir / NAME).unlink(missing_ok=True)


def door(run_dir: Path) -> Door:
    """Return how the run in a directory can be asked; ConfigError if there is none to ask."""
    path = run_dir / NAME
    try:
        status = path.lstat()
        mine = status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IRWXG | stat.S_IRWXO)
        require(mine, f"{path} belongs to another user, or others can read it: it is not trusted")
        table = read_table(path, CONFIG_LIMIT)
        token = bytes.fromhex(table["token"])
        place = Place(str(table["address"]), token, str(table["towards"]))
        return Door(place, str(table["host"]), str(table["guests"]))
    except FileNotFoundError as error:
        raise ConfigError(
            f"no run that takes learners in is under way in {run_dir}: start or resume it (runs "
            "with several launchers take nobody in: start one on one host with --listen, and let "
            "the other hosts join)"
        ) from error
    except (UnreadableError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{path} is damaged ({error}): end the run and resume it") from error


def ask(run_dir: Path, learners: int, timeout_s: float) -> list[int]:
    """Ask the run to take learners in; return their numbers once they are at work."""
    require(
        1 <= learners <= MOST_PROCESSES,
        f"--learners must be from 1 to {MOST_PROCESSES:,}, not {learners}",
    )
    store = door(run_dir).connect(run_dir)
    try:
        return request(store, {"learners": learners}, timeout_s)
    finally:
        store.close()


def announce(store: Store, asked: str) -> int:
    """Put a request where the launcher finds it; return its number.

    To take a number is to announce it: whoever is killed right after leaves a request that makes no
    sense, which is refused, and the next one has its own number all the same.
    """
    number = store.add(ASKED, 1)
    store.put(f"join/{number}", asked)
    return number


def request(
    store: Store,
    asked: dict[str, Any],
    timeout_s: float,
    meanwhile: Callable[[], None] = lambda: None,
) -> list[int]:
    """Ask for what a table says, and wait for the answer; `meanwhile` may end the wait."""
    number = announce(store, json.dumps(asked))
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        meanwhile()
        said = store.look(f"join/{number}/answer", _LOOK_S)
        if said is not None:
            answer: dict[str, Any] = json.loads(said)
            if "refused" in answer:
                raise ConfigError(f"the run takes nobody in: {answer['refused']}")
            return [int(one) for one in answer["joined"]]
    then = "Newcomers that were started join all the same: `hocket watch` shows them"
    if "callers" in asked:
        then = "Those of this host end now: join again, and wait for longer (--timeout)"
    raise WaitTimeoutError(
        f"waited {timeout_s:g} s for the run to take {asked['learners']} learner(s) in: it is at a "
        f"long step, or has just ended. {then}"
    )


def understood(request: bytes | None) -> tuple[int, list[int]]:
    """Return how many learners a request asks for, and which callers; ValueError: nobody knows.

    Whoever wrote it has the token, but may be another version.
    """
    try:
        asked = json.loads(request or b"{}")
        count, callers = asked["learners"], asked.get("callers", [])
    except (AttributeError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    if type(count) is not int or not 1 <= count <= MOST_PROCESSES:
        raise ValueError(f"{str(count)[:100]} learners")
    if not isinstance(callers, list) or not all(type(one) is int for one in callers):
        raise ValueError("callers that are no numbers")
    return count, callers
