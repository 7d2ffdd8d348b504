"""`hocket strategies NAME`: one method in full, from its module's docstring, fields and facts.

The module docstring of a strategy is its paper page (CONTRIBUTING.md, "Adding a strategy"): title,
equations, reference, table of symbols, differences, limits; its last paragraph begins with "When to
use it:". The meaning of a parameter is the comment beside its field.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Sequence
from typing import Any, Final

from hocket.cli.about import docstring, fields
from hocket.core.strategy import Strategy
from hocket.support import text

WORLDS: Final = (1, 2, 4, 8, 16)  # numbers of learners that the gain is shown for
WHEN: Final = "When to use it:"

_EVALUATED: Final = {
    "replica": "one learner's copy: it is the same on all learners",
    "average": "the mean of the models of all learners",
    "root": "the one that the first learner keeps for all",
    "parts": "put together from the ranks that hold its parts",
    "stages": "its stages, each on the rank that holds it",
}


# ---------------------------------------------------------------------------- the facts


def describe(cls: type[Strategy[Any]]) -> dict[str, Any]:
    """Return the facts about one strategy, for programs."""
    default = cls()
    meanings = fields.comments(cls)
    return {
        "name": cls.name,
        "summary": cls.summary,
        "paper": cls.paper,
        "synchronous": cls.synchronous,
        "commits_when": cls.commits_when,
        "evaluates": cls.evaluates,
        "max_learners": cls.max_learners,
        "needs_even_world": cls.needs_even_world,
        "gain": rule(gains(default)),
        "gains": {str(num_learners): gain for num_learners, gain in gains(default).items()},
        "when_to_use": parts(cls)[2],
        "parameters": [
            {
                "name": f.name,
                "type": str(f.type),
                "default": getattr(default, f.name),
                "meaning": meanings.get(f.name, ""),
            }
            for f in dataclasses.fields(cls)
        ],
    }


def gains(strategy: Strategy[Any]) -> dict[int, float]:
    """Return the gain for the numbers of learners in `WORLDS` that the method can use."""
    limit = strategy.max_learners or max(WORLDS)
    return {p: strategy.gain(p) for p in WORLDS if p <= limit}


def rule(found: dict[int, float]) -> str:
    """Write gains as a formula in P if it is a simple one, else the gain at the largest P."""
    largest = max(found)
    scaled = found[largest] * largest
    known = {
        "1": dict.fromkeys(found, 1.0),
        f"{scaled:g}/P": {p: scaled / p for p in found},
        "1/(P + 1)": {p: 1 / (p + 1) for p in found},
    }
    for formula, values in known.items():
        if all(math.isclose(values[p], gain) for p, gain in found.items()):
            return formula
    return f"{found[largest]:g} at P = {largest}"


def parts(cls: type[Strategy[Any]]) -> tuple[str, str, str]:
    """Return the title, the body and the last paragraph ("When to use it:") of the paper page."""
    page = (sys.modules[cls.__module__].__doc__ or "").strip()
    title, _, rest = page.partition("\n")
    body, found, when = rest.rpartition(f"\n{WHEN}")
    when = " ".join(when.split()) if found else ""
    return title, body if found else rest, f"{when[:1].upper()}{when[1:]}"


# ---------------------------------------------------------------------------- the page


def page(cls: type[Strategy[Any]]) -> str:
    """Return the page about one method, wrapped to the terminal."""
    title, body, when = parts(cls)
    sections = [
        *text.wrapped(f"{cls.name} - {title}"),
        "",
        *text.wrapped(f"Paper: {cls.paper}"),
        "",
        *docstring.laid_out(body),
        *_section("Parameters", _parameters(cls)),
        *_section("Gain", _gain(cls())),
        *_section("How it runs", _facts(cls)),
        *_section(WHEN.rstrip(":"), text.wrapped(when, indent="  ")),
    ]
    return "\n".join(sections)


def _section(heading: str, lines: Sequence[str]) -> list[str]:
    return ["", heading, *lines]


def _parameters(cls: type[Strategy[Any]]) -> list[str]:
    """Each parameter with its default, and its meaning below it."""
    default, meanings = cls(), fields.comments(cls)
    lines = []
    for f in dataclasses.fields(cls):
        lines.append(f"  {f.name} = {_value(getattr(default, f.name))}")
        meaning = meanings.get(f.name, "").replace("None:", "unset:")
        lines += text.wrapped(meaning, indent=" " * 6)
    if not lines:
        return ["  none"]
    return [*lines, "  Set one with --set strategy.KEY=VALUE."]


def _value(default: object) -> str:
    if isinstance(default, bool):
        return str(default).lower()  # as TOML writes it
    return "(unset)" if default is None else f"{default}"


def _gain(strategy: Strategy[Any]) -> list[str]:
    """The gain over P with default parameters, and what follows for the rate."""
    found = gains(strategy)
    means = (
        "The rate of each learner is the one you give, divided by the gain "
        "(schedule.lr_compensation = full)."
        if strategy.compensates
        else "It has no rate, so nothing follows from it: [optimizer] is refused."
        if not strategy.uses_rate
        else "No rate is derived from it: the rate you give is used as the method says."
    )
    return [
        *text.wrapped(
            "Movement per minibatch relative to sequential SGD at the same rate, with P learners "
            f"and default parameters: {rule(found)}.",
            indent="  ",
        ),
        "  P     " + "".join(f"{p:>8}" for p in found),
        "  gain  " + "".join(f"{gain:>8.4g}" for gain in found.values()),
        *text.wrapped(means, indent="  "),
    ]


def _facts(cls: type[Strategy[Any]]) -> list[str]:
    waiting = "groups of learners" if cls.moves_in_groups else "learners"
    pace = (
        "yes: all learners take the same steps in the same order and wait for each other"
        if cls.synchronous
        else f"no: {waiting} do not wait for each other"
    )
    world = "an even number, or 1" if cls.needs_even_world else "any number"
    facts = {
        "  synchronous": pace,
        "  evaluated model": _EVALUATED[cls.evaluates],
        "  data count as learnt": f"when {cls.commits_when}",
        "  learners": world if cls.max_learners is None else f"at most {cls.max_learners}",
        "  optimizer": f"{cls.usual_optimizer}, unless you choose another"
        if cls.uses_rate
        else "none: its steps are its own",
    }
    column = max(map(len, facts)) + 2
    return [text.entry(name, [about], column) for name, about in facts.items()]
