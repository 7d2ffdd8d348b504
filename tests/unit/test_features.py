"""Features against Kaldi's own output."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hocket.speech.features import FeatureError, add_deltas, extract

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
        (np.ones(800) * 1000, 8000, "plp", "unknown kind"),
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
