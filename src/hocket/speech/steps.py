"""Steps that are done only once, and repeated only if something they depend on has changed.

A step works in FOLDER/NAME.partial, which is renamed to FOLDER/NAME when it is complete, with a
step.json that holds its key: a digest of its options, its inputs, and the keys of the steps before
it. A partial folder with the same key is given to the step again, so that a long step can continue
where it was interrupted; a partial folder with another key is removed.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hocket.errors import UnreadableError
from hocket.speech.errors import SpeechError
from hocket.support.files import move_folder
from hocket.support.inputs import TABLE_LIMIT, read_table

Facts = dict[str, Any]


@dataclass
class Steps:
    """Runs the steps of one folder."""

    folder: Path
    say: Callable[[str], None]
    keys: dict[str, str] = field(default_factory=dict)
    total: int = 0  # how many steps there will be, if that is known

    def title(self, name: str) -> str:
        """Return what a progress bar calls a step: its name, and which of how many it is."""
        number = list(self.keys).index(name) + 1 if name in self.keys else len(self.keys) + 1
        return f"{name} (step {number} of {self.total})" if self.total else name

    def refuse_foreign(self, names: Iterable[str]) -> None:
        """Raise if a folder that a step would replace is somebody else's."""
        for name in names:
            for path, mark in ((name, "step.json"), (f"{name}.partial", "begun.json")):
                there = self.folder / path
                if there.exists() and any(there.iterdir()) and not (there / mark).exists():
                    raise SpeechError(
                        f"{there} is there already, and is not a step of `hocket prepare`: nothing "
                        "in it is touched; choose another --out"
                    )

    def run(
        self, name: str, inputs: Facts, after: tuple[str, ...], make: Callable[[Path], Facts]
    ) -> Facts:
        """Run `make` for a step unless that was done before; return its facts."""
        key = digest([name, inputs, [self.keys[step] for step in after]])
        self.keys[name] = key
        done = self.folder / name
        kept = _read(done / "step.json")
        if kept is not None and kept["key"] == key and "facts" in kept:
            self.say(f"{name}: kept ({kept['facts'].get('said', 'done before')})")
            facts: Facts = kept["facts"]
            return facts
        partial = self.folder / f"{name}.partial"
        begun = _read(partial / "begun.json")
        if begun is None or begun["key"] != key:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            (partial / "begun.json").write_text(json.dumps({"key": key}))
        started = time.monotonic()
        facts = make(partial)
        seconds = round(time.monotonic() - started, 2)
        record = {"key": key, "facts": facts, "seconds": seconds, "inputs": inputs}
        (partial / "step.json").write_text(json.dumps(record, indent=1, default=str))
        (partial / "begun.json").unlink()
        move_folder(partial, done)
        self.say(f"{name}: {facts.get('said', 'done')} ({seconds:.1f} s)")
        return facts


def digest(value: Any) -> str:
    """Return a short hash of anything that JSON can hold."""
    return hashlib.blake2b(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:24]


def _read(path: Path) -> dict[str, Any] | None:
    """Return what a step noted; None if there is nothing of the kind, so that it is done again."""
    try:
        found = read_table(path, TABLE_LIMIT)  # with every utterance that was left out
    except UnreadableError:
        return None
    whole = isinstance(found.get("key"), str) and isinstance(found.get("facts", {}), dict)
    return found if whole else None


def file_state(path: Path) -> list[Any]:
    """Return a file's path, size and time of change: if the file changes, so does this."""
    try:
        stat = path.stat()
    except OSError:
        return [str(path), None]
    return [str(path), stat.st_size, stat.st_mtime_ns]
