"""The error of a real learner that has waited too long, for a collective or a message."""

from __future__ import annotations

from hocket.errors import WaitTimeoutError


def gave_up(
    rank: int, what: str, waited_s: float, timeout_s: float, why: object = ""
) -> WaitTimeoutError:
    """Return the error: who waited for what and how long, what is known, and what to do."""
    known = f": {why}" if why else ""
    return WaitTimeoutError(
        f"rank {rank} waited {waited_s:.1f} s for {what} and gave up{known}. Another learner is "
        "stuck, paused or much slower: see what each was doing below; if it is only slow, raise "
        f"runtime.timeout_s (now {timeout_s:g})"
    )
