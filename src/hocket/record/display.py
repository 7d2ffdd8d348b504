"""What a user sees while a run goes on: a bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Protocol

from rich.console import Console

from hocket.support.progress import Pace, new_bar, print_line, terminal


class Display(Protocol):
    """Shows events as they come."""

    def __enter__(self) -> Display:
        """Take over the terminal, where a bar is shown."""
        ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop showing, also after an error."""
        ...

    def show(self, event: dict[str, Any]) -> None:
        """Show one event of metrics.jsonl, or one that is for the display only (`progress`)."""
        ...

    def say(self, text: str) -> None:
        """Print a line, above the bar if there is one."""
        ...


class SilentDisplay:
    """Shows nothing."""

    def __enter__(self) -> SilentDisplay:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def show(self, event: dict[str, Any]) -> None:
        """Print nothing."""

    def say(self, text: str) -> None:
        """Print nothing."""


class LineDisplay:
    """One line now and then: for logs and pipes."""

    def __init__(self, title: str, total_frames: int) -> None:
        self._title = title
        self._total = total_frames
        self._pace = Pace()
        self._speed = Speed()

    def __enter__(self) -> LineDisplay:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def show(self, event: dict[str, Any]) -> None:
        """Print evaluations and losses at once, training now and then."""
        self._speed.see(event)
        kind = event["event"]
        if kind == "eval":
            self.say(
                f"{self._title}: {_percent(event, self._total)}  dev loss {event['loss']:.4f}  "
                f"accuracy {event['accuracy']:.4f}{measured(event)}"
            )
        elif kind == "note":
            self.say(event["text"])
        elif kind == "lost":
            self.say(f"{self._title}: rank {event['rank']} lost ({event.get('reason', '')})")
        elif kind in ("train", "progress") and self._pace.due():
            self.say(
                f"{self._title}: {_percent(event, self._total)}  epoch {event['epoch'] + 1}  "
                f"loss {event['loss']:.4f}  accuracy {event['accuracy']:.4f}  "
                f"{self._speed.text(self._total)}{_doing(event)}"
            )

    def say(self, text: str) -> None:
        """Print a line to standard error."""
        print_line(text)


class BarDisplay:
    """A progress bar: epoch, loss, frame accuracy, frames/s, time left."""

    def __init__(self, title: str, total_frames: int, console: Console) -> None:
        self._speed = Speed()
        self._total = total_frames
        texts = "{task.percentage:>3.0f}%", "{task.fields[text]}"
        self._bar = new_bar(console, *texts, style="bold", width=24)
        self._task = self._bar.add_task(title, total=total_frames, text="starting")
        self._training = self._dev = ""

    def __enter__(self) -> BarDisplay:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def show(self, event: dict[str, Any]) -> None:
        """Move the bar, and renew the figures beside it."""
        self._speed.see(event)
        if event["event"] == "note":
            self.say(event["text"])
        if event["event"] == "lost":
            self.say(f"rank {event['rank']} lost ({event.get('reason', '')})")
        figures = f"{event.get('loss', 0.0):.4f} / {event.get('accuracy', 0.0):.4f}"
        if event["event"] == "eval":
            self._dev = f"  dev {figures}{measured(event)}"
        elif event["event"] in ("train", "progress"):
            self._training = f"epoch {event['epoch'] + 1}  loss / acc {figures}{_doing(event)}"
        self._bar.update(
            self._task,
            completed=event["frames"],
            text=f"{self._training}{self._dev}  {self._speed.text(None)}",
        )

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        self._bar.console.print(text)


class Speed:
    """Frames per second of the run's own clock, since the first event seen."""

    def __init__(self) -> None:
        self._first: tuple[float, int] | None = None
        self._last: tuple[float, int] | None = None
        self._virtual = False

    def see(self, event: dict[str, Any]) -> None:
        """Take the time and the frames of an event."""
        self._last = (event["time_s"], event["frames"])
        self._virtual = event["clock"] == "virtual"
        self._first = self._first or self._last

    def text(self, total: int | None) -> str:
        """Return frames/s, and the time left if a total is given."""
        if self._first is None or self._last is None or self._last[0] <= self._first[0]:
            return ""
        seconds, frames = (b - a for a, b in zip(self._first, self._last, strict=True))
        speed = frames / seconds
        text = f"{speed:,.0f} frames/s" + (" (virtual)" if self._virtual else "")
        if total and speed:
            text += f"  {(total - self._last[1]) / speed:.0f} s left"
        return text


def measured(event: dict[str, Any]) -> str:
    """Say what a method saw since the last evaluation: of a parameter server, of curvature."""
    if "cg_iterations" in event:
        ratio = f"  ratio {event['ratio']:.2f}" if "ratio" in event else "  no step"
        return f"  CG {event['cg_iterations']:.0f}  damping {event['damping']:.3g}{ratio}"
    if "queue" not in event:
        return ""
    return (
        f"  staleness {event['staleness']:.1f} (max {event['staleness_max']:.0f})  "
        f"dropped {event['dropped']:.1%}  queue {event['queue']:.1f}  "
        f"pushes {event.get('pushes_per_s', 0.0):,.1f}/s"
    )


def _doing(event: dict[str, Any]) -> str:
    """Say what the method is doing, where it tells."""
    return f"  {event['doing']}" if "doing" in event else ""


def _percent(event: dict[str, Any], total: int) -> str:
    return f"{100 * event['frames'] / total:3.0f}%"


def display(title: str, total_frames: int, *, wanted: bool) -> Display:
    """Choose a bar for a terminal, lines for anything else."""
    if not wanted:
        return SilentDisplay()
    if console := terminal():
        return BarDisplay(title, total_frames, console)
    return LineDisplay(title, total_frames)
