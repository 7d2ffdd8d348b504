"""What the pages say must exist, and what exists must be on a page."""

from __future__ import annotations

import pkgutil
import re
from dataclasses import is_dataclass
from pathlib import Path

import pytest
from unit.test_imports import names_in

from hocket import config
from hocket.core import effects, stage_effects
from hocket.core.effects import Effect
from hocket.core.strategy import Strategy

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "recipes/README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_every_option_is_explained() -> None:
    page = (ROOT / "docs/configuration.md").read_text()
    ngsgd = (ROOT / "docs/natural_gradient.md").read_text()
    missing = []
    for table, kinds in config.options().items():
        for kind, keys in kinds.items():
            text = page + (ngsgd if kind == "ngsgd" else "")
            if table == "strategy":
                text = (ROOT / f"docs/strategies/{kind}.md").read_text()
            prefix = kind.strip("[]") + "." if kind.startswith("[[") else ""
            missing += [
                f"{table} {kind} {key}"
                for key, (_, default) in keys.items()
                if f"`{prefix}{key}`" not in text
                and not isinstance(default, tuple)
                and not is_dataclass(default)  # a table of its own
            ]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())
    broken = [t for t in targets if "://" not in t and not (page.parent / t).exists()]
    assert not broken


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_tests_and_programs_that_a_page_names_are_there(page: Path) -> None:
    named = re.findall(r"\b((?:tests|benchmarks|examples|recipes)/[\w/]+\.py)\b", page.read_text())
    assert not [name for name in named if not (ROOT / name).exists()]


def moved() -> list[str]:
    """What the changelog's tables of moved names give as new: the second column, in full."""
    text = (ROOT / "CHANGELOG.md").read_text().partition("### Moved import paths")[2]
    found = []
    for line in text.partition("\n### ")[0].splitlines():
        if not line.startswith("| `hocket"):
            continue
        old, new = (re.findall(r"`([\w.*]+)", cell) for cell in line.split("|")[1:3])
        names = old if new[0].endswith("*") else new
        room = new[0].rpartition(".")[0]
        for name in names:
            stays = name.startswith("hocket.") and names is new
            room = name.rpartition(".")[0] if stays else room
            found.append(f"{room}.{name.rpartition('.')[2]}")
    return found


def test_names_that_have_moved_are_where_the_changelog_says() -> None:
    assert len(moved()) > 100
    for name in moved():
        assert pkgutil.resolve_name(name), name


def test_the_page_on_the_architecture_names_files_that_exist() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    folders = [ROOT / name for name in ("src", "tests", "benchmarks")]
    files = [str(path) for folder in folders for path in folder.rglob("*.py")]
    named = re.findall(r"`([\w/]+\.py)`", page)
    assert len(named) > 100
    assert not [name for name in named if not any(file.endswith(f"/{name}") for file in files)]


def test_the_page_on_the_architecture_names_every_room() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    rooms = {path.parent for path in (ROOT / "src/hocket").rglob("__init__.py")}
    rooms.remove(ROOT / "src/hocket")
    assert not [room for room in rooms if f"{room.name}/" not in page]


def test_the_page_on_the_architecture_names_every_effect() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    table = page.partition("| effect | answer |")[2].partition("\n\n")[0]
    known = [*vars(effects).values(), *vars(stage_effects).values()]
    kinds = {one for one in known if isinstance(one, type) and issubclass(one, Effect)} - {Effect}
    assert not [kind.__name__ for kind in kinds if not re.search(rf"`{kind.__name__}\b", table)]


def test_whoever_adds_a_strategy_is_told_all_that_it_can_declare() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    declared = [
        name for name, kind in vars(Strategy)["__annotations__"].items() if "ClassVar" in kind
    ]
    assert "codes" in declared
    assert not [name for name in declared if f"`{name}`" not in page]


def arrows() -> tuple[set[tuple[str, str]], dict[str, str]]:
    """The arrows of the diagram of rooms, and each room's or module's box."""
    diagram = (ROOT / "docs/architecture.md").read_text().partition("flowchart TD")[2]
    diagram = diagram.partition("```")[0]
    drawn = set(re.findall(r"^ +(\w+) --> (\w+)$", diagram, re.MULTILINE))
    boxes = re.findall(r'^ +(\w+)\["([^<]+)<br', diagram, re.MULTILINE)
    return drawn, {name: box for box, label in boxes for name in label.split(", ")}


def imports_between(boxes: dict[str, str]) -> set[tuple[str, str]]:
    """Which box imports from which."""
    source, found = ROOT / "src", set()

    def box(module: str) -> str | None:
        rooms = [part for part in module.split(".")[1:] if part != "runtime"]
        return boxes.get(rooms[0]) if rooms else None

    for path in (source / "hocket").rglob("*.py"):
        here = box(".".join(path.relative_to(source).with_suffix("").parts))
        names = (name for name in names_in(path.read_text()) if name.startswith("hocket."))
        found |= {(here, there) for name in names if here and (there := box(name))}
    return {(here, there) for here, there in found if here != there}


def test_the_diagram_of_rooms_shows_the_imports_there_are() -> None:
    drawn, boxes = arrows()
    used = imports_between(boxes)
    assert len(used) > 40
    assert not drawn - used, "an arrow that no import stands for"
    follow = set(drawn)
    while more := {(a, d) for a, b in follow for c, d in drawn if b == c} - follow:
        follow |= more
    assert not used - follow, "an import that no arrow shows"
