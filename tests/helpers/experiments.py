"""Prepared experiments without audio: random features and senones of some utterances."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

SENONES = 4
SPLITS = {"train": (130, 75, 210, 60, 75, 90), "dev": (80, 45)}


def prepared(folder: Path, kind: str = "fbank", dims: int = 12, seed: int = 0) -> Path:
    """What training and scoring need of a prepared experiment; classes can be told apart."""
    rng = np.random.default_rng(seed)
    means = rng.normal(size=(SENONES, dims))
    (folder / "alignment").mkdir(parents=True)
    for split, lengths in SPLITS.items():
        labels = np.repeat(rng.integers(SENONES, size=sum(lengths) // 5 + 1), 5)[: sum(lengths)]
        x = (means[labels] + 0.7 * rng.normal(size=(len(labels), dims))).astype(np.float32)
        _write(folder / "features" / split, kind, x, lengths)
        np.save(folder / "alignment" / f"{split}.npy", labels.astype(np.int32))
    np.save(folder / "alignment" / "priors.npy", np.full(SENONES, 1 / SENONES))
    facts = {"key": "k" * 24, "facts": {"senones": SENONES}}
    (folder / "alignment" / "step.json").write_text(json.dumps(facts))
    return folder


def _write(folder: Path, kind: str, x: NDArray[np.float32], lengths: Sequence[int]) -> None:
    folder.mkdir(parents=True)
    ends = np.cumsum(lengths)
    np.save(folder / f"{kind}.npy", x)
    sums = [np.stack([p.sum(0), (p**2).sum(0)]) for p in np.split(x, ends[:-1])]
    np.save(folder / f"{kind}.sums.npy", np.array(sums, dtype=np.float64))
    rows = [
        {"id": f"u{i}", "speaker": f"s{i % 2}", "words": [], "path": "", "first": int(end - n)}
        | {"frames": n}
        for i, (n, end) in enumerate(zip(lengths, ends, strict=True))
    ]
    facts = {"sample_rate": 8000, "kinds": [kind], "utterances": rows}
    (folder / "index.json").write_text(json.dumps(facts))
