"""One HTML page of several runs: the table, curves, word error rates, timelines.

The file holds everything (style, drawings, numbers), so it can be mailed or archived as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from statistics import median
from typing import Final

from hocket.errors import ConfigError
from hocket.record.results import slow_learner
from hocket.report import charts
from hocket.report.charts import COLOURS, Estimate, Series
from hocket.report.runs import COMMUNICATE, COMPUTE, EVALUATE, Point, RunRecord, WordErrors
from hocket.support.files import atomically
from hocket.support.inputs import open_file

KINDS: Final = {COMPUTE: "#3a8f5c", COMMUNICATE: "#d1622b", EVALUATE: "#8a5bb0"}
WAITING: Final = "#e4e1da"
ZOOM_MINIBATCHES: Final = 60
GMM_COLOUR: Final = "#8d8d8d"

_FIRST: Final = b"<!doctype html"  # only a page is replaced by a page
STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; background: #fbfaf7; margin: 2rem auto;
  max-width: 980px; padding: 0 1rem }
h1 { font-size: 1.6rem; margin-bottom: 0.2rem } h2 { font-size: 1.15rem; margin-top: 2.2rem }
table { border-collapse: collapse; margin: 1rem 0 } caption { text-align: left; color: #666 }
th, td { padding: 0.3rem 0.8rem; text-align: right; border-bottom: 1px solid #ddd8cc }
th:first-child, td:first-child { text-align: left } thead th { border-bottom: 2px solid #999 }
svg { font-family: system-ui, sans-serif; background: #fff; border: 1px solid #e4e0d6;
  border-radius: 4px;  margin: 0.3rem 0.3rem 0.3rem 0; max-width: 100%; height: auto }
.grid { stroke: #eceae4 } .axis { stroke: #999 } .line { fill: none; stroke-width: 2 }
.tick { font-size: 11px; fill: #666 } .label { font-size: 12px; fill: #444 }
.title { font-size: 13px; font-weight: 600; fill: #222 } .idle { fill: #e4e1da }
.whisker { stroke: #222; stroke-width: 1.5; fill: none }
.key { display: inline-block; margin-right: 1.2rem } .key i { display: inline-block; width: 0.9em;
  height: 0.9em; border-radius: 2px; margin-right: 0.4em; vertical-align: -0.1em }
.note { color: #555; max-width: 75ch } code { background: #f0ede5; padding: 0 0.3em }
"""


def write_page(
    path: Path,
    title: str,
    runs: Sequence[RunRecord],
    *,
    gmm: WordErrors | None = None,
    target_loss: float | None = None,
    notes: Sequence[str] = (),
) -> None:
    """Write the page; the other runs are compared with the first."""
    parts = [
        f"<h1>{escape(title)}</h1>",
        *(f'<p class="note">{escape(note)}</p>' for note in notes),
        _table(runs, gmm, target_loss),
        "<h2>Learning</h2>",
        legend([(run.name, COLOURS[n % len(COLOURS)]) for n, run in enumerate(runs)]),
        _curves(runs),
        _passes(runs),
        _apart(runs),
        _pushes(runs),
        _word_errors(runs, gmm),
        _timelines(runs),
        _facts(runs),
    ]
    write_html(path, document(title, "".join(parts)))


def write_html(path: Path, page: str) -> None:
    """Write a page, in full or not at all; a name that is no UTF-8 is shown with its bytes."""
    if path.exists() and not _is_page(path):
        raise ConfigError(f"{path} is there already, and is no page: choose another name")
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomically(path) as partial:
        partial.write_text(page, encoding="utf-8", errors="backslashreplace")


def _is_page(path: Path) -> bool:
    with open_file(path) as file:
        return file.read(len(_FIRST)).lower() == _FIRST


def document(title: str, body: str, more_style: str = "") -> str:
    """Return a complete HTML page in the style that all pages share."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}{more_style}</style></head><body>"
        f"{body}</body></html>\n"
    )


def headings(target_loss: float | None) -> list[str]:
    """Return the headings of the table; the page and the terminal show the same."""
    reached = [f"to {target_loss:g}"] if target_loss is not None else []
    return ["strategy", "P", "time", "speed-up", *reached, "dev loss", "acc.", "WER"]


def rows(
    runs: Sequence[RunRecord], gmm: WordErrors | None, target_loss: float | None
) -> list[list[str]]:
    """Return the cells of the table: one row per run, then one for the GMM-HMM."""
    found = []
    for run in runs:
        base = runs[0]
        reached = []
        if target_loss is not None:
            mine, theirs = run.time_to(target_loss), base.time_to(target_loss)
            reached = [f"{theirs / mine:.2f}" if mine and theirs else "-"]
        found.append(
            [
                run.strategy,
                str(len(run.learners)),
                _figure(run.summary["train_s"], ".1f", " s"),
                _figure(run.frames_per_s / (base.frames_per_s or math.nan), ".2f"),
                *reached,
                _figure(run.summary["loss"], ".3f"),
                _figure(run.summary["accuracy"], ".1%"),
                _wer(run.errors),
            ]
        )
    if gmm is not None:
        blanks = ["-"] * (len(headings(target_loss)) - 2)
        found.append(["GMM-HMM", *blanks, _wer(gmm)])
    return found


def _figure(value: float, how: str, unit: str = "") -> str:
    """Write a number; a dash if there is none, as before the first evaluation."""
    return "-" if math.isnan(value) else f"{value:{how}}{unit}"


def _wer(errors: WordErrors | None) -> str:
    if errors is None:
        return "-"
    return f"{errors.rate:.1%} [{100 * errors.low:.1f}, {100 * errors.high:.1f}]"


def _table(runs: Sequence[RunRecord], gmm: WordErrors | None, target_loss: float | None) -> str:
    head = "".join(f"<th>{escape(h)}</th>" for h in headings(target_loss))
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
        for row in rows(runs, gmm, target_loss)
    )
    return (
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        '<p class="note">P learners. Time is the wall time of training, without evaluation and '
        "checkpoints. Speed-up is frames per second against the first row"
        + (
            f"; the column after it compares the time until the dev loss is {target_loss:g}"
            if target_loss is not None
            else ""
        )
        + ". Acc.: dev frame accuracy. WER: on the test set, with its 95 % bootstrap interval; "
        "acoustic scale and word penalty are tuned on dev for each row. The GMM-HMM is trained by "
        "maximum likelihood (published baselines are often discriminative).</p>"
    )


def legend(entries: Sequence[tuple[str, str]]) -> str:
    """Return a line that says which colour stands for what."""
    keys = "".join(
        f'<span class="key"><i style="background:{colour}"></i>{escape(name)}</span>'
        for name, colour in entries
    )
    return f"<p>{keys}</p>"


def _curves(runs: Sequence[RunRecord]) -> str:
    def chart(title: str, by_time: bool, accuracy: bool) -> str:
        series = [
            Series(
                run.name,
                [
                    (
                        p.train_s if by_time else float(p.frames),
                        p.accuracy if accuracy else p.loss,
                    )
                    for p in run.points
                ],
                COLOURS[n % len(COLOURS)],
            )
            for n, run in enumerate(runs)
        ]
        x_label = "seconds of training" if by_time else "frames"
        return charts.lines(title, x_label, series, percent=accuracy)

    return "".join(
        chart(
            f"dev {'frame accuracy' if accuracy else 'loss'} against {against}", by_time, accuracy
        )
        for accuracy in (False, True)
        for by_time, against in ((True, "time"), (False, "frames"))
    )


def _over_time(runs: Sequence[RunRecord], title: str, of: Callable[[Point], float | None]) -> str:
    """Draw a figure that only some runs have; nothing if none has."""
    series = []
    for n, run in enumerate(runs):
        seen = [(p.train_s, value) for p in run.points if (value := of(p)) is not None]
        if seen:
            series.append(Series(run.name, seen, COLOURS[n % len(COLOURS)]))
    return charts.lines(title, "seconds of training", series) if series else ""


def _passes(runs: Sequence[RunRecord]) -> str:
    """Draw the loss against the work done, if a method does more than a gradient a frame."""
    if all(p.passes is None for run in runs for p in run.points):
        return ""
    series = [
        Series(run.name, [(run.passes(p), p.loss) for p in run.points], COLOURS[n % len(COLOURS)])
        for n, run in enumerate(runs)
    ]
    against = "passes over the data, in gradients' worth of work"
    return charts.lines("dev loss against passes over the data", against, series)


def _apart(runs: Sequence[RunRecord]) -> str:
    """Draw how far apart the learners' models were and how stale gradients were, if recorded."""
    title = "distance from consensus, relative to the mean"
    drawn = _over_time(runs, title, lambda p: p.consensus)
    title = "staleness: mixes, or updates of the servers, while a gradient is computed"
    drawn += _over_time(runs, title, lambda p: p.staleness)
    return f"<h2>How far models are apart</h2>{drawn}" if drawn else ""


def _pushes(runs: Sequence[RunRecord]) -> str:
    """Draw how late gradients reached the servers, and list how many came from whom."""
    series, lines = [], []
    for n, run in enumerate(runs):
        if run.pushes is None:
            continue
        late = run.pushes.late
        total = sum(late.values())
        shares = [(float(v), late.get(v, 0) / total) for v in range(max(late) + 1)]
        series.append(Series(run.name, shares, COLOURS[n % len(COLOURS)]))
        slow = slow_learner(run.learners, synchronous=False)  # servers: nobody waits for it
        told = [*run.pushes.lines(), *([slow] if slow else [])]
        said = "<br>".join(escape(line) for line in told)
        lines.append(f"<p class='note'>{escape(run.name)}:<br>{said}</p>")
    if not series:
        return ""
    title = "staleness of pushed gradients, share of pushes"
    drawn = charts.lines(title, "updates late", series)
    drawn += _over_time(runs, "queue: pushes that waited at a server", lambda p: p.queue)
    drawn += _over_time(runs, "pushes per second, all learners", lambda p: p.pushes_per_s)
    return f"<h2>What the servers saw</h2>{drawn}{''.join(lines)}"


def _word_errors(runs: Sequence[RunRecord], gmm: WordErrors | None) -> str:
    found = [
        Estimate(
            run.name, run.errors.rate, run.errors.low, run.errors.high, COLOURS[n % len(COLOURS)]
        )
        for n, run in enumerate(runs)
        if run.errors is not None
    ]
    if gmm is not None:
        found.append(Estimate("GMM-HMM (max. likelihood)", gmm.rate, gmm.low, gmm.high, GMM_COLOUR))
    if not found:
        return ""
    return "<h2>Word error rate</h2>" + charts.bars(
        "test set, with 95 % bootstrap intervals over utterances", found
    )


def _timelines(runs: Sequence[RunRecord]) -> str:
    parts = []
    for run in runs:
        if not run.stretches:
            continue
        end = max(s.end for s in run.stretches)
        parts.append(charts.shares(f"{run.name}: where the time went", run.stretches, end, KINDS))
        steps = [s.end - s.start for s in run.stretches if s.kind == COMPUTE]
        if len(run.learners) > 1 and steps:
            wide = min(end, ZOOM_MINIBATCHES * median(steps))
            start = _undisturbed(run, wide, end)
            close = f"{run.name}: {wide:.2g} s from the middle of the run, minibatch by minibatch"
            parts.append(charts.timeline(close, run.stretches, start, start + wide, KINDS))
    if not parts:
        return ""
    key = legend([*KINDS.items(), ("waiting and bookkeeping", WAITING)])
    return "<h2>What each learner did</h2>" + key + "".join(parts)


def _undisturbed(run: RunRecord, wide: float, end: float) -> float:
    """Return the first time in the second half from which training is not interrupted."""
    start = 0.5 * end
    for s in sorted(run.stretches, key=lambda s: s.start):
        if s.kind == EVALUATE and s.start < start + wide and s.end > start:
            start = s.end
    return max(0.0, min(start, end - wide))


def _rate(run: RunRecord) -> str:
    optimizer = run.config.get("optimizer")
    return str(optimizer.get("lr")) if isinstance(optimizer, dict) else "unknown"


def _facts(runs: Sequence[RunRecord]) -> str:
    versions = runs[0].config.get("versions")
    known = versions.items() if isinstance(versions, dict) else ()
    listed = ", ".join(f"{name} {value}" for name, value in known)
    paths = "".join(
        f"<li><code>{escape(run.path.name)}</code>: rate {escape(_rate(run))}, "
        f"{run.summary['frames']:,} frames, {run.summary['frames_per_s']:,.0f} frames/s</li>"
        for run in runs
    )
    return f"<h2>Made with</h2><p class='note'>{escape(listed)}</p><ul>{paths}</ul>"
