"""Recipes: a corpus, its preparation and the settings of training, as one command.

A recipe makes a folder that `hocket train` and `hocket simulate` take as their TASK:

    OUT/corpus/       the synthesised speech
    OUT/...           what `hocket prepare` makes: features, alignment, decoding graph, ...
    OUT/train.toml    the recipe's settings, which runs on OUT begin with (config.py, `defaults`)
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hocket import config
from hocket.cli import boundary
from hocket.speech.corpus.build import build
from hocket.speech.corpus.options import CorpusOptions
from hocket.speech.decode.evaluation import Evaluation
from hocket.speech.prepare import Preparation, PrepareOptions
from hocket.support.parallel import default_jobs


@dataclass(frozen=True)
class Recipe:
    """Everything a task is made from; the same recipe makes the same task."""

    name: str
    corpus: CorpusOptions
    prepare: PrepareOptions
    train: Path  # a TOML file
    lm_text: bool = False  # train the language model on the corpus's lm.txt, too
    frozen: str = ""  # digest of the corpus that the published figures were measured on

    def make(self, out: Path, *, jobs: int | None = None, show: bool = True) -> Evaluation:
        """Make the task's folder, or finish it; return the word error rate of its GMM-HMM."""
        jobs = jobs or default_jobs()
        corpus = out / "corpus"
        build(self.corpus, corpus, jobs=jobs, show=show)
        self._compare(corpus)
        options = self.prepare
        if self.lm_text:
            options = dataclasses.replace(options, lm_text=str(corpus / "lm.txt"))
        found = Preparation(corpus, out, options, jobs, show=show).run()
        config.read(self.train)  # find a mistake in it now, not in the first run
        (out / config.DEFAULTS).write_bytes(self.train.read_bytes())
        return found

    def _compare(self, corpus: Path) -> None:
        """Warn if this is not the corpus that the published figures were measured on."""
        found = digest(corpus)
        if self.frozen and found != self.frozen:
            print(
                f"note: this corpus ({found}) differs from the one ({self.frozen}) that the "
                f"published figures of {self.name!r} were measured on, probably because of another "
                "version of espeak-ng. Compare runs with each other, not with those figures",
                file=sys.stderr,
            )


def digest(corpus: Path) -> str:
    """Return a short checksum of the words, speakers and durations of a corpus."""
    names = [f"{split}/{table}" for split in ("train", "dev", "test") for table in _TABLES]
    text = "".join((corpus / name).read_text("utf-8") for name in names)
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


_TABLES = ("text", "utt2spk", "utt2dur", "spk2voice")


def main(recipe: Recipe, argv: Sequence[str] | None = None) -> int:
    """Run a recipe from the command line: make its folder and say what to do next."""
    parser = argparse.ArgumentParser(
        description=f"Makes the task of the recipe {recipe.name!r}: a folder for `hocket train`. "
        "Finished steps are kept; after an interruption give the same command again.",
    )
    parser.add_argument("out", type=Path, metavar="OUT", help="the folder to make")
    parser.add_argument(
        "--jobs", type=int, metavar="N", help="how many processes (default: one per core)"
    )
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    args = parser.parse_args(argv)
    command = sys.argv[1:] if argv is None else argv
    return boundary.guarded(recipe.name, command, None, lambda: _make(recipe, args))


def _make(recipe: Recipe, args: argparse.Namespace) -> int:
    found = recipe.make(args.out, jobs=args.jobs, show=not args.quiet)
    print(f"{found.system}: {found.split} {found.score}")
    print(f"next: hocket train {args.out} --strategy kstep --learners 2 --out runs/{recipe.name}")
    return 0
