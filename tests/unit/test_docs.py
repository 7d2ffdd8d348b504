"""What the pages say must exist, and what exists must be on a page."""

from __future__ import annotations

import re
from dataclasses import is_dataclass
from pathlib import Path

import pytest

from hocket import config

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
