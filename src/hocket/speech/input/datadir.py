"""Reading Kaldi data directories.

    wav.scp    recording  path          (pipes are refused: they are programs, not data)
    segments   utterance  recording  start  end     optional; else a recording is an utterance
    text       utterance  words
    utt2spk    utterance  speaker       optional; else every utterance has its own speaker

A relative path is searched for in the data directory, then one folder above it, then from the
current directory (where Kaldi would look).

A problem with one utterance (no audio, no words) leaves it out, with the reason. A problem with a
file (a duplicate key, a pipe, a missing wav.scp) is an error that names the line.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from hocket.errors import UnreadableError
from hocket.speech.errors import SpeechError
from hocket.support.inputs import TABLE_LIMIT, is_there, lines, read_json, well_formed

TABLES: Final = ("wav.scp", "text", "segments", "utt2spk")


@dataclass(frozen=True, slots=True)
class Utterance:
    """One utterance: where its samples are, who said it, and what."""

    id: str
    speaker: str
    words: tuple[str, ...]
    path: Path
    start_s: float = 0.0
    end_s: float | None = None


@dataclass
class DataDirectory:
    """The usable utterances in sorted order, and why others were left out."""

    path: Path
    utterances: list[Utterance]
    left_out: dict[str, str] = field(default_factory=dict)


def read_utterances(path: Path) -> list[Utterance]:
    """Read the utterances of a split, as the first step of `hocket prepare` lists them."""
    rows = read_json(path, TABLE_LIMIT)
    with well_formed(path):
        return [
            Utterance(
                str(row["id"]),
                str(row["speaker"]),
                tuple(str(word) for word in row["words"]),
                Path(row["path"]),
                float(row["start_s"]),
                None if row["end_s"] is None else float(row["end_s"]),
            )
            for row in rows
        ]


def read_table(path: Path) -> dict[str, str]:
    """Read `key value...` lines; a key may appear only once."""
    table: dict[str, str] = {}
    for number, line in numbered_lines(path):
        key, _, value = line.strip().partition(" ")
        if "\t" in key:  # some tools separate with a tab
            key, _, value = line.strip().partition("\t")
        if key in table:
            raise SpeechError(f"{path}:{number}: {key!r} appears twice: remove one of the lines")
        table[key] = value.strip()
    return table


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of a text file that are not empty, with their numbers from 1."""
    try:
        for number, line in enumerate(lines(path), 1):
            if line.strip():
                yield number, line
    except UnreadableError as error:
        raise SpeechError(str(error)) from error


def is_data_directory(path: Path) -> bool:
    """Return whether a folder looks like a Kaldi data directory."""
    return (path / "wav.scp").is_file()


def read_data_directory(path: Path) -> DataDirectory:
    """Read a data directory; raise if nothing in it can be used."""
    if not is_data_directory(path):
        raise SpeechError(f"{path}: not a Kaldi data directory: it has no wav.scp")
    recordings = {
        key: _located(path, key, value) for key, value in read_table(path / "wav.scp").items()
    }
    texts = read_table(path / "text")
    speakers = read_table(path / "utt2spk") if is_there(path / "utt2spk") else {}
    found = DataDirectory(path, [])
    for utterance, recording, start_s, end_s in _segments(path, list(recordings)):
        words = tuple(texts.get(utterance, "").split())
        if recording not in recordings:
            found.left_out[utterance] = f"its recording {recording!r} is not in wav.scp"
        elif utterance not in texts:
            found.left_out[utterance] = "it has no line in text"
        elif not words:
            found.left_out[utterance] = "its transcript is empty"
        elif not is_there(recordings[recording]):
            found.left_out[utterance] = f"missing audio: {recordings[recording]}"
        else:
            speaker = speakers.get(utterance, utterance).strip()
            found.utterances.append(
                Utterance(utterance, speaker, words, recordings[recording], start_s, end_s)
            )
    for utterance in texts.keys() - found.left_out.keys() - {u.id for u in found.utterances}:
        found.left_out[utterance] = "it has a transcript but no audio in wav.scp or segments"
    found.utterances.sort(key=lambda u: u.id)
    if not found.utterances:
        raise SpeechError(f"{path}: no utterance can be used. {reasons(found.left_out)}")
    return found


def _located(folder: Path, key: str, value: str) -> Path:
    if value.endswith("|") or value.startswith("|"):
        raise SpeechError(
            f"{folder / 'wav.scp'}: {key!r} is a pipe ({value[:60]}): Hocket runs no commands "
            "found in data. Run it yourself, for every line, into a wav or flac file, and put that "
            "file's path here"
        )
    if re.search(r"\.ark:\d+$", value):
        raise SpeechError(
            f"{folder / 'wav.scp'}: {key!r} is a place in an archive ({value[-60:]}): Hocket reads "
            "audio files. Write each recording to a file of its own"
        )
    if not value:
        raise SpeechError(f"{folder / 'wav.scp'}: {key!r} has no path")
    path = Path(value)
    if path.is_absolute():
        return path
    places = (folder / path, folder.parent / path, path)
    return next((p for p in places if is_there(p)), places[0])


def _segments(
    folder: Path, recordings: list[str]
) -> Iterator[tuple[str, str, float, float | None]]:
    path = folder / "segments"
    if not is_there(path):
        for recording in recordings:
            yield recording, recording, 0.0, None
        return
    for utterance, line in read_table(path).items():
        fields = line.split()
        try:
            recording, start, end = fields[0], float(fields[1]), float(fields[2])
        except (IndexError, ValueError):
            raise SpeechError(
                f"{path}: {utterance!r} should read 'utterance recording start end', not {line!r}"
            ) from None
        if not (0 <= start < end or (start >= 0 and end == -1)):  # -1: to the end, as in Kaldi
            raise SpeechError(f"{path}: {utterance!r} ends ({end:g}) before it starts ({start:g})")
        if not math.isfinite(max(start, end)):
            raise SpeechError(f"{path}: {utterance!r} lasts for ever: give its end in seconds")
        yield utterance, recording, start, None if end == -1 else end


def reasons(left_out: dict[str, str], shown: int = 3) -> str:
    """Return a line that says how many were left out, with a few examples."""
    if not left_out:
        return ""
    examples = "; ".join(f"{key}: {why}" for key, why in sorted(left_out.items())[:shown])
    more = "; ..." if len(left_out) > shown else ""
    return f"{len(left_out):,} left out ({examples}{more})"
