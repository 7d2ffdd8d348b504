"""The settings that networks on a prepared experiment begin with: EXP/train.toml.

They depend on how much speech there is. Little speech is seen more often, by a smaller network. The
rate begins high and falls by a factor of 30; the gradient is clipped, or a high rate would end in
NaN. Training frames are not changed (`features/augment.py`): docs/speech.md shows what that brings.
The values were chosen on the dev set of `recipes/sweep`; the file may be edited, and is then left
alone.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Final

from hocket.speech.features.spectral import Kind
from hocket.support.inputs import CONFIG_LIMIT, read_text

NAME: Final = "train.toml"
CONTEXTS: Final[dict[Kind, int]] = {"plp_pitch": 5, "kaldi": 5}  # as published; else 7
# hours of speech up to which a network has so many layers of such a width
SIZES: Final = ((2.0, 3, 256), (20.0, 4, 512), (float("inf"), 5, 1024))

_TEXT: Final = """\
# What networks on this experiment begin with; anything can be set otherwise on the command line.
# Made by `hocket prepare` for {hours:.2g} hours of speech. Edit it, and it is left alone.
[task]
context = {context}
batch_frames = 256

[model]
layers = {layers}
width = {width}
dropout = {dropout}

[optimizer]
name = "sgd"
lr = {lr}
clip_norm = {clip_norm}

[schedule]
name = "exponential"
epochs = {epochs}
final_factor = 0.03
"""


def usual_settings(hours: float, kind: Kind) -> str:
    """Return the settings as TOML; `kind`: of the features that networks read by default."""
    layers, width = next((layers, width) for most, layers, width in SIZES if hours <= most)
    return _TEXT.format(
        hours=hours,
        context=CONTEXTS.get(kind, 7),
        layers=layers,
        width=width,
        dropout=0.1,
        lr=0.5 if width < 512 else 0.3,
        clip_norm=1.0,
        epochs=num_epochs(hours),
    )


def num_epochs(hours: float) -> int:
    """Return how often the speech is seen: 8 times if it is an hour, 5 times if it is six."""
    return max(3, min(16, round(float(8 / hours**0.25))))


def write_usual_settings(folder: Path, hours: float, kind: Kind) -> None:
    """Write the settings, unless the file was edited: then its first line tells another text."""
    path = folder / NAME
    if path.exists():
        mark, _, text = read_text(path, CONFIG_LIMIT).partition("\n")
        if mark != _mark(text):
            return
    text = usual_settings(hours, kind)
    path.write_text(f"{_mark(text)}\n{text}", encoding="utf-8")


def _mark(text: str) -> str:
    return f"# usual settings {zlib.crc32(text.encode()):08x}"
