"""All systems on Iban in one table: `python recipes/iban/table.py exp/iban results/iban`.

EXP was made by `prepare.py` beside this file. One learner, two real ones with `bmuf` and `adpsgd`,
and eight simulated ones train with the experiment's settings; all are decoded on the test set and
compared with the GMM-HMM on deltas, and with the single learner, by the paired bootstrap. What is
done is kept, so an interrupted call goes on. OUT/table.md holds the result.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hocket import api
from hocket.errors import HocketError
from hocket.record.rundir import RunDirectory
from hocket.speech.decode.comparison import Difference, compare
from hocket.speech.decode.decoding import Search
from hocket.speech.decode.evaluation import Evaluation, read_text
from hocket.speech.decode.recognition import decode_run
from hocket.support.parallel import default_jobs

RUNS: Final = (  # name, strategy, learners, simulated?
    ("one learner", "sequential", 1, False),
    ("bmuf, 2 learners", "bmuf", 2, False),
    ("adpsgd, 2 learners", "adpsgd", 2, False),
    ("bmuf, 8 simulated", "bmuf", 8, True),
    ("adpsgd, 8 simulated", "adpsgd", 8, True),
)
GMMS: Final = ("gmm-tri", "gmm-lda", "gmm")  # on deltas first: the others are compared with it
PUBLISHED: Final = """\
Published by the corpus's authors on its own test set, with a language model of 2 million words of
news, which is much stronger than one of the transcripts alone: triphones 35.3 %, LDA + MLLT 25.9,
speaker-adaptive 19.7, subspace GMM 16.6, network 15.8 (S. Juan, L. Besacier, B. Lecouteux, M. Dyab,
Interspeech 2015). Other test sets and language models give other figures: compare rows of one table
with each other, not with these.
"""


@dataclass(frozen=True)
class System:
    """A decoded system."""

    name: str
    folder: Path  # with result.json and hypotheses

    @property
    def found(self) -> Evaluation:
        """Its error rates."""
        return Evaluation.read(self.folder)

    def against(self, other: System) -> Difference:
        """Compare another system with this one."""
        split = self.found.split
        refs, mine, its = (
            read_text(path)
            for path in (
                self.folder / f"{split}.ref",
                self.folder / f"{split}.hyp",
                other.folder / f"{split}.hyp",
            )
        )
        return compare(refs, mine, its)


def main() -> int:
    """Train, decode, compare."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("experiment", type=Path, metavar="EXP")
    arguments.add_argument("out", type=Path, metavar="OUT")
    arguments.add_argument("--only", type=int, default=len(RUNS), metavar="N", help="first N runs")
    arguments.add_argument("--epochs", type=int, metavar="N", help="instead of the usual number")
    arguments.add_argument("--jobs", type=int, default=default_jobs(), metavar="N")
    given = arguments.parse_args()
    try:
        systems = [
            System(Evaluation.read(folder).system, folder)
            for folder in (given.experiment / name for name in GMMS)
            if folder.is_dir()
        ]
        for run in RUNS[: given.only]:
            systems.append(trained(run, given))
            write_table(given.out, systems)
    except HocketError as error:
        print(f"iban: {error}", file=sys.stderr)
        return 1
    print((given.out / "table.md").read_text())
    return 0


def trained(run: tuple[str, str, int, bool], given: argparse.Namespace) -> System:
    """Train and decode, or go on where an earlier call was interrupted."""
    title, strategy, learners, simulated = run
    folder = given.out / f"{strategy}-{learners}{'-simulated' if simulated else ''}"
    directory = RunDirectory(folder)
    if not directory.model_path.exists():
        size: dict[str, Any] = {"cluster": learners} if simulated else {"learners": learners}
        schedule = {"epochs": given.epochs} if given.epochs else None
        begin = api.simulate if simulated else api.train
        begin(
            str(given.experiment),
            strategy=strategy,
            schedule=schedule,
            out=folder,
            resume=directory.is_run(),
            **size,
        )
    if not (directory.decode_path / "result.json").exists():
        decode_run(folder, split=None, jobs=given.jobs, search=Search())
    return System(title, directory.decode_path)


def write_table(out: Path, systems: list[System]) -> None:
    """Write one row for each system."""
    first = systems[0]
    alone = next((s for s in systems if s.name == RUNS[0][0]), None)
    rows = [
        f"| system | dev WER | {first.found.split} WER | against {first.name} "
        "| against one learner |",
        "|---|---|---|---|---|",
    ]
    for system in systems:
        score = system.found.score
        compared = [
            _difference(one, system) if one is not None and one is not system else "-"
            for one in (first, alone)
        ]
        rows.append(
            f"| {system.name} | {system.found.dev.errors.rate:.1%} | {score.errors.rate:.1%} "
            f"[{score.low:.1%}, {score.high:.1%}] | {compared[0]} | {compared[1]} |"
        )
    out.mkdir(parents=True, exist_ok=True)
    words = first.found.score.errors.words
    note = f"{words:,} words to test. Differences: paired bootstrap, 95 %.\n"
    (out / "table.md").write_text("\n".join(rows) + f"\n\n{note}\n{PUBLISHED}")


def _difference(first: System, second: System) -> str:
    found = first.against(second)
    return (
        f"{found.difference:+.1%} [{found.low:+.1%}, {found.high:+.1%}], "
        f"{found.difference / found.first:+.0%} relative"
    )


if __name__ == "__main__":
    sys.exit(main())
