"""Features against Kaldi's own output."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hocket.speech.features.pitch import processed
from hocket.speech.features.spectral import DIMS, FeatureError, add_deltas, extract
from hocket.speech.input.audio import resample, resampled_length

GOLDEN = Path(__file__).parents[1] / "golden"
REAL = Path(__file__).parents[3] / "shared" / "golden" / "kaldi_features_8k.npz"  # not ours to ship


def golden(name: str) -> dict[str, Any]:
    path = REAL if name == "real_8k" else GOLDEN / f"kaldi_features_{name}.npz"
    if not path.exists():
        pytest.skip(f"{path.name} is not here")
    return dict(np.load(path))


@pytest.mark.parametrize("name", ["synthetic_8k", "synthetic_16k", "real_8k"])
def test_equal_to_kaldi(name: str) -> None:
    g = golden(name)
    samples, rate = g["samples"], int(g["sample_rate"])
    for kind, key in (("mfcc", "mfcc"), ("fbank", "fbank40")):
        features = extract(samples, rate, kind)  # type: ignore[arg-type]
        assert features.dtype == np.float32
        assert features.shape == g[key].shape
        assert np.abs(features - g[key]).max() < 1e-3
    assert np.abs(add_deltas(g["mfcc"]) - g["mfcc_deltas"]).max() < 1e-3


@pytest.mark.parametrize("name", ["synthetic_8k", "synthetic_16k", "real_8k"])
def test_plp_is_equal_to_kaldi(name: str) -> None:
    g = golden(name)
    found = extract(g["samples"], int(g["sample_rate"]), "plp")
    assert found.shape == g["plp"].shape
    assert np.abs(found - g["plp"]).max() < 1e-2


@pytest.mark.parametrize("name", ["synthetic_8k", "synthetic_16k", "real_8k"])
def test_pitch_is_equal_to_kaldi_where_there_is_one(name: str) -> None:
    g = golden(name)
    raw = extract(g["samples"], int(g["sample_rate"]), "pitch_raw")
    assert raw.shape == g["pitch_raw"].shape
    voiced = g["pitch_raw"][:, 0] > 0.8
    assert voiced.sum() > 50
    off = np.abs(raw[:, 1] / g["pitch_raw"][:, 1] - 1)
    assert (off[voiced] < 0.01).mean() >= 0.95
    same = off < 1e-4  # the very same lag, so the very same NCCF
    assert same.mean() > 0.8
    assert np.abs(raw - g["pitch_raw"])[same, 0].max() < 1e-3
    # One lag is 0.5 % off its neighbour, which is 0.01 of (twice) log pitch: three of them.
    pitch = extract(g["samples"], int(g["sample_rate"]), "pitch")
    assert (np.abs(pitch - g["pitch"])[voiced] < 0.04).mean(0).min() >= 0.95
    # What is made of the pitch is exact: Kaldi's own pitch gives Kaldi's own features.
    assert np.abs(processed(g["pitch_raw"].astype(float)) - g["pitch"]).max() < 1e-3


def test_the_published_input_has_42_numbers() -> None:
    g = golden("synthetic_8k")
    found = extract(g["samples"], 8000, "plp_pitch")
    assert found.shape == (len(g["plp"]), 42)
    apart = add_deltas(np.concatenate([g["plp"], g["pitch"][:, 1:2]], axis=1))
    assert np.quantile(np.abs(found - apart), 0.99) < 1e-2


def test_resampling_keeps_a_tone_and_removes_what_would_alias() -> None:
    def sine(hz: float) -> NDArray[np.float32]:
        return np.sin(2 * np.pi * hz * np.arange(4410) / 44100).astype(np.float32)

    for to_rate in (8000, 16000):
        at = np.arange(resampled_length(4410, 44100, to_rate)) / to_rate
        tone = resample(sine(1000), 44100, to_rate)
        assert len(tone) == len(at)
        inner = slice(100, -100)
        assert np.abs(tone - np.sin(2 * np.pi * 1000 * at))[inner].max() < 0.01
        assert np.abs(resample(sine(to_rate / 2 + 1500), 44100, to_rate))[inner].max() < 0.001
    assert len(resample(sine(10)[:1001], 48000, 16000)) == resampled_length(1001, 48000, 16000)


@pytest.mark.parametrize("kind", ["plp", "pitch_raw", "pitch", "plp_pitch"])
def test_short_and_silent_signals_of_other_kinds(kind: Any) -> None:
    assert extract(np.zeros(0), 8000, kind).shape == (0, DIMS[kind])
    assert extract(np.zeros(150), 8000, kind).shape == (0, DIMS[kind])
    silent = extract(np.zeros(8000), 8000, kind)
    assert silent.shape == (98, DIMS[kind])
    assert np.isfinite(silent).all()


def test_short_silent_and_clipped_signals() -> None:
    assert extract(np.zeros(0), 8000).shape == (0, 40)
    assert extract(np.zeros(199, dtype=np.int16), 8000).shape == (0, 40)
    assert extract(np.zeros(200, dtype=np.int16), 8000).shape == (1, 40)
    assert add_deltas(np.zeros((0, 13))).shape == (0, 39)
    assert add_deltas(np.ones((1, 13))).shape == (1, 39)
    silent = extract(np.zeros(8000, dtype=np.int16), 8000, "mfcc")
    assert np.isfinite(silent).all()
    assert silent[0, 0] == pytest.approx(np.log(np.finfo(np.float32).eps), abs=1e-4)
    clipped = extract(np.where(np.arange(16000) % 40 < 20, 32767, -32768), 16000)
    assert np.isfinite(clipped).all()


@pytest.mark.parametrize(
    ("samples", "rate", "kind", "message"),
    [
        (np.ones(800) * 1000, 44100, "fbank", "sample rate 44100.*resample"),
        (np.ones((800, 2)), 8000, "fbank", "one channel"),
        (np.array([1000.0, np.nan] * 400), 8000, "fbank", "NaN"),
        (np.ones(800) * 0.5, 8000, "fbank", "multiply by 32768"),
        (np.ones(800) * 1000, 8000, "plq", "unknown kind.*Did you mean 'plp'"),
    ],
)
def test_bad_input_is_named(samples: Any, rate: int, kind: Any, message: str) -> None:
    with pytest.raises(FeatureError, match=message):
        extract(samples, rate, kind)


def test_deltas_of_a_slope_are_constant() -> None:
    ramp = np.arange(20.0)[:, None] * 3
    deltas = add_deltas(ramp)
    assert np.allclose(deltas[4:-4, 1], 3)
    assert np.allclose(deltas[4:-4, 2], 0)
