"""One table of all methods, by one command: every strategy on `sweep`, the best few on `assistant`.

    python recipes/table.py --tasks exp --out results            # all of it, many hours on 2 cores
    python recipes/table.py --tasks exp --out results --only sweep --seeds 1 --epochs 1 --budget-s 0

Makes the tasks if they are not there and trains every strategy that this version has. Each is tuned
alike: one seed tries the rate at 0.5, 1 and 2 times the recipe's and, where a method has one, two K
(a quarter of its default, and its default); other seeds train at what was best for that one, are
decoded, and make the table. OUT/table.md has two parts for `sweep`:

- equal frames: dev loss, accuracy and WER after as many frames as the sequential run, and the time
  to its dev loss (plus 1 %), so the speed-up to it;
- equal time: every method gets as many frames as it can in the time of a sequential run, by its
  throughput. A run may cost --budget-s seconds of one core (60); frames beyond that are cut, which
  the table says. The sequential run is as short as that asks for, but at least an epoch.

On `assistant`, six times as large, the best few train with one seed at the settings of `sweep`.
What is done is kept: an interrupted call goes on. Strategies that need several learners run in the
simulator on as many equal learners: every frame is computed once, so the models are those of real
learners and the times are the cluster's.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import hocket
from hocket import config
from hocket.cli.recipe import Recipe
from hocket.errors import DivergedError, HocketError
from hocket.record.rundir import RunDirectory, result_path
from hocket.report.runs import RunRecord, read_errors, read_run
from hocket.speech.decode.decoding import Search
from hocket.speech.decode.recognition import decode_run
from hocket.strategies import STRATEGIES
from hocket.support.parallel import default_jobs, ordered_map
from hocket.support.progress import progress

HERE = Path(__file__).parent
BEST = 3  # strategies, beside the sequential one, that go on to `assistant`
FACTORS = (0.5, 1.0, 2.0)  # of the recipe's rate
MARGIN = 0.01  # the sequential loss is reached within so much of it
EVALUATE_EVERY = 0.2  # epochs: times to a loss are no finer


def recipe_of(name: str) -> Recipe:
    """Read a recipe's file."""
    spec = importlib.util.spec_from_file_location(f"recipe_{name}", HERE / name / "prepare.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    recipe: Recipe = module.RECIPE
    return recipe


def learners_of(strategy: str, wanted: int) -> int:
    """As many learners as wanted, or as the strategy takes."""
    most = STRATEGIES[strategy].max_learners
    return wanted if most is None else min(wanted, most)


# ---------------------------------------------------------------------------- runs


@dataclass(frozen=True)
class Piece:
    """One run: trained, and decoded if it is shown, by one process with one thread."""

    task: Path
    out: Path
    strategy: str
    learners: int
    seed: int
    epochs: int
    factor: float = 1.0  # of the recipe's rate
    k: int | None = None  # minibatches between two averages
    decode: bool = True

    @property
    def setting(self) -> str:
        """What was tuned, as the table says it."""
        if not STRATEGIES[self.strategy].uses_rate:
            return "no rate"
        return ", ".join([f"rate x {self.factor:g}", *([f"K {self.k}"] if self.k else [])])

    @property
    def folder(self) -> Path:
        """Where it is kept."""
        k = f"-k{self.k}" if self.k else ""
        name = f"{self.strategy}-{self.learners}-x{self.factor:g}{k}"
        return self.out / f"{name}-epochs{self.epochs}-seed{self.seed}"


def settings(piece: Piece) -> list[Piece]:
    """The grid of a method: the same for all that have a K, and for all that have none."""
    usual = getattr(STRATEGIES[piece.strategy](), "sync_every", None)
    ks: list[int | None] = [None] if usual is None else [max(1, usual // 4), usual]
    factors = FACTORS if STRATEGIES[piece.strategy].uses_rate else (1.0,)
    return [replace(piece, factor=factor, k=k) for k in dict.fromkeys(ks) for factor in factors]


def run_one(piece: Piece) -> str | None:
    """Train one run, unless it is there; return why it diverged, if it did."""
    gone = piece.folder / "diverged.txt"
    if gone.exists():
        return gone.read_text()
    if not _ended(piece.folder):
        began = time.perf_counter()
        try:
            result = hocket.simulate(str(piece.task), **_asked(piece))
        except DivergedError as error:  # a result, too
            piece.folder.mkdir(parents=True, exist_ok=True)
            gone.write_text(str(error))
            return str(error)
        if result.stopped:  # by Ctrl-C, with a checkpoint
            raise KeyboardInterrupt
        (piece.folder / "cost_s.txt").write_text(f"{time.perf_counter() - began:.3f}\n")
    if piece.decode and not result_path(RunDirectory(piece.folder).decode_path).exists():
        decode_run(piece.folder, split="test", jobs=1, search=Search(), show=False)
    return None


def _asked(piece: Piece) -> dict[str, Any]:
    """The arguments of `hocket.simulate`."""
    tables = config.defaults(str(piece.task))
    strategy = {"name": piece.strategy} | ({"sync_every": piece.k} if piece.k else {})
    rate: dict[str, Any] = {"schedule": {"epochs": piece.epochs}}
    if STRATEGIES[piece.strategy].uses_rate:
        rate = {
            "optimizer": {"lr": piece.factor * tables["optimizer"]["lr"]},
            "schedule": {**tables.get("schedule", {}), "epochs": piece.epochs},
        }
    return {
        "strategy": strategy,
        "cluster": piece.learners,
        **rate,
        "seed": piece.seed,
        "evaluate_every": EVALUATE_EVERY,
        "out": piece.folder,
        "resume": any((piece.folder / "checkpoints").glob("[0-9]*")),
        "progress": False,
    }


def _ended(folder: Path) -> bool:
    """True if a run came to its end; one that was stopped has a model, too."""
    if not (folder / "model.safetensors").exists():
        return False
    return not read_run(folder).summary["stopped"]


def run_all(name: str, pieces: Sequence[Piece], jobs: int) -> dict[Piece, str | None]:
    """Run what is missing; return why runs diverged, None for those that did not."""
    ends: dict[Piece, str | None] = {}
    with progress(name, float(len(pieces)), unit="runs") as advance:
        runs = ordered_map(run_one, pieces, jobs=jobs, what=f"running {name}")
        for piece, end in zip(pieces, runs, strict=True):
            ends[piece] = end
            advance(1.0)
    return ends


def tuned(name: str, pieces: Sequence[Piece], jobs: int) -> list[Piece]:
    """Return every method at the setting that is best for the tuning seed."""
    tried = [replace(p, decode=False) for piece in pieces for p in settings(piece)]
    ends = run_all(f"{name}, tuning", tried, jobs)

    def loss(piece: Piece) -> float:
        return math.inf if ends[piece] else float(read_run(piece.folder).summary["loss"])

    best = [min((t for t in tried if t.strategy == p.strategy), key=loss) for p in pieces]
    return [replace(piece, decode=True) for piece in best]


# ---------------------------------------------------------------------------- rows


@dataclass(frozen=True)
class Row:
    """One method over the seeds that judge."""

    piece: Piece
    runs: tuple[RunRecord, ...]  # of equal frames, or of equal time
    longer: tuple[RunRecord, ...] = ()  # of the same seeds, with more frames
    note: str = ""

    @property
    def losses(self) -> list[float]:
        """The final dev loss of every seed."""
        return [float(run.summary["loss"]) for run in self.runs]

    @property
    def frames_per_s(self) -> float:
        """Throughput."""
        return mean(run.frames_per_s for run in self.runs)

    def time_to(self, losses: Sequence[float]) -> float:
        """Return the mean time to a dev loss of each seed, at the better number of frames."""
        both = zip(self.runs, self.longer or self.runs, losses, strict=True)
        return mean(min(run.time_to(x) or math.inf for run in (one, two)) for one, two, x in both)

    def figures(self) -> list[str]:
        """Dev loss, accuracy and word error rate."""
        return [
            _spread(self.losses, "{:.3f}"),
            _spread([float(run.summary["accuracy"]) for run in self.runs], "{:.1%}"),
            _spread([run.errors.rate for run in self.runs if run.errors is not None], "{:.1%}"),
        ]


def _spread(values: Sequence[float], form: str) -> str:
    middle = form.format(mean(values))
    return f"{middle} ± {form.format(stdev(values))}" if len(values) > 1 else middle


def rows_of(
    pieces: Sequence[Piece], seeds: Sequence[int], ends: dict[Piece, str | None]
) -> list[Row]:
    """Gather the runs of every method that did not diverge with any seed."""
    rows = []
    for piece in pieces:
        mine = [replace(piece, seed=seed) for seed in seeds]
        if not any(ends[p] for p in mine):
            rows.append(Row(piece, tuple(read_run(p.folder) for p in mine)))
    if not rows or rows[0].piece.strategy != "sequential":
        raise HocketError("the sequential run diverged: there is nothing to compare with")
    return rows


def cost_s(row: Row) -> float:
    """Return the seconds of one core that a run of a row took, evaluation included."""
    return mean(float((run.path / "cost_s.txt").read_text()) for run in row.runs)


# ---------------------------------------------------------------------------- the tables


def equal_frames(title: str, rows: Sequence[Row], gmm: float) -> str:
    """Markdown: the same data for all, and the time to the sequential loss."""
    base = rows[0]
    targets = [(1 + MARGIN) * loss for loss in base.losses]  # the same seed: the same first model
    alone = base.time_to(targets)
    head = ["strategy", "P", "tuned", "throughput", "time to seq. loss s", "speed-up"]
    lines = _head(title, [*head, "dev loss", "frame accuracy", "WER"])
    for row in rows:
        at = row.time_to(targets)
        reached = [f"{at:.1f}", f"{alone / at:.1f}"] if math.isfinite(at) and at else ["-", "-"]
        fast = f"{row.frames_per_s / base.frames_per_s:.1f}"
        lines.append(" | ".join([*_named(row), row.piece.setting, fast, *reached, *row.figures()]))
    lines.append(" | ".join(["GMM-HMM", *["-"] * 7, f"{gmm:.1%}"]))
    return "\n".join(lines) + "\n"


def equal_time(title: str, rows: Sequence[Row]) -> str:
    """Markdown: as many frames as fit into the time of the sequential run."""
    head = ["strategy", "P", "tuned", "frames, relative", "dev loss", "frame accuracy", "WER"]
    lines = _head(title, head)
    base = rows[0].runs[0].summary["frames"]
    for row in rows:
        share = f"{row.runs[0].summary['frames'] / base:.1f}{row.note}"
        lines.append(" | ".join([*_named(row), row.piece.setting, share, *row.figures()]))
    return "\n".join(lines) + "\n"


def _named(row: Row) -> list[str]:
    return [f"`{row.piece.strategy}`", str(row.piece.learners)]


def _head(title: str, names: Sequence[str]) -> list[str]:
    return [f"### {title}", "", " | ".join(names), "|".join(["---"] * len(names))]


LEGEND = """
Every method is tuned alike: one seed tries {rates} times the recipe's rate and, where a method
has one, two K; {seeds} other seed{s} at its best setting make the figures (± standard deviation).
Time to the sequential loss: until the dev loss is within {margin:.0%} of that at which
`sequential` ends with the same seed, with whichever number of frames gets there first; the speed-up
is the ratio of these times, `-` if a seed never gets there. Throughput: frames per second, relative
to `sequential`.
"""


def legend(seeds: int) -> str:
    """Say how the figures came about."""
    rates = ", ".join(f"{f:g}" for f in FACTORS)
    return LEGEND.format(rates=rates, seeds=seeds, s="s" * (seeds > 1), margin=MARGIN)


# ---------------------------------------------------------------------------- a task


def one_task(name: str, args: argparse.Namespace, chosen: Sequence[Piece] | None) -> list[Row]:
    """Make a task, run all methods on it, and write its part of the table."""
    task = args.tasks / name
    recipe_of(name).make(task)
    epochs = args.epochs or config.defaults(str(task))["schedule"]["epochs"]
    seeds = range(1, 1 + (args.seeds if chosen is None else 1))  # 0 tunes
    if chosen is None:
        usual = [
            Piece(task, args.out / name, s, learners_of(s, args.learners), 0, epochs)
            for s in args.chosen
        ]
        best = tuned(name, usual, args.jobs)
    else:
        best = [replace(p, task=task, out=args.out / name, epochs=epochs) for p in chosen]
    judged = [replace(piece, seed=seed) for piece in best for seed in seeds]
    ends = run_all(name, judged, args.jobs)
    rows = rows_of(best, seeds, ends)
    later: list[Row] = []
    more = ""
    if chosen is None and args.budget_s > 0:
        later, more = in_equal_time(name, rows, seeds, args)
    gmm = read_errors(task / "gmm")
    title = f"`recipes/{name}`, equal frames, {len(seeds)} seed{'s' * (len(seeds) > 1)}"
    text = equal_frames(title, with_longer(rows, later), gmm.rate if gmm else math.nan)
    text += legend(len(seeds)) + more
    failed = {p.strategy: why for p, why in ends.items() if why}
    text += "".join(f"\n`{strategy}` diverged: {why}\n" for strategy, why in failed.items())
    (args.out / f"{name}.md").write_text(text)
    return rows


def with_longer(rows: Sequence[Row], later: Sequence[Row]) -> list[Row]:
    """Let runs with more frames count for the time to the sequential loss, too."""
    runs = {row.piece.strategy: row for row in later}
    found = []
    for row in rows:
        other = runs.get(row.piece.strategy)
        longer = other is not None and other.piece.epochs > row.piece.epochs
        found.append(replace(row, longer=other.runs) if other and longer else row)
    return found


def in_equal_time(
    name: str, rows: Sequence[Row], seeds: Sequence[int], args: argparse.Namespace
) -> tuple[list[Row], str]:
    """Run every method for the time of a sequential run; return the rows and their table."""
    base = rows[0]
    affordable = args.budget_s / (cost_s(base) / base.piece.epochs)  # epochs
    alone = min(base.piece.epochs, max(1, int(affordable / args.learners)))
    pieces, notes = [], {}
    for row in rows:
        fair = max(1, round(alone * row.frames_per_s / base.frames_per_s))
        cut = max(alone, min(fair, int(affordable)))
        pieces.append(replace(row.piece, epochs=cut))
        notes[row.piece.strategy] = f" (of {fair / alone:.1f})" if cut < fair else ""
    runs = [replace(piece, seed=seed) for piece in pieces for seed in seeds]
    ends = run_all(f"{name}, equal time", runs, args.jobs)
    found = [replace(row, note=notes[row.piece.strategy]) for row in rows_of(pieces, seeds, ends)]
    title = f"`recipes/{name}`, the time of a sequential run of {alone} epoch{'s' * (alone > 1)}"
    text = "\n" + equal_time(title, found)
    if any(notes.values()):
        text += (
            "\n(of N): the time allows for N times the frames, but the run would cost more than "
            f"{args.budget_s:g} s of one core here.\n"
        )
    return found, text


def best_of(rows: Sequence[Row]) -> list[Piece]:
    """The sequential strategy, and the ones with the lowest dev loss."""
    others = sorted(rows[1:], key=lambda row: mean(row.losses))
    return [rows[0].piece, *(row.piece for row in others[:BEST])]


def parsed() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--tasks", type=Path, required=True, metavar="DIR", help="where the tasks are, or will be")
    add("--out", type=Path, required=True, metavar="DIR", help="for the runs and the table")
    add("--learners", type=int, default=8, metavar="P", help="(8)")
    add("--jobs", type=int, default=default_jobs(), metavar="N", help="runs at once (%(default)s)")
    add(
        "--seeds",
        type=int,
        default=3,
        metavar="N",
        help="beside the one that tunes, on `sweep` (3)",
    )
    add("--only", choices=["sweep"], help="leave `assistant` out")
    add("--strategies", metavar="NAMES", help="with commas (default: all)")
    add("--epochs", type=int, metavar="N", help="for a trial: other than the recipe's")
    add(
        "--budget-s",
        type=float,
        default=60.0,
        metavar="S",
        help="most that a run of equal time may cost, in seconds of a core (60); 0: leave them out",
    )
    return parser.parse_args()


def main() -> int:
    """Make the table."""
    args = parsed()
    named = args.strategies.split(",") if args.strategies else list(STRATEGIES)
    args.chosen = list(dict.fromkeys(["sequential", *named]))
    args.out.mkdir(parents=True, exist_ok=True)
    try:
        for name in args.chosen:
            config.choose(STRATEGIES, {"name": name}, "strategy", "")
        rows = one_task("sweep", args, None)
        if args.only is None:
            one_task("assistant", args, best_of(rows))
    except HocketError as error:
        print(f"table: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("table: stopped; the same command goes on", file=sys.stderr)
        return 130
    parts = [
        p.read_text() for p in (args.out / "sweep.md", args.out / "assistant.md") if p.exists()
    ]
    (args.out / "table.md").write_text("\n".join(parts))
    print((args.out / "table.md").read_text())
    (args.out / "arguments.json").write_text(json.dumps(vars(args), default=str))
    return 0


if __name__ == "__main__":
    sys.exit(main())
