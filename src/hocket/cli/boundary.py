"""The one boundary between a command and its user: every end of a command as one would tell it.

    0     done
    1     the world: a full disk, a learner that failed, a run that diverged, a folder in use
    2     the input: an option, a file, data that cannot be used; the same command fails again
    70    a bug in Hocket: the traceback is in a file to report (EX_SOFTWARE of sysexits.h)
    130   stopped by Ctrl-C

A traceback helps whoever mends Hocket, not whoever uses it. So it is never printed; whatever nobody
foresaw is written to a file, in the run directory if there is one.
"""

from __future__ import annotations

import errno
import os
import platform
import shlex
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Final

from hocket.errors import HocketError, LearnerFailedError
from hocket.record.rundir import RunDirectory
from hocket.support.files import NO_ROOM
from hocket.support.memory import is_out_of_memory

STOPPED: Final = 130  # exit status, as a shell reports Ctrl-C
BUG: Final = 70
# What a name on the command line, or in a file, may be the cause of.
_NAMES: Final = (
    *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOTEMPTY),
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL),
)


def guarded(program: str, command: Sequence[str], run: Path | None, work: Callable[[], int]) -> int:
    """Do the work; return the exit status, and say what went wrong. `run`: where it writes to."""
    _never_fail_to_print()
    try:
        return work()
    except LearnerFailedError as error:
        if error.trace and not is_out_of_memory(error):
            return _report(program, command, run, str(error), error.trace)
        return _say(program, str(error), error.exit_status)
    except HocketError as error:
        return _say(program, _with_notes(error), error.exit_status)
    except BrokenPipeError:  # `hocket ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        return _say(program, *_of_the_system(error))
    except KeyboardInterrupt:
        return _say(program, "ended at once; what was finished or checkpointed is kept", STOPPED)
    except Exception as error:
        if is_out_of_memory(error):
            told = f"not enough memory ({str(error).splitlines()[0][:200] if str(error) else ''})"
            return _say(program, f"{told}: use a smaller model, task, or fewer learners", 1)
        name = f"{type(error).__name__}: {str(error)[:200]}"
        return _report(program, command, run, name, traceback.format_exc())


def _never_fail_to_print() -> None:
    """Show names that the terminal cannot encode by their bytes, instead of failing on them."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def _say(program: str, text: str, status: int) -> int:
    print(f"{program}: {text}", file=sys.stderr)
    return status


def _with_notes(error: HocketError) -> str:
    return "\n".join([str(error), *getattr(error, "__notes__", [])])


def _of_the_system(error: OSError) -> tuple[str, int]:
    """Return what to say about an error of the operating system, and the exit status."""
    where = f" of {error.filename}" if error.filename else ""
    kept = "what was finished or checkpointed is kept"
    if error.errno in NO_ROOM:
        return f"no room on the disk{where}: free some and give the same command again; {kept}", 1
    if error.errno in _NAMES and error.filename:
        return f"{error.filename}: {error.strerror}: choose another name, or make it usable", 2
    return f"{error}; {kept}", 1


# ---------------------------------------------------------------------------- what nobody foresaw


def _report(program: str, command: Sequence[str], run: Path | None, what: str, trace: str) -> int:
    text = _facts(program, command) + "\n" + trace
    for folder in (run, Path(tempfile.gettempdir())):
        path = None if folder is None else _written(folder, program, text)
        if path is not None:
            told = f"this is a bug in Hocket ({what}); please report it with {path}"
            return _say(program, told, BUG)
    print(text, file=sys.stderr)  # nowhere to write: better a traceback than nothing
    return _say(program, f"this is a bug in Hocket ({what}); please report it with the above", BUG)


def _facts(program: str, command: Sequence[str]) -> str:
    versions = f"hocket {version('hocket')}, torch {version('torch')}, numpy {version('numpy')}"
    system = f"Python {platform.python_version()}, {platform.platform()}"
    return f"{shlex.join([program, *command])}\n{versions}, {system}\n{time.strftime('%F %T')}\n"


def _written(folder: Path, program: str, text: str) -> Path | None:
    """Write the report to a new file of a folder that is there; None if that is impossible."""
    prefix = f"{program}-bug-{time.strftime('%Y%m%d-%H%M%S')}-"
    try:
        descriptor, name = tempfile.mkstemp(".txt", prefix, folder)
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
    except (OSError, ValueError):
        return None
    return Path(name)


def run_directory(*candidates: object) -> Path | None:
    """Return the first of some arguments that is a run directory, to leave a report in."""
    for path in candidates:
        if isinstance(path, Path) and RunDirectory(path).is_run():
            return path
    return None
