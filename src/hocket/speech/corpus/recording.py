"""A simulated microphone in a room: reverberation, noise, level, and the recorder's own hiss."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import soundfile
from scipy.signal import fftconvolve

from hocket.speech.corpus import acoustics
from hocket.speech.corpus.acoustics import Signal
from hocket.speech.corpus.options import NUM_ROOMS, SPLITS, CorpusOptions

ROOM_SHARE: Final = 0.7  # of the utterances; the others are spoken close to the microphone
NOISE_LEVEL: Final = 3000.0  # RMS of the noise recordings, in int16 steps
FLOOR: Final = 3.0  # of the microphone itself, in int16 steps: no recording is exactly silent


@lru_cache
def _recorded_noise(folder: Path) -> list[tuple[str, Signal]]:
    return [
        (path.stem, soundfile.read(path, dtype="int16")[0] / NOISE_LEVEL)
        for path in sorted(folder.glob("*.wav"))
    ]


class Microphone:
    """Puts speech into a room of its split, adds noise of its split, sets the level."""

    def __init__(self, options: CorpusOptions, split: str, root: Path) -> None:
        self._options, self._split = options, split
        self._noises: list[tuple[str, Signal]] = []
        if options.snr_db is not None:
            self._noises = _recorded_noise(root / "noise" / split)

    def record(
        self, rng: np.random.Generator, signal: Signal
    ) -> tuple[np.ndarray[Any, np.dtype[np.int16]], dict[str, Any]]:
        """Return the samples a microphone would record, and the noise, SNR and room it had."""
        peak = float(rng.uniform(0.1, 0.8))
        if self._options.snr_db is None:
            facts: dict[str, Any] = {"noise": None, "snr_db": None, "room": None}
            return self._digitised(rng, signal, peak), facts
        number = None
        if rng.random() < ROOM_SHARE:
            number = int(rng.integers(NUM_ROOMS[self._split]))
            key = [self._options.seed, 4, SPLITS.index(self._split), number]
            response = acoustics.room(np.random.default_rng(key), self._options.sample_rate)
            signal = fftconvolve(signal, response)[: len(signal)]
        name, noise = self._noises[int(rng.integers(len(self._noises)))]
        start = int(rng.integers(len(noise)))
        piece = noise.take(np.arange(start, start + len(signal)), mode="wrap")
        snr_db = float(rng.uniform(*self._options.snr_db))
        mixed = acoustics.add_noise(signal, piece, snr_db)
        facts = {"noise": name, "snr_db": round(snr_db, 2), "room": number}
        return self._digitised(rng, mixed, peak), facts

    def _digitised(
        self, rng: np.random.Generator, signal: Signal, peak: float
    ) -> np.ndarray[Any, np.dtype[np.int16]]:
        scaled = acoustics.set_peak(signal, peak) + rng.normal(size=len(signal)) * FLOOR
        return np.rint(scaled).astype(np.int16)
