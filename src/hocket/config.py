"""Configuration: TOML tables into the frozen dataclasses that validate themselves.

    [task] [model] [strategy] [optimizer] [schedule] [codec] [runtime] [cluster]

Unknown keys are refused with the nearest valid one; so is a value of the wrong type. Nothing here
knows what an option means: each dataclass checks its own.
"""

from __future__ import annotations

import dataclasses
import platform
import tomllib
import types
import typing
import zlib
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, TypeVar, Union, get_args, get_origin

import numpy as np
import torch

from hocket.codecs import CODECS
from hocket.core.limits import LARGEST
from hocket.core.strategy import InStages, Strategy
from hocket.core.task import Task
from hocket.errors import ConfigError, UnreadableError, nearest
from hocket.experiment import Experiment, RuntimeOptions
from hocket.models import MODELS, Model
from hocket.optim import OPTIMIZERS, SCHEDULES, Optimizer
from hocket.options import CHUNKED, TABLES as TABLES, TASKS as TASKS, elsewhere, options as options
from hocket.record.rundir import RunDirectory
from hocket.runtime.sim.cost import Cluster
from hocket.speech.chunk_task import SpeechChunks
from hocket.speech.task import SpeechTask, is_experiment
from hocket.strategies import STRATEGIES
from hocket.support.inputs import read_table, read_toml

DEFAULTS: Final = "train.toml"  # in a task's folder: what its recipe sets
T = TypeVar("T")
Table = Mapping[str, Any]


# ---------------------------------------------------------------------------- reading


def read(path: Path) -> dict[str, dict[str, Any]]:
    """Read a TOML file, or a run's config.json, and refuse tables that do not exist."""
    if path.name == "config.json":
        return read_run(path.parent)
    return _checked_tables(parse(path), path)


def read_run(path: Path) -> dict[str, dict[str, Any]]:
    """Return the tables that a run was begun with, given its directory."""
    run = RunDirectory(path)
    return _checked_tables(run.config(), run.config_path)


def _checked_tables(found: Mapping[str, Any], path: Path) -> dict[str, dict[str, Any]]:
    tables = {k: v for k, v in found.items() if k not in ("versions", "facts", "data")}
    for name, table in tables.items():
        _known(name, TABLES, f"{path}: table")
        if not isinstance(table, dict):
            raise ConfigError(f"{path}: {name} must be a table: write [{name}]")
    return tables


def parse(path: Path) -> dict[str, Any]:
    """Read TOML, or JSON by its ending; an error names the file."""
    try:
        return read_table(path) if path.suffix == ".json" else read_toml(path)
    except UnreadableError as error:
        raise ConfigError(f"{path}: cannot be read: {error.reason}") from error


def task_table(name: str) -> dict[str, Any]:
    """Return the `[task]` table that a task's name or a prepared experiment's folder stands for."""
    if name in TASKS:
        return {"name": name}
    if is_experiment(Path(name)):
        return {"name": "speech", "experiment": str(Path(name).resolve())}
    raise ConfigError(
        f"task {name!r} is neither 'synthetic', 'stream' nor a folder made by `hocket prepare`."
        + (" That folder's preparation is not finished." if Path(name).is_dir() else "")
        + nearest(name, TASKS)
    )


def defaults(
    name: str, strategy: str | None = None, model: str | None = None
) -> dict[str, dict[str, Any]]:
    """Return the settings in a task's folder (train.toml), if it has any.

    For a strategy that has no rate: without those of one, as the folder cannot know who trains.
    For a model that reads sequences where the folder's reads windows, or the other way round:
    without what says how frames are put together.
    """
    path = Path(name) / DEFAULTS
    if name in TASKS or not path.is_file():
        return {}
    tables = read(path)
    tables.setdefault("task", {})["name"] = "speech"
    if strategy in STRATEGIES and not STRATEGIES[strategy].uses_rate:
        tables.pop("optimizer", None)
        if "epochs" in tables.get("schedule", {}):
            tables["schedule"] = {"epochs": tables["schedule"]["epochs"]}
    if model in MODELS and MODELS[model].sequential != is_sequential(tables):
        shared = {f.name for f in dataclasses.fields(SpeechTask)} & {
            f.name for f in dataclasses.fields(SpeechChunks)
        }
        kept = (shared | {"name"}) - {"batch_frames"}
        tables["task"] = {k: v for k, v in tables["task"].items() if k in kept}
    return tables


def merge(tables: dict[str, dict[str, Any]], more: Mapping[str, Table]) -> None:
    """Let `more` override; a table that chooses another name loses the keys of the one before."""
    for table, values in more.items():
        if "name" in values:
            rename(tables, table, values["name"])
        tables.setdefault(table, {}).update(values)


def rename(tables: dict[str, dict[str, Any]], table: str, name: str) -> None:
    """Choose another strategy, optimizer, ...: the keys of the one before go with it."""
    if tables.get(table, {}).get("name") != name:
        tables[table] = {"name": name}


def override(tables: dict[str, dict[str, Any]], setting: str) -> None:
    """Apply one `table.key=value`; the value is read as TOML, else taken as text."""
    path, equals, text = setting.partition("=")
    table, dot, key = path.strip().partition(".")
    if not equals or not dot or not key:
        raise ConfigError(
            f"--set takes table.key=value, for example strategy.sync_every=16, not {setting!r}"
        )
    _known(table, TABLES, "--set: table")
    try:
        value = tomllib.loads(f"v = {text}")["v"]
    except RecursionError:
        raise ConfigError(f"--set {path}: its value is nested too deeply") from None
    except ValueError:  # not TOML, or a number of thousands of digits
        value = text.strip()
    if key == "name":
        rename(tables, table, value)
    if (table, key) in (("strategy", "stages"), ("runtime", "ranks_per_learner")):
        _drop_other_cut(tables.get(table, {}), value)
    tables.setdefault(table, {})[key] = value


def _drop_other_cut(table: dict[str, Any], stages: Any) -> None:
    """Forget where a model was cut into another number of stages, as in a run that is resumed."""
    if len(table.get("cut") or ()) + 1 != stages:
        table.pop("cut", None)


def _known(name: str, choices: typing.Iterable[str], what: str) -> None:
    if name not in choices:
        raise ConfigError(
            f"{what} {name!r} is not known.{nearest(name, choices)} There are: {', '.join(choices)}"
        )


# ---------------------------------------------------------------------------- building


def build(cls: type[T], table: Table, where: str, *, skip: tuple[str, ...] = ()) -> T:
    """Make a dataclass of a table."""
    fields = {f.name: f for f in dataclasses.fields(cls) if f.name not in skip}  # type: ignore[arg-type]
    hints = typing.get_type_hints(cls)
    values = {}
    for key, value in table.items():
        if key not in fields:
            have = ", ".join(fields) or "none"
            hint = nearest(key, fields) or elsewhere(key)
            raise ConfigError(f"unknown key {key!r} in {where}.{hint} Valid keys: {have}")
        table_name = where.partition(" of ")[0].strip("[]")
        values[key] = _convert(value, hints[key], f"{table_name}.{key}")
    missing = [
        name
        for name, f in fields.items()
        if name not in values
        and f.default is dataclasses.MISSING
        and f.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise ConfigError(f"{where} needs a value for {missing[0]!r}")
    return cls(**values)


def choose(registry: Mapping[str, type[T]], table: Table, where: str, default: str) -> T:
    """Make the dataclass that `name` in the table stands for."""
    name = table.get("name", default)
    _known(str(name), registry, f"{where}.name")
    rest = {k: v for k, v in table.items() if k != "name"}
    return build(registry[name], rest, f"[{where}] of {name!r}")


def _convert(value: Any, hint: Any, where: str) -> Any:
    origin = get_origin(hint)
    if origin is Literal:
        choices = get_args(hint)
        if value not in choices:
            listed = ", ".join(map(repr, choices))
            raise ConfigError(
                f"{where} must be one of {listed}, not {value!r}."
                f"{nearest(str(value), map(str, choices))}"
            )
        return value
    if origin in (Union, types.UnionType):
        inner = [a for a in get_args(hint) if a is not type(None)]
        return None if value is None else _convert(value, inner[0], where)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise ConfigError(f"{where} must be a list, not {value!r}")
        inner_hint = get_args(hint)[0]
        return tuple(_convert(v, inner_hint, f"{where}[{i}]") for i, v in enumerate(value))
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, Mapping):
            raise ConfigError(f"{where} must be a table, not {value!r}")
        assert isinstance(hint, type)
        return build(hint, value, where)
    if hint is float and (
        value == "inf" or (isinstance(value, int) and not isinstance(value, bool))
    ):
        try:
            return float(value)
        except OverflowError:
            raise ConfigError(f"{where} must be at most {LARGEST:g}") from None
    if isinstance(value, bool) != (hint is bool) or not isinstance(value, hint):
        raise ConfigError(f"{where} must be {_article(hint.__name__)}, not {value!r}")
    return value


def _article(name: str) -> str:
    words = {"int": "a whole number", "float": "a number", "str": "text", "bool": "true or false"}
    return words.get(name, name)


def build_task(tables: Mapping[str, Table]) -> Task:
    """Make the task of the `[task]` and `[model]` tables."""
    table = tables.get("task", {})
    name = table.get("name", "synthetic")
    _known(str(name), TASKS, "task")
    if is_sequential(tables):
        name = CHUNKED.get(name, name)
        if name not in CHUNKED.values():
            raise ConfigError(
                f"task {name!r} has no sequences of frames, which model "
                f"{tables['model']['name']!r} reads: use synthetic or a prepared experiment"
            )
    rest = {k: v for k, v in table.items() if k != "name"}
    task: Any = build(TASKS[name], rest, f"[task] of {name!r}", skip=("model",))
    if not tables.get("model"):
        usual: Task = task  # with the network that suits it
        return usual
    made: Task = dataclasses.replace(task, model=choose(MODELS, tables["model"], "model", "dnn"))
    return made


def is_sequential(tables: Mapping[str, Table]) -> bool:
    """True if the `[model]` table names a model that reads sequences of frames."""
    name = tables.get("model", {}).get("name")
    return isinstance(name, str) and name in MODELS and MODELS[name].sequential


def build_parts(
    tables: Mapping[str, Table], task: Task | None = None, method: Strategy[Any] | None = None
) -> dict[str, Any]:
    """Make the parts of an experiment; `task` and `method` given: objects of one's own."""
    if task is not None and (tables.get("task") or tables.get("model")):
        raise ConfigError("[task] and [model] have no effect: the task was given as an object")
    strategy = method or choose(STRATEGIES, tables.get("strategy", {}), "strategy", "sequential")
    task = task or build_task(tables)
    return {
        "task": task,
        "strategy": strategy,
        "optimizer": _optimizer(tables.get("optimizer", {}), strategy, task),
        "schedule": choose(SCHEDULES, tables.get("schedule", {}), "schedule", "constant"),
        "codec": choose(CODECS, tables.get("codec", {}), "codec", "float32"),
        "options": build(RuntimeOptions, tables.get("runtime", {}), "[runtime]"),
    }


def _optimizer(table: Table, strategy: Strategy[Any], task: Task) -> Optimizer:
    """Make the optimizer; recurrent networks have their gradients clipped unless told otherwise."""
    clip = getattr(getattr(task, "model", None), "clip_norm", None)
    cut = isinstance(strategy, InStages) and strategy.stages > 1  # nobody has a whole gradient
    if clip is not None and strategy.uses_rate and not cut:
        table = {"clip_norm": clip} | dict(table)
    return choose(OPTIMIZERS, table, "optimizer", strategy.usual_optimizer)


def build_experiment(tables: Mapping[str, Table]) -> Experiment:
    """Make the whole experiment."""
    return Experiment(**build_parts(tables))


def build_cluster(table: Table) -> Cluster:
    """Make a cluster of the `[cluster]` table or of a cluster file."""
    return build(Cluster, table, "[cluster]")


# ---------------------------------------------------------------------------- recording


def record(experiment: Experiment, cluster: Cluster | None = None) -> dict[str, Any]:
    """Return everything that decided a run, with versions: what `config.json` holds."""
    task = experiment.task
    known = next((n for n, c in TASKS.items() if type(task) is c), None)
    tables: dict[str, Any] = {
        "task": {"name": known or type(task).__qualname__}
        | (_fields(task, skip=("model",)) if dataclasses.is_dataclass(task) else {}),
    }
    model = getattr(task, "model", None)
    if dataclasses.is_dataclass(model):
        named = {"name": model.name} if isinstance(model, Model) else {}
        tables["model"] = named | _fields(model)
    for table in ("strategy", "optimizer", "schedule", "codec"):
        part = getattr(experiment, table)
        tables[table] = {"name": part.name} | _fields(part)
    tables["runtime"] = _fields(experiment.options)
    if cluster is not None:
        tables["cluster"] = _plain(dataclasses.asdict(cluster))
    tables["versions"] = {
        "hocket": version("hocket"),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
    }
    tables["data"] = fingerprint(task)
    tables["facts"] = task.describe()
    return tables


def fingerprint(task: Task) -> dict[str, Any]:
    """Return what tells one data set from another, for tasks whose fields do not."""
    facts: dict[str, Any] = {}
    for split in ("train", "dev"):
        items = task.items(split)
        names = "\n".join(f"{item.id}\t{item.frames}" for item in items)
        facts[split] = {
            "items": len(items),
            "frames": sum(item.frames for item in items),
            "checksum": zlib.crc32(names.encode()),
        }
    return facts


def _fields(part: Any, skip: tuple[str, ...] = ()) -> dict[str, Any]:
    return {
        f.name: _plain(getattr(part, f.name))
        for f in dataclasses.fields(part)
        if f.name not in skip and get_origin(f.type) is not ClassVar
    }


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _plain(dataclasses.asdict(value))
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return str(value)
    return value if isinstance(value, bool | int | float | str | None) else type(value).__qualname__
