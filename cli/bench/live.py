# The one moving line of a benchmark. On a terminal only; gone at the end.
"""``Live``: what is going on, on stderr."""

from __future__ import annotations

import shutil
import time

from ingle.cli.output import Output

EVERY_S = 0.1


class Live:
    """Called with a text as often as one likes; shows it, with the time since the start, a few times a second."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._began_s = time.monotonic()
        self._shown_s: float | None = None

    def __enter__(self) -> Live:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._shown_s is not None:
            self._output.redraw("")

    def __call__(self, text: str) -> None:
        now_s = time.monotonic()
        if not self._output.shows_progress or (self._shown_s is not None and now_s - self._shown_s < EVERY_S):
            return
        self._shown_s = now_s
        line = f"{now_s - self._began_s:5.0f} s  {text}"
        self._output.redraw(line[: shutil.get_terminal_size().columns - 1])
