"""One HTML page about a decoding: what was recognised wrongly, to look at and to listen to.

The file holds everything, also the audio.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from hocket.report.page import document, write_html

_STYLE = """
.utterance { background: #fff; border: 1px solid #e4e0d6; border-radius: 4px; padding: 0.6rem 1rem;
  margin: 0.8rem 0 } .utterance h3 { font-size: 0.95rem; margin: 0 0 0.4rem; font-weight: 600 }
.utterance h3 span { color: #666; font-weight: 400; margin-left: 0.8em }
.words { overflow-x: auto } .words table { margin: 0 } .words td { border: none; text-align: center;
  padding: 0.05rem 0.35rem; white-space: nowrap } .words td:first-child { color: #888 }
.S { background: #fbe3c8 } .D { background: #f6cfcf } .I { background: #d5e3f3 }
audio { width: 100%; height: 2rem; margin-top: 0.5rem }
"""
_KEY = (
    '<p><span class="key"><i class="S"></i>another word</span><span class="key"><i class="D"></i>'
    'left out</span><span class="key"><i class="I"></i>added</span></p>'
)


@dataclass(frozen=True)
class Shown:
    """One utterance as the page shows it."""

    name: str
    facts: str  # speaker, errors, ...
    columns: Sequence[tuple[str, str, str]]  # reference, hypothesis, S D I or nothing
    audio: bytes | None  # a wav file
    why_silent: str = ""


@dataclass(frozen=True)
class Share:
    """One row of the table of errors by speaker."""

    who: str
    words: int
    errors: int


def write_page(
    path: Path,
    title: str,
    summary: Sequence[str],
    speakers: Sequence[Share],
    shown: Sequence[Shown],
) -> None:
    """Write the page: the summary, the worst utterances with their audio, the speakers."""
    parts = [
        f"<h1>{escape(title)}</h1>",
        *(f'<p class="note">{escape(line)}</p>' for line in summary),
        f"<h2>The {len(shown)} worst utterances</h2>" if shown else "<p>Not one error.</p>",
        _KEY if shown else "",
        *(_utterance(one) for one in shown),
        _by_speaker(speakers),
    ]
    write_html(path, document(title, "".join(parts), _STYLE))


def _utterance(one: Shown) -> str:
    player = f'<p class="note">{escape(one.why_silent)}</p>'
    if one.audio is not None:
        data = base64.b64encode(one.audio).decode()
        player = f'<audio controls preload="metadata" src="data:audio/wav;base64,{data}"></audio>'
    rows = "".join(
        f"<tr><td>{heading}</td>"
        + "".join(f'<td class="{kind}">{escape(words[row])}</td>' for *words, kind in one.columns)
        + "</tr>"
        for row, heading in enumerate(("said", "heard"))
    )
    return (
        f'<div class="utterance"><h3>{escape(one.name)}<span>{escape(one.facts)}</span></h3>'
        f'<div class="words"><table>{rows}</table></div>{player}</div>'
    )


def _by_speaker(speakers: Sequence[Share]) -> str:
    if len(speakers) < 2:
        return ""
    body = "".join(
        f"<tr><td>{escape(s.who)}</td><td>{s.words:,}</td><td>{s.errors:,}</td>"
        f"<td>{s.errors / max(1, s.words):.1%}</td></tr>"
        for s in sorted(speakers, key=lambda s: -s.errors / max(1, s.words))
    )
    head = "".join(f"<th>{h}</th>" for h in ("speaker", "said", "errors", "rate"))
    return f"<h2>By speaker</h2><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
