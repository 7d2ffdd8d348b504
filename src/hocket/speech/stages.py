"""The first half of a preparation: utterances, features, pronunciations.

`Stages` holds what all steps share: where the experiment is, its options, how to open what earlier
steps have made. `prepare.py` adds the second half and the order of the steps.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from hocket.speech.errors import SpeechError
from hocket.speech.features.extraction import look_at, write_store
from hocket.speech.features.spectral import Kind
from hocket.speech.features.store import FeatureStore
from hocket.speech.gmm import alignment
from hocket.speech.gmm.alignment import Corpus
from hocket.speech.graph.lexicon import LEAVE_OUT, UNKNOWN, lexicon_for
from hocket.speech.input.datadir import Utterance, read_utterances, reasons
from hocket.speech.input.sources import deciding_files
from hocket.speech.input.splits import SPLITS, read_splits
from hocket.speech.options import PrepareOptions
from hocket.speech.steps import Facts, Steps, file_state
from hocket.speech.units import characters
from hocket.support.parallel import default_jobs

GMM_KIND: Final[Kind] = "mfcc"  # what the GMM-HMM reads
VERSION: Final = 2  # of what the steps compute; another number repeats all steps


@dataclass
class Stages:
    """One call of `hocket prepare`: its steps up to the lexicon."""

    source: Path
    folder: Path
    options: PrepareOptions = field(default_factory=PrepareOptions)
    jobs: int = field(default_factory=default_jobs)
    show: bool = True
    say: Callable[[str], None] = print
    steps: Steps = field(init=False)

    def __post_init__(self) -> None:
        self.steps = Steps(self.folder, self.say)

    # ------------------------------------------------------------------ data

    def _data_inputs(self) -> Facts:
        folders = [self.source]
        if (self.source / "train").is_dir():
            folders = [self.source / s for s in SPLITS if (self.source / s).is_dir()]
        files = [path for folder in folders for path in deciding_files(folder)]
        return {
            "files": [file_state(path) for path in files],
            "held_out": self.options.held_out,
            "units": self.options.units,
            "version": VERSION,
        }

    def _data(self, out: Path) -> Facts:
        splits, left_out = read_splits(self.source, self.options.held_out, self.say)
        for split, utterances in splits.items():
            rows = [
                asdict(u) | {"path": str(u.path.resolve()), "words": self._units(u.words)}
                for u in utterances
            ]
            (out / f"{split}.json").write_text(json.dumps(rows))
        counts = {split: len(utterances) for split, utterances in splits.items()}
        said = ", ".join(f"{n:,} {split}" for split, n in counts.items()) + " utterances"
        return {"said": with_reasons(said, left_out), "left_out": left_out, "utterances": counts}

    def _units(self, words: Sequence[str]) -> Sequence[str]:
        return characters(words) if self.options.units == "character" else words

    def _utterances(self, split: str) -> list[Utterance]:
        path = self.folder / "data" / f"{split}.json"
        return read_utterances(path) if path.exists() else []

    def _splits(self) -> list[str]:
        return [s for s in SPLITS if (self.folder / "data" / f"{s}.json").exists()]

    # ------------------------------------------------------------------ features

    def _feature_inputs(self) -> Facts:
        paths = sorted({u.path for s in self._splits() for u in self._utterances(s)})
        return {
            "audio": [file_state(p) for p in paths],
            "kinds": self._kinds,
            "num_bins": self.options.num_bins,
            "resample": self.options.resample,
            "channel": self.options.channel,
            "version": VERSION,
        }

    @property
    def _kinds(self) -> tuple[Kind, ...]:
        return tuple(dict.fromkeys((*self.options.features, GMM_KIND)))

    def _features(self, out: Path) -> Facts:
        left_out: dict[str, str] = {}
        by_split = {split: self._utterances(split) for split in self._splits()}
        everybody = [u for utterances in by_split.values() for u in utterances]
        found = look_at(everybody, left_out, self.options.resample, self.options.channel)
        hours = {}
        for split, utterances in by_split.items():
            write_store(
                out / split,
                utterances,
                found,
                self._kinds,
                num_bins=self.options.num_bins,
                left_out=left_out,
                title=self.steps.title("features"),
                jobs=self.jobs,
                show=self.show,
            )
            store = FeatureStore(out / split, GMM_KIND)
            if len(store) == 0:
                raise SpeechError(f"nothing is left of {split}: {reasons(left_out)}")
            hours[split] = round(store.seconds / 3600, 4)
        listed = ", ".join(f"{h:.2f} h {split}" for split, h in hours.items())
        said = "; ".join([f"{listed} at {found.sample_rate} Hz", *found.notes])
        facts = {"said": with_reasons(said, left_out), "left_out": left_out}
        return facts | {"hours": hours, "sample_rate": found.sample_rate}

    def store(self, split: str, kind: Kind = "mfcc") -> FeatureStore:
        """Open the features of a split."""
        return FeatureStore(self.folder / "features" / split, kind, self.options.normalisation)

    # ------------------------------------------------------------------ lexicon

    def _lexicon_inputs(self) -> Facts:
        source = self.options.lexicon
        state = file_state(Path(source)) if Path(source).is_file() else source
        return {"lexicon": state, "oov": self.options.oov, "version": VERSION}

    def _lexicon(self, out: Path) -> Facts:
        spoken = Counter(w for sentence in self.store("train").words for w in sentence)
        words = {*spoken, *(w for sentence in self.store("dev").words for w in sentence)}
        lexicon, missing = lexicon_for(words, self.options.lexicon)
        if not lexicon.entries:
            examples = ", ".join(sorted(words)[:5])
            raise SpeechError(
                f"no word of the transcripts ({examples}, ...) has a pronunciation in "
                f"{self.options.lexicon}: are they in another language or spelling? Give your own "
                "lexicon with --lexicon FILE"
            )
        said = f"{len(lexicon.entries):,} words, {len(lexicon.phones)} phones"
        unheard = sum(spoken[word] for word in missing)
        if missing:
            listed = ", ".join(f"{w} ({why})" for w, why in list(missing.items())[:3])
            said += f"; {len(missing)} words without a pronunciation: {listed}"
        if unheard and self.options.oov != LEAVE_OUT:
            lexicon = lexicon.with_unknown(self.options.oov)
            phones = " ".join(lexicon.entries[UNKNOWN][0])
            said += (
                f"; {unheard:,} of {spoken.total():,} training words are {UNKNOWN}, spoken {phones}"
            )
        lexicon.write(out / "lexicon.txt")
        corpus = Corpus(self.folder / "features" / "train", out / "lexicon.txt")
        _, left_out = alignment.usable(corpus)
        facts = {"said": with_reasons(said, left_out), "left_out": left_out}
        return facts | {"words": len(lexicon.entries), "missing": missing, "unknown": unheard}

    def corpus(self, split: str) -> Corpus:
        """Return what the passes over a split need."""
        return Corpus(
            self.folder / "features" / split,
            self.folder / "lexicon" / "lexicon.txt",
            self.options.normalisation,
        )


def with_reasons(said: str, left_out: dict[str, str]) -> str:
    """Add to a step's line how many utterances it left out, and why."""
    return said + (f"; {reasons(left_out)}" if left_out else "")
