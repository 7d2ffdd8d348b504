"""Random sentences from a small grammar.

    RULE = words and RULES | another choice | ...

A word in capitals is the name of a rule; any other word is spoken as it is written. Words in
[brackets] are spoken half of the time. All choices of a rule are equally likely, so a choice that
should be more frequent is written several times. A rule may continue on indented lines below it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hocket.speech.errors import SpeechError

Choice = tuple[str, ...]


@dataclass(frozen=True)
class Grammar:
    """Rules by name; `start` is the rule of a whole sentence."""

    rules: dict[str, tuple[Choice, ...]]
    start: str

    @classmethod
    def read(cls, text: str, start: str) -> Grammar:
        """Parse the rules; refuse a name that has no rule, and a rule that contains itself."""
        rules = {name: tuple(_choices(body)) for name, body in _bodies(text)}
        grammar = cls(rules, start)
        grammar._check(start, ())
        return grammar

    def _check(self, name: str, above: tuple[str, ...]) -> None:
        if name not in self.rules:
            raise SpeechError(f"the grammar has no rule {name} (used in {' > '.join(above)})")
        if name in above:
            raise SpeechError(f"the rule {name} contains itself: {' > '.join((*above, name))}")
        for inner in {t for choice in self.rules[name] for t in choice if t.isupper()}:
            self._check(inner, (*above, name))

    def sentence(self, rng: np.random.Generator) -> list[str]:
        """Draw a random sentence, as a list of words."""
        return list(self._expand(self.start, rng))

    def _expand(self, name: str, rng: np.random.Generator) -> Iterator[str]:
        choices = self.rules[name]
        skipping = False
        for token in choices[int(rng.integers(len(choices)))]:
            if token == "[":
                skipping = bool(rng.random() < 0.5)
            elif token == "]":
                skipping = False
            elif skipping:
                continue
            elif token.isupper():
                yield from self._expand(token, rng)
            else:
                yield token

    @cached_property
    def words(self) -> frozenset[str]:
        """Every word that a sentence can contain."""
        tokens = {t for choices in self.rules.values() for choice in choices for t in choice}
        return frozenset(t for t in tokens if not t.isupper()) - {"[", "]"}


def _bodies(text: str) -> Iterator[tuple[str, str]]:
    """Yield each rule's name and its choices as text, indented lines included."""
    name, body = "", ""
    for line in text.splitlines():
        if line[:1].isupper():
            if name:
                yield name, body
            name, equals, body = (part.strip() for part in line.partition("="))
            if not equals:
                raise SpeechError(f"the grammar should read 'RULE = ...', not {line!r}")
        else:
            body += " " + line.strip()
    if name:
        yield name, body


def _choices(body: str) -> Iterator[Choice]:
    for choice in body.split("|"):
        yield tuple(choice.replace("[", " [ ").replace("]", " ] ").split())
