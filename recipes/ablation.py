"""What each option of a network brings: `python recipes/ablation.py exp/sweep results/sweep`.

EXP is a prepared experiment (`hocket prepare`, or a recipe's). One learner trains with its usual
settings, and then once more for each row below, with one thing changed; every run is decoded and
compared with the usual one by the paired bootstrap. The last row is the second pass: the usual
network aligns, and another one trains on its labels. Choose by dev, report test. OUT/table.md has
the rows that are finished; what is done is kept, so an interrupted call goes on.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hocket.cli.main import main as hocket
from hocket.errors import HocketError
from hocket.record.rundir import RunDirectory
from hocket.speech.decode.comparison import compare
from hocket.speech.decode.evaluation import Evaluation, read_text
from hocket.speech.errors import SpeechError
from hocket.support.parallel import default_jobs


@dataclass(frozen=True)
class Row:
    """A network that differs in one thing from the usual one."""

    name: str  # also of its folder
    what: str
    settings: tuple[str, ...] = ()  # of `hocket train --set`


USUAL: Final = "usual"
SECOND: Final = "second-pass"
ROWS: Final = (
    Row(USUAL, "the usual settings"),
    Row("cepstra", "13 cepstra instead of 40 log mel energies", ("task.features=mfcc",)),
    Row("context", "11 frames instead of 15", ("task.context=5",)),
    Row("wide-context", "21 frames", ("task.context=10",)),
    Row("narrow", "half as wide", ("model.width=0.5x",)),
    Row("wide", "twice as wide", ("model.width=2x",)),
    Row("no-dropout", "no dropout", ("model.dropout=0",)),
    Row("dropout", "dropout 0.3", ("model.dropout=0.3",)),
    Row("constant", "a rate that does not fall", ("schedule.name=constant", "schedule.epochs=1x")),
    Row("newbob", "newbob by the dev loss", ("schedule.name=newbob", "schedule.epochs=1x")),
    Row("longer", "twice as many epochs", ("schedule.epochs=2x",)),
    Row("loose", "clipped at 5", ("optimizer.clip_norm=5",)),
    Row("speed", "speed 0.9, 1, 1.1", ("task.speed=0.1",)),
    Row("volume", "volume up to 6 dB", ("task.volume_db=6",)),
    Row("noise", "noise in 30 % of the frames", ("task.noise_share=0.3",)),
    Row("echo", "echo in 30 % of the frames", ("task.echo_share=0.3",)),
    Row("masks", "6 bins and 2 frames masked", ("task.mask_bins=6", "task.mask_frames=2")),
    Row(
        "all-changes",
        "speed and masks, twice as many epochs",
        ("task.speed=0.1", "task.mask_bins=6", "task.mask_frames=2", "schedule.epochs=2x"),
    ),
    Row(SECOND, "the second pass"),
)


def main() -> int:
    """Train, decode, compare."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("experiment", type=Path, metavar="EXP")
    arguments.add_argument("out", type=Path, metavar="OUT")
    arguments.add_argument("--only", default="", metavar="ROWS", help="with commas, for example "
                           f"{ROWS[1].name},{SECOND}; the usual one is added")  # fmt: skip
    arguments.add_argument("--epochs", type=int, metavar="N", help="instead of the usual number")
    arguments.add_argument("--jobs", type=int, default=default_jobs(), metavar="N")
    given = arguments.parse_args()
    try:
        for row in chosen(given.only):
            decoded(row, given)
            print(write_table(given.experiment, given.out))
    except HocketError as error:
        print(f"ablation: {error}", file=sys.stderr)
        return 1
    return 0


def chosen(names: str) -> list[Row]:
    """Return the rows that are asked for, the usual one first."""
    wanted = {name for name in names.split(",") if name} | {USUAL}
    known = [row.name for row in ROWS]
    strange = sorted(wanted - set(known))
    if strange:
        raise SpeechError(f"no row {strange[0]!r}: there are {', '.join(known)}")
    return [row for row in ROWS if row.name in wanted or not names]


def decoded(row: Row, given: argparse.Namespace) -> None:
    """Train and decode, or go on where an earlier call was interrupted."""
    folder, experiment = given.out / row.name, given.experiment
    if row.name == SECOND:
        experiment = given.out / f"{SECOND}-experiment"
        if not (experiment / "alignment").is_dir():
            _call("realign", given.out / USUAL, "--out", experiment, "--jobs", given.jobs)
    run = RunDirectory(folder)
    if not run.model_path.exists():
        epochs = ("--epochs", given.epochs) if given.epochs else ()
        usual = RunDirectory(given.out / USUAL)
        changes = [("--set", resolved(setting, usual)) for setting in row.settings]
        again = ("--resume",) if run.is_run() else (experiment, *epochs, *_flat(changes))
        _call("train", *again, "--out", folder)
    if not (run.decode_path / "result.json").exists():
        _call("decode", folder, "--jobs", given.jobs)


def resolved(setting: str, usual: RunDirectory) -> str:
    """Return a setting with its factor, as in `model.width=2x`, applied to the usual value."""
    key, _, value = setting.partition("=")
    if not value.endswith("x"):
        return setting
    table, _, name = key.partition(".")
    return f"{key}={round(float(value[:-1]) * usual.table(table)[name])}"


def _flat(pairs: Sequence[tuple[str, str]]) -> list[str]:
    return [text for pair in pairs for text in pair]


def _call(*arguments: object) -> None:
    """Run a command of hocket's."""
    words = [str(argument) for argument in arguments]
    if hocket(words) != 0:
        raise SpeechError(f"this command failed: hocket {' '.join(words)}")


def write_table(experiment: Path, out: Path) -> str:
    """Write a row for each system that has been decoded; return the table."""
    usual = out / USUAL / "decode"
    gmms = (("gmm-tri", "GMM-HMM, deltas"), ("gmm", "the last GMM-HMM"))
    systems = [(title, experiment / name) for name, title in gmms]
    systems += [(row.what, out / row.name / "decode") for row in ROWS]
    lines = ["| system | dev WER | test WER | against the usual one |", "|---|---|---|---|"]
    for title, folder in systems:
        if not (folder / "result.json").exists():
            continue
        found = Evaluation.read(folder)
        versus = "-" if folder == usual else _versus(usual, folder, found.split)
        rates = f"{found.dev.errors.rate:.1%} | {found.score.errors.rate:.1%}"
        lines.append(f"| {title} | {rates} | {versus} |")
    words = Evaluation.read(usual).score.errors.words
    text = "\n".join(lines) + f"\n\n{words:,} words to test; paired bootstrap, 95 %; one seed.\n"
    (out / "table.md").write_text(text)
    return text


def _versus(usual: Path, folder: Path, split: str) -> str:
    refs = read_text(usual / f"{split}.ref")
    first, second = (read_text(one / f"{split}.hyp") for one in (usual, folder))
    found = compare(refs, first, second)
    return f"{found.difference:+.1%} [{found.low:+.1%}, {found.high:+.1%}]"


if __name__ == "__main__":
    sys.exit(main())
