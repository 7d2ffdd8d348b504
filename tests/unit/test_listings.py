"""What `hocket` prints about itself can be read in a terminal of 80 columns."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import ClassVar

import pytest

from hocket import config
from hocket.cli.about import docstring, method
from hocket.cli.about.fields import comments, comments_in
from hocket.cli.main import COMMANDS, main
from hocket.reproduce import all_claims
from hocket.strategies import STRATEGIES
from hocket.support import text

ROOT = Path(__file__).parents[2]


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    """Give a command; return the lines it prints."""
    assert main(words) == 0
    return capsys.readouterr().out.splitlines()


@pytest.fixture(params=[80, 120], ids=["80 columns", "120 columns"])
def columns(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """A terminal of this width."""
    monkeypatch.setenv("COLUMNS", str(request.param))
    return int(request.param)


def fits(lines: list[str], columns: int) -> None:
    assert not [line for line in lines if len(line) > columns]


# ---------------------------------------------------------------------------- the lists


def test_the_list_of_strategies(capsys: pytest.CaptureFixture[str], columns: int) -> None:
    lines = printed(capsys, "strategies")
    fits(lines, columns)
    starts = [line.split(" ")[0] for line in lines if line and not line.startswith(" ")]
    assert starts[: len(STRATEGIES)] == list(STRATEGIES)
    words = {word.strip(",;") for line in lines for word in line.split()}
    assert words >= {f.name for cls in STRATEGIES.values() for f in fields(cls)}


def test_the_list_of_claims(capsys: pytest.CaptureFixture[str], columns: int) -> None:
    lines = printed(capsys, "reproduce", "--list")
    fits(lines, columns)
    starts = [line.split(" ")[0] for line in lines if line and not line.startswith(" ")]
    assert starts[:-1] == list(all_claims())


def test_the_list_of_options(capsys: pytest.CaptureFixture[str], columns: int) -> None:
    lines = printed(capsys, "options")
    fits(lines, columns)
    shown = [line.split()[0] for line in lines if " = " in line and line.startswith("  ")]
    assert shown == [
        key
        for kinds in config.options().values()
        for keys in kinds.values()
        for key, (_, default) in keys.items()
        if not isinstance(default, tuple) and not hasattr(default, "__dataclass_fields__")
    ]


def test_a_file_gets_80_columns() -> None:
    environment = {k: v for k, v in os.environ.items() if k != "COLUMNS"}
    command = [sys.executable, "-m", "hocket", "strategies"]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert 70 < max(map(len, found.stdout.splitlines())) <= 80


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_and_teaches(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main([command, "--help"])
    shown = capsys.readouterr().out
    fits(shown.splitlines(), 80)
    assert f"\n  hocket {command} " in shown  # an example to copy


def test_the_first_help_names_every_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main(["--help"])
    lines = capsys.readouterr().out.splitlines()
    fits(lines, 80)
    assert {line.split()[0] for line in lines if line.startswith("    ")} >= set(COMMANDS)


# ---------------------------------------------------------------------------- one method


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_method_is_shown_in_full(
    name: str, capsys: pytest.CaptureFixture[str], columns: int
) -> None:
    cls = STRATEGIES[name]
    lines = printed(capsys, "strategies", name)
    fits(lines, columns)
    assert lines[0].startswith(f"{name} - ")
    start = lines.index("Parameters")
    shown = [line.split(" = ")[0].strip() for line in lines[start:] if " = " in line]
    assert [f.name for f in fields(cls)] == shown[: len(fields(cls))]
    below = lines[lines.index("Gain") :]
    worlds = next(line for line in below if line.startswith("  P   ")).split()[1:]
    gains = next(line for line in below if line.startswith("  gain ")).split()[1:]
    assert worlds == (["1"] if cls.max_learners == 1 else ["1", "2", "4", "8", "16"])
    for p, gain in zip(worlds, gains, strict=True):
        assert float(gain) == pytest.approx(cls().gain(int(p)), rel=1e-3)
    page = " ".join(" ".join(lines).split())
    assert cls.paper in page
    assert f"when {cls.commits_when}" in page
    assert ("synchronous yes:" in page) == cls.synchronous
    assert "Reference" in page
    assert "Differences from" in page
    assert len(page.partition("When to use it ")[2]) > 40


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_parameter_says_what_it_means(name: str) -> None:
    said = comments(STRATEGIES[name])
    assert not [f.name for f in fields(STRATEGIES[name]) if not said.get(f.name)]


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_docs_say_the_same_about_when_to_use_it(name: str) -> None:
    page = (ROOT / "docs" / "strategies" / f"{name}.md").read_text()
    paragraph = page.partition("**When to use it.** ")[2].partition("\n\n")[0]
    assert " ".join(paragraph.split()) == method.parts(STRATEGIES[name])[2] != ""


def test_an_unknown_method_is_refused_with_the_nearest_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["strategies", "bmfu"]) == 2
    assert "strategy 'bmfu' is not known. Did you mean 'bmuf'?" in capsys.readouterr().err


def test_a_program_gets_the_same_facts(capsys: pytest.CaptureFixture[str]) -> None:
    (facts,) = json.loads("\n".join(printed(capsys, "strategies", "easgd", "--json")))
    assert facts["gain"] == "1/(P + 1)"
    assert facts["gains"]["4"] == pytest.approx(0.2)
    assert facts["when_to_use"].startswith("To compare with it")
    assert facts["parameters"][1]["meaning"].endswith("None: 0.9 / P")


@pytest.mark.parametrize(
    ("gains", "formula"),
    [
        ({1: 1.0, 2: 1.0}, "1"),
        ({1: 1.0}, "1"),
        ({1: 1.0, 2: 0.5, 4: 0.25}, "1/P"),
        ({1: 7.0, 2: 3.5}, "7/P"),
        ({1: 0.5, 4: 0.2}, "1/(P + 1)"),
        ({1: 1.0, 4: 0.5}, "0.5 at P = 4"),
    ],
)
def test_a_gain_is_written_as_a_formula(gains: dict[int, float], formula: str) -> None:
    assert method.rule(gains) == formula


# ---------------------------------------------------------------------------- comments of fields


@dataclass
class Base:
    """Fields with comments, and something in between."""

    alpha: int = 1  # steps
    beta: str = "# not a comment"
    fixed: ClassVar[int] = 3  # not a field
    gamma: list[int] = field(
        default_factory=list,  # inside the value
    )  # of all learners

    def method(self) -> None:
        delta: int = 2  # of a function
        assert delta


@dataclass
class Sub(Base):
    """Another default, another comment."""

    alpha: int = 2
    beta: str = ""  # said again


def test_a_comment_behind_a_field_is_its_meaning() -> None:
    assert comments(Base) == {"alpha": "steps", "fixed": "not a field", "gamma": "of all learners"}
    assert comments(Sub) == comments(Base) | {"beta": "said again"}


def test_comments_are_left_out_where_there_is_no_source() -> None:
    made = type("Made", (), {})
    assert comments(made) == {}
    assert comments(int) == {}
    assert comments_in("class A:\n    x: int  # one\n    y: int\n") == {"x": "one"}


# ---------------------------------------------------------------------------- the layout


def test_prose_tables_and_equations_are_laid_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    page = """
    a = b                                      (1)
    a long equation that does not fit = into the line          (2)

Prose is wrapped to the width of the
terminal, adaptive-kstep is not broken.
Limits: begin
a paragraph.

| symbol | here   |                            |
|--------|--------|----------------------------|
| w      | `x`    | wrapped below its own column |
| v      |        |                            |

1. One item that is longer than the line is.
2. Two.
"""
    assert docstring.laid_out(page) == [
        "    a = b                            (1)",
        "    a long equation that does not fit =",
        "        into the line                (2)",
        "",
        "Prose is wrapped to the width of the",
        "terminal, adaptive-kstep is not broken.",
        "",
        "Limits: begin a paragraph.",
        "",
        "  symbol  here",
        "  w       `x`   wrapped below its own",
        "                column",
        "  v",
        "",
        "1. One item that is longer than the line",
        "   is.",
        "2. Two.",
    ]


def test_an_entry_keeps_its_name_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "24")
    assert text.entry("name", ["some words to wrap", "more"], 6) == (
        "name  some words to wrap\n      more"
    )
    assert text.entry("a-long-name", ["words"], 6) == "a-long-name\n      words"
    assert text.entry("name", [], 6) == "name"
