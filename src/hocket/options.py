"""What can be set: the tables of a configuration, the names each may have, and their keys.

    [task] [model] [strategy] [optimizer] [schedule] [codec] [runtime] [cluster]

A key, its type and its default are the field of a dataclass; nothing is listed twice.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any, Final, Literal, Union, get_args, get_origin

from hocket.codecs import CODECS
from hocket.data.stream import Stream
from hocket.data.synthetic import Synthetic
from hocket.data.synthetic_chunks import SyntheticChunks
from hocket.experiment import RuntimeOptions
from hocket.models import MODELS
from hocket.optim import OPTIMIZERS, SCHEDULES
from hocket.runtime.sim.cost import Cluster, Death, Host, Joining, Pause, Slow
from hocket.speech.chunk_task import SpeechChunks
from hocket.speech.task import SpeechTask
from hocket.strategies import STRATEGIES

TASKS: Final[dict[str, type[Any]]] = {
    "synthetic": Synthetic,
    "stream": Stream,
    "speech": SpeechTask,
    "synthetic-chunks": SyntheticChunks,
    "speech-chunks": SpeechChunks,
}
CHUNKED: Final = {"synthetic": "synthetic-chunks", "speech": "speech-chunks"}  # for such models
TABLES: Final = (
    "task",
    "model",
    "strategy",
    "optimizer",
    "schedule",
    "codec",
    "runtime",
    "cluster",
)


def options() -> dict[str, dict[str, dict[str, tuple[str, Any]]]]:
    """Every option there is: table -> name (empty if it has none) -> key -> (type, default)."""
    registries: dict[str, Mapping[str, type[Any]]] = {
        "task": TASKS,
        "model": MODELS,
        "strategy": STRATEGIES,
        "optimizer": OPTIMIZERS,
        "schedule": SCHEDULES,
        "codec": CODECS,
        "runtime": {"": RuntimeOptions},
        "cluster": {"": Cluster, "[[hosts]]": Host, "[[slow]]": Slow}
        | {"[[pauses]]": Pause, "[[deaths]]": Death, "[[joins]]": Joining},
    }
    return {
        table: {
            name: {
                f.name: (_type_name(kind, f.name), _default(f)) for f in dataclasses.fields(kind)
            }
            for name, kind in kinds.items()
        }
        for table, kinds in registries.items()
    }


def _type_name(kind: type[Any], key: str) -> str:
    """Say what a value may be: one of some words, or a type."""
    hint = typing.get_type_hints(kind)[key]
    kinds = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    words = []
    for one in kinds:
        if get_origin(one) is Literal:
            words += [f'"{word}"' for word in get_args(one)]
        elif one is not type(None):
            words.append(getattr(one, "__name__", str(one)))
    return " | ".join(words)


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return "(needed)"


def elsewhere(key: str) -> str:
    """Say where a key belongs that was given in the wrong table."""
    for table, kinds in options().items():
        for fields in kinds.values():
            if key in fields:
                return f" It belongs to [{table}]."
    return ""
