"""Reading speech data of several forms: Kaldi's, lhotse's, or a plain folder of recordings.

    wav.scp text ...                    a Kaldi data directory (datadir.py)
    *cuts*.jsonl, *cuts*.jsonl.gz       lhotse cuts, or such a file itself; if names contain train,
                                        dev (or valid) and test (or eval), these are the splits
    NAME.wav with NAME.txt              a plain folder, searched with its subfolders; or the
    NAME.wav and transcripts.txt        transcripts of many in one file, one `NAME words ...` per
                                        line (also LibriSpeech's *.trans.txt)

In a plain folder, a subfolder is a speaker. A transcripts file covers its own folder and all below
it, for which NAME may be `sub/NAME` or `sub-NAME`. A space in a name becomes an underscore, because
names are keys in Kaldi's tables. A problem with one utterance leaves it out, with the reason; a
problem with a file is an error that names the file.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from hocket.errors import UnreadableError
from hocket.speech.errors import SpeechError
from hocket.speech.input.audio import ENDINGS
from hocket.speech.input.datadir import (
    TABLES,
    DataDirectory,
    Utterance,
    is_data_directory,
    numbered_lines,
    read_data_directory,
    read_table,
    reasons,
)
from hocket.support.inputs import is_there, lines, parse_json, well_formed

OTHER_AUDIO: Final = (".m4a", ".aac", ".wma", ".mp4", ".webm", ".amr")  # libsndfile has no decoder
_SPLIT_NAMES: Final = {
    "train": "train",
    "dev": "dev",
    "valid": "dev",
    "validation": "dev",
    "test": "test",
    "eval": "test",
}
_SPLIT_IN_NAME: Final = re.compile(rf"(?<![a-z])({'|'.join(_SPLIT_NAMES)})(?![a-z])")
WHAT: Final = (
    "neither a Kaldi data directory (wav.scp), nor lhotse cuts (*cuts*.jsonl.gz), nor audio files "
    f"({', '.join(ENDINGS)})"
)


def is_source(path: Path) -> bool:
    """Return whether a path holds speech data of a known form."""
    return is_data_directory(path) or bool(_manifests(path)) or _any_audio(path)


def read_source(path: Path) -> DataDirectory:
    """Read the utterances of a path, whatever their form."""
    if is_data_directory(path):
        return read_data_directory(path)
    manifests = _manifests(path)
    if manifests:
        return read_manifests(path, manifests)
    if not _any_audio(path):
        raise SpeechError(f"{path}: it holds {WHAT}")
    found = DataDirectory(path, [])
    _read_plain(path, found)
    return _finished(path, found)


def _finished(path: Path, found: DataDirectory) -> DataDirectory:
    found.utterances.sort(key=lambda u: u.id)
    _refuse_twice(path, found.utterances)
    if not found.utterances:
        raise SpeechError(f"{path}: no utterance can be used. {reasons(found.left_out)}")
    return found


def read_manifests(folder: Path, manifests: list[Path]) -> DataDirectory:
    """Read the utterances of some of a folder's manifests."""
    found = DataDirectory(folder, [])
    for manifest in manifests:
        _read_cuts(manifest, found)
    return _finished(folder, found)


def manifests_by_split(folder: Path) -> dict[str, list[Path]]:
    """Sort a folder's manifests by the split in their names; empty if none contains train."""
    found: dict[str, list[Path]] = {}
    for manifest in _manifests(folder):
        said = _SPLIT_IN_NAME.search(manifest.name.lower())
        found.setdefault(_SPLIT_NAMES[said[1]] if said else "", []).append(manifest)
    if "train" not in found or len(found) == 1:
        return {}
    if "" in found:
        raise SpeechError(
            f"{found[''][0]}: its name has neither train, dev nor test in it, but other names here "
            "do: rename it, or move it away"
        )
    return found


def deciding_files(path: Path) -> list[Path]:
    """Return the files that determine the utterances."""
    if is_data_directory(path):
        return [path / table for table in TABLES if (path / table).exists()]
    return _manifests(path) or sorted(
        [*_audio_files(path), *(p for p in path.rglob("*.txt") if path.is_dir())]
    )


def _refuse_twice(path: Path, utterances: list[Utterance]) -> None:
    for one, other in pairwise(utterances):
        if one.id == other.id:
            raise SpeechError(f"{path}: {one.id!r} appears twice: rename or remove one")


# ---------------------------------------------------------------------------- plain folders


def _audio_files(path: Path) -> Iterator[Path]:
    if path.is_dir():
        yield from (p for p in path.rglob("*") if p.suffix.lower() in ENDINGS)


def _any_audio(path: Path) -> bool:
    return next(_audio_files(path), None) is not None


def _read_plain(folder: Path, found: DataDirectory) -> None:
    listed = Listed(folder)
    spoken = sorted(_audio_files(folder))
    for path in spoken:
        inner = path.relative_to(folder).with_suffix("")
        name = as_key("-".join(inner.parts))
        text = listed.of(path)
        beside = path.with_suffix(".txt")
        if text is None and is_there(beside):
            text = " ".join(line for _, line in numbered_lines(beside))
        words = tuple((text or "").split())
        if text is None:
            found.left_out[name] = f"no transcript: neither {beside} nor a line in transcripts.txt"
        elif not words:
            found.left_out[name] = "its transcript is empty"
        else:
            speaker = as_key(inner.parts[0]) if len(inner.parts) > 1 else name
            found.utterances.append(Utterance(name, speaker, words, path))
    found.left_out |= listed.unused() | _alone(folder, {p.with_suffix("") for p in spoken})


class Listed:
    """The transcripts in files that hold many of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._tables: dict[Path, dict[str, tuple[str, Path]]] = {}  # by the folder they are in
        self._used: dict[tuple[Path, str], Path] = {}
        for path in sorted([*folder.rglob("transcripts.txt"), *folder.rglob("*.trans.txt")]):
            table = self._tables.setdefault(path.parent, {})
            for key, text in read_table(path).items():
                if key in table:
                    raise SpeechError(f"{key!r} is in {table[key][1]} and in {path}: remove one")
                table[key] = (text, path)

    def of(self, audio: Path) -> str | None:
        """Return the transcript of a recording, from the nearest file that has one."""
        for folder in audio.parents:
            inner = audio.relative_to(folder)
            bare = inner.with_suffix("").parts
            for key in (inner.as_posix(), "/".join(bare), "-".join(bare), audio.name, audio.stem):
                if key in self._tables.get(folder, {}):
                    return self._take(folder, key, audio)
            if folder == self.folder:
                break
        return None

    def _take(self, folder: Path, key: str, audio: Path) -> str:
        text, source = self._tables[folder][key]
        other = self._used.setdefault((folder, key), audio)
        if other != audio:
            one, two = (p.relative_to(folder).with_suffix("") for p in (other, audio))
            raise SpeechError(
                f"{source}: {key!r} could be {one} or {two}: write one line for each, with its "
                "folder"
            )
        return text

    def unused(self) -> dict[str, str]:
        """Return the lines that belong to no recording."""
        return {
            key: f"a line in {source}, but no recording of that name"
            for folder, table in self._tables.items()
            for key, (_, source) in table.items()
            if (folder, key) not in self._used
        }


def _alone(folder: Path, spoken: set[Path]) -> dict[str, str]:
    """Return recordings of formats that cannot be read, and transcripts without a recording."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name, bare = as_key("-".join(path.relative_to(folder).parts)), path.with_suffix("")
        if bare in spoken:
            continue
        if path.suffix.lower() in OTHER_AUDIO:
            found[name] = f"{path.suffix} is not read: convert it to wav or flac (ffmpeg -i)"
        elif path.suffix == ".txt" and path.name != "transcripts.txt":
            heard = any(path.with_suffix(s).exists() for s in OTHER_AUDIO)
            if not heard and not path.name.endswith(".trans.txt"):
                found[name] = "a transcript without a recording beside it"
    return found


def as_key(name: str) -> str:
    """Return a name without spaces and in UTF-8, to be used as a key in a table."""
    return "_".join(name.encode("utf-8", "replace").decode().split())


# ---------------------------------------------------------------------------- lhotse


def _manifests(path: Path) -> list[Path]:
    if path.is_file():
        return [path] if ".jsonl" in path.suffixes else []
    return sorted(p for p in path.glob("*cuts*.jsonl*") if p.suffix in (".jsonl", ".gz"))


def _read_cuts(manifest: Path, found: DataDirectory) -> None:
    for number, line in _lines(manifest):
        try:
            with well_formed(manifest):
                cut = parse_json(manifest, line)
                name = as_key(str(cut["id"]))
                _read_cut(manifest.parent, cut, found)
        except UnreadableError as error:
            raise SpeechError(
                f"{manifest}:{number}: not a lhotse cut ({error.reason}); write the cuts with "
                "CutSet.to_file"
            ) from error
        except SpeechError as error:
            found.left_out[name] = str(error)


def _lines(manifest: Path) -> Iterator[tuple[int, str]]:
    try:
        yield from ((n, line) for n, line in enumerate(lines(manifest), 1) if line.strip())
    except UnreadableError as error:
        raise SpeechError(f"{error}: copy it again") from error


def _read_cut(folder: Path, cut: dict[str, Any], found: DataDirectory) -> None:
    """Add a cut's utterances: one for each supervision."""
    if cut.get("type", "MonoCut") != "MonoCut":
        raise SpeechError(f"a {cut['type']}: save its audio first (CutSet.save_audios)")
    if "features" in cut and "recording" not in cut:
        raise SpeechError("it has features but no recording: give cuts with their audio")
    recording = cut["recording"]
    if recording.get("transforms"):
        raise SpeechError("its recording is transformed on the fly: save its audio first")
    path = _source(folder, recording["sources"])
    supervisions = cut.get("supervisions", [])
    if not supervisions:
        raise SpeechError("it has no supervision, so no transcript")
    for one in supervisions:
        name = as_key(str(cut["id"] if len(supervisions) == 1 else one["id"]))
        words = tuple((one.get("text") or "").split())
        start = float(cut["start"]) + max(0.0, float(one["start"]))
        end = float(cut["start"]) + min(
            float(cut["duration"]), float(one["start"]) + float(one["duration"])
        )
        if not (0 <= start < end and math.isfinite(end)):
            raise SpeechError(f"it starts at {start:g} s and ends at {end:g} s")
        if not words:
            found.left_out[name] = "its transcript is empty"
        elif not is_there(path):
            found.left_out[name] = f"missing audio: {path}"
        else:
            speaker = as_key(str(one.get("speaker") or name))
            found.utterances.append(Utterance(name, speaker, words, path, start, end))


def _source(folder: Path, sources: list[dict[str, Any]]) -> Path:
    """Return the audio file of a recording; refuse commands, which are programs and not data."""
    source = sources[0]
    if len(sources) != 1 or source["type"] != "file":
        kinds = ", ".join(str(s["type"]) for s in sources)
        raise SpeechError(f"its audio is not one file but: {kinds}. Save it to files first")
    path = Path(source["source"])
    places = (path, folder / path, folder.parent / path)
    return next((p for p in places if is_there(p)), path)
