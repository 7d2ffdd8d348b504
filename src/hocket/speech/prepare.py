"""From a data directory to a prepared experiment, step by step.

    EXP/data/         the utterances of each split, and those left out
    EXP/features/     memory-mapped features of each split: mfcc, and what networks read
    EXP/lexicon/      pronunciations
    EXP/mono/ tri/    GMM-HMMs
    EXP/alignment/    the senone of every frame of train and dev, and the senones' priors
    EXP/graph/        the decoding graph
    EXP/gmm/          the GMM-HMM's own word error rate
    EXP/left_out.txt  every utterance that was left out, and why

A step is done again only if its inputs or options have changed (see `steps.py`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from hocket.errors import nearest, require
from hocket.speech.decode.decoding import Decoder, GMMScorer
from hocket.speech.decode.evaluation import Evaluation, evaluate
from hocket.speech.decode.scoring import Unit, characters
from hocket.speech.errors import SpeechError
from hocket.speech.features.extraction import common_sample_rate, write_store
from hocket.speech.features.spectral import KINDS, SAMPLE_RATES, Kind
from hocket.speech.features.store import FeatureStore, Normalisation
from hocket.speech.gmm import alignment
from hocket.speech.gmm.alignment import GMMHMM, Corpus, Pass
from hocket.speech.gmm.reference import agreement
from hocket.speech.gmm.senones import Senones
from hocket.speech.gmm.training import GMMOptions, Trainer, collect
from hocket.speech.graph.arpa import check_arpa
from hocket.speech.graph.graph import decoding_graph
from hocket.speech.graph.language import LanguageSource
from hocket.speech.graph.lexicon import check_lexicon, lexicon_for, read_lexicon
from hocket.speech.input.datadir import Utterance, numbered_lines, reasons
from hocket.speech.input.sources import deciding_files
from hocket.speech.input.splits import SPLITS, read_splits
from hocket.speech.steps import Facts, Steps, file_state
from hocket.support.parallel import default_jobs

GMM_KIND: Final[Kind] = "mfcc"  # what the GMM-HMM reads
VERSION: Final = 1  # of what the steps compute; another number repeats all steps


@dataclass(frozen=True)
class PrepareOptions:
    """Everything that determines a prepared experiment."""

    lexicon: str = "cmudict"
    features: tuple[Kind, ...] = ("fbank",)  # for networks; they read the first by default
    num_bins: int = 40
    resample: int | None = None  # Hz; unset: the audio must have one rate
    normalisation: Normalisation = "speaker"
    lm_order: int = 3
    lm_text: str = ""  # a file of sentences; unset: the training transcripts
    arpa: str = ""  # a finished language model
    units: Unit = "word"  # in which errors are counted; character: for writing without spaces
    held_out: float = 0.1  # share of the training data for a split that the data lacks
    gmm: GMMOptions = field(default_factory=GMMOptions)

    def __post_init__(self) -> None:
        require(len(self.features) > 0, f"--features needs one of {', '.join(KINDS)}")
        for kind in self.features:
            require(
                kind in KINDS,
                f"no features {kind!r}: there are {', '.join(KINDS)}.{nearest(kind, KINDS)}",
            )
        require(
            self.num_bins == 40 or "fbank" in self.features,
            "--num-bins has no effect: it is an option of fbank, which --features leaves out",
        )
        require(
            self.resample in (None, *SAMPLE_RATES),
            f"--resample must be one of {', '.join(map(str, SAMPLE_RATES))}, not {self.resample}",
        )
        require(self.num_bins >= 3, f"num_bins must be at least 3, not {self.num_bins}")
        require(0 < self.held_out < 0.5, f"held_out must lie between 0 and 0.5: {self.held_out}")
        require(self.lm_order >= 1, f"lm_order must be at least 1, not {self.lm_order}")
        require(
            not (self.lm_text and self.arpa),
            f"--lm-text {self.lm_text} has no effect beside --arpa: leave one out",
        )
        for path in filter(None, (self.lm_text, self.arpa)):
            require(Path(path).is_file(), f"{path}: no such file (for the language model)")


@dataclass
class Preparation:
    """One call of `hocket prepare`."""

    source: Path
    folder: Path
    options: PrepareOptions = field(default_factory=PrepareOptions)
    jobs: int = field(default_factory=default_jobs)
    show: bool = True
    say: Callable[[str], None] = print

    def run(self) -> Evaluation:
        """Run all steps; return how well the GMM-HMM recognises."""
        if not self.source.exists():
            raise SpeechError(f"{self.source}: no such folder")
        self._check_language()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.steps = Steps(self.folder, self.say)
        self.steps.run("data", self._data_inputs(), (), self._data)
        self.steps.run("features", self._feature_inputs(), ("data",), self._features)
        self.steps.run("lexicon", self._lexicon_inputs(), ("features",), self._lexicon)
        self._write_left_out()
        gmm = asdict(self.options.gmm)
        mono = {k: gmm[k] for k in ("mono_iterations", "mono_gaussians")}
        both = {"normalisation": self.options.normalisation, "version": VERSION}
        self.steps.run("mono", mono | both, ("lexicon",), self._mono)
        self.steps.run("tri", gmm, ("mono",), self._tri)
        self.steps.run("alignment", {"version": VERSION}, ("tri",), self._alignment)
        self.steps.run("graph", self._language_inputs(), ("tri",), self._graph)
        self.steps.run(
            "gmm", {"version": VERSION, "units": self.options.units}, ("graph",), self._gmm
        )
        self._write_left_out()
        return Evaluation.read(self.folder / "gmm")

    def _check_language(self) -> None:
        """Check the files that the last steps need before the first step begins."""
        check_lexicon(self.options.lexicon)
        if (self.folder / "graph").exists():  # they were read before; `_graph` finds changes
            return
        if self.options.arpa:
            check_arpa(Path(self.options.arpa))
        if self.options.lm_text:
            for _ in numbered_lines(Path(self.options.lm_text)):
                pass

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
        return {"said": _with(said, left_out), "left_out": left_out, "utterances": counts}

    def _units(self, words: Sequence[str]) -> Sequence[str]:
        return characters(words) if self.options.units == "character" else words

    def _utterances(self, split: str) -> list[Utterance]:
        path = self.folder / "data" / f"{split}.json"
        rows = json.loads(path.read_text()) if path.exists() else []
        return [
            Utterance(
                r["id"], r["speaker"], tuple(r["words"]), Path(r["path"]), r["start_s"], r["end_s"]
            )
            for r in rows
        ]

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
            "version": VERSION,
        }

    @property
    def _kinds(self) -> tuple[Kind, ...]:
        return tuple(dict.fromkeys((*self.options.features, GMM_KIND)))

    def _features(self, out: Path) -> Facts:
        left_out: dict[str, str] = {}
        by_split = {split: self._utterances(split) for split in self._splits()}
        everybody = [u for utterances in by_split.values() for u in utterances]
        rate, num_samples = common_sample_rate(everybody, left_out, self.options.resample)
        hours = {}
        for split, utterances in by_split.items():
            write_store(
                out / split,
                utterances,
                num_samples,
                rate,
                self._kinds,
                num_bins=self.options.num_bins,
                left_out=left_out,
                jobs=self.jobs,
                show=self.show,
            )
            store = FeatureStore(out / split, GMM_KIND)
            if len(store) == 0:
                raise SpeechError(f"nothing is left of {split}: {reasons(left_out)}")
            hours[split] = round(store.seconds / 3600, 4)
        listed = ", ".join(f"{h:.2f} h {split}" for split, h in hours.items())
        said = f"{listed} at {rate} Hz"
        facts = {"said": _with(said, left_out), "left_out": left_out}
        return facts | {"hours": hours, "sample_rate": rate}

    def store(self, split: str, kind: Kind = "mfcc") -> FeatureStore:
        """Open the features of a split."""
        return FeatureStore(self.folder / "features" / split, kind, self.options.normalisation)

    # ------------------------------------------------------------------ lexicon

    def _lexicon_inputs(self) -> Facts:
        source = self.options.lexicon
        state = file_state(Path(source)) if Path(source).is_file() else source
        return {"lexicon": state, "version": VERSION}

    def _lexicon(self, out: Path) -> Facts:
        words = {w for s in ("train", "dev") for sentence in self.store(s).words for w in sentence}
        lexicon, missing = lexicon_for(words, self.options.lexicon)
        if not lexicon.entries:
            examples = ", ".join(sorted(words)[:5])
            raise SpeechError(
                f"no word of the transcripts ({examples}, ...) has a pronunciation in "
                f"{self.options.lexicon}: are they in another language or spelling? Give your own "
                "lexicon with --lexicon FILE"
            )
        lexicon.write(out / "lexicon.txt")
        corpus = Corpus(self.folder / "features" / "train", out / "lexicon.txt")
        _, left_out = alignment.usable(corpus)
        said = f"{len(lexicon.entries):,} words, {len(lexicon.phones)} phones"
        if missing:
            listed = ", ".join(f"{w} ({why})" for w, why in list(missing.items())[:3])
            said += f"; {len(missing)} words without a pronunciation: {listed}"
        facts = {"said": _with(said, left_out), "left_out": left_out}
        return facts | {"words": len(lexicon.entries), "missing": missing}

    def corpus(self, split: str) -> Corpus:
        """Return what the passes over a split need."""
        return Corpus(
            self.folder / "features" / split,
            self.folder / "lexicon" / "lexicon.txt",
            self.options.normalisation,
        )

    # ------------------------------------------------------------------ GMM-HMM

    def _trainer(self, name: str, out: Path) -> Trainer:
        numbers, _ = alignment.usable(self.corpus("train"))
        return Trainer(
            name,
            self.corpus("train"),
            numbers,
            out,
            self.options.gmm,
            self.jobs,
            self.show,
            self.say,
        )

    def _mono(self, out: Path) -> Facts:
        model = self._trainer("mono", out).monophones()
        states, gaussians = model.senones.num_pdfs, model.gmm.num_gaussians
        return {"said": f"{states} monophone states, {gaussians:,} Gaussians"}

    def _tri(self, out: Path) -> Facts:
        start = GMMHMM.load(self.folder / "mono")
        previous = self.folder / "mono" / "alignment.npy"
        model = self._trainer("tri", out).triphones(start, previous)
        senones, gaussians = model.senones.num_pdfs, model.gmm.num_gaussians
        return {"said": f"{senones} senones, {gaussians:,} Gaussians", "senones": senones}

    def _alignment(self, out: Path) -> Facts:
        model = self.folder / "tri"
        senones = Senones.read(model / "tree.json")
        left_out: dict[str, str] = {}
        frames = {}
        for split in ("train", "dev"):
            corpus, path = self.corpus(split), out / f"{split}.npy"
            numbers, unusable = alignment.usable(corpus)
            alignment.new_alignment(path, corpus.open())
            if len(numbers) == 0:
                raise SpeechError(f"no utterance of {split} can be aligned: {reasons(unusable)}")
            what = Pass(corpus, path, model)
            found = collect(
                what,
                numbers,
                realign=True,
                title=f"aligning {split}",
                jobs=self.jobs,
                show=self.show,
            )
            left_out |= unusable | found.failed
            frames[split] = found.moments.frames
            if split == "train":
                np.save(out / "priors.npy", (found.frames + 1) / (found.frames + 1).sum())
        facts: Facts = {"senones": senones.num_pdfs, "frames": frames, "left_out": left_out}
        said = ", ".join(f"{n:,} frames of {split}" for split, n in frames.items())
        found_agreement = agreement(
            self.source / "train" / "phones.ctm", out / "train.npy", self.store("train"), senones
        )
        if found_agreement is not None:
            said += f"; {found_agreement}"
            facts["agreement"] = asdict(found_agreement)
        return facts | {"said": _with(said, left_out)}

    # ------------------------------------------------------------------ decoding

    def _language_inputs(self) -> Facts:
        facts: Facts = {"lm_order": self.options.lm_order, "version": VERSION}
        for key in ("lm_text", "arpa"):
            path = getattr(self.options, key)
            if path:
                facts[key] = file_state(Path(path))
        return facts

    def _graph(self, out: Path) -> Facts:
        acoustic = read_lexicon(self.folder / "lexicon" / "lexicon.txt")
        model = GMMHMM.load(self.folder / "tri")
        source = LanguageSource(
            self.options.lm_order, self.options.lm_text, self.options.arpa, self.options.units
        )
        language, lexicon = source.model(
            self.store("train").words, acoustic, model.senones.phones, self.options.lexicon
        )
        graph = decoding_graph(lexicon, language, model.senones, model.loop)
        graph.write(out)
        facts: Facts = {"words": len(graph.words), "states": graph.fst.num_states}
        said = f"{len(graph.words):,} words, {language.order}-gram, {graph.fst.num_states:,} states"
        if "test" in self._splits():
            tokens = [w for words in self.store("test").words for w in words]
            known = set(graph.words)
            unknown = [w for w in tokens if w not in known]
            facts["unknown_share"] = len(unknown) / len(tokens)
            if unknown:
                share = len(unknown) / len(tokens)
                said += f"; {share:.1%} of the test words are unknown (for example {unknown[0]!r})"
        return facts | {"said": said}

    def _gmm(self, out: Path) -> Facts:
        scorer = GMMScorer(
            self.folder / "features", self.folder / "tri", self.options.normalisation
        )
        decoder = Decoder(
            scorer, self.folder / "graph", jobs=self.jobs, show=self.show, unit=self.options.units
        )
        split = "test" if "test" in self._splits() else None
        found = evaluate(decoder, out, "GMM-HMM (maximum likelihood)", split)
        return {"said": f"{found.split} {found.score}"}

    def _write_left_out(self) -> None:
        rows = []
        for name in ("data", "features", "lexicon", "alignment"):
            path = self.folder / name / "step.json"
            if path.exists():
                left_out = json.loads(path.read_text())["facts"].get("left_out", {})
                rows += [f"{utterance}\t{name}\t{why}\n" for utterance, why in left_out.items()]
        (self.folder / "left_out.txt").write_text("".join(rows))


def _with(said: str, left_out: dict[str, str]) -> str:
    return said + (f"; {reasons(left_out)}" if left_out else "")
