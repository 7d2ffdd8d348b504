"""The feature store against obvious twins."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import numpy as np
import pytest
import soundfile
from helpers.audio import data_directory, tone, write_wav

from hocket.errors import ConfigError
from hocket.speech.errors import SpeechError
from hocket.speech.features.extraction import look_at, write_store
from hocket.speech.features.spectral import extract
from hocket.speech.features.store import FeatureStore
from hocket.speech.input import audio
from hocket.speech.input.datadir import read_data_directory

TEXTS = {"a1": "one", "a2": "two three", "b1": "four"}


def make(folder: Path, out: Path, jobs: int = 1) -> dict[str, str]:
    found = read_data_directory(folder)
    left_out = dict(found.left_out)
    recordings = look_at(found.utterances, left_out)
    write_store(
        out,
        found.utterances,
        recordings,
        ("fbank", "mfcc"),
        num_bins=20,
        left_out=left_out,
        jobs=jobs,
        show=False,
    )
    return left_out


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return data_directory(tmp_path / "data", TEXTS)


def test_features_are_those_of_the_files(folder: Path, tmp_path: Path) -> None:
    assert make(folder, tmp_path / "s") == {}
    store = FeatureStore(tmp_path / "s", "fbank", "none")
    assert store.ids == ["a1", "a2", "b1"]
    assert store.words[1] == ["two", "three"]
    for number, name in enumerate(store.ids):
        samples = audio.read(folder / "wav" / f"{name}.wav")
        assert np.array_equal(store.utterance(number), extract(samples, 8000, "fbank", 20))
    assert FeatureStore(tmp_path / "s", "mfcc").dims == 13


def test_two_processes_write_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    make(folder, tmp_path / "one")
    make(folder, tmp_path / "two", jobs=2)
    for name in ("fbank.npy", "mfcc.npy", "fbank.sums.npy", "index.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_normalisation_per_utterance_and_per_speaker(folder: Path, tmp_path: Path) -> None:
    make(folder, tmp_path / "s")
    raw = FeatureStore(tmp_path / "s", "fbank", "none")
    each = FeatureStore(tmp_path / "s", "fbank", "utterance")
    speaker = FeatureStore(tmp_path / "s", "fbank", "speaker")
    for number in range(3):
        x = each.utterance(number)
        assert np.abs(x.mean(0)).max() < 1e-3
        assert np.abs(x.std(0) - 1).max() < 1e-3
    both = np.concatenate([raw.utterance(0), raw.utterance(1)]).astype(np.float64)
    expected = (raw.utterance(1) - both.mean(0)) / both.std(0)
    assert np.abs(speaker.utterance(1) - expected).max() < 1e-3
    with pytest.raises(ConfigError, match="must be one of speaker, utterance, none"):
        FeatureStore(tmp_path / "s", "fbank", "global")  # type: ignore[arg-type]


@pytest.mark.parametrize("context", [0, 1, 5])
def test_gathered_windows_equal_a_slow_twin(folder: Path, tmp_path: Path, context: int) -> None:
    make(folder, tmp_path / "s")
    store = FeatureStore(tmp_path / "s", "fbank", "speaker")
    rng = np.random.default_rng(0)
    utterances = rng.integers(0, 3, 50)
    frames = rng.integers(0, store.frames[utterances])
    frames[:2] = 0, store.frames[utterances[1]] - 1  # both edges
    found = store.gather(utterances, frames, context)
    for row, (u, f) in enumerate(zip(utterances, frames, strict=True)):
        x = store.utterance(int(u))
        window = [x[min(max(f + d, 0), len(x) - 1)] for d in range(-context, context + 1)]
        assert np.array_equal(found[row], np.concatenate(window))


def test_bad_audio_is_left_out_and_the_rest_kept(folder: Path, tmp_path: Path) -> None:
    path = folder / "wav" / "a2.wav"
    path.write_bytes(path.read_bytes()[:-100])
    write_wav(folder / "wav" / "b1.wav", tone(0.02))
    left_out = make(folder, tmp_path / "s")
    assert "truncated" in left_out["a2"]
    assert "shorter than one frame" in left_out["b1"]
    store = FeatureStore(tmp_path / "s", "fbank", "utterance")
    assert store.ids == ["a1"]
    assert np.isfinite(store.utterance(0)).all()


def test_features_that_are_not_finite_are_left_out(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = audio.read

    def damaged(path: Path, *rest: float | None) -> np.ndarray:
        samples = real(path)
        if path.stem == "a1":
            samples[100] = np.nan
        return samples

    monkeypatch.setattr(audio, "read", damaged)
    left_out = make(folder, tmp_path / "s")
    assert list(left_out) == ["a1"]
    assert "NaN" in left_out["a1"]


def test_audio_of_other_rates_is_brought_to_the_highest_that_all_have(tmp_path: Path) -> None:
    folder = data_directory(tmp_path / "d", TEXTS)
    write_wav(folder / "wav" / "b1.wav", tone(1.0, 16000), 16000)
    found = look_at(read_data_directory(folder).utterances, {})
    assert found.sample_rate == 8000
    assert found.notes == ["1 files resampled from 16000 Hz"]
    assert found.num_samples["b1"] == 8000
    folder = data_directory(tmp_path / "e", TEXTS, rate=44100)
    assert make(folder, tmp_path / "s") == {}
    store = FeatureStore(tmp_path / "s", "fbank", "none")
    assert store.sample_rate == 16000
    samples = audio.read(folder / "wav" / "a1.wav", sample_rate=16000)
    assert np.array_equal(store.utterance(0), extract(samples, 16000, "fbank", 20))


def test_a_rate_below_all_features_is_refused(tmp_path: Path) -> None:
    folder = data_directory(tmp_path / "d", TEXTS, rate=4000)
    with pytest.raises(SpeechError, match=r"4000 Hz .*at least 8000 Hz.*--resample 8000"):
        make(folder, tmp_path / "s")


FORMATS = {"flac": {}, "ogg": {}, "opus": {"format": "OGG", "subtype": "OPUS"}, "mp3": {}} | {
    "aiff": {}, "au": {}, "caf": {}, "w64": {}
}  # fmt: skip


@pytest.mark.parametrize("ending", FORMATS)
def test_every_format_gives_the_same_sound(ending: str, tmp_path: Path) -> None:
    rate = 16000
    smooth = (0.3 * tone(1.0, rate) / np.abs(tone(1.0, rate)).max()).astype(np.float32)
    soundfile.write(tmp_path / f"a.{ending}", smooth, rate, **FORMATS[ending])
    found = audio.read(tmp_path / f"a.{ending}") / 32768
    assert len(found) == len(smooth)
    inner = slice(2000, -2000)
    assert np.corrcoef(found[inner], smooth[inner])[0, 1] > 0.99
    part = audio.read(tmp_path / f"a.{ending}", 0.25, 0.5) / 32768
    assert np.allclose(part, found[rate // 4 : rate // 2], atol=1e-3)


def test_channels_are_chosen_or_averaged(tmp_path: Path) -> None:
    both = np.stack([np.full(8000, 0.5), np.full(8000, -0.25)], axis=1)
    path = tmp_path / "two.wav"
    soundfile.write(path, both, 8000)
    assert np.allclose(audio.read(path), 0.125 * 32768)
    assert np.allclose(audio.read(path, channel=1), 0.5 * 32768)
    assert np.allclose(audio.read(path, channel=2), -0.25 * 32768)
    with pytest.raises(SpeechError, match=r"no channel 3, only 2: give --channel 1 to 2, or mean"):
        audio.read(path, channel=3)


def test_a_damaged_store_is_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(SpeechError, match="prepare it again"):
        FeatureStore(tmp_path, "fbank")


@pytest.mark.long
def test_100_hours_do_not_need_100_hours_of_memory(tmp_path: Path) -> None:
    """36 million frames of 40 floats are 5.8 GB; gathering from all over them must stay small."""
    frames, length = 36_000_000, 1000
    path = tmp_path / "fbank.npy"
    np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(frames, 40))  # sparse
    num = frames // length
    np.save(tmp_path / "fbank.sums.npy", np.ones((num, 2, 40)) * [[0.0], [float(length)]])
    rows = [
        {"id": str(n), "speaker": str(n // 100), "words": [], "path": "", "first": n * length}
        | {"frames": length}
        for n in range(num)
    ]
    (tmp_path / "index.json").write_text(json.dumps({"sample_rate": 8000, "utterances": rows}))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    store = FeatureStore(tmp_path, "fbank", "speaker")
    rng = np.random.default_rng(0)
    for _ in range(20):
        utterances, frame = rng.integers(0, num, 256), rng.integers(0, length, 256)
        assert store.gather(utterances, frame, 5).shape == (256, 440)
    grown_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kb < 600_000
