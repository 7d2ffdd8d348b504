"""The splits train, dev and test: read from the data, or held out of train."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from hocket.core.numerics import stable_seed
from hocket.speech.errors import SpeechError
from hocket.speech.input.datadir import DataDirectory, Utterance
from hocket.speech.input.sources import (
    WHAT,
    is_source,
    manifests_by_split,
    read_manifests,
    read_source,
)

SPLITS: Final = ("train", "dev", "test")
MIN_SPEAKERS: Final = 10  # with fewer, held-out utterances come from the training speakers


def read_splits(
    source: Path, held_out: float, say: Callable[[str], None]
) -> tuple[dict[str, list[Utterance]], dict[str, str]]:
    """Read train, dev and test; take missing splits out of train.

    `source` may hold the folders train, dev and test, or lhotse cuts with such names. A missing dev
    is then held out of train; a missing test is not. Or `source` is itself speech data (see
    `sources.py`): then dev and test are both held out of it.
    """
    found: dict[str, DataDirectory] = {}
    if (source / "train").is_dir() and is_source(source / "train"):
        for split in SPLITS:
            if (source / split).is_dir():
                found[split] = read_source(source / split)
        wanted = ["dev"]
    elif manifests := manifests_by_split(source):
        for split, files in manifests.items():
            found[split] = read_manifests(source, files)
        wanted = ["dev"]
    elif is_source(source):
        found["train"] = read_source(source)
        wanted = ["dev", "test"]
    else:
        raise SpeechError(f"{source}: it holds {WHAT}; nor does {source / 'train'}")
    left_out = {k: why for directory in found.values() for k, why in directory.left_out.items()}
    splits = {split: directory.utterances for split, directory in found.items()}
    _refuse_overlap(splits)
    for split in wanted:
        if split not in splits:
            splits["train"], splits[split], how = hold_out(splits["train"], held_out, split)
            say(f"no {split} data: {len(splits[split]):,} utterances {how} held out of train")
    return {split: splits[split] for split in SPLITS if split in splits}, left_out


def _refuse_overlap(splits: dict[str, list[Utterance]]) -> None:
    train = {u.id for u in splits["train"]}
    for split in ("dev", "test"):
        both = train & {u.id for u in splits.get(split, [])}
        if both:
            raise SpeechError(
                f"{len(both)} utterances are in train and in {split}, for example {min(both)!r}: "
                "results would be worthless; remove them from one"
            )


def hold_out(
    utterances: list[Utterance], share: float, name: str
) -> tuple[list[Utterance], list[Utterance], str]:
    """Take out about `share` of the utterances, by whole speakers if there are enough speakers."""
    speakers = {u.speaker for u in utterances}
    by_speaker = MIN_SPEAKERS <= len(speakers) < len(utterances)
    keys = sorted(speakers if by_speaker else {u.id for u in utterances})
    keys.sort(key=lambda key: stable_seed("held out", name, key))
    chosen = set(keys[: max(1, round(share * len(keys)))])

    def taken(u: Utterance) -> bool:
        return (u.speaker if by_speaker else u.id) in chosen

    how = f"of {len(chosen)} speakers" if by_speaker else "of the training speakers"
    rest = [u for u in utterances if not taken(u)]
    if not rest:
        raise SpeechError(f"{len(utterances)} utterances are too few to hold out any for {name}")
    return rest, [u for u in utterances if taken(u)], how
