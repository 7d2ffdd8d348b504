"""Charts as SVG text: lines, bars with intervals, timelines. No library, no script, no network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

COLOURS: Final = (
    "#2f6fb3", "#d1622b", "#3a8f5c", "#8a5bb0", "#b0862b", "#b6456b", "#4a9aa5", "#6b6b6b",
)  # fmt: skip
WIDTH, HEIGHT = 460, 280
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 30, 42


@dataclass(frozen=True)
class Series:
    """One line of a chart."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: str


@dataclass(frozen=True)
class Spread:
    """Means over seeds at some settings: (x, mean, low, high) each."""

    name: str
    points: Sequence[tuple[float, float, float, float]]
    colour: str


@dataclass(frozen=True)
class Estimate:
    """A measured value with its interval: drawn as a bar (`bars`) or as a level (`dots`)."""

    name: str
    value: float
    low: float
    high: float
    colour: str


@dataclass(frozen=True)
class Stretch:
    """What one learner did between two times: computing, communicating or evaluating."""

    lane: str
    kind: str
    start: float
    end: float


def ticks(low: float, high: float, wanted: int = 5) -> list[float]:
    """Return about `wanted` round numbers in a range, to label an axis with."""
    span = high - low
    if not 1e-300 < span < math.inf:  # one value, or numbers that cannot be divided any more
        return [low]
    step = 10.0 ** math.floor(math.log10(span / wanted))
    step *= next(f for f in (1, 2, 5, 10) if span / (step * f) <= wanted)
    first = math.ceil(low / step - 1e-9)
    return [round(n * step, 12) for n in range(first, math.floor(high / step + 1e-9) + 1)]


def _number(value: float) -> str:
    if abs(value) >= 1e6:
        return f"{value / 1e6:g}M"
    if abs(value) >= 1e4:
        return f"{value / 1e3:g}k"
    return f"{value:g}"


class _Frame:
    """The axes of a chart: turns values into positions in the drawing."""

    def __init__(self, xs: tuple[float, float], ys: tuple[float, float], width: int, height: int):
        self.x0, self.x1 = xs
        self.y0, self.y1 = ys
        self.width, self.height = width, height

    def x(self, value: float) -> float:
        span = (self.x1 - self.x0) or 1.0
        return LEFT + (value - self.x0) / span * (self.width - LEFT - RIGHT)

    def y(self, value: float) -> float:
        span = (self.y1 - self.y0) or 1.0
        return self.height - BOTTOM - (value - self.y0) / span * (self.height - TOP - BOTTOM)

    def y_axis(self, percent: bool) -> list[str]:
        parts = []
        for at in ticks(self.y0, self.y1):
            y = self.y(at)
            label = f"{at:.0%}" if percent else _number(at)
            parts.append(
                f'<line class="grid" x1="{LEFT}" x2="{self.width - RIGHT}" y1="{y:.1f}" '
                f'y2="{y:.1f}"/><text class="tick" x="{LEFT - 6}" y="{y + 4:.1f}" '
                f'text-anchor="end">{label}</text>'
            )
        return parts

    def x_axis(self, label: str, marks: Sequence[tuple[float, str]] = ()) -> list[str]:
        bottom = self.height - BOTTOM
        parts = [
            f'<line class="axis" x1="{LEFT}" x2="{self.width - RIGHT}" y1="{bottom}" '
            f'y2="{bottom}"/>'
        ]
        for at, mark in marks or [(at, _number(at)) for at in ticks(self.x0, self.x1)]:
            parts.append(
                f'<text class="tick" x="{self.x(at):.1f}" y="{bottom + 16}" '
                f'text-anchor="middle">{mark}</text>'
            )
        middle = (LEFT + self.width - RIGHT) / 2
        parts.append(
            f'<text class="label" x="{middle:.0f}" y="{self.height - 6}" '
            f'text-anchor="middle">{escape(label)}</text>'
        )
        return parts


def _svg(title: str, width: int, height: int, parts: Sequence[str]) -> str:
    heading = f'<text class="title" x="{LEFT}" y="18">{escape(title)}</text>'
    return (
        f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-label="{escape(title)}">{heading}{"".join(parts)}</svg>'
    )


def lines(
    title: str,
    x_label: str,
    series: Sequence[Series],
    *,
    percent: bool = False,
    key: bool = False,
) -> str:
    """Draw curves; the numbers of a point are shown while the pointer rests on it.

    `key`: write the names of the curves in the upper right corner, which falling curves leave free.
    """
    points = [p for s in series for p in s.points if all(math.isfinite(v) for v in p)]
    if not points:
        return _svg(title, WIDTH, HEIGHT, ['<text class="label" x="70" y="80">no data</text>'])
    ys = [y for _, y in points]
    margin = 0.06 * ((max(ys) - min(ys)) or abs(max(ys)) or 1.0)
    frame = _Frame(
        (0.0, max(x for x, _ in points)), (min(ys) - margin, max(ys) + margin), WIDTH, HEIGHT
    )
    parts = frame.y_axis(percent) + frame.x_axis(x_label)
    for s in series:
        drawn = [p for p in s.points if all(map(math.isfinite, p))]
        path = " ".join(f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in drawn)
        parts.append(f'<polyline class="line" stroke="{s.colour}" points="{path}"/>')
        for x, y in drawn:
            value = f"{y:.2%}" if percent else f"{y:.4g}"
            parts.append(
                f'<circle cx="{frame.x(x):.1f}" cy="{frame.y(y):.1f}" r="3" fill="{s.colour}">'
                f"<title>{escape(s.name)}: {value} at {_number(round(x, 1))}</title></circle>"
            )
    return _svg(title, WIDTH, HEIGHT, parts + (_key(series) if key else []))


def _key(series: Sequence[Series]) -> list[str]:
    return [
        f'<text class="tick" x="{WIDTH - RIGHT}" y="{TOP + 10 + 14 * n}" text-anchor="end" '
        f'style="fill:{s.colour}">{escape(s.name)}</text>'
        for n, s in enumerate(series)
    ]


def dots(
    title: str,
    x_label: str,
    series: Sequence[Spread],
    *,
    doubling: bool = False,
    level: Estimate | None = None,
) -> str:
    """Draw means with whiskers over a setting; `level` is a baseline with its interval.

    With `doubling` every tick is twice the one before, as for K = 1, 2, 4, ...
    """
    points = [p for s in series for p in s.points if all(map(math.isfinite, p))]
    if not points:
        return _svg(title, WIDTH, HEIGHT, ['<text class="label" x="70" y="80">no data</text>'])
    at = (lambda x: math.log2(x)) if doubling else (lambda x: x)
    ys = [y for p in points for y in p[1:]] + ([level.low, level.high] if level else [])
    xs = [at(p[0]) for p in points]
    margin = 0.06 * ((max(ys) - min(ys)) or abs(max(ys)) or 1.0)
    wide = 0.05 * ((max(xs) - min(xs)) or 1.0)
    frame = _Frame(
        (min(xs) - wide, max(xs) + wide), (min(ys) - margin, max(ys) + margin), WIDTH, HEIGHT
    )
    powers = range(math.ceil(frame.x0), math.floor(frame.x1) + 1) if doubling else ()
    marks = [(float(n), _number(2.0**n)) for n in powers]
    parts = frame.y_axis(False) + frame.x_axis(x_label, marks)
    if level is not None:
        parts.append(_band(frame, level))
    for s in series:
        parts += _spread(frame, s, [(at(p[0]), *p[1:]) for p in s.points if p in points])
    return _svg(title, WIDTH, HEIGHT, parts)


def _band(frame: _Frame, level: Estimate) -> str:
    top, bottom, y = frame.y(level.high), frame.y(level.low), frame.y(level.value)
    right = frame.width - RIGHT
    return (
        f'<rect x="{LEFT}" y="{top:.1f}" width="{right - LEFT}" height="{bottom - top:.1f}" '
        f'fill="{level.colour}" opacity="0.15"/><line x1="{LEFT}" x2="{right}" y1="{y:.1f}" '
        f'y2="{y:.1f}" stroke="{level.colour}" stroke-dasharray="5 4"/>'
        f'<text class="tick" x="{right - 4}" y="{y - 4:.1f}" text-anchor="end">'
        f"{escape(level.name)}</text>"
    )


def _spread(frame: _Frame, s: Spread, points: Sequence[tuple[float, ...]]) -> list[str]:
    path = " ".join(f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y, _, _ in points)
    parts = [f'<polyline class="line" stroke="{s.colour}" points="{path}"/>']
    for x, y, low, high in points:
        parts.append(
            f'<path stroke="{s.colour}" fill="none" d="M{frame.x(x):.1f} {frame.y(low):.1f} '
            f'V{frame.y(high):.1f}"/><circle cx="{frame.x(x):.1f}" cy="{frame.y(y):.1f}" r="3.5" '
            f'fill="{s.colour}"><title>{escape(s.name)}: {y:.4g}</title></circle>'
        )
    if not points:
        return []
    x, y, *_ = max(points)
    lift = -8 if len(points) > 1 else 18  # a single point often lies on the line of another series
    parts.append(
        f'<text class="tick" x="{frame.x(x):.1f}" y="{frame.y(y) + lift:.1f}" text-anchor="end" '
        f'style="fill:{s.colour}">{escape(s.name)}</text>'
    )
    return parts


def bars(title: str, rows: Sequence[Estimate]) -> str:
    """Draw percentages as horizontal bars with whiskers."""
    left, step = 210, 34
    width, height = 2 * WIDTH, TOP + BOTTOM + step * len(rows)
    top = max([row.high for row in rows] + [row.value for row in rows] + [0.01]) * 1.15
    scale = (width - left - 130) / top
    parts = []
    for at in ticks(0.0, top):
        x = left + at * scale
        parts.append(
            f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{height - BOTTOM}"/>'
            f'<text class="tick" x="{x:.1f}" y="{height - BOTTOM + 16}" text-anchor="middle">'
            f"{at:.0%}</text>"
        )
    for number, row in enumerate(rows):
        y = TOP + step * number + 7
        middle = y + 10
        low, high = left + row.low * scale, left + row.high * scale
        parts.append(
            f'<text class="label" x="{left - 8}" y="{middle + 4}" text-anchor="end">'
            f"{escape(row.name)}</text>"
            f'<rect x="{left}" y="{y}" width="{row.value * scale:.1f}" height="20" '
            f'fill="{row.colour}" opacity="0.85"/>'
            f'<path class="whisker" d="M{low:.1f} {middle} H{high:.1f} M{low:.1f} {middle - 5} v10 '
            f'M{high:.1f} {middle - 5} v10"/>'
            f'<text class="label" x="{high + 10:.1f}" y="{middle + 4}">{row.value:.1%} '
            f"[{row.low:.1%}, {row.high:.1%}]</text>"
        )
    return _svg(title, width, height, parts)


def timeline(
    title: str, stretches: Sequence[Stretch], start: float, end: float, colours: dict[str, str]
) -> str:
    """Draw what each lane did between two times; a gap means that it waited."""
    frame, parts, tops = _lanes(stretches, (start, end), step=30, tall=20, baseline=15)
    for lane, y in tops.items():
        for s in stretches:
            if s.lane == lane and s.end > start and s.start < end:
                x0, x1 = frame.x(max(s.start, start)), frame.x(min(s.end, end))
                parts.append(
                    f'<rect x="{x0:.2f}" y="{y}" width="{max(x1 - x0, 0.15):.2f}" height="20" '
                    f'fill="{colours.get(s.kind, "#999")}"/>'
                )
    return _svg(title, frame.width, frame.height, parts)


def shares(
    title: str, stretches: Sequence[Stretch], end: float, colours: dict[str, str], bins: int = 200
) -> str:
    """Draw how each lane divided its time, moment by moment; the rest is waiting."""
    tall = 36
    frame, parts, tops = _lanes(stretches, (0.0, end), step=44, tall=tall, baseline=22)
    wide = (frame.width - LEFT - RIGHT) / bins
    for lane, y in tops.items():
        base = [0.0] * bins
        for kind, colour in colours.items():
            filled = _binned([s for s in stretches if (s.lane, s.kind) == (lane, kind)], end, bins)
            for b, share in enumerate(filled):
                share = min(share, 1.0 - base[b])
                if share > 0.002:
                    bottom = y + tall * (1 - base[b])
                    parts.append(
                        f'<rect x="{LEFT + b * wide:.1f}" y="{bottom - tall * share:.1f}" '
                        f'width="{wide + 0.1:.1f}" height="{tall * share:.1f}" fill="{colour}"/>'
                    )
                    base[b] += share
    return _svg(title, frame.width, frame.height, parts)


def _lanes(
    stretches: Sequence[Stretch], xs: tuple[float, float], *, step: int, tall: int, baseline: int
) -> tuple[_Frame, list[str], dict[str, int]]:
    """Draw an empty bar per lane, with its name; return the axes, the parts, each bar's top."""
    lanes = sorted({s.lane for s in stretches}, key=lambda lane: (len(lane), lane))
    width, height = 2 * WIDTH, TOP + BOTTOM + step * len(lanes)
    frame = _Frame(xs, (0, 1), width, height)
    tops = {lane: TOP + step * number + 4 for number, lane in enumerate(lanes)}
    parts = frame.x_axis("seconds")
    for lane, y in tops.items():
        parts.append(
            f'<text class="tick" x="{LEFT - 6}" y="{y + baseline}" text-anchor="end">'
            f"{escape(lane)}</text>"
            f'<rect class="idle" x="{LEFT}" y="{y}" width="{width - LEFT - RIGHT}" '
            f'height="{tall}"/>'
        )
    return frame, parts, tops


def _binned(stretches: Sequence[Stretch], end: float, bins: int) -> list[float]:
    """Divide the time into `bins` equal parts; return which share of each the stretches cover."""
    filled = [0.0] * bins
    size = end / bins
    for s in stretches:
        for b in range(max(0, int(s.start / size)), min(bins, int(s.end / size) + 1)):
            covered = min(s.end, (b + 1) * size) - max(s.start, b * size)
            filled[b] += max(0.0, covered) / size
    return filled
