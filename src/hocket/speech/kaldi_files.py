"""Kaldi's archives: import features and alignments; export these and log-likelihoods.

In:   DIR/feats.scp (and utt2spk, text if they are there), pdf alignments as int32 vectors in
      archives, gzipped or not, and the number of pdfs. Kaldi's own `ali.*.gz` hold transition-ids,
      which mean nothing without their model: `ali-to-pdf final.mdl` converts them to pdfs.
Out:  the same, and matrices of log-likelihoods that `latgen-faster-mapped` reads.

`input/kaldi_archive.py` reads and writes the format. Commands in an scp file are refused.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hocket.errors import ConfigError, UnreadableError, require
from hocket.speech.errors import SpeechError
from hocket.speech.features.spectral import Kind
from hocket.speech.features.store import FeatureStore, new_array
from hocket.speech.input.datadir import read_table, reasons
from hocket.speech.input.kaldi_archive import (
    read_archive,
    read_value,
    write_integers,
    write_matrix,
)
from hocket.speech.steps import digest
from hocket.speech.usual import write_usual_settings
from hocket.support.arrays import read_array
from hocket.support.files import atomically, write_lines
from hocket.support.ownership import owned
from hocket.support.progress import print_line, progress

KIND: Final[Kind] = "kaldi"
MAX_PDFS: Final = 1_000_000  # systems have thousands; a vector of so many is made for them
Pdfs = NDArray[np.int32]


@dataclass
class KaldiSplit:
    """Where Kaldi keeps the features and alignments of one split."""

    data: Path  # with feats.scp
    alignments: list[Path]  # none for a test set


def check_num_pdfs(num_pdfs: int) -> None:
    """Refuse a number of outputs that no system has."""
    require(
        2 <= num_pdfs <= MAX_PDFS,
        f"--num-pdfs must lie between 2 and {MAX_PDFS:,}, not {num_pdfs:,}",
    )


@dataclass
class Import:
    """Makes an experiment for `hocket train` from Kaldi's files."""

    splits: dict[str, KaldiSplit]
    num_pdfs: int
    out: Path
    show: bool = True
    left_out: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_num_pdfs(self.num_pdfs)

    def run(self) -> dict[str, int]:
        """Import all splits; return the frames of each. Writing step.json last completes it."""
        if (self.out / "alignment" / "step.json").exists():
            raise SpeechError(f"{self.out} is an experiment already: choose another --out")
        begun = self.out / "import.json"
        if self.out.exists() and any(self.out.iterdir()) and not begun.exists():
            raise SpeechError(
                f"{self.out} is not empty: nothing in it is touched; choose another --out"
            )
        self.out.mkdir(parents=True, exist_ok=True)
        begun.write_text(json.dumps({"num_pdfs": self.num_pdfs}) + "\n")  # from now on it is ours
        with owned(self.out, "hocket import", print_line):
            return self._import()

    def _import(self) -> dict[str, int]:
        (self.out / "alignment").mkdir(parents=True, exist_ok=True)
        frames, counts = {}, np.zeros(self.num_pdfs, np.int64)
        for split, where in self.splits.items():
            pdfs = self._pdfs(where.alignments) if where.alignments else None
            frames[split] = self._write(split, where, pdfs)
            if split == "train":
                labels = read_array(self.out / "alignment" / "train.npy", "integer", 1)
                counts = np.bincount(labels[labels >= 0], minlength=self.num_pdfs)
        np.save(self.out / "alignment" / "priors.npy", (counts + 1) / (counts + 1).sum())
        rows = [f"{name}\tkaldi\t{why}\n" for name, why in self.left_out.items()]
        write_lines(self.out / "left_out.txt", rows)
        facts = {"senones": self.num_pdfs, "frames": frames, "said": "imported from Kaldi"}
        key = digest([facts, counts.tolist()])
        record = {"key": key, "facts": facts}
        write_usual_settings(self.out, frames["train"] / 360_000, KIND)
        (self.out / "alignment" / "step.json").write_text(json.dumps(record, indent=1))
        return frames

    def _pdfs(self, paths: list[Path]) -> dict[str, Pdfs]:
        found: dict[str, Pdfs] = {}
        for path in paths:
            for name, values in read_alignments(path):
                if len(values) and not 0 <= values.min() <= values.max() < self.num_pdfs:
                    raise SpeechError(
                        f"{path}: {name!r} has the pdf {int(values.max())}, but there are "
                        f"{self.num_pdfs} (--num-pdfs), from 0. Are these transition-ids? Then: "
                        "ali-to-pdf final.mdl 'ark:gunzip -c ali.1.gz|' ark:pdf.1.ark"
                    )
                found[name] = values
        return found

    def _write(self, split: str, where: KaldiSplit, pdfs: dict[str, Pdfs] | None) -> int:
        """Write the features (and the alignment) of one split; return its frames."""
        table = feature_table(where.data)
        names = [n for n in sorted(table) if pdfs is None or self._has(n, pdfs)]
        speakers, texts = (_optional(where.data / name) for name in ("utt2spk", "text"))
        writer = _StoreWriter(self.out / "features" / split)
        title = f"importing {split}"
        with writer, progress(title, len(names), unit="utterances", wanted=self.show) as advance:
            for name in names:
                advance(1.0)
                x = load_matrix(table[name], name)
                labels = None if pdfs is None else pdfs[name]
                if labels is not None and len(labels) != len(x):
                    why = f"{len(x)} frames of features, {len(labels)} of alignment"
                    self.left_out[name] = why
                    continue
                words = texts.get(name, "").split()
                writer.add({"id": name, "speaker": speakers.get(name, name), "words": words}, x)
                if labels is not None:
                    writer.labels.append(labels)
        if not writer.frames:
            raise SpeechError(
                f"{where.data}: not one utterance has features and an alignment of the same "
                f"length. {reasons(self.left_out)}"
            )
        if pdfs is not None:
            path = self.out / "alignment" / f"{split}.npy"
            np.save(path, np.concatenate(writer.labels).astype(np.int32))
        return writer.frames

    def _has(self, name: str, pdfs: dict[str, Pdfs]) -> bool:
        if name not in pdfs:
            self.left_out[name] = "it has features but no alignment"
        return name in pdfs


class _StoreWriter:
    """Writes a feature store utterance by utterance; its length is known only at the end."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.frames = self.dims = 0
        self.labels: list[Pdfs] = []
        self._index: list[dict[str, Any]] = []
        self._sums: list[NDArray[np.float64]] = []
        self._raw = folder / f"{KIND}.raw"

    def __enter__(self) -> _StoreWriter:
        self._file = self._raw.open("wb")
        return self

    def add(self, row: dict[str, Any], x: NDArray[np.float32]) -> None:
        """Append one utterance."""
        if self.dims not in (0, x.shape[1]):
            raise SpeechError(
                f"{row['id']!r} has {x.shape[1]} numbers a frame, others {self.dims}: are there "
                "two kinds of features in feats.scp?"
            )
        self._index.append(row | {"path": "", "first": self.frames, "frames": len(x)})
        wide = x.astype(np.float64)
        self._sums.append(np.stack([wide.sum(0), np.square(wide).sum(0)]))
        self._file.write(np.ascontiguousarray(x, np.float32).tobytes())
        self.dims, self.frames = x.shape[1], self.frames + len(x)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._file.close()
        if kind is None and self.frames:
            shape = (self.frames, self.dims)
            made = new_array(self.folder / f"{KIND}.npy", np.float32, shape)
            made[:] = np.memmap(self._raw, np.float32, "r", shape=shape)
            np.save(self.folder / f"{KIND}.sums.npy", np.stack(self._sums))
            facts = {"sample_rate": 0, "kinds": [KIND], "utterances": self._index}
            (self.folder / "index.json").write_text(json.dumps(facts))
        self._raw.unlink()


def _optional(path: Path) -> dict[str, str]:
    return read_table(path) if path.exists() else {}


# ---------------------------------------------------------------------------- reading


def feature_table(data: Path) -> dict[str, str]:
    """Return where each utterance's features are, from DIR/feats.scp."""
    path = data / "feats.scp"
    if not path.exists():
        raise SpeechError(f"{path}: no such file: make features first, or name the right folder")
    table = read_table(path)
    for name, value in table.items():
        if "|" in value:
            raise SpeechError(
                f"{path}: {name!r} is a pipe ({value[:60]}): Hocket runs no commands found in "
                "data. Write them first: copy-feats scp:feats.scp ark,scp:plain.ark,plain.scp"
            )
    return table


def load_matrix(where: str, name: str) -> NDArray[np.float32]:
    """Read one matrix (`file.ark:offset`)."""
    try:
        x = read_value(where)
    except UnreadableError as error:
        raise SpeechError(
            f"the features of {name!r} cannot be read: {error}. Paths in feats.scp are relative "
            "to the folder you are in: run Hocket where Kaldi ran"
        ) from error
    with np.errstate(over="ignore"):
        found: NDArray[np.float32] = np.asarray(x, dtype=np.float32)
    if found.ndim != 2 or not np.isfinite(found).all():
        raise SpeechError(f"{where}: {name!r} is not a matrix of finite numbers")
    return found


def read_alignments(path: Path) -> Iterator[tuple[str, Pdfs]]:
    """Yield the integer vectors of an archive, gzipped or not, binary or text."""
    try:
        for name, values in read_archive(path):
            if values.ndim != 1 or not np.issubdtype(values.dtype, np.integer):
                raise SpeechError(
                    f"{path}: {name!r} is not a vector of integers, so not an alignment"
                )
            yield name, values
    except UnreadableError as error:
        raise SpeechError(f"{error}: copy it again") from error


# ---------------------------------------------------------------------------- writing


def write_matrices(path: Path, pairs: Iterator[tuple[str, NDArray[np.float32]]]) -> int:
    """Write PATH (an archive) and an scp file beside it; return the number of matrices."""
    if not path.name:
        raise ConfigError(f"{str(path)!r} is no name of an archive: choose another")
    scp = path.with_suffix(".scp")
    for there in (path, scp):
        if there.exists() or path == scp:
            raise ConfigError(f"{there} is there already, or is no archive: choose another name")
    path.parent.mkdir(parents=True, exist_ok=True)
    rows: list[str] = []
    with atomically(path) as partial, partial.open("wb") as file:
        for name, x in pairs:
            rows.append(f"{name} {path.resolve()}:{write_matrix(file, name, x)}\n")
    write_lines(scp, rows)
    return len(rows)


def export(experiment: Path, out: Path, kind: Kind) -> dict[str, int]:
    """Write features (feats.ark, feats.scp) and alignments (pdf.ark.gz) of every split."""
    found = {}
    if out.exists() and any(out.iterdir()):
        raise ConfigError(f"{out} is not empty: nothing in it is touched; choose another --out")
    for folder in sorted(p for p in (experiment / "features").iterdir() if p.is_dir()):
        store = FeatureStore(folder, kind, "none")
        numbers = range(len(store))
        target = out / folder.name
        found[folder.name] = write_matrices(
            target / "feats.ark", ((store.ids[n], store.utterance(n)) for n in numbers)
        )
        for table, values in (("utt2spk", store.speakers), ("text", map(" ".join, store.words))):
            rows = [f"{name} {value}\n" for name, value in zip(store.ids, values, strict=True)]
            write_lines(target / table, sorted(rows))
        path = experiment / "alignment" / f"{folder.name}.npy"
        if path.exists():
            labels = read_array(path, "integer", 1, mapped=True)
            write_alignments(target / "pdf.ark.gz", store, labels)
    return found


def write_alignments(path: Path, store: FeatureStore, labels: Pdfs) -> None:
    """Write the pdf of every frame of the aligned utterances."""
    with atomically(path) as partial, gzip.open(partial, "wb") as file:
        for number, name in enumerate(store.ids):
            first = int(store.first[number])
            pdfs = np.array(labels[first : first + int(store.frames[number])], dtype=np.int32)
            if len(pdfs) and pdfs[0] >= 0:
                write_integers(file, name, pdfs)
