# Downloads on stderr: a bar on a terminal, one line otherwise. rich is imported when the first bar is drawn.
"""``models.progress.Progress`` for people."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from ingle.cli.output import Output

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class Counter:
    """`12 of 345` on stderr, on a terminal only, and gone at the end."""

    def __init__(self, output: Output, label: str) -> None:
        self._output = output
        self._label = label
        self._shown = -1  # per mille

    def __enter__(self) -> Counter:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._shown >= 0:
            self._output.redraw("")

    def update(self, done: int, total: int) -> None:
        if self._output.shows_progress and (now := done * 1000 // total) != self._shown:
            self._shown = now
            self._output.redraw(f"{self._label}: {done} of {total}")


class StageProgress:
    """A stage after the other: on a terminal how far each is and how long it will take, elsewhere its name."""

    def __init__(self, output: Output) -> None:
        self._output = output

    def __call__(self, label: str) -> Callable[[int, int], None]:
        """Begin a stage; what is returned is told how much is done, and of how much. At the end its line goes."""
        if not self._output.shows_progress:
            self._output.note(f"{label} …")
            return lambda done, total: None
        began_s, shown = time.monotonic(), ""

        def update(done: int, total: int) -> None:
            nonlocal shown
            passed_s = time.monotonic() - began_s
            left = f" · {duration(passed_s * (total - done) / done)} left" if done and passed_s > 1 else ""
            text = f"{label}: {100 * done // max(total, 1)} %{left}" if done < total else ""
            if text != shown:
                shown = text
                self._output.redraw(text)

        return update


def duration(seconds: float) -> str:
    """`42 s`, `3:20 min`."""
    whole = round(seconds)
    return f"{whole} s" if whole < 90 else f"{whole // 60}:{whole % 60:02d} min"


class DownloadProgress:
    """Shows what ``ingle.models`` reports about a download."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def start(self, total_bytes: int | None, label: str, done_bytes: int = 0) -> None:
        if not self._output.shows_progress:
            from ingle.cli.stats import size

            self._output.note(f"{label} ({size(total_bytes)}) …" if total_bytes else f"{label} …")
            return
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
        from rich.progress import TransferSpeedColumn as Speed

        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            DownloadColumn(),
            Speed(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._bar.start()
        self._task = self._bar.add_task(label, total=total_bytes, completed=done_bytes)

    def update(self, done_bytes: int) -> None:
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done_bytes)

    def finish(self) -> None:
        if self._bar is not None:
            self._bar.stop()
        self._bar = self._task = None

    def note(self, message: str) -> None:
        if self._bar is not None:
            self._bar.console.print(message, markup=False, highlight=False)
        else:
            self._output.note(message)
