"""One table of all methods, by one command: every strategy on `sweep`, the best few on `assistant`.

    python recipes/table.py --tasks exp --out results            # all of it, 2-3 hours on 2 cores
    python recipes/table.py --tasks exp --out results --only sweep --seeds 1 --epochs 1

Makes the tasks if they are not there, trains every strategy that this version has with every seed
(on `assistant`, six times as large, with one), decodes, and writes OUT/table.md. What is done is
kept: an interrupted call goes on. Strategies that need several learners run in the simulator on as
many equal learners: every frame is computed once, so the models are those of real learners and the
times are the cluster's.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

import hocket
from hocket import config
from hocket.cli.recipe import Recipe
from hocket.errors import DivergedError, HocketError
from hocket.report.runs import read_errors, read_run
from hocket.speech.decode.decoding import Search
from hocket.speech.decode.recognition import decode_run
from hocket.strategies import STRATEGIES
from hocket.support.parallel import default_jobs, ordered_map
from hocket.support.progress import progress

HERE = Path(__file__).parent
BEST = 3  # strategies, beside the sequential one, that go on to `assistant`


@dataclass(frozen=True)
class Row:
    """One strategy on one task, over its seeds."""

    strategy: str
    learners: int
    losses: tuple[float, ...]
    accuracies: tuple[float, ...]
    rates: tuple[float, ...]
    frames_per_s: float

    def cells(self, base: Row) -> list[str]:
        """The row of the table."""
        return [
            f"`{self.strategy}`",
            str(self.learners),
            f"{self.frames_per_s / base.frames_per_s:.1f}",
            _spread(self.losses, "{:.3f}"),
            _spread(self.accuracies, "{:.1%}"),
            _spread(self.rates, "{:.1%}"),
        ]


def _spread(values: tuple[float, ...], form: str) -> str:
    middle = form.format(mean(values))
    return f"{middle} ± {form.format(stdev(values))}" if len(values) > 1 else middle


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


@dataclass(frozen=True)
class Piece:
    """One run: trained and decoded by one process with one thread."""

    task: Path
    folder: Path
    strategy: str
    learners: int
    seed: int
    epochs: int | None


def run_one(piece: Piece) -> str | None:
    """Train and decode one run, unless it is there; return why it diverged, if it did."""
    if not _ended(piece.folder):
        schedule = config.defaults(str(piece.task)).get("schedule", {})
        if piece.epochs is not None:
            schedule["epochs"] = piece.epochs
        try:
            result = hocket.simulate(
                str(piece.task),
                strategy=piece.strategy,
                cluster=piece.learners,
                schedule=schedule,
                seed=piece.seed,
                out=piece.folder,
                resume=any((piece.folder / "checkpoints").glob("[0-9]*")),
                progress=False,
            )
        except DivergedError as error:  # a result, too
            return str(error)
        if result.stopped:  # by Ctrl-C, with a checkpoint
            raise KeyboardInterrupt
    if not (piece.folder / "decode" / "result.json").exists():
        decode_run(piece.folder, split="test", jobs=1, search=Search(), show=False)
    return None


def _ended(folder: Path) -> bool:
    """True if a run came to its end; one that was stopped has a model, too."""
    if not (folder / "model.safetensors").exists():
        return False
    return not read_run(folder).summary["stopped"]


def row_of(folders: list[Path], strategy: str, learners: int) -> Row:
    """Gather the results of one strategy's runs."""
    runs = [read_run(folder) for folder in folders]
    rates = [run.errors.rate for run in runs if run.errors is not None]
    return Row(
        strategy,
        learners,
        tuple(float(run.summary["loss"]) for run in runs),
        tuple(float(run.summary["accuracy"]) for run in runs),
        tuple(rates),
        mean(run.frames_per_s for run in runs),
    )


def table(title: str, rows: list[Row], gmm: float) -> str:
    """Markdown."""
    base = next(row for row in rows if row.strategy == "sequential")
    head = ["strategy", "P", "frames/s, relative", "dev loss", "frame accuracy", "WER"]
    lines = [f"### {title}", "", " | ".join(head), "|".join(["---"] * len(head))]
    lines += [" | ".join(row.cells(base)) for row in rows]
    lines.append(" | ".join(["GMM-HMM", "-", "-", "-", "-", f"{gmm:.1%}"]))
    return "\n".join(lines) + "\n"


def one_task(name: str, args: argparse.Namespace, strategies: list[str], seeds: int) -> list[Row]:
    """Make a task, run all strategies on it, and write its part of the table."""
    task = args.tasks / name
    recipe_of(name).make(task)
    pieces = [
        piece_of(task, args.out / name, strategy, seed, args)
        for strategy in strategies
        for seed in range(seeds)
    ]
    ends: list[str | None] = []
    with progress(name, float(len(pieces)), unit="runs") as advance:
        for end in ordered_map(run_one, pieces, jobs=args.jobs, what=f"running {name}"):
            ends.append(end)
            advance(1.0)
    failed = {p.strategy: why for p, why in zip(pieces, ends, strict=True) if why is not None}
    rows = []
    for strategy in strategies:
        mine = [piece for piece in pieces if piece.strategy == strategy]
        if strategy not in failed:
            rows.append(row_of([p.folder for p in mine], strategy, mine[0].learners))
    gmm = read_errors(task / "gmm" / "result.json")
    title = f"`recipes/{name}`, {seeds} seed{'s' * (seeds > 1)}"
    text = table(title, rows, gmm.rate if gmm else float("nan"))
    text += "".join(f"\n`{strategy}` diverged: {why}\n" for strategy, why in failed.items())
    (args.out / f"{name}.md").write_text(text)
    return rows


def piece_of(task: Path, out: Path, strategy: str, seed: int, args: argparse.Namespace) -> Piece:
    """Name one run."""
    learners = learners_of(strategy, args.learners)
    folder = out / f"{strategy}-{learners}-seed{seed}"
    return Piece(task, folder, strategy, learners, seed, args.epochs)


def best_of(rows: list[Row]) -> list[str]:
    """The sequential strategy, and the ones with the lowest dev loss."""
    others = sorted((r for r in rows if r.strategy != "sequential"), key=lambda r: mean(r.losses))
    return ["sequential", *(row.strategy for row in others[:BEST])]


def main() -> int:
    """Make the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--tasks", type=Path, required=True, metavar="DIR", help="where the tasks are, or will be")
    add("--out", type=Path, required=True, metavar="DIR", help="for the runs and the table")
    add("--learners", type=int, default=8, metavar="P", help="(8)")
    add("--jobs", type=int, default=default_jobs(), metavar="N", help="runs at once (%(default)s)")
    add("--seeds", type=int, default=3, metavar="N", help="on `sweep` (3)")
    add("--only", choices=["sweep"], help="leave `assistant` out")
    add("--strategies", metavar="NAMES", help="with commas (default: all)")
    add("--epochs", type=int, metavar="N", help="for a trial: other than the recipe's")
    args = parser.parse_args()
    chosen = args.strategies.split(",") if args.strategies else list(STRATEGIES)
    strategies = list(dict.fromkeys(["sequential", *chosen]))
    args.out.mkdir(parents=True, exist_ok=True)
    try:
        for name in strategies:
            config.choose(STRATEGIES, {"name": name}, "strategy", "")
        rows = one_task("sweep", args, strategies, args.seeds)
        if args.only is None:
            one_task("assistant", args, best_of(rows), seeds=1)
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
