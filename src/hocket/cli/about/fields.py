"""What the fields of a dataclass mean: the comments beside them in the source."""

from __future__ import annotations

import ast
import inspect
import io
import textwrap
import tokenize


def comments(kind: type) -> dict[str, str]:
    """Return the comment that stands behind each field of a class and of its bases.

    A subclass that changes only a default inherits the comment. A field without a comment, and any
    field where the source is not at hand (a zipped or compiled installation), is left out.
    """
    found: dict[str, str] = {}
    for one in reversed(kind.__mro__):
        try:
            source = textwrap.dedent(inspect.getsource(one))
        except (OSError, TypeError):  # no source; a built-in class
            continue
        found |= comments_in(source)
    return found


def comments_in(source: str) -> dict[str, str]:
    """Return the comments behind the annotated names in the body of a class."""
    behind = {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    (definition,) = ast.parse(source).body
    assert isinstance(definition, ast.ClassDef)
    return {
        node.target.id: behind[node.end_lineno]
        for node in definition.body
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and node.end_lineno in behind
    }
