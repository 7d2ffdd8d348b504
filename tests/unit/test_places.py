"""Where Hocket writes, and what it finds there: pipes, impossible names, systems without UTF-8."""

from __future__ import annotations

import ast
import locale
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import hocket
from hocket.errors import ConfigError, UnreadableError
from hocket.record.metrics import MetricsFile, rewind
from hocket.record.opening import claimed
from hocket.runtime.shared.trace import Trace
from hocket.support.files import write_lines
from hocket.support.inputs import read_toml

SOURCE = Path(hocket.__file__).parent
pytestmark = pytest.mark.timeout(20)  # whoever opens a pipe waits for ever


def test_a_name_that_no_folder_can_have_is_refused() -> None:
    with (
        pytest.raises(ConfigError, match=r"cannot be made the run directory .*null byte.*--out"),
        claimed(Path("a\0b"), resume=False, doing="test", warn=print),
    ):
        pass


def test_a_pipe_in_place_of_a_record_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "metrics.abandoned.jsonl")
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text('{"event": "train", "frames": 1}\n{"cut off')
    with pytest.raises(UnreadableError, match=r"abandoned\.jsonl: it is a pipe"):
        rewind(tmp_path, 5)
    metrics.unlink()
    os.mkfifo(metrics)
    with pytest.raises(UnreadableError, match=r"metrics\.jsonl: it is a pipe"):
        MetricsFile(metrics)


def test_a_trace_takes_the_place_of_a_pipe(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    os.mkfifo(path)
    trace = Trace()
    trace.note(0, "compute", 0.0, 1.0)
    trace.write(path)
    assert path.is_file()


def test_a_setting_of_very_many_parts_is_refused_at_once(tmp_path: Path) -> None:
    """Python's reader takes a minute for 200 KB of them, and hours for a megabyte."""
    path = tmp_path / "train.toml"
    for text in (f"[{'a.' * 100_000}b]\nx = 1", f"x = 1\n{'a . ' * 100_000}b = 1"):
        path.write_text(text)
        with pytest.raises(UnreadableError, match="nested too deeply"):
            read_toml(path)


def test_long_lists_and_texts_are_no_long_keys(tmp_path: Path) -> None:
    path = tmp_path / "train.toml"
    numbers = ", ".join(["1.5"] * 5000)
    path.write_text(f"a.b.c = [{numbers}]\nd = '{'x' * 100_000}'\n")
    assert len(read_toml(path)["a"]["b"]["c"]) == 5000


SMALL_RUN = """
import sys
from hocket.cli.main import main
for model in ("dnn", "pnorm"):
    options = ["task.num_frames=64", "task.dev_frames=32", "task.batch_frames=8", "model.width=4"]
    options += [f"model.name={model}", *(["model.group=2"] if model == "pnorm" else [])]
    values = [word for option in options for word in ("--set", option)]
    assert main(["simulate", "synthetic", *values, "--out", f"{sys.argv[1]}/{model}"]) == 0
assert "torch._dynamo" not in sys.modules, "torch's compiler was loaded"
"""


@pytest.mark.timeout(120)
def test_a_run_leaves_nothing_in_the_temporary_folder_and_loads_no_compiler(tmp_path: Path) -> None:
    """Torch's compiler took most of the time of a short run."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    command = [sys.executable, "-c", SMALL_RUN, str(tmp_path)]
    env = {**os.environ, "TMPDIR": str(folder)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not list(folder.iterdir())


# ---------------------------------------------------------------------------- languages


@pytest.fixture
def without_utf8(tmp_path: Path) -> Iterator[None]:
    """A system whose language is plain ASCII, as some clusters set it."""
    before = locale.setlocale(locale.LC_CTYPE)
    locale.setlocale(locale.LC_CTYPE, "C")
    try:
        with pytest.raises(UnicodeEncodeError):
            (tmp_path / "probe").write_text("ü")
        yield
    finally:
        locale.setlocale(locale.LC_CTYPE, before)


@pytest.mark.usefixtures("without_utf8")
def test_words_are_written_as_utf8_whatever_the_language_of_the_system_is(tmp_path: Path) -> None:
    path = tmp_path / "text"
    write_lines(path, ["ü 中文\n", "\udcff.wav\n"])  # the second: a file's name that is no UTF-8
    assert path.read_bytes() == "ü 中文\n".encode() + b"\xff.wav\n"


def test_nothing_but_json_is_written_in_the_systems_language() -> None:
    """JSON as Hocket writes it is plain ASCII; words, names and settings are not."""
    found = []
    for room in ("cli", "record", "speech", "support"):
        for path in sorted((SOURCE / room).rglob("*.py")):
            for call in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(call, ast.Call) and _writes_text(call):
                    found.append(f"{path.relative_to(SOURCE)}:{call.lineno}")
    assert not found, "use write_lines, or say encoding='utf-8'"


def _writes_text(call: ast.Call) -> bool:
    if not (isinstance(call.func, ast.Attribute) and call.func.attr == "write_text"):
        return False
    says = any(word.arg == "encoding" for word in call.keywords)
    return not says and "json.dumps" not in ast.unparse(call)
