"""Kaldi data directories, audio files, and what may be wrong with them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile
from helpers.audio import data_directory, tone, write_wav

from hocket.speech.errors import SpeechError
from hocket.speech.input import audio
from hocket.speech.input.datadir import read_data_directory, read_table, reasons
from hocket.speech.input.splits import hold_out, read_splits


def test_a_directory_is_read_as_it_is(tmp_path: Path) -> None:
    folder = data_directory(tmp_path / "train", {"b1": "two", "a1": "one two", "a2": "three"})
    found = read_data_directory(folder)
    assert [u.id for u in found.utterances] == ["a1", "a2", "b1"]
    assert found.utterances[0].words == ("one", "two")
    assert found.utterances[0].speaker == "a"
    assert not found.left_out


def test_paths_may_be_relative_to_the_folder_above_and_flac(tmp_path: Path) -> None:
    folder = tmp_path / "train"
    folder.mkdir()
    soundfile.write(tmp_path / "x.flac", tone(0.5).astype(np.int16), 8000)
    (folder / "wav.scp").write_text("x x.flac\n")
    (folder / "text").write_text("x one\n")
    [utterance] = read_data_directory(folder).utterances
    assert utterance.speaker == "x"  # no utt2spk: a speaker of its own
    samples = audio.read(utterance.path)
    assert len(samples) == 4000
    assert np.abs(samples - np.rint(samples)).max() < 1e-3  # on the int16 scale


def test_segments_cut_recordings(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    write_wav(folder / "r.wav", tone(2.0))
    (folder / "wav.scp").write_text("r r.wav\n")
    (folder / "segments").write_text("u1 r 0.25 0.75\nu2 r 1.0 -1\nu3 gone 0 1\n")
    (folder / "text").write_text("u1 one\nu2 two\nu3 three\n")
    found = read_data_directory(folder)
    lengths = [len(audio.read(u.path, u.start_s, u.end_s)) for u in found.utterances]
    assert lengths == [4000, 8000]
    assert "not in wav.scp" in found.left_out["u3"]


def test_bad_utterances_are_left_out_with_the_reason(tmp_path: Path) -> None:
    folder = data_directory(tmp_path, {"a": "one", "b": "", "c": "two", "d": "three"})
    (folder / "wav" / "c.wav").unlink()
    with (folder / "text").open("a") as file:
        file.write("e four\n")
    found = read_data_directory(folder)
    assert [u.id for u in found.utterances] == ["a", "d"]
    assert "transcript is empty" in found.left_out["b"]
    assert "missing audio" in found.left_out["c"]
    assert "no audio in wav.scp" in found.left_out["e"]
    assert reasons(found.left_out).startswith("3 left out (b: its transcript is empty")


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("wav.scp", "a sph2pipe -f wav x.sph |\n", "is a pipe.*runs no commands.*wav or flac"),
        ("wav.scp", "a wav.ark:16\n", "is a place in an archive.*file of its own"),
        ("wav.scp", "a wav/a.wav\na wav/a.wav\n", "wav.scp:2: 'a' appears twice"),
        ("text", "a one\na two\n", "text:2: 'a' appears twice"),
        ("text", "zz one\n", "no utterance can be used"),
        ("segments", "a a zero one\n", "should read 'utterance recording start end'"),
        ("segments", "a a 2.0 1.0\n", "ends \\(1\\) before it starts"),
        ("text", b"a \xff\xfe\n", "not UTF-8"),
    ],
)
def test_a_bad_table_is_an_error_that_names_it(
    tmp_path: Path, file: str, content: str | bytes, message: str
) -> None:
    folder = data_directory(tmp_path, {"a": "one"})
    (folder / file).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(SpeechError, match=message):
        read_data_directory(folder)


def test_tabs_and_missing_files(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("a\tone two\n")
    assert read_table(tmp_path / "t") == {"a": "one two"}
    with pytest.raises(SpeechError, match=r"no wav.scp"):
        read_data_directory(tmp_path)
    with pytest.raises(SpeechError, match=r"neither.*wav.scp"):
        read_splits(tmp_path, 0.1, print)


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-500])


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _noise(path: Path) -> None:
    path.write_bytes(b"this is no audio at all" * 10)


def _header_only(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:20])


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_truncate, "truncated, 500 bytes are missing"),
        (_empty, "the file is empty"),
        (_noise, "not an audio file"),
        (_header_only, "truncated"),
        (Path.unlink, "No such file"),
    ],
)
def test_a_bad_file_says_what_is_wrong(
    tmp_path: Path, spoil: Callable[[Path], None], message: str
) -> None:
    path = write_wav(tmp_path / "a.wav", tone(0.5))
    spoil(path)
    with pytest.raises(SpeechError, match=message):
        audio.read(path)


def test_held_out_data_is_by_speaker_where_there_are_enough(tmp_path: Path) -> None:
    texts = {f"{chr(97 + s)}{n}": "one" for s in range(12) for n in range(3)}
    utterances = read_data_directory(data_directory(tmp_path / "many", texts)).utterances
    rest, taken, how = hold_out(utterances, 0.2, "dev")
    assert {u.speaker for u in rest}.isdisjoint({u.speaker for u in taken})
    assert len(rest) + len(taken) == 36
    assert "2 speakers" in how
    few = [u for u in utterances if u.speaker in "ab"]
    rest, taken, how = hold_out(few, 0.34, "dev")
    assert len(taken) == 2
    assert {u.speaker for u in rest} == {"a", "b"}
    with pytest.raises(SpeechError, match="too few"):
        hold_out(few[:1], 0.1, "dev")


def test_an_utterance_in_two_splits_is_refused(tmp_path: Path) -> None:
    data_directory(tmp_path / "train", {"a": "one", "b": "two"})
    data_directory(tmp_path / "test", {"b": "two"})
    with pytest.raises(SpeechError, match=r"'b'.*worthless"):
        read_splits(tmp_path, 0.1, print)


def test_an_empty_test_set_is_named(tmp_path: Path) -> None:
    data_directory(tmp_path / "train", {"a": "one", "b": "two"})
    data_directory(tmp_path / "test", {"c": ""})
    with pytest.raises(SpeechError, match=r"test: no utterance can be used.*transcript is empty"):
        read_splits(tmp_path, 0.1, print)
