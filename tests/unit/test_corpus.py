"""Synthetic speech: the same seed, the same audio; splits that share nothing."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import soundfile

from hocket.errors import ConfigError
from hocket.speech.corpus import acoustics, assistant, espeak
from hocket.speech.corpus.build import build, plan
from hocket.speech.corpus.digits import WORDS, sentence
from hocket.speech.corpus.grammar import Grammar
from hocket.speech.corpus.options import ENGLISH, SPLITS, CorpusOptions
from hocket.speech.errors import SpeechError
from hocket.speech.gmm.reference import read_ctm
from hocket.speech.input.datadir import read_data_directory, read_table

SMALL = CorpusOptions("digits", hours=0.02, held_out_hours=0.01, snr_db=(10.0, 15.0), seed=3)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("corpus") / "digits"
    build(SMALL, root, jobs=2, show=False)
    return root


def audio_bytes(root: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(root.rglob("*.wav"))}


def test_the_same_seed_gives_the_same_audio_on_any_number_of_cores(
    corpus: Path, tmp_path: Path
) -> None:
    build(SMALL, tmp_path / "again", jobs=1, show=False)
    assert audio_bytes(tmp_path / "again") == audio_bytes(corpus)
    for split in SPLITS:
        for name in ("text", "wav.scp", "phones.ctm"):
            again = (tmp_path / "again" / split / name).read_text()
            assert again == (corpus / split / name).read_text()


def test_splits_share_no_voice_no_noise_and_are_balanced(corpus: Path) -> None:
    voices, noises = [], []
    for split in SPLITS:
        folder = corpus / split
        voices.append({v.partition("+")[2] for v in read_table(folder / "spk2voice").values()})
        noises.append({v.split()[0] for v in read_table(folder / "utt2acoustics").values()})
        sexes = list(read_table(folder / "spk2gender").values())
        assert sexes.count("f") == sexes.count("m") > 0
    for found in (voices, noises):
        assert not found[0] & found[1]
        assert not found[0] & found[2]
        assert not found[1] & found[2]


def test_it_is_a_data_directory_with_reference_times(corpus: Path) -> None:
    found = read_data_directory(corpus / "train")
    assert not found.left_out
    times = read_ctm(corpus / "train" / "phones.ctm")
    durations = read_table(corpus / "train" / "utt2dur")
    seconds = 0.0
    for u in found.utterances:
        assert 1 <= len(u.words) <= 7
        assert set(u.words) <= set(WORDS)
        starts, phones = times[u.id]
        assert phones[0] == "SIL"
        assert (np.diff(starts) > 0).all()
        info = soundfile.info(str(u.path))
        assert info.samplerate == 16000
        assert float(durations[u.id]) == pytest.approx(info.frames / 16000, abs=1e-3)
        assert starts[-1] < info.frames / 16000
        seconds += info.frames / 16000
    assert seconds >= 72  # at least the hours asked for
    facts = json.loads((corpus / "corpus.json").read_text())
    assert facts["train"]["hours"] * 3600 == pytest.approx(seconds, rel=1e-3)


def test_another_seed_and_an_unfinished_corpus(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(SpeechError, match=r"holds another corpus .seed = 3, now 4."):
        build(CorpusOptions("digits", 0.02, 0.01, (10.0, 15.0), seed=4), corpus, show=False)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(SpeechError, match="not empty and holds no corpus"):
        build(SMALL, tmp_path, show=False)
    before = (corpus / "corpus.json").stat().st_mtime_ns
    build(SMALL, corpus, show=False)  # nothing to do
    assert (corpus / "corpus.json").stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "opera"}, "no corpus 'opera'"),
        ({"hours": 0.0}, "--hours"),
        ({"snr_db": (20.0, 5.0)}, "runs backwards"),
        ({"sample_rate": 44100}, "8000 or 16000"),
        ({"seed": -1}, "--seed"),
        ({"held_out_hours": 0.0}, "--held-out-hours"),
    ],
)
def test_bad_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CorpusOptions(**({"kind": "digits", "hours": 1.0} | options))  # type: ignore[arg-type]


def test_many_voices() -> None:
    speakers = plan(CorpusOptions("digits", hours=1.0))
    train = [s for s in speakers if s.split == "train"]
    assert len({s.voice for s in train}) == len(train) >= 100
    assert len({s.voice.partition("+")[0] for s in train}) == len(ENGLISH)


def test_digit_strings_are_balanced() -> None:
    rng = np.random.default_rng(0)
    drawn = [sentence(rng) for _ in range(3000)]
    lengths = np.bincount([len(s) for s in drawn], minlength=8)
    assert lengths[0] == 0
    assert lengths[1:].min() > 300
    counts = [sum(s.count(w) for s in drawn) for w in WORDS]
    assert min(counts) > 0.85 * max(counts)


def test_noise_has_the_level_asked_for() -> None:
    rng = np.random.default_rng(0)
    speech = 3000 * np.sin(np.arange(16000) * 0.1) * (np.arange(16000) > 4000)
    noise = acoustics.coloured_noise(rng, 16000, 16000)
    assert np.mean(noise**2) == pytest.approx(1.0)
    for snr_db in (0.0, 10.0, 20.0):
        added = acoustics.add_noise(speech, noise, snr_db) - speech
        loud = np.mean(speech[5000:] ** 2)
        assert 10 * np.log10(loud / np.mean(added**2)) == pytest.approx(snr_db, abs=0.3)
    crowd = acoustics.babble(rng, [speech, speech[::-1]], 20000)
    assert len(crowd) == 20000
    assert np.mean(crowd**2) == pytest.approx(1.0)


def test_a_room_keeps_the_direct_path_first_and_decays() -> None:
    for seed in range(20):
        response = acoustics.room(np.random.default_rng(seed), 8000)
        assert response[0] == 1.0
        assert np.abs(response[1:]).max() < 1.0
        half = len(response) // 2
        assert np.sum(response[half:] ** 2) < 0.01 * np.sum(response[1:half] ** 2)


def test_silence_before_a_stop_is_found() -> None:
    x = np.concatenate([np.ones(1000) * 100, np.zeros(400), np.ones(500) * 80])
    assert acoustics.silence_before(x, 1400) == pytest.approx(1000, abs=45)
    assert acoustics.silence_before(x, 900) == 900


_ALL_VOICES = """
import hashlib
from hocket.speech.corpus import espeak
synthesiser, digest = espeak.Espeak(), hashlib.md5()
for names in espeak.variants().values():
    for name in names:
        said = synthesiser.say("nine oh three", "gmw/en-US+" + name, rate=170, pitch=50)
        digest.update(said.samples.tobytes())
print(digest.hexdigest())
"""


@pytest.mark.long
def test_every_voice_says_the_same_whatever_the_time_of_day() -> None:
    """espeak-ng seeds its noise with the second in which it starts."""
    heard = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", _ALL_VOICES], capture_output=True, text=True, check=True
        )
        heard.append(done.stdout)
        time.sleep(1.1)
    assert heard[0] == heard[1]


def test_an_unknown_voice_is_named() -> None:
    with pytest.raises(SpeechError, match="no voice 'gmw/en-XX'"):
        espeak.Espeak().say("one", "gmw/en-XX", rate=170, pitch=50)


# ---------------------------------------------------------------------------- other corpora


def test_the_assistant_has_a_thousand_words_and_says_them() -> None:
    assert 1000 <= len(assistant.GRAMMAR.words) <= 1400
    rng = np.random.default_rng(0)
    sentences = [assistant.GRAMMAR.sentence(rng) for _ in range(5000)]
    said = {word for words in sentences for word in words}
    assert said <= assistant.GRAMMAR.words
    assert len(said) > 0.95 * len(assistant.GRAMMAR.words)
    assert not any(word.isupper() or "[" in word for word in said)
    assert 5 < np.mean([len(words) for words in sentences]) < 9


def test_a_grammar_is_checked() -> None:
    grammar = Grammar.read("S = a [b] C\nC = c\n    | d e", "S")
    said = {tuple(grammar.sentence(np.random.default_rng(n))) for n in range(50)}
    assert said == {("a", "c"), ("a", "b", "c"), ("a", "d", "e"), ("a", "b", "d", "e")}
    with pytest.raises(SpeechError, match="no rule D"):
        Grammar.read("S = a D", "S")
    with pytest.raises(SpeechError, match="S contains itself: S > C > S"):
        Grammar.read("S = a C\nC = S", "S")


def test_mandarin_is_written_without_spaces_and_has_a_lexicon(tmp_path: Path) -> None:
    options = CorpusOptions("mandarin", hours=0.01, held_out_hours=0.004, snr_db=None)
    build(options, tmp_path / "m", jobs=2, show=False)
    texts = read_table(tmp_path / "m" / "train" / "text")
    assert all(len(text.split()) == 1 for text in texts.values())
    assert any(len(text) > 1 for text in texts.values())
    words = {line.split()[0] for line in (tmp_path / "m" / "lexicon.txt").read_text().splitlines()}
    assert words == {character for text in texts.values() for character in text}
