"""Speech data as people have it: plain folders and lhotse cuts."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from helpers.audio import data_directory, tone, write_wav

from hocket.speech.errors import SpeechError
from hocket.speech.input.sources import deciding_files, is_source, read_source
from hocket.speech.input.splits import read_splits
from hocket.speech.prepare import Preparation, PrepareOptions


def plain(folder: Path) -> Path:
    for speaker, name in (("anna", "a1"), ("anna", "a2"), ("ben", "b1"), ("ben", "b2")):
        write_wav(folder / speaker / f"{name}.wav", tone(0.5))
    (folder / "anna" / "a1.txt").write_text("one two\n")
    (folder / "anna" / "a2.txt").write_text("\n")
    (folder / "ben" / "ben.trans.txt").write_text("b1 three four\n")
    return folder


def test_a_plain_folder(tmp_path: Path) -> None:
    folder = plain(tmp_path)
    assert is_source(folder)
    found = read_source(folder)
    assert [(u.id, u.speaker, u.words) for u in found.utterances] == [
        ("anna-a1", "anna", ("one", "two")),
        ("ben-b1", "ben", ("three", "four")),
    ]
    assert found.left_out["anna-a2"] == "its transcript is empty"
    assert "neither" in found.left_out["ben-b2"]
    assert len(deciding_files(folder)) == 7
    (folder / "transcripts.txt").write_text("b2 five\n")
    assert [u.id for u in read_source(folder).utterances] == ["anna-a1", "ben-b1", "ben-b2"]


def test_transcripts_speak_of_their_own_folder(tmp_path: Path) -> None:
    for speaker, words in (("s1", "one"), ("s2", "two")):
        write_wav(tmp_path / speaker / "001.wav", tone(0.5))
        (tmp_path / speaker / "transcripts.txt").write_text(f"001 {words}\n")
    found = {u.id: u.words for u in read_source(tmp_path).utterances}
    assert found == {"s1-001": ("one",), "s2-001": ("two",)}


@pytest.mark.parametrize("key", ["s1-001", "s1/001", "s1/001.wav"])
def test_a_transcript_may_name_the_folder(key: str, tmp_path: Path) -> None:
    for speaker in ("s1", "s2"):
        write_wav(tmp_path / speaker / "001.wav", tone(0.5))
    (tmp_path / "transcripts.txt").write_text("001 one\n")
    with pytest.raises(SpeechError, match=r"'001' could be s1/001 or s2/001: write one line"):
        read_source(tmp_path)
    (tmp_path / "transcripts.txt").write_text(f"{key} one\ns2-001 two\n")
    assert [u.words for u in read_source(tmp_path).utterances] == [("one",), ("two",)]


def test_what_has_no_recording_or_none_that_can_be_read_is_counted(tmp_path: Path) -> None:
    write_wav(tmp_path / "u1.wav", tone(0.5))
    (tmp_path / "u1.txt").write_bytes(b"\xef\xbb\xbfone two\n")  # with a byte order mark
    (tmp_path / "u2.m4a").write_bytes(b"ftyp")
    (tmp_path / "u2.txt").write_text("three\n")
    (tmp_path / "u3.txt").write_text("four\n")
    (tmp_path / "transcripts.txt").write_text("u4 five\n")
    found = read_source(tmp_path)
    assert [u.words for u in found.utterances] == [("one", "two")]
    assert set(found.left_out) == {"u2.m4a", "u3.txt", "u4"}
    assert "convert it to wav" in found.left_out["u2.m4a"]
    assert "without a recording" in found.left_out["u3.txt"]
    assert "no recording of that name" in found.left_out["u4"]


def test_spaces_in_names_become_underscores(tmp_path: Path) -> None:
    """Names are keys in tables whose columns are separated by spaces."""
    write_wav(tmp_path / "my voice" / "take 1.wav", tone(0.5))
    (tmp_path / "my voice" / "take 1.txt").write_text("one\n")
    (utterance,) = read_source(tmp_path).utterances
    assert (utterance.id, utterance.speaker) == ("my_voice-take_1", "my_voice")


def test_cuts_whose_names_say_train_dev_and_test_are_splits(tmp_path: Path) -> None:
    wav = write_wav(tmp_path / "r.wav", tone(1.0))
    for name in ("train-clean", "valid", "test-other"):
        write_cuts(tmp_path / f"cuts_{name}.jsonl.gz", [cut(name, wav)])
    splits, _ = read_splits(tmp_path, 0.1, print)
    found = {split: [u.id for u in us] for split, us in splits.items()}
    assert found == {"train": ["train-clean"], "dev": ["valid"], "test": ["test-other"]}
    write_cuts(tmp_path / "cuts_musan.jsonl.gz", [cut("noise", wav)])
    with pytest.raises(SpeechError, match=r"cuts_musan.*neither train, dev nor test.*rename it"):
        read_splits(tmp_path, 0.1, print)


def test_cuts_whose_names_say_nothing_are_one_set(tmp_path: Path) -> None:
    wav = write_wav(tmp_path / "r.wav", tone(1.0))
    for name in ("a", "b"):
        write_cuts(tmp_path / f"cuts_{name}.jsonl.gz", [cut(name, wav)])
    assert [u.id for u in read_source(tmp_path).utterances] == ["a", "b"]


def test_plain_folders_may_hold_the_splits(tmp_path: Path) -> None:
    for split in ("train", "dev"):
        plain(tmp_path / split)
        for name in ("a1", "b1"):
            speaker = "anna" if name == "a1" else "ben"
            wav = tmp_path / split / speaker / f"{name}.wav"
            wav.rename(wav.with_name(f"{split}{name}.wav"))
            (tmp_path / split / speaker / f"{split}{name}.txt").write_text("six")
    splits, _ = read_splits(tmp_path, 0.1, print)
    assert {s: [u.id for u in us] for s, us in splits.items()} == {
        "train": ["anna-traina1", "ben-trainb1"],
        "dev": ["anna-deva1", "ben-devb1"],
    }


def cut(name: str, path: Path, **changes: Any) -> dict[str, Any]:
    supervision = {"id": name, "recording_id": "r", "start": 0.1, "duration": 0.3, "channel": 0}
    supervision |= {"text": "one two", "speaker": "anna"}
    source = {"type": "file", "channels": [0], "source": str(path)}
    recording = {"id": "r", "sources": [source], "sampling_rate": 8000, "num_samples": 8000}
    whole = {"id": name, "start": 0.25, "duration": 0.5, "channel": 0, "type": "MonoCut"}
    whole |= {"supervisions": [supervision], "recording": recording | {"duration": 1.0}}
    return whole | changes


def write_cuts(path: Path, cuts: list[dict[str, Any]]) -> Path:
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps(c) + "\n" for c in cuts)
    return path


def test_lhotse_cuts(tmp_path: Path) -> None:
    wav = write_wav(tmp_path / "audio" / "r.wav", tone(1.0))
    cuts = [
        cut("c1", wav),
        cut("c2", Path("audio/r.wav"), start=0.0),
        cut("c3", wav, type="MixedCut", tracks=[]),
        cut("c4", tmp_path / "gone.wav"),
        cut("c5", wav, supervisions=[]),
    ]
    cuts[1]["supervisions"][0]["duration"] = 9.0  # reaches beyond the cut
    cuts.append(cut("c6", wav))
    cuts[-1]["recording"]["sources"][0] = {"type": "command", "channels": [0], "source": "rm -rf /"}
    manifest = write_cuts(tmp_path / "cuts_train.jsonl.gz", cuts)
    for source in (tmp_path, manifest):
        found = read_source(source)
        one, two = found.utterances
        assert (one.id, one.speaker, one.words, one.path) == ("c1", "anna", ("one", "two"), wav)
        assert (one.start_s, one.end_s) == pytest.approx((0.35, 0.65))
        assert (two.start_s, two.end_s) == pytest.approx((0.1, 0.5))
        assert "save its audio" in found.left_out["c3"]
        assert "missing audio" in found.left_out["c4"]
        assert "no supervision" in found.left_out["c5"]
        assert "command" in found.left_out["c6"]


def test_damaged_manifests_are_named(tmp_path: Path) -> None:
    path = tmp_path / "cuts.jsonl"
    path.write_text('{"id": "a"}\n')
    with pytest.raises(SpeechError, match=r"cuts.jsonl:1: not a lhotse cut \(.*KeyError"):
        read_source(tmp_path)
    whole = write_cuts(tmp_path / "cuts.jsonl.gz", [cut("c1", path)] * 50).read_bytes()
    path.unlink()
    (tmp_path / "cuts.jsonl.gz").write_bytes(whole[:-20])
    with pytest.raises(SpeechError, match="copy it again"):
        read_source(tmp_path)


def test_one_name_twice_is_refused(tmp_path: Path) -> None:
    wav = write_wav(tmp_path / "r.wav", tone(1.0))
    write_cuts(tmp_path / "cuts.jsonl.gz", [cut("c1", wav), cut("c1", wav)])
    with pytest.raises(SpeechError, match="'c1' appears twice"):
        read_source(tmp_path)


def test_kaldi_comes_first_and_nothing_is_said_to_be_nothing(tmp_path: Path) -> None:
    data_directory(tmp_path / "k", {"a1": "one", "b1": "two"})
    assert [p.name for p in deciding_files(tmp_path / "k")] == ["wav.scp", "text", "utt2spk"]
    assert len(read_source(tmp_path / "k").utterances) == 2
    (tmp_path / "empty").mkdir()
    assert not is_source(tmp_path / "empty")
    with pytest.raises(SpeechError, match="neither a Kaldi data directory"):
        read_splits(tmp_path / "empty", 0.1, print)


def test_transcripts_without_spaces_are_cut_into_characters(tmp_path: Path) -> None:
    data_directory(tmp_path / "d", {f"{s}{n}": "三五 二" for s in "ab" for n in range(9)})
    options = PrepareOptions(units="character", held_out=0.2)
    work = Preparation(tmp_path / "d", tmp_path / "e", options, 1, False, lambda _: None)
    out = tmp_path / "e" / "data"
    out.mkdir(parents=True)
    work._data(out)
    rows = json.loads((out / "train.json").read_text())
    assert {tuple(row["words"]) for row in rows} == {("三", "五", "二")}
