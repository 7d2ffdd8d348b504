"""A docstring for a terminal: prose and tables are wrapped to its width, equations are kept.

The source has lines of up to 100 characters; a terminal often has 80 columns.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from hocket.support import text

_ITEM: Final = re.compile(r"\d+\. +")  # of a numbered list
_LABEL: Final = re.compile(r"\n(?=(?:Limits|Differences from [^:\n]+|References?):)")
_NUMBERED: Final = re.compile(r"( *)(.*?) {2,}(\(\w+\))$")  # indent, equation, its number
_GAP: Final = 2  # spaces between two columns of a table


def laid_out(docstring: str) -> list[str]:
    """Return the lines of a docstring, none longer than the terminal is wide if it can be."""
    lines: list[str] = []
    spaced = _LABEL.sub("\n\n", docstring.strip("\n"))  # a labelled paragraph stands alone
    for block in re.split(r"\n\s*\n", spaced):
        lines += [*_block(block.splitlines()), ""]
    return lines[:-1]


def _block(block: list[str]) -> list[str]:
    if all(line.startswith("|") for line in block):
        return _table(block)
    if block[0].startswith("    "):
        return [part for line in block for part in _equation(line)]
    return [line for paragraph in _paragraphs(block) for line in _prose(paragraph)]


def _paragraphs(block: list[str]) -> Iterator[str]:
    """Split a block where an item of a list begins."""
    gathered: list[str] = []
    for line in block:
        if gathered and _ITEM.match(line):
            yield " ".join(gathered)
            gathered = []
        gathered.append(line.strip())
    yield " ".join(gathered)


def _prose(paragraph: str) -> list[str]:
    item = _ITEM.match(paragraph)
    return text.wrapped(paragraph, first="", indent=" " * len(item[0]) if item else "")


def _equation(line: str) -> list[str]:
    """Keep an equation on its line; its number moves to the right margin."""
    numbered = _NUMBERED.match(line)
    indent, equation, number = numbered.groups() if numbered else ("", line.rstrip(), "")
    margin = text.width() - len(number)
    if len(indent + equation) <= (margin - 1 if number else margin):
        return [f"{indent + equation:<{margin}}{number}" if number else equation]
    hanging = " " * (len(line) - len(line.lstrip()) + 4)
    lines = text.wrapped(equation, first=indent, indent=hanging)
    last = lines.pop()
    if number and len(last) >= margin:
        return [*lines, last, number.rjust(text.width())]
    return [*lines, f"{last:<{margin}}{number}".rstrip()]


def _table(block: list[str]) -> list[str]:
    """Set a table without its rules; the last column is wrapped."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in block]
    rows = [row for row in rows if not all(set(cell) <= set("-") and cell for cell in row)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)][:-1]
    indent = "  " + " " * sum(width + _GAP for width in widths)
    lines: list[str] = []
    for row in rows:
        start = "  " + "".join(
            cell.ljust(width + _GAP) for cell, width in zip(row[:-1], widths, strict=True)
        )
        lines += text.wrapped(row[-1], first=start, indent=indent) or [start.rstrip()]
    return lines
