"""Speech data, spoilt: tables, segments, cuts, audio, lexicons, language models, graphs."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from helpers.audio import data_directory, tone
from helpers.fuzzing import (
    edits,
    in_numbers,
    refused,
    spoilt_bytes,
    spoilt_tree,
    tree_edits,
    try_out,
)
from helpers.spoilt import ARPA, DEV, LEXICON, TRAIN
from hypothesis import strategies as st

from hocket.speech.errors import SpeechError
from hocket.speech.features.extraction import look_at
from hocket.speech.graph.arpa import arpa_words, read_arpa
from hocket.speech.graph.lexicon import read_lexicon
from hocket.speech.input import audio
from hocket.speech.input.datadir import read_data_directory, read_utterances
from hocket.speech.input.sources import read_source
from hocket.speech.input.splits import read_splits

TABLES = ["wav.scp", "text", "utt2spk", "segments"]


def used(utterances: list[Any]) -> None:
    """Do what `hocket prepare` does with utterances first: look at their audio."""
    left_out: dict[str, str] = {}
    refused(lambda: look_at(utterances, left_out, 8000))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    data_directory(folder / "train", TRAIN)
    data_directory(folder / "dev", DEV)
    rows = [f"{name} {name} 0.1 0.9\n" for name in TRAIN]
    (folder / "train" / "segments").write_text("".join(rows))
    return folder


@in_numbers
@pytest.mark.parametrize("table", TABLES)
def test_spoilt_tables_are_read_or_refused(cases: int, table: str, data: Path) -> None:
    path = data / "train" / table
    whole = path.read_bytes()

    def attempt(changes: list[tuple[str, float, bytes]]) -> None:
        path.write_bytes(spoilt_bytes(whole, changes))
        found: list[Any] = []
        refused(lambda: found.extend(read_data_directory(data / "train").utterances))
        used(found)
        refused(lambda: read_splits(data, 0.1, lambda _: None))

    try_out(cases, edits, attempt)


@in_numbers
def test_any_path_in_a_table_is_found_or_left_out(cases: int, data: Path) -> None:
    path = data / "train" / "wav.scp"
    others = "".join(f"{name} wav/{name}.wav\n" for name in list(TRAIN)[1:])
    (data / "train" / "segments").unlink()

    def attempt(where: str) -> None:
        path.write_text(f"a0 {where}\n{others}", errors="replace")
        found: list[Any] = []
        refused(lambda: found.extend(read_data_directory(data / "train").utterances))
        used(found)

    odd = [".", "..", "/", "/dev/zero", "/dev/stdin", "/proc/self/mem", "a" * 5000, "wav", "sox |"]
    try_out(cases, st.one_of(st.sampled_from(odd), st.text(max_size=30)), attempt)


# ---------------------------------------------------------------------------- cuts


def cut(path: Path) -> dict[str, Any]:
    recording = {
        **{"id": "r", "sampling_rate": 8000, "num_samples": 8000, "duration": 1.0},
        "sources": [{"type": "file", "channels": [0], "source": str(path)}],
    }
    supervision = {"id": "s", "start": 0.1, "duration": 0.7, "text": "one two", "speaker": "a"}
    return {
        **{"id": "cut", "start": 0.0, "duration": 1.0, "channel": 0, "type": "MonoCut"},
        **{"recording": recording, "supervisions": [supervision]},
    }


@in_numbers
def test_spoilt_cuts_are_read_left_out_or_refused(cases: int, data: Path, tmp_path: Path) -> None:
    good, path = cut(data / "train" / "wav" / "a0.wav"), tmp_path / "cuts.jsonl"

    def attempt(changes: list[tuple[str, int, Any]]) -> None:
        lines = [good, spoilt_tree(good | {"id": "other"}, changes)]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        found: list[Any] = []
        refused(lambda: found.extend(read_source(path).utterances), naming="cuts.jsonl")
        used(found)

    try_out(cases, tree_edits, attempt)


@pytest.mark.parametrize("bad", [[], {}, None, 3, "x", [None], [[]]])
def test_a_cut_whose_recording_is_something_else_is_named(bad: Any, tmp_path: Path) -> None:
    path = tmp_path / "cuts.jsonl"
    path.write_text(json.dumps(cut(tmp_path) | {"recording": bad}) + "\n")
    with pytest.raises(SpeechError, match=r"cuts\.jsonl"):
        read_source(path)


@in_numbers
def test_spoilt_lists_of_utterances_are_read_or_refused(cases: int, tmp_path: Path) -> None:
    path = tmp_path / "train.json"
    row = {"id": "a", "speaker": "s", "words": ["one"], "path": "/x", "start_s": 0.0, "end_s": None}

    def attempt(changes: list[tuple[str, int, Any]]) -> None:
        path.write_text(json.dumps(spoilt_tree([row, row | {"end_s": 1.5}], changes)))
        refused(lambda: used(read_utterances(path)), naming="train.json")

    try_out(cases, tree_edits, attempt)


# ---------------------------------------------------------------------------- audio


def sound(kind: str) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, tone(0.3) / 32768, 8000, format=kind)
    return file.getvalue()


@in_numbers
@pytest.mark.parametrize("kind", ["WAV", "FLAC", "OGG", "AIFF"])
def test_spoilt_audio_is_read_or_refused(cases: int, kind: str, tmp_path: Path) -> None:
    path, whole = tmp_path / "given.wav", sound(kind)

    def attempt(changes: list[tuple[str, float, bytes]]) -> None:
        path.write_bytes(spoilt_bytes(whole, changes))
        read: list[Any] = []
        refused(lambda: read.append(audio.read(path, 0.05, 0.2)), naming="given.wav")
        refused(lambda: read.append(audio.read(path)), naming="given.wav")
        assert all(len(one) <= audio.MAX_UTTERANCE_S * 768_000 for one in read)

    # the head matters most
    front = st.tuples(edits, st.floats(0, 1)).map(
        lambda drawn: [(kind, at * drawn[1] ** 4, more) for kind, at, more in drawn[0]]
    )
    try_out(cases, front, attempt)


def test_a_header_that_announces_hours_takes_no_memory_for_them(tmp_path: Path) -> None:
    """The 36 bits of a flac file's header say how many samples there are: here 2^36 - 1."""
    path, data = tmp_path / "given.flac", bytearray(sound("FLAC"))
    place = 4 + 4 + 13  # the mark, the block's head, then 13.5 bytes into the stream's facts
    data[place] |= 0x0F
    data[place + 1 : place + 5] = b"\xff" * 4
    path.write_bytes(data)
    assert audio.probe(path).num_samples == 2**36 - 1
    with pytest.raises(SpeechError, match="hours at once are more than the limit of 4"):
        audio.read(path)
    with pytest.raises(SpeechError, match=r"ends after|cannot be decoded"):
        audio.read(path, 0.0, 3600.0)


def test_a_wav_file_of_endless_chunks_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "given.wav"
    path.write_bytes(b"RIFF\xff\xff\xff\x7fWAVE" + b"junk\0\0\0\0" * 200_000)
    with pytest.raises(SpeechError, match="truncated"):
        audio.probe(path)


# ---------------------------------------------------------------------------- words and graphs

BIGRAMS = ARPA.replace("ngram 1=4\n", "ngram 1=4\nngram 2=1\n").replace(
    "\\end\\", "\\2-grams:\n-0.3 one two\n\n\\end\\"
)


@in_numbers
def test_spoilt_language_models_are_read_or_refused(cases: int, tmp_path: Path) -> None:
    path = tmp_path / "lm.arpa"
    path.write_text(BIGRAMS)
    assert read_arpa(path, ["one", "two"]).order == 2

    def attempt(changes: list[tuple[str, float, bytes]]) -> None:
        path.write_bytes(spoilt_bytes(BIGRAMS.encode(), changes))
        refused(lambda: read_arpa(path, arpa_words(path)), naming="lm.arpa")

    try_out(cases, edits, attempt)


@in_numbers
def test_spoilt_lexicons_are_read_or_refused(cases: int, tmp_path: Path) -> None:
    path = tmp_path / "lexicon.txt"

    def attempt(changes: list[tuple[str, float, bytes]]) -> None:
        path.write_bytes(spoilt_bytes(LEXICON.encode(), changes))
        refused(lambda: read_lexicon(path).phones, naming="lexicon.txt")

    try_out(cases, edits, attempt)


@in_numbers
def test_a_search_over_a_spoilt_graph_stays_inside(cases: int, tmp_path: Path) -> None:
    """An arc that leads nowhere would end the process: hypothesis could not even say so."""
    pytest.importorskip("kaldi_decoder")
    from hocket.speech.decode.decoding import Search, decode_one
    from hocket.speech.graph.graph import Graph, decoding_graph
    from hocket.speech.graph.lm import estimate
    from hocket.speech.graph.senones import Senones

    (tmp_path / "whole").mkdir()
    lexicon = read_lexicon(_written(tmp_path / "lexicon.txt", LEXICON))
    senones = Senones.monophone(lexicon.phones)
    language = estimate([["one", "two"], ["two"]], ["one", "two"], 2)
    loop = np.full(senones.num_pdfs, 0.5)
    decoding_graph(lexicon, language, senones, loop).write(tmp_path / "whole")
    folder = Path(shutil.copytree(tmp_path / "whole", tmp_path / "graph"))
    path = folder / "HCLG.fst"
    data = path.read_bytes()
    scores = np.random.default_rng(0).normal(size=(30, senones.num_pdfs)).astype(np.float32)

    def searched() -> None:
        graph = Graph.read(folder)
        if graph.num_pdfs > scores.shape[1]:
            raise SpeechError("too many senones")
        words = decode_one(graph, scores, Search())
        assert all(1 <= word <= len(graph.words) for word in words)

    def attempt(changes: list[tuple[str, float, bytes]]) -> None:
        path.write_bytes(spoilt_bytes(data, changes))
        refused(searched)

    assert not refused(searched)
    try_out(cases, edits, attempt)


def _written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path
