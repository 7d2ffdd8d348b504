"""docs/limits.md, docs/reliability.md and the code say the same; files have one door."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from hocket.core import limits
from hocket.speech import kaldi_files
from hocket.speech.input import kaldi_archive
from hocket.support import arrays, inputs
from hocket.support.inputs import MIB

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "limits.md").read_text()


def rows(page: str) -> dict[str, str]:
    """The tables of a page: first column to second."""
    cells = [line.strip("|").split("|") for line in page.splitlines() if line.startswith("|")]
    return {row[0].strip(): row[1].strip() for row in cells}


def test_the_page_states_the_limits_of_files() -> None:
    stated = " ".join(rows(PAGE).values())
    for size in (
        *(inputs.CONFIG_LIMIT, inputs.TABLE_LIMIT, inputs.LINE_LIMIT, inputs.UNFOLD_FLOOR),
        *(arrays.ARRAYS_LIMIT, kaldi_archive.ENTRY_LIMIT, kaldi_archive.TEXT_LIMIT),
    ):
        assert f"{size // MIB} MiB" in stated
    assert f"{inputs.UNFOLD_RATIO} times" in stated
    assert f"{kaldi_archive.KEY_LIMIT} bytes" in stated
    assert f"{kaldi_files.MAX_PDFS:,}" in rows(PAGE)["`--num-pdfs`"]


def test_the_page_states_the_limits_of_audio() -> None:
    audio = pytest.importorskip("hocket.speech.input.audio")
    stated = rows(PAGE)
    hours = stated["an utterance, or a recording without segments"]
    assert hours == f"{audio.MAX_UTTERANCE_S // 3600} hours"
    low, high = audio.SAMPLE_RATES[0], audio.SAMPLE_RATES[-1]
    assert stated["the sample rate of audio"] == f"{low:,} to {high:,} Hz"


def test_the_page_states_the_limits_of_options() -> None:
    stated = rows(PAGE)
    for name, most in limits.MOST.items():
        (row,) = [key for key in stated if f"`{name}`" in key and stated[key][0].isdigit()]
        assert stated[row] == f"{most:,}", name
    assert stated["any other whole number"] == f"{limits.MOST_OF_ANYTHING:,}"
    assert stated["any fraction"] == f"{limits.LARGEST:g}, and {limits.SMALLEST:g} or 0"
    assert stated["any time in seconds"] == f"{limits.LONGEST_S:g}"
    (processes,) = [key for key in stated if key.startswith("processes")]
    assert stated[processes] == f"{limits.MOST_PROCESSES:,}"


def test_the_promises_name_tests_that_exist() -> None:
    page = (ROOT / "docs" / "reliability.md").read_text()
    named = set(re.findall(r"`(test_\w+\.py)`", page))
    there = {path.name for path in (ROOT / "tests").rglob("test_*.py")}
    assert named
    assert named <= there
    fuzzing = {path.name for path in (ROOT / "tests" / "fuzz").glob("test_*.py")}
    assert fuzzing <= named  # and none of them is forgotten


# ---------------------------------------------------------------------------- one door

DOORS = {"support/inputs.py", "support/arrays.py"}
OWN = {  # what is read there is Hocket's own source, or the system's, or that of a library
    *("runtime/net/mesh.py", "speech/corpus/espeak.py"),
    *("reproduce/cache.py", "reproduce/writing.py", "reproduce/headlines.py", "cli/recipe.py"),
    *("runtime/launch/children.py", "runtime/launch/hosts.py"),
}
READERS = {"read_text", "read_bytes", "load_file", "safe_open", "decompress"}


def readers(tree: ast.AST) -> set[str]:
    """The calls that read a file without a look at it: `path.read_text()`, `np.load(...)`, ..."""
    found = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if name in READERS and not node.args:
            found.add(name)
        if name == "load" and ast.unparse(node.func) in ("np.load", "numpy.load", "torch.load"):
            found.add(name)
        if ast.unparse(node.func) in ("load_file", "safe_open", "gzip.decompress", "json.load"):
            found.add(ast.unparse(node.func))
    return found


def test_files_are_read_through_one_door() -> None:
    source = ROOT / "src" / "hocket"
    reading = {
        path.relative_to(source).as_posix()
        for path in source.rglob("*.py")
        if readers(ast.parse(path.read_text()))
    }
    assert reading - DOORS - OWN == set()


@pytest.mark.parametrize("code", ["p.read_text()", "np.load(p)", "load_file(p)", "p.read_bytes()"])
def test_another_door_would_be_seen(code: str) -> None:
    assert readers(ast.parse(code))
    assert not readers(ast.parse("inputs.read_text(path)"))
