"""Changes to training frames, against changed audio and obvious twins."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.audio import data_directory
from numpy.typing import NDArray

from hocket.errors import ConfigError
from hocket.speech.features import augment
from hocket.speech.features.augment import Augmentation
from hocket.speech.features.extraction import look_at, write_store
from hocket.speech.features.spectral import extract
from hocket.speech.features.store import FeatureStore
from hocket.speech.input.audio import resample
from hocket.speech.input.datadir import read_data_directory

Floats = NDArray[np.float32]
RATE = 16000


@pytest.fixture
def store(tmp_path: Path) -> FeatureStore:
    folder = data_directory(tmp_path / "data", {"a": "one", "b": "two"})
    utterances = read_data_directory(folder).utterances
    write_store(
        tmp_path / "s", utterances, look_at(utterances, {}), ("fbank",), left_out={}, show=False
    )
    return FeatureStore(tmp_path / "s", "fbank")


def some(store: FeatureStore, num: int = 50) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    rng = np.random.default_rng(1)
    numbers = rng.integers(0, len(store), num)
    return numbers, rng.integers(0, store.frames[numbers])


def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def test_no_change_is_no_change(store: FeatureStore) -> None:
    numbers, frames = some(store)
    plain = store.gather(numbers, frames, 4)
    assert not Augmentation().any
    changed = store.gather_changed(numbers, frames, 4, Augmentation(), rng())
    assert np.array_equal(plain, changed)


@pytest.mark.parametrize(
    "changes",
    [
        Augmentation(speed=0.1),
        Augmentation(volume_db=6.0),
        Augmentation(noise_share=0.5),
        Augmentation(echo_share=0.5),
        Augmentation(mask_bins=8),
        Augmentation(mask_frames=3),
    ],
)
def test_the_same_key_gives_the_same_change(store: FeatureStore, changes: Augmentation) -> None:
    numbers, frames = some(store)
    assert changes.any
    first, second = (store.gather_changed(numbers, frames, 4, changes, rng()) for _ in range(2))
    assert np.array_equal(first, second)
    other = store.gather_changed(numbers, frames, 4, changes, np.random.default_rng(8))
    assert not np.array_equal(first, other)
    assert np.isfinite(first).all()
    assert np.array_equal(store.gather(numbers, frames, 4), store.gather(numbers, frames, 4))


def speech_like(seconds: float) -> Floats:
    """Noise through two moving formants: its spectrum changes in time and frequency."""
    n = int(seconds * RATE)
    t = np.arange(n) / RATE
    generator = np.random.default_rng(0)
    x = generator.normal(size=n) * 20
    for low, high, pace in ((300, 900, 1.1), (1200, 2600, 0.7)):
        hz = low + (high - low) * (0.5 + 0.5 * np.sin(2 * np.pi * pace * t))
        x += 3000 * np.sin(2 * np.pi * np.cumsum(hz) / RATE) * (1 + np.sin(2 * np.pi * 3 * t))
    return x.astype(np.float32)


@pytest.mark.parametrize("way", [-1, 1])
def test_speed_is_that_of_faster_audio(way: int) -> None:
    """Playing 10 % faster and then looking is like looking 10 % further, and lower."""
    speed, context = 0.1, 7
    factor = 1 + way * speed
    x = speech_like(4.0)
    faster = resample(x, round(RATE * factor), RATE)
    truth, plain = extract(faster, RATE, "fbank"), extract(x, RATE, "fbank")
    errors: dict[str, list[float]] = {"changed": [], "unchanged": []}
    changes = Augmentation(speed=speed)
    for centre in range(40, 300, 20):
        window = truth[centre - context : centre + context + 1]
        at = centre * factor + np.arange(-context, context + 1) * factor
        low = at.astype(int)
        mixed = plain[low] + (at - low)[:, None] * (plain[low + 1] - plain[low])
        batch = mixed[None].astype(np.float32)
        changes.spectra_(batch, np.array([way]), RATE, rng())
        errors["changed"].append(float(np.square(batch[0] - window).mean()))
        nearest = round(centre * factor)
        same = plain[nearest - context : nearest + context + 1]
        errors["unchanged"].append(float(np.square(same - window).mean()))
    assert np.mean(errors["changed"]) < 0.5 * np.mean(errors["unchanged"])


def test_windows_between_frames_are_mixtures(store: FeatureStore) -> None:
    found = store._windows(np.array([1]), np.array([5]), 2, np.array([1.5]))[0]
    x = store.x[store.first[1] :].astype(np.float64)
    twin = [(1 - s) * x[n] + s * x[n + 1] for n, s in ((2, 0), (3, 0.5), (5, 0), (6, 0.5), (8, 0))]
    assert np.allclose(found, twin, atol=1e-4)
    edge = store._windows(np.array([0]), np.array([0]), 3, np.array([1.1]))[0]
    assert np.allclose(edge[:4], store.x[0])  # not the utterance before


def test_no_speed_moves_no_bin() -> None:
    assert np.allclose(augment.warp(40, 1.0, RATE), np.eye(40), atol=1e-6)
    faster = augment.warp(40, 1.1, RATE)
    assert np.allclose(faster.sum(0), 1.0)
    peak = np.zeros(40, np.float32)
    peak[20] = 1.0
    assert (peak @ faster).argmax() > 20


def test_noise_fills_what_is_softer_and_leaves_what_is_louder() -> None:
    x = np.full((500, 3, 10), -5.0, np.float32)
    x[:, 1] = 20.0
    noisy = augment.with_noise(x, np.full(500, 10.0, np.float32), 10.0, rng())
    assert (noisy[:, 0] > x[:, 0]).mean() > 0.95
    assert np.allclose(noisy[:, 1], 20.0, atol=1e-3)
    below = 10.0 - noisy[:, 0].mean(1)  # of the level, in nepers of energy
    assert below.min() > 10 * np.log(10) / 10 - 1  # at most 10 dB below
    assert below.max() < 30 * np.log(10) / 10 + 1


def test_an_echo_lingers_as_its_twin_says() -> None:
    x = np.random.default_rng(0).normal(size=(1, 6, 4)).astype(np.float32)
    changed = augment.with_echo(x, rng())
    generator = rng()
    decay = np.exp(-6 * np.log(10) * 0.01 / generator.uniform(0.15, 0.6))
    share = 10 ** (generator.uniform(-15, -3) / 10)
    energy = np.exp(np.concatenate([np.repeat(x[0, :1], 400, 0), x[0]]).astype(np.float64))
    for frame in range(6):
        now = 400 + frame
        late = sum(decay**k * energy[now - k] for k in range(1, now + 1))
        assert np.allclose(changed[0, frame], np.log(energy[now] + share * late), atol=1e-3)


def test_masks_hide_neighbours_only() -> None:
    x = np.ones((400, 15, 40), np.float32)
    augment.mask_(x, 2, 6, rng())
    hidden = x[:, 0] == 0
    assert (x == x[:, :1]).all()  # the same bins in all frames
    assert set(hidden.sum(1)) == set(range(7))
    edges = np.abs(np.diff(np.pad(hidden.astype(int), ((0, 0), (1, 1))), axis=1)).sum(1)
    assert set(edges) == {0, 2}


def test_bad_values_are_named() -> None:
    for key, value in (("speed", 0.5), ("noise_share", 1.5), ("volume_db", -1), ("mask_bins", -1)):
        with pytest.raises(ConfigError, match=f"task.{key} must"):
            Augmentation(**{key: value})  # type: ignore[arg-type]
