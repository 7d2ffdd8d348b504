"""docs/reliability.md: its promises name tests that exist; its numbers are those of the tests."""

from __future__ import annotations

import ast
import re
from collections.abc import Sized
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/reliability.md").read_text()
NAMED = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)
COUNTS = re.findall(r"([\d,]+) \(`([\w.]+)\.([A-Z_]+)`\)", PAGE)
COMPLETE = [  # every test of these files keeps a promise on the page
    "tests/conformance/test_computed.py",
    "tests/conformance/test_faults.py",
    "tests/conformance/test_long.py",
    "tests/multiprocess/test_every_loss.py",
]


def declared_in(path: str) -> set[str]:
    """Return the tests of a file, without importing it."""
    tree = ast.parse((ROOT / path).read_text())
    found = (node.name for node in tree.body if isinstance(node, ast.FunctionDef))
    return {name for name in found if name.startswith("test_")}


def test_every_promise_names_its_tests() -> None:
    table = PAGE.split("## Promises")[1].split("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ") and "---" not in line][1:]
    assert len(rows) >= 10
    assert all("::test_" in row for row in rows)


def test_every_test_that_is_named_exists() -> None:
    missing = [f"{path}::{name}" for path, name in NAMED if name not in declared_in(path)]
    assert not missing


@pytest.mark.parametrize("path", COMPLETE)
def test_every_test_of_a_file_keeps_a_promise(path: str) -> None:
    assert declared_in(path) <= {name for named, name in NAMED if named == path}


@pytest.mark.parametrize(("number", "module", "name"), COUNTS)
def test_the_numbers_are_those_of_the_tests(number: str, module: str, name: str) -> None:
    value = getattr(import_module(module), name)
    assert int(number.replace(",", "")) == (len(value) if isinstance(value, Sized) else value)


def test_there_are_numbers() -> None:
    assert len(COUNTS) >= 5
