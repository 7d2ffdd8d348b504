"""What an experiment leaves: a table, a page with plots, a page for docs/results."""

from __future__ import annotations

import math
import os
import platform
import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from statistics import fmean
from typing import Final

import torch

import hocket
from hocket.report import charts
from hocket.report.charts import COLOURS, Series
from hocket.report.page import STYLE, document
from hocket.reproduce import statistics
from hocket.reproduce.checks import Check, overall
from hocket.reproduce.claim import Bench, Claim
from hocket.reproduce.outcome import SEQUENTIAL, Arm, Found, Outcome

NUMBER: Final = re.compile(r"[0-9.]+(?:e[+-]?[0-9]+)?")
MAX_CURVES: Final = len(COLOURS)  # in one drawing
REACHED: Final = ("frames to it", "time to it s", "speed-up")  # "it": the sequential loss
JUDGED: Final = "One seed tunes, the others judge"  # pages without it are the earlier judge's


@dataclass(frozen=True)
class Figure:
    """A column of the table."""

    heading: str
    of: Callable[[Outcome], float]
    digits: int = 3
    scale: float = 1.0


FIGURES: Final = {
    "loss": Figure("dev loss", lambda o: o.loss, 4),
    "error": Figure("frame error %", lambda o: o.error, 2, 100),
    "time_s": Figure("time s", lambda o: o.time_s, 2),
    "frames_per_s": Figure("throughput, frames/s", lambda o: o.frames_per_s, 0),
    "bytes_sent": Figure("sent MB", lambda o: float(o.bytes_sent), 1, 1e-6),
    "utilisation": Figure("computing %", lambda o: o.utilisation, 0, 100),
    "discarded_frames": Figure("discarded", lambda o: float(o.discarded_frames), 0),
    "consensus": Figure("apart %", lambda o: o.consensus, 3, 100),
    "staleness": Figure("staleness", lambda o: o.staleness, 2),
    "products": Figure("products", lambda o: _products(o), 0),
    "rate_share": Figure("rate %", lambda o: o.rate_share, 0, 100),
    "wer": Figure("WER %", lambda o: o.wer, 2, 100),
}


def _products(outcome: Outcome) -> float:
    """Return the curvature products of a run; 0 for a method without."""
    return (outcome.curve[-1].products or 0.0) if outcome.curve else 0.0


@dataclass(frozen=True)
class Report:
    """A claim with its outcomes, checks and plots: what the table and the pages are made of."""

    claim: Claim
    bench: Bench
    found: Found
    checks: Sequence[Check]
    command: str
    missing: int  # runs not done yet

    @property
    def verdict(self) -> str:
        """The verdict, or the reason why there is none yet."""
        if self.missing:
            return f"none yet: {self.missing} runs are missing"
        return "none: a smoke test" if self.bench.scale == "smoke" else overall(self.checks)

    @property
    def notes(self) -> list[str]:
        """What a reader of the table must know; nothing as long as runs are missing."""
        return [] if self.missing else self.claim.notes(self.found, self.bench)

    @property
    def figures(self) -> list[Figure]:
        """What the table shows of every arm's runs, beside the dev loss."""
        timed = self.found.has_sequential  # then the time to a loss says more than that of a run
        own = [n for n in self.claim.figures if n != "loss" and not (timed and n == "time_s")]
        share = ["rate_share"] if timed else []
        more = ["wer"] if self.found.has_wer else []
        return [FIGURES[name] for name in (*share, *own, *more)]

    @property
    def headings(self) -> list[str]:
        """The columns of the table."""
        tuned = ["best of"] if len(_settings(self.found)) > 1 else []
        reached = REACHED if self.found.has_sequential else ()
        others = (figure.heading for figure in self.figures)
        return ["arm", *tuned, "seeds", FIGURES["loss"].heading, *reached, *others]

    @property
    def rows(self) -> list[list[str]]:
        """The cells of the table."""
        return [self._row(arm) for arm in self.claim.shown(self.found)]

    def _row(self, arm: Arm) -> list[str]:
        grid = self.found.settings(arm.name)
        tuned = [_best_of(arm, len(grid))] if "best of" in self.headings else []
        failed = f" ({arm.num_diverged} diverged)" if arm.num_diverged else ""
        reached = _reached(self.found, arm) if self.found.has_sequential else []
        figures = [_cell(arm, figure) for figure in self.figures]
        loss = _cell(arm, FIGURES["loss"])
        return [arm.name, *tuned, f"{len(arm.outcomes)}{failed}", loss, *reached, *figures]


def _best_of(arm: Arm, tried: int) -> str:
    return f"{arm.setting} ({tried})" if tried > 1 else arm.setting or "-"


def _reached(found: Found, arm: Arm) -> list[str]:
    """Frames to the sequential loss (as a multiple of sequential SGD's), time to it, speed-up."""
    frames, times = found.frames(arm.name), found.times(arm.name)
    there = sum(map(math.isfinite, times))
    if not times or there < len(times):
        return [f"- ({there} of {len(times)} seeds)" if there else "-", "-", "-"]
    alone = statistics.mean(found.frames(SEQUENTIAL)).value
    up = found.speedup(arm.name)
    return [
        f"{fmean(frames) / alone:.2f} x" if math.isfinite(alone) else "-",
        f"{fmean(times):,.2f}",
        f"{up:.1f}" if math.isfinite(up) else "-",
    ]


def _cell(arm: Arm, figure: Figure) -> str:
    """Mean and, with two seeds or more, half of its interval."""
    found = arm.mean(lambda o: figure.scale * figure.of(o))  # NaN of no runs
    if not math.isfinite(found.value):
        return "-"
    shown = f"{found.value:,.{figure.digits}f}"
    wide = math.isfinite(found.half) and found.half >= 0.5 * 10**-figure.digits
    return f"{shown} ± {found.half:,.{figure.digits}f}" if wide else shown


def markdown(report: Report) -> str:
    """Return the page for docs/results."""
    claim = report.claim
    lines = [
        f"# {claim.name}: {report.verdict}",
        "",
        f"**Claim.** {claim.claim}",
        "",
        f"**Paper.** {claim.paper}",
        "",
        f"**Published.** {claim.published}",
        "",
        f"**What would refute it.** {claim.refuted_by}",
        "",
        *(f"- {c.statement}: **{c.judgement}** ({c.detail})" for c in report.checks),
        "",
        "| " + " | ".join(report.headings) + " |",
        "|" + "---|" * len(report.headings),
        *("| " + " | ".join(row) + " |" for row in report.rows),
        "",
        legend(report),
        *(f"\n{note}" for note in report.notes),
        *grid(report),
        "",
        f"Made by `{report.command}` {made_with()}",
        "",
    ]
    return "\n".join(lines)


def legend(report: Report) -> str:
    """Say what the figures of the table are."""
    clock = "virtual: the simulator's cluster" if _virtual(report) else "real time"
    lines = [
        f"{JUDGED}. Means over the judging seeds, ± half of the 95 % interval (Student); arms are "
        f"compared seed by seed. Time is {clock}."
    ]
    if report.found.has_sequential:
        lines.append(
            'Dev loss after as many frames as sequential SGD; "to it": to the loss of the '
            f"sequential run of the same seed plus {report.claim.margin:.0%}, frames as a multiple "
            "of those that sequential SGD needs, at the best budget"
            + _budgets(report)
            + ". Speed-up: how much sooner than sequential SGD. Rate %: the share of the "
            "sequential rate's integral, after ramp and limit."
        )
    return " ".join(lines)


def _budgets(report: Report) -> str:
    """Name the budgets above 1."""
    found = sorted({run.budget for run in report.claim.runs(report.bench)} - {1.0})
    if not found:
        return ""
    return " (also " + ", ".join(f"{b:.2f}" for b in found) + " times the frames, where tried)"


def _virtual(report: Report) -> bool:
    return all(run.cluster is not None for run in report.claim.runs(report.bench))


def grid(report: Report) -> list[str]:
    """Show what was tuned: the dev loss of every arm at every setting, for the tuning seed."""
    settings = _settings(report.found)
    if len(settings) < 2:
        return []
    lines = ["", "Tuned by the dev loss of the tuning seed, which judges nothing:", ""]
    lines += ["| arm | " + " | ".join(settings) + " |", "|" + "---|" * (len(settings) + 1)]
    for name in report.found.names:
        losses = {arm.setting: arm.tuning_loss for arm in report.found.settings(name) if arm.tuned}
        cells = [f"{losses[s]:.4f}" if s in losses else "" for s in settings]
        if any(cells):
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
    edge = [name for name in report.found.names if _at_the_edge(report.found, name)]
    if edge:
        lines += ["", f"Best at the edge of its grid, perhaps better beyond: {', '.join(edge)}."]
    return lines


def _at_the_edge(found: Found, name: str) -> bool:
    """True if an arm did best at the first or the last of three or more rates, or Ks."""
    settings = [arm.setting.split(", ") for arm in found.settings(name)]
    chosen = found[name].setting.split(", ")
    for part, *values in zip(chosen, *settings, strict=True):
        tried = list(dict.fromkeys(values))
        if len(tried) > 2 and part in (tried[0], tried[-1]):
            return True
    return False


def _settings(found: Found) -> list[str]:
    """All settings that were tuned, in the order of their numbers."""
    given = dict.fromkeys(arm.setting for arm in found.arms if arm.setting and arm.tuned)
    return sorted(given, key=lambda s: (NUMBER.sub("", s), [float(x) for x in NUMBER.findall(s)]))


def made_with() -> str:
    """Name the commit and the machine."""
    return f"at commit {commit()}, torch {torch.__version__}, on {machine()}."


def commit() -> str:
    """Return the commit, with a + if the package itself (not the results) is not as it was then."""
    try:
        changed = _git("status", "--porcelain", "--", ".")
        return _git("rev-parse", "--short", "HEAD") + "+" * bool(changed)
    except (OSError, subprocess.SubprocessError):
        return "(none: not a repository)"


def _git(*arguments: str) -> str:
    here = Path(hocket.__file__).parent
    ask = ["git", "-C", str(here), *arguments]
    return subprocess.run(
        ask, capture_output=True, text=True, check=True, timeout=10
    ).stdout.strip()


def machine() -> str:
    """Name the processor and its cores."""
    name = platform.processor() or platform.machine()
    try:
        told = Path("/proc/cpuinfo").read_text().splitlines()
        name = next(line.split(":")[1].strip() for line in told if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return f"{name}, {os.cpu_count()} cores"


def page(report: Report) -> str:
    """Return the HTML page: verdict, checks, table, plots."""
    claim = report.claim
    head = "".join(f"<th>{escape(h)}</th>" for h in report.headings)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
        for row in report.rows
    )
    checks = "".join(
        f"<li>{escape(c.statement)}: <b>{c.judgement}</b> ({escape(c.detail)})</li>"
        for c in report.checks
    )
    return document(
        f"{claim.name}: {report.verdict}",
        "".join(
            [
                f"<h1>{escape(claim.name)}: {escape(report.verdict)}</h1>",
                f"<p>{escape(claim.claim)}</p><p class='note'>{escape(claim.paper)}<br>"
                f"Published: {escape(claim.published)}<br>"
                f"What would refute it: {escape(claim.refuted_by)}</p><ul>{checks}</ul>",
                f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>",
                *(f"<p class='note'>{escape(x)}</p>" for x in (legend(report), *report.notes)),
                *plots(report),
                f"<pre class='note'>{escape(chr(10).join(grid(report)))}</pre>",
                f"<p class='note'>Made by <code>{escape(report.command)}</code> "
                f"{escape(made_with())}</p>",
            ]
        ),
    )


def plots(report: Report) -> list[str]:
    """Return the claim's own plots, then the curves of its arms."""
    own = [] if report.missing else report.claim.plots(report.found, report.bench)
    return [*own, *all_curves(report)]


def all_curves(report: Report) -> list[str]:
    """Draw every arm against frames and against time; many arms in several drawings."""
    arms = report.claim.shown(report.found)
    drawings = max(1, math.ceil(len(arms) / MAX_CURVES))
    each = math.ceil(len(arms) / drawings)
    groups = [arms[n * each : (n + 1) * each] for n in range(drawings)]
    return [curves(group, by_time=by_time) for group in groups for by_time in (False, True)]


def curves(arms: Sequence[Arm], *, by_time: bool) -> str:
    """Draw the mean dev loss over the seeds, against frames or time."""
    series = []
    for n, arm in enumerate(arms):
        whole = [o.curve for o in arm.outcomes if o.diverged is None]
        points = [
            (fmean(p.train_s if by_time else p.frames for p in at), fmean(p.loss for p in at))
            for at in zip(*whole, strict=False)
        ]
        series.append(Series(arm.name, points, COLOURS[n % len(COLOURS)]))
    against = "seconds of training" if by_time else "frames"
    return charts.lines(f"dev loss against {against}", against, series, key=True)


def standalone(svg: str) -> str:
    """Return a drawing that carries its own style, for a file of its own."""
    first, rest = svg.split(">", 1)
    plain = first.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ')
    return f"{plain}><style>{STYLE}</style>{rest}\n"
