"""Configurations and command lines, hostile: built, run, or refused with status 2; never a bug."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.fuzzing import (
    VALUES,
    edits,
    in_numbers,
    refused,
    spoilt_bytes,
    spoilt_tree,
    tree_edits,
    try_out,
)
from helpers.runs import simulated
from helpers.tasks import Quadratic
from hypothesis import strategies as st

from hocket import Sequential, config
from hocket.cli.main import COMMANDS, main
from hocket.errors import ConfigError

OPTIONS = config.options()
SMALL = ["task.num_frames=64", "task.dev_frames=32", "task.batch_frames=8", "model.width=4"]

# ---------------------------------------------------------------------------- configurations


def whole_tables() -> dict[str, dict[str, Any]]:
    """Every table, every key, at its default."""
    tables: dict[str, dict[str, Any]] = {}
    chosen = {"task": "synthetic", "strategy": "bmuf", "optimizer": "ngsgd", "schedule": "newbob"}
    for table, kinds in OPTIONS.items():
        name = chosen.get(table, next(iter(kinds)))
        keys = {k: default for k, (_, default) in kinds[name].items() if default != "(needed)"}
        plain = {k: v for k, v in keys.items() if isinstance(v, int | float | str | bool)}
        tables[table] = ({"name": name} if table in chosen or name else {}) | plain
    tables["model"]["name"], tables["codec"]["name"] = "dnn", "float32"
    tables["cluster"]["hosts"] = [{"count": 2, "learners": 1}]
    tables["cluster"]["deaths"] = [{"rank": 0, "at_s": 1.0}]
    return tables


@in_numbers
def test_spoilt_configurations_are_built_or_refused(cases: int, tmp_path: Path) -> None:
    whole, path = whole_tables(), tmp_path / "config.json"
    config.build_experiment({k: v for k, v in whole.items() if k != "cluster"})
    config.build_cluster(whole["cluster"])

    def attempt(changes: list[tuple[str, int, Any]]) -> None:
        path.write_text(json.dumps(spoilt_tree(whole, changes)))

        def build() -> None:
            tables = config.read(path)
            refused(lambda: config.build_cluster(tables.pop("cluster", {})))
            config.build_experiment(tables)

        refused(build)

    try_out(5 * cases, tree_edits, attempt)


SAID = [
    *(
        "1",
        "0",
        "-1",
        "1e30",
        "-1e30",
        "1e-30",
        "1e300",
        "1e400",
        "nan",
        "inf",
        "-inf",
        "true",
        "two",
    ),
    *("[]", "{}", "[1]", "{a = 1}", "''", '"', "1979-05-27", "0x10", "1_0", "9" * 30, "9" * 5000),
    *("[" * 50_000, "é", "[/b]", "\x00", "\udcff", " ", "=", "a=b", "None", "1.5", "3", "0.5"),
]


def every_key() -> list[str]:
    return sorted(
        {
            f"{table}.{key}"
            for table, kinds in OPTIONS.items()
            for keys in kinds.values()
            for key in [*keys, "name", "nonsense"]
        }
    )


@in_numbers
def test_any_setting_is_taken_or_refused(cases: int) -> None:
    names = {t: [n for n in kinds if n and "[" not in n] for t, kinds in OPTIONS.items()}

    def attempt(drawn: tuple[str, list[tuple[str, str]]]) -> None:
        strategy, given = drawn
        tables: dict[str, dict[str, Any]] = {"strategy": {"name": strategy}}

        def build() -> None:
            for key, value in given:
                config.override(tables, f"{key}={value}")
            refused(lambda: config.build_cluster(tables.pop("cluster", {})))
            config.build_experiment(tables)

        refused(build)

    settings = st.lists(
        st.tuples(st.sampled_from(every_key()), st.sampled_from(SAID)), min_size=1, max_size=4
    )
    try_out(2 * cases, st.tuples(st.sampled_from(names["strategy"]), settings), attempt)


@in_numbers
@pytest.mark.parametrize("name", ["config.toml", "cluster.toml", "config.json"])
def test_spoilt_files_of_settings_are_read_or_refused(
    cases: int, name: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    text = {
        "config.toml": '[strategy]\nname = "kstep"\nsync_every = 4\n[optimizer]\nlr = 0.1\n',
        "cluster.toml": "[[hosts]]\ncount = 2\n[[slow]]\nrank = 1\nfactor = 3.0\nuntil_s = inf\n",
        "config.json": json.dumps(whole_tables()),
    }[name]

    def build() -> None:
        if name == "cluster.toml":
            config.build_cluster(config.parse(path))
        else:
            config.build_parts({k: v for k, v in config.read(path).items() if k != "cluster"})

    def attempt(changes: list[tuple[str, float, bytes]]) -> None:
        path.write_bytes(spoilt_bytes(text.encode(), changes))
        refused(build)

    try_out(cases, edits, attempt)


NUMBERS = [0, 1, 2, 3, -1, 0.5, 0.9, 1.5, 1e-30, 1e30, 1e-9, 1e9, float("inf"), float("nan")]


@in_numbers
def test_what_is_taken_can_be_run(cases: int) -> None:
    """Numbers at the edge of what a method takes: it runs, diverges, or is refused; no bug."""
    strategies = [name for name in OPTIONS["strategy"] if name != "sequential"]

    def attempt(drawn: tuple[str, str, str, list[tuple[int, Any]], int]) -> None:
        strategy, optimizer, schedule, chosen, learners = drawn
        tables: dict[str, dict[str, Any]] = {
            "strategy": {"name": strategy},
            "optimizer": {"name": optimizer},
            "schedule": {"name": schedule},
        }
        keys = [
            (table, key)
            for table, given in tables.items()
            for key, (kind, _) in OPTIONS[table][given["name"]].items()
            if kind in ("int", "float") and key != "epochs"
        ]
        for number, value in chosen:
            table, key = keys[number % len(keys)]
            tables[table][key] = value
        tables["schedule"]["epochs"] = 2

        def run() -> None:
            parts = config.build_parts(tables, Quadratic(num_items=6))
            del parts["codec"], parts["options"], parts["task"]
            simulated(Quadratic(num_items=6), parts.pop("strategy"), learners, **parts)

        refused(run)

    try_out(
        cases,
        st.tuples(
            st.sampled_from(strategies),
            st.sampled_from([name for name in OPTIONS["optimizer"] if name != "ngsgd"]),
            st.sampled_from(list(OPTIONS["schedule"])),
            st.lists(
                st.tuples(st.integers(0, 99), st.sampled_from(NUMBERS)), min_size=1, max_size=3
            ),
            st.sampled_from([2, 3, 4]),
        ),
        attempt,
    )


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("model.width=1000000000000", r"model\.width must be at most 1,000,000"),
        ("model.layers=100000000", r"model\.layers must be at most 1,000"),
        ("task.num_frames=100000000000000", r"task\.num_frames = 100,000,000,000,000 .* GB"),
        ("task.num_classes=10000000", r"10,000,000 classes would take"),
        ("optimizer.lr=1e300", r"optimizer\.lr must be at most 1e\+30"),
        ("optimizer.lr=nan", r"optimizer\.lr must be above 0"),
        ("optimizer.lr=inf", r"optimizer\.lr must be finite"),
        ("runtime.timeout_s=1e300", r"runtime\.timeout_s must be at most 1e\+08"),
        ("runtime.threads=1000000", r"runtime\.threads must be at most 1,024"),
        ("schedule.epochs=" + "9" * 40, r"at most 1,000,000, not a number of more than 30"),
        ("optimizer.lr=" + "9" * 400, r"must be at most 1e\+30"),
        ("strategy.name=kaldi strategy.first_parts=65536", r"first_parts must be at most 1,000"),
        ("optimizer.name=ngsgd optimizer.num_samples_history=1e30", r"at most 1e\+12"),
    ],
)
def test_sizes_that_cannot_be_meant_are_refused(setting: str, says: str) -> None:
    tables: dict[str, dict[str, Any]] = {}
    for one in setting.split():
        config.override(tables, one)
    with pytest.raises(ConfigError, match=says):
        config.build_experiment(tables)


def test_a_network_that_no_machine_can_hold_is_refused_before_memory_is_taken() -> None:
    tables: dict[str, dict[str, Any]] = {"model": {"width": 1_000_000, "layers": 1_000}}
    task = config.build_task(tables)
    with pytest.raises(ConfigError, match=r"a network of 999,\d+,\d+,\d+,\d+ parameters .* GB"):
        task.build_model()


# ---------------------------------------------------------------------------- command lines


ODD = [
    *("", " ", "-", "--", "-1", "0", "nan", "1e300", "synthetic", "stream", "speech", "kstep"),
    *(".", "..", "/", "/dev/null", "/dev/zero", "/nowhere/x", "x" * 300, "é" * 200, "[/b]", "{x}"),
    *("%s", "$(true)", "a b", "\udcff", "<script>", "*", "~", "FOLDER", "FILE", "FIFO", "LOOP"),
    *(
        "RUN",
        "PAGE.html",
        "task.name=x",
        "strategy.sync_every=1",
        "runtime.learners=two",
        "model.=1",
    ),
]
FLAGS = [
    *("--out", "--set", "--config", "--strategy", "--learners", "--lr", "--epochs", "--seed"),
    *("--device", "--init", "--resume", "--quiet", "--cluster", "--replay", "--json", "--ref"),
    *("--cer", "--worst", "--html", "--title", "--target-loss", "--hours", "--snr", "--clean"),
    *("--sample-rate", "--jobs", "--lexicon", "--senones", "--features", "--resample", "--arpa"),
    *("--lm-text", "--lm-order", "--held-out", "--num-bins", "--split", "--beam", "--max-active"),
    *("--write-loglikes", "--train", "--train-ali", "--dev", "--dev-ali", "--test", "--num-pdfs"),
    *("--list", "--quick", "--smoke", "--minutes", "--seeds", "--task", "--help"),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with something of every kind in it."""
    import os

    folder = tmp_path_factory.mktemp("odd")
    (folder / "FOLDER").mkdir()
    (folder / "FILE").write_text("a0 one two\n")
    os.mkfifo(folder / "FIFO")
    (folder / "LOOP").symlink_to("LOOP")
    simulated(Quadratic(num_items=3), Sequential(), out=folder / "RUN")
    return folder


@in_numbers
def test_any_command_line_ends_with_a_message(
    cases: int, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Status 0, 1 or 2, and no traceback; `place` is left as it was."""
    monkeypatch.chdir(place)
    commands = sorted(set(COMMANDS) - {"demo", "reproduce", "corpus"})  # long work, or none
    before = sorted(p for p in place.rglob("*") if p.parent.name == "FOLDER")

    def attempt(drawn: tuple[str, list[str]]) -> None:
        command, words = drawn
        small = [w for setting in SMALL for w in ("--set", setting)]
        more = small if command in ("train", "simulate") else []
        if command == "train":  # real learners take seconds to start
            command = "simulate"
        try:
            status = main([command, *words, *more])
        except SystemExit as end:  # argparse
            status = int(end.code or 0)
        said = capsys.readouterr()
        assert status in (0, 1, 2), (status, said.err)
        assert "Traceback" not in said.err + said.out
        assert status == 0 or said.err

    words = st.lists(
        st.one_of(st.sampled_from(ODD), st.sampled_from(FLAGS), st.text(max_size=8)), max_size=7
    )
    try_out(cases, st.tuples(st.sampled_from(commands), words), attempt)
    assert sorted(p for p in place.rglob("*") if p.parent.name == "FOLDER") == before


@pytest.mark.parametrize("value", [v for v in VALUES if isinstance(v, str) and "\0" not in v])
def test_a_run_may_have_any_name(
    value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """rich would take `[/b]` for markup, and a terminal cannot show every byte."""
    if not value or "/" in value.replace("[/b]", "") or len(value.encode(errors="replace")) > 200:
        value = "[/b] :warning: [red]\udcff<b>"
    out = tmp_path / value.replace("/", "∕") / "run"
    words = ["simulate", "synthetic", "--epochs", "1", "--quiet", "--out", str(out)]
    assert main([*words, *(w for setting in SMALL for w in ("--set", setting))]) == 0
    assert "model and record" in capsys.readouterr().out
    assert main(["report", str(out), "--out", str(tmp_path / "page.html")]) == 0
    assert main(["simulate", "--resume", "--out", str(out), "--epochs", "2", "--quiet"]) == 0
