"""Labels from a network instead of the GMM-HMM: align again, and train once more on the result.

A network that was trained on the GMM-HMM's alignment recognises better than the GMM-HMM, so it also
places the states better. The new experiment shares everything with the old one (by links), but
for the alignment and the priors:

    hocket realign runs/first --out exp/again
    hocket train exp/again --out runs/second
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hocket.speech.decode.recognition import NetworkScorer, task_of
from hocket.speech.errors import SpeechError
from hocket.speech.gmm.alignment import BEAMS, GMMHMM, Corpus, best_path, phones_of, usable
from hocket.speech.graph.graph import alignment_graph
from hocket.speech.steps import digest
from hocket.support.arrays import read_array
from hocket.support.inputs import TABLE_LIMIT, read_table, well_formed
from hocket.support.ownership import NAMES, owned
from hocket.support.parallel import chunks, ordered_map
from hocket.support.progress import print_line, progress

SHARED: Final = (
    "data", "features", "lexicon", "mono", "tri", "lda", "sat", "graph", "gmm", "gmm-mono",
    "gmm-tri", "gmm-lda", "train.toml",
)  # fmt: skip
PIECE: Final = 24  # utterances of one job


@dataclass(frozen=True)
class Realigned:
    """What became of the alignment."""

    frames: dict[str, int]  # of each split
    changed: float  # share of the training frames that got another senone
    failed: dict[str, str]

    def __str__(self) -> str:
        listed = ", ".join(f"{n:,} frames of {split}" for split, n in self.frames.items())
        return f"{listed}; {self.changed:.1%} of the training frames got another senone"


def realign(run: Path, out: Path, *, jobs: int, show: bool = True) -> Realigned:
    """Make an experiment whose alignment is the network's."""
    source = task_of(run).folder.resolve()
    model = next((source / s for s in ("sat", "lda", "tri") if (source / s).is_dir()), None)
    if model is None:
        raise SpeechError(f"{source} has no GMM-HMM, so no graphs of transcripts: prepare it here")
    if (out / "alignment").exists():
        raise SpeechError(f"{out} is an experiment already: choose another --out")
    folder = out / "alignment.partial"
    if out.exists() and not all(_is_ours(path) for path in out.iterdir()):
        raise SpeechError(f"{out} is not empty: nothing in it is touched; choose another --out")
    folder.mkdir(parents=True, exist_ok=True)
    with owned(out, "hocket realign", print_line):
        return _realigned(_Source(run, source, model), out, folder, jobs, show)


def _is_ours(path: Path) -> bool:
    """True of what an interrupted call has left behind."""
    return path.name in ("alignment.partial", *NAMES) or (path.name in SHARED and path.is_symlink())


@dataclass(frozen=True)
class _Source:
    run: Path
    experiment: Path
    model: Path


def _realigned(given: _Source, out: Path, folder: Path, jobs: int, show: bool) -> Realigned:
    run, source, model = given.run, given.experiment, given.model
    frames: dict[str, int] = {}
    failed: dict[str, str] = {}
    for split in ("train", "dev"):
        labels, why = _aligned(_Work(run, source, model, split), jobs=jobs, show=show)
        np.save(folder / f"{split}.npy", labels)
        frames[split] = int((labels >= 0).sum())
        failed |= why
    if frames["train"] == 0:
        raise SpeechError(f"not one utterance could be aligned by {run}: was it trained to an end?")
    found = Realigned(frames, _changed(source, folder), failed)
    _finish(source, out, folder, found)
    return found


@dataclass(frozen=True)
class _Work:
    run: Path
    experiment: Path
    model: Path
    split: str

    @property
    def corpus(self) -> Corpus:
        return Corpus(
            self.experiment / "features" / self.split,
            self.experiment / "lexicon" / "lexicon.txt",
        )


def _aligned(job: _Work, *, jobs: int, show: bool) -> tuple[NDArray[np.int32], dict[str, str]]:
    store = job.corpus.open()
    numbers, failed = usable(job.corpus)
    labels = np.full(len(store.x), -1, np.int32)
    pieces = chunks([int(n) for n in numbers], PIECE)
    title = f"aligning {job.split}"
    with progress(title, float(len(numbers)), unit="utterances", wanted=show) as advance:
        answers = ordered_map(partial(_align_piece, job), pieces, jobs=jobs, what=title)
        for piece, answer in zip(pieces, answers, strict=True):
            advance(float(len(piece)))
            for number, pdfs in zip(piece, answer, strict=True):
                first = int(store.first[number])
                if pdfs is None:
                    failed[store.ids[number]] = "no alignment found by the network"
                else:
                    labels[first : first + len(pdfs)] = pdfs
    return labels, failed


def _align_piece(job: _Work, numbers: Sequence[int]) -> list[NDArray[np.int32] | None]:
    """Return the senones of each utterance's frames on the best path through its transcript."""
    scorer = NetworkScorer(job.run)
    store = scorer.store(job.split)
    model, lexicon = GMMHMM.load(job.model), job.corpus.pronunciations()
    return [
        _align(scorer.scores(store, n), phones_of(lexicon, store.words[n]), model) for n in numbers
    ]


def _align(
    scores: NDArray[np.float32], words: Sequence[Sequence[Sequence[int]]], model: GMMHMM
) -> NDArray[np.int32] | None:
    graph, pdfs = alignment_graph(words, model.senones, model.loop)
    mine = np.ascontiguousarray(scores[:, pdfs])
    for beam in BEAMS:
        path = best_path(graph, mine, beam)
        if path is not None:
            return pdfs[path[0]].astype(np.int32)
    return None


def _changed(source: Path, folder: Path) -> float:
    """Return the share of frames, aligned both times, whose senone is another one."""
    places = (source / "alignment", folder)
    before, after = (read_array(place / "train.npy", "integer", 1) for place in places)
    if before.shape != after.shape:
        raise SpeechError(f"{source / 'alignment'} has labels of other features: prepare it again")
    both = (before >= 0) & (after >= 0)
    return float((before[both] != after[both]).mean()) if both.any() else 0.0


def _finish(source: Path, out: Path, folder: Path, found: Realigned) -> None:
    """Link what is shared, write priors and facts, and only then give the folder its name."""
    for name in SHARED:
        if (source / name).exists() and not (out / name).exists():
            (out / name).symlink_to(source / name)
    labels = read_array(folder / "train.npy", "integer", 1)
    path = source / "alignment" / "step.json"
    facts = read_table(path, TABLE_LIMIT)
    with well_formed(path):
        facts = {"senones": int(facts["facts"]["senones"])}
    counts = np.bincount(labels[labels >= 0], minlength=facts["senones"])
    np.save(folder / "priors.npy", (counts + 1) / (counts + 1).sum())
    told = {"senones": facts["senones"], "frames": found.frames, "said": str(found)}
    told["left_out"] = found.failed
    record = {"key": digest([told, counts.tolist()]), "facts": told}
    (folder / "step.json").write_text(json.dumps(record, indent=1))
    folder.rename(out / "alignment")
