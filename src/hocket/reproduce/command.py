"""`hocket reproduce`: list the claims, run one, print its table and its verdict."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from rich.table import Table

from hocket import config
from hocket.core.limits import MOST_PROCESSES
from hocket.errors import ConfigError, require
from hocket.reproduce import all_claims, execute, find, headlines, writing
from hocket.reproduce.claim import Bench, Claim, Run
from hocket.reproduce.tasks import EVALUATIONS, FEW_EVALUATIONS, LR, SIZES, SYNTHETIC, Scale, Size
from hocket.reproduce.writing import Report
from hocket.speech.chunk_task import SpeechChunks
from hocket.speech.task import SpeechTask
from hocket.support import text
from hocket.support.files import write_atomically
from hocket.support.parallel import default_jobs
from hocket.support.progress import printer, progress

UNFINISHED: Final = 3  # exit status: runs are missing, call again
WIDE: Final = 160  # columns of a table that is not for a terminal

_EXAMPLES = """\
examples:
  hocket reproduce --list
  hocket reproduce --headlines                 # published, ours, verdicts
  hocket reproduce k-sweep --quick             # at most 3 minutes, a first look
  hocket reproduce k-sweep                     # in full: hundreds of runs
  hocket reproduce k-sweep --task exp/sweep    # ... on a prepared experiment

Finished runs are kept under OUT/cache, by configuration and code version. After
an interruption, or when the limit of minutes is reached, give the same command
again: it continues. The page with the plots is OUT/NAME.html. The full form
also writes docs/results/NAME.md, if there is a folder named docs. With --task,
the folder's name is added: NAME-sweep.html.
"""


def add_command(commands: Any) -> None:
    """Describe the command to the parser."""
    command = commands.add_parser(
        "reproduce",
        help="try a published claim: runs, table, verdict",
        description="Try a published claim and print the verdict, with intervals: holds, does\n"
        "not hold, or inconclusive.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = command.add_argument
    add("name", nargs="?", metavar="NAME", help="the claim (see --list)")
    add("--list", action="store_true", help="list the claims")
    add(
        "--headlines",
        action="store_true",
        help="list what the literature claims, with our figures; writes docs/results/README.md",
    )
    size = command.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="small task, few seeds: takes minutes")
    size.add_argument(
        "--smoke", action="store_true", help="tiny task, no verdict: only checks that it runs"
    )
    add("--task", metavar="DIR", help="a folder made by `hocket prepare`, 'stream' or 'synthetic'")
    add(
        "--config",
        type=Path,
        metavar="FILE",
        help="TOML file with [task], [model], the rate and the epochs",
    )
    add("--lr", type=float, metavar="X", help="a good sequential rate for that task")
    add("--epochs", type=int, metavar="N", help="epochs of every run")
    add(
        "--seeds",
        type=int,
        metavar="N",
        help="seeds that judge, beside the one that tunes (default: 5; 3 with --quick)",
    )
    add(
        "--out",
        type=Path,
        default=Path("runs/reproduce"),
        metavar="DIR",
        help="default: %(default)s",
    )
    add(
        "--jobs",
        type=int,
        default=default_jobs(),
        metavar="N",
        help="runs at a time (default: %(default)s)",
    )
    add(
        "--minutes",
        type=float,
        default=60.0,
        metavar="M",
        help="start no run after M minutes (default: %(default)s)",
    )


def run(args: argparse.Namespace) -> int:
    """List the claims or try one."""
    if args.list:
        _list()
        return 0
    if args.headlines:
        _headlines()
        return 0
    if args.name is None:
        raise ConfigError("name the claim to try, or use --list to see them all")
    require(
        1 <= args.jobs <= MOST_PROCESSES,
        f"--jobs must be at least 1 and at most {MOST_PROCESSES:,}, not {args.jobs}",
    )
    require(args.minutes > 0, f"--minutes must be above 0, not {args.minutes}")
    claim = find(args.name)
    bench = bench_of(claim, args)
    runs = claim.runs(bench)
    missing = _execute(claim, runs, args)
    report = _report(claim, bench, runs, missing, args)
    _show(report)
    _write(report, args)
    return UNFINISHED if missing else 0


def _list() -> None:
    """Print each claim's name, what is claimed, and by which paper."""
    claims = all_claims()
    column = max(map(len, claims)) + 2
    for claim in claims.values():
        print(text.entry(claim.name, [f"{claim.claim}.", f"Paper: {claim.paper}"], column) + "\n")
    print("Try one: hocket reproduce NAME --quick")


def _headlines() -> None:
    """Print what the literature claims beside what we found, and write the page if it has one."""
    results = Path("docs/results")
    page = headlines.page(results)
    print(page)
    if results.parent.is_dir():
        results.mkdir(exist_ok=True)
        write_atomically(results / "README.md", page)
        print(f"written: {results / 'README.md'}")


# ---------------------------------------------------------------------------- the bench


def bench_of(claim: Claim, args: argparse.Namespace) -> Bench:
    """Make the bench: task, epochs, seeds and rate, from the options."""
    scale: Scale = "smoke" if args.smoke else "quick" if args.quick else "full"
    size = _size(claim, scale, args)
    bench = Bench(scale, size.task, size.epochs, tuple(range(1 + size.judges)), LR)
    if args.config is not None or args.task not in (None, "stream", "synthetic"):
        bench = _with_task(bench, args)
    for option in ("lr", "epochs", "seeds"):
        given = getattr(args, option)
        require(given is None or given > 0, f"--{option} must be above 0, not {given}")
    return replace(
        bench,
        lr=args.lr or bench.lr,
        epochs=args.epochs or bench.epochs,
        seeds=tuple(range(1 + args.seeds)) if args.seeds else bench.seeds,
    )


def _size(claim: Claim, scale: Scale, args: argparse.Namespace) -> Size:
    """Return the task that was named, or the claim's own."""
    named = {"stream": SIZES, "synthetic": SYNTHETIC}
    return named[args.task][scale] if args.task in named else claim.size(scale)


def _with_task(bench: Bench, args: argparse.Namespace) -> Bench:
    """Take the task from the command line, and rate and epochs from its configuration."""
    given = config.read(args.config) if args.config else {}
    for name in given:
        require(
            name in ("task", "model", "optimizer", "schedule"),
            f"--config: [{name}] has no effect here: the claim decides it",
        )
    model = given.get("model", {}).get("name")
    tables = config.defaults(args.task, model=model) if args.task is not None else {}
    config.merge(tables, given)
    if args.task is not None:
        tables.setdefault("task", {}).update(config.task_table(args.task))
    parts = config.build_parts(tables)
    speech = isinstance(parts["task"], SpeechTask | SpeechChunks)
    return replace(
        bench,
        task=parts["task"],
        lr=parts["optimizer"].lr if "optimizer" in tables else bench.lr,
        epochs=parts["schedule"].epochs if "schedule" in tables else bench.epochs,
        evaluations=FEW_EVALUATIONS if speech else EVALUATIONS,
    )


# ---------------------------------------------------------------------------- running


def _execute(claim: Claim, runs: Sequence[Run], args: argparse.Namespace) -> int:
    store = args.out / "cache"
    store.mkdir(parents=True, exist_ok=True)
    planned = execute.planned(runs, store)
    unique = list({execute.folder(store, r): r for r in planned}.values())
    ahead = [r for r in unique if execute.known(store, r) is None]
    known = len(unique) - len(ahead)
    plan = f"{claim.name}: {len(unique)} runs" + (f", {known} of them known" if known else "")
    if ahead:
        plan += f"; about {_duration(execute.expected_s(ahead, args.jobs))} on this machine"
    print(plan, file=sys.stderr, flush=True)
    with progress(claim.name, len(ahead), unit="runs", wanted=bool(ahead)) as advance:
        return execute.execute(
            runs, store, jobs=args.jobs, limit_s=60 * args.minutes, advance=advance
        )


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} minutes"


def _report(
    claim: Claim, bench: Bench, runs: Sequence[Run], missing: int, args: argparse.Namespace
) -> Report:
    store = args.out / "cache"
    found = execute.collect(runs, store, claim.margin)
    judged = not missing and bench.scale != "smoke"
    checks = claim.judge(found, bench) if judged else []
    return Report(claim, bench, found, checks, command_line(args), missing)


def command_line(args: argparse.Namespace) -> str:
    """Return the command that makes this report again."""
    words = ["hocket", "reproduce", args.name]
    words += [f"--{flag}" for flag in ("quick", "smoke") if getattr(args, flag)]
    for option in ("task", "config", "lr", "epochs", "seeds"):
        if getattr(args, option) is not None:
            words += [f"--{option}", str(getattr(args, option))]
    return shlex.join(words)


def _show(report: Report) -> None:
    console = printer(width=None if sys.stdout.isatty() else WIDE)
    table = Table(title=report.claim.claim)
    for number, heading in enumerate(report.headings):
        table.add_column(heading, justify="right" if number else "left")
    for row in report.rows:
        table.add_row(*row)
    console.print(table)
    for line in [writing.legend(report), *report.notes, *writing.grid(report)]:
        console.print(line)
    for check in report.checks:
        console.print(f"- {check.statement}: {check.judgement} ({check.detail})")
    console.print(f"verdict: {report.verdict}", style="bold")
    if report.missing:
        console.print(f"time is up; go on with: {report.command}")


def _write(report: Report, args: argparse.Namespace) -> None:
    name = report.claim.name if args.task is None else f"{args.name}-{Path(args.task).name}"
    path = args.out / f"{name}.html"
    write_atomically(path, writing.page(report))
    written = [path]
    results = Path("docs/results")
    if report.bench.scale == "full" and not report.missing and results.parent.is_dir():
        results.mkdir(exist_ok=True)
        written += _record(report, results, name)
    print("written: " + ", ".join(map(str, written)))


def _record(report: Report, results: Path, name: str) -> list[Path]:
    """Write the page for docs/results and its plots."""
    markdown, files = writing.markdown(report), []
    drawn = report.claim.plots(report.found, report.bench)
    if report.claim.keeps_curves:
        drawn += writing.all_curves(report)
    for number, svg in enumerate(drawn, 1):
        plot = results / f"{name}-{number}.svg"
        write_atomically(plot, writing.standalone(svg))
        markdown += f"\n![]({plot.name})\n"
        files.append(plot)
    page = results / f"{name}.md"
    write_atomically(page, markdown)
    return [page, *files]
