"""Speech data in the forms people have it: Kaldi's, lhotse's, or a plain folder of recordings.

    wav.scp text ...                    a Kaldi data directory (datadir.py)
    *cuts*.jsonl, *cuts*.jsonl.gz       lhotse cuts, or such a file itself
    NAME.wav with NAME.txt              a plain folder, searched with its subfolders; or the
    NAME.wav and transcripts.txt        transcripts of many in one file, `NAME words ...` a line
                                        (LibriSpeech's *.trans.txt, too)

In a plain folder a subfolder is a speaker. What is wrong with one utterance leaves it out with the
reason; what is wrong with a file is an error that names it.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from hocket.speech.datadir import (
    TABLES,
    DataDirectory,
    Utterance,
    is_data_directory,
    numbered_lines,
    read_data_directory,
    read_table,
    reasons,
)
from hocket.speech.errors import SpeechError

AUDIO: Final = (".wav", ".flac")
WHAT: Final = (
    "neither a Kaldi data directory (wav.scp), nor lhotse cuts (*cuts*.jsonl.gz), nor audio files "
    f"({', '.join(AUDIO)})"
)


def is_source(path: Path) -> bool:
    """Say whether there is speech data of a known form."""
    return is_data_directory(path) or bool(_manifests(path)) or _any_audio(path)


def read_source(path: Path) -> DataDirectory:
    """Read the utterances, whatever form they have."""
    if is_data_directory(path):
        return read_data_directory(path)
    manifests = _manifests(path)
    found = DataDirectory(path, [])
    if manifests:
        for manifest in manifests:
            _read_cuts(manifest, found)
    elif _any_audio(path):
        _read_plain(path, found)
    else:
        raise SpeechError(f"{path}: {WHAT} is there")
    found.utterances.sort(key=lambda u: u.id)
    _refuse_twice(path, found.utterances)
    if not found.utterances:
        raise SpeechError(f"{path}: no utterance can be used. {reasons(found.left_out)}")
    return found


def deciding_files(path: Path) -> list[Path]:
    """Return the files whose change means other utterances."""
    if is_data_directory(path):
        return [path / table for table in TABLES if (path / table).exists()]
    return _manifests(path) or sorted(
        [*_audio_files(path), *(p for p in path.rglob("*.txt") if path.is_dir())]
    )


def _refuse_twice(path: Path, utterances: list[Utterance]) -> None:
    for one, other in pairwise(utterances):
        if one.id == other.id:
            raise SpeechError(f"{path}: {one.id!r} is there twice: rename or remove one")


# ---------------------------------------------------------------------------- plain folders


def _audio_files(path: Path) -> Iterator[Path]:
    if path.is_dir():
        yield from (p for p in path.rglob("*") if p.suffix.lower() in AUDIO)


def _any_audio(path: Path) -> bool:
    return next(_audio_files(path), None) is not None


def _read_plain(folder: Path, found: DataDirectory) -> None:
    listed: dict[str, str] = {}
    for path in sorted([*folder.rglob("transcripts.txt"), *folder.rglob("*.trans.txt")]):
        listed |= read_table(path)
    for path in sorted(_audio_files(folder)):
        inner = path.relative_to(folder).with_suffix("")
        name = "-".join(inner.parts)
        text = listed.get(path.stem, listed.get(name))
        beside = path.with_suffix(".txt")
        if text is None and beside.exists():
            text = " ".join(line for _, line in numbered_lines(beside))
        words = tuple((text or "").split())
        if text is None:
            found.left_out[name] = f"no transcript: neither {beside} nor a line in transcripts.txt"
        elif not words:
            found.left_out[name] = "its transcript is empty"
        else:
            speaker = inner.parts[0] if len(inner.parts) > 1 else name
            found.utterances.append(Utterance(name, speaker, words, path))


# ---------------------------------------------------------------------------- lhotse


def _manifests(path: Path) -> list[Path]:
    if path.is_file():
        return [path] if ".jsonl" in path.suffixes else []
    return sorted(p for p in path.glob("*cuts*.jsonl*") if p.suffix in (".jsonl", ".gz"))


def _read_cuts(manifest: Path, found: DataDirectory) -> None:
    for number, line in _lines(manifest):
        try:
            cut = json.loads(line)
            name = str(cut["id"])
            _read_cut(manifest.parent, cut, found)
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise SpeechError(
                f"{manifest}:{number}: not a lhotse cut ({type(error).__name__}: {error}); write "
                "the cuts with CutSet.to_file"
            ) from error
        except SpeechError as error:
            found.left_out[name] = str(error)


def _lines(manifest: Path) -> Iterator[tuple[int, str]]:
    opened = gzip.open if manifest.suffix == ".gz" else open
    try:
        with opened(manifest, "rt", encoding="utf-8") as file:
            yield from ((n, line) for n, line in enumerate(file, 1) if line.strip())
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise SpeechError(f"{manifest}: cannot be read ({error}): copy it again") from error


def _read_cut(folder: Path, cut: dict[str, Any], found: DataDirectory) -> None:
    """Add a cut's utterances: one for each supervision."""
    if cut.get("type", "MonoCut") != "MonoCut":
        raise SpeechError(f"a {cut['type']}: save its audio first (CutSet.save_audios)")
    recording = cut["recording"]
    if recording.get("transforms"):
        raise SpeechError("its recording is transformed on the fly: save its audio first")
    path = _source(folder, recording["sources"])
    supervisions = cut.get("supervisions", [])
    if not supervisions:
        raise SpeechError("it has no supervision, so no transcript")
    for one in supervisions:
        name = str(cut["id"]) if len(supervisions) == 1 else str(one["id"])
        words = tuple((one.get("text") or "").split())
        start = float(cut["start"]) + max(0.0, float(one["start"]))
        end = float(cut["start"]) + min(
            float(cut["duration"]), float(one["start"]) + float(one["duration"])
        )
        if not words:
            found.left_out[name] = "its transcript is empty"
        elif not path.exists():
            found.left_out[name] = f"missing audio: {path}"
        else:
            speaker = str(one.get("speaker") or name)
            found.utterances.append(Utterance(name, speaker, words, path, start, end))


def _source(folder: Path, sources: list[dict[str, Any]]) -> Path:
    """Return the audio file of a recording; commands are programs, not data."""
    source = sources[0]
    if len(sources) != 1 or source["type"] != "file":
        kinds = ", ".join(str(s["type"]) for s in sources)
        raise SpeechError(f"its audio is not one file but: {kinds}. Save it to files first")
    path = Path(source["source"])
    places = (path, folder / path, folder.parent / path)
    return next((p for p in places if p.exists()), path)
