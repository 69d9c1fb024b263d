"""Progress of a checkpoint or restore: a bar on a terminal, plain lines on stderr elsewhere.

rich is imported when the first bar is drawn, not before.
"""

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from gcr import units
from gcr.api.events import ProgressEvent
from gcr.cli import text
from gcr.cli.output import say

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

_LINE_INTERVAL_S = 1.0
_BAR = 24  # columns
_WIDE = 80 + _BAR  # a terminal where there is room for it beside the figures


class ProgressView(Protocol):
    """A context manager that is told of progress."""

    def update(self, event: ProgressEvent) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def progress_view(as_json: bool) -> ProgressView:
    """Lines when stderr is no terminal, and beside JSON, where a program is reading."""
    return PlainProgress() if as_json or not sys.stderr.isatty() else BarProgress()


class PlainProgress:
    """A line when the phase changes, and one a second while bytes move."""

    def __init__(self) -> None:
        self._phase = ""
        self._last = 0.0

    def update(self, event: ProgressEvent) -> None:
        now = time.monotonic()
        if event.phase == self._phase and now - self._last < _LINE_INTERVAL_S:
            return
        self._phase, self._last = event.phase, now
        say(plain_line(event))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


class BarProgress:
    """rich's bar; one task a phase, so that what is done stays on the screen."""

    def __init__(self) -> None:
        self._bars: RichProgress | None = None
        self._tasks: dict[str, TaskID] = {}

    def update(self, event: ProgressEvent) -> None:
        bars = self._bars or self._start()
        phase = event.phase
        if phase not in self._tasks:
            self._finish(bars)
            self._tasks[phase] = bars.add_task(phase, total=event.total_bytes or None, detail="")
        bars.update(
            self._tasks[phase],
            completed=event.bytes or 0,
            total=event.total_bytes or None,
            detail=detail(event),
        )

    def _start(self) -> "RichProgress":
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        console = Console(stderr=True)
        bar = (BarColumn(_BAR),) if console.width >= _WIDE else ()
        columns = (TextColumn("  {task.description:<12}"), *bar, TextColumn("{task.fields[detail]}"))
        self._bars = Progress(*columns, console=console)
        self._bars.start()
        return self._bars

    def _finish(self, bars: "RichProgress") -> None:
        for task in bars.tasks:
            total = task.total or 1
            bars.update(task.id, completed=total, total=total)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars:
            if kind is None:
                self._finish(self._bars)
            self._bars.stop()


def detail(event: ProgressEvent) -> str:
    """`71 %   24.3 GiB   54.1 GB/s   98 % of link   0.2 s left`, as far as it is known."""
    done, total = event.bytes, event.total_bytes
    parts = [
        text.percent(done / total) if done is not None and total else "",
        units.size(done) if done else "",
        text.rate(event.bytes_per_s) if event.bytes_per_s else "",
        f"{text.percent(event.link_share)} of link" if event.link_share else "",
        f"{event.left_s:.1f} s left" if event.left_s is not None else "",
        event.message or "",
    ]
    return "   ".join(part for part in parts if part)


def plain_line(event: ProgressEvent) -> str:
    return f"  {event.phase:<12} {detail(event)}".rstrip()
