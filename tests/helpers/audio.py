"""Small data directories made of tones and noise."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import soundfile


def tone(seconds: float, rate: int = 8000, hz: float = 300.0, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    t = np.arange(int(seconds * rate)) / rate
    return np.asarray(4000 * np.sin(2 * np.pi * hz * t) + 100 * rng.normal(size=len(t)))


def write_wav(path: Path, samples: np.ndarray, rate: int = 8000) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, samples.astype(np.int16), rate, subtype="PCM_16")
    return path


def data_directory(folder: Path, texts: dict[str, str], *, rate: int = 8000) -> Path:
    """A data directory with one second of audio for each utterance; speaker = first letter."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(texts):
        samples = tone(1.0, rate, 200 + 50 * number, number)
        write_wav(folder / "wav" / f"{name}.wav", samples, rate)
    _table(folder / "wav.scp", {name: f"wav/{name}.wav" for name in texts})
    _table(folder / "text", texts)
    _table(folder / "utt2spk", {name: name[0] for name in texts})
    return folder


def _table(path: Path, rows: dict[str, str]) -> None:
    path.write_text("".join(f"{key} {value}\n" for key, value in rows.items()))
