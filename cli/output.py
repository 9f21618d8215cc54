# The one sink: answers and data to stdout, everything else to stderr. Nothing else in this package writes to either.
# This file may not know models, engines or commands. rich and prompt_toolkit are never imported here.
"""Where text goes.

On a terminal an answer is word-wrapped and notes are dimmed; in a pipe an answer is its UTF-8 bytes and nothing more.
`NO_COLOR`, `TERM=dumb` and `--quiet` are honoured. Every piece of an answer is flushed as it comes.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TextIO

from ingle.cli.errors import Undeliverable

if TYPE_CHECKING:
    from ingle.cli.wrap import Wrapper

DIM = "2"
RED = "31"
YELLOW = "33"

# What an answer must not do to a terminal: escape sequences move the cursor, rename the window, forge what others said.
_CONTROLS = {code: None for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}


class Output:
    """The sink of one process. `quiet` silences notes; warnings and errors always come through."""

    def __init__(self, stdout: TextIO | None = None, stderr: TextIO | None = None, *, quiet: bool = False) -> None:
        self._out = stdout if stdout is not None else _usable(sys.stdout)
        self._err = stderr if stderr is not None else _usable(sys.stderr)
        for stream in (self._out, self._err):
            if isinstance(stream, io.TextIOWrapper):
                # A pipe gets UTF-8 whatever the locale says; a terminal what it can show.
                encoding = stream.encoding if stream.isatty() else "utf-8"
                stream.reconfigure(encoding=encoding, errors="replace", newline="\n")
        self.quiet = quiet
        self.is_terminal = self._out.isatty()
        self._smart = self.is_terminal and os.environ.get("TERM") not in ("dumb", None)
        self._colour = (
            self._err.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") not in ("dumb", None)
        )
        self._wrapper: Wrapper | None = None
        self._last = "\n"

    @property
    def shows_progress(self) -> bool:
        """Whether a moving bar may be drawn on stderr."""
        return self._err.isatty() and os.environ.get("TERM") not in ("dumb", None) and not self.quiet

    # -- stdout ------------------------------------------------------------------------------------------------

    def answer(self, text: str) -> None:
        """A piece of an answer, out at once. Raises BrokenPipeError when nobody reads any more."""
        if self.is_terminal:
            text = text.translate(_CONTROLS)
        if not text:
            return
        self._last = text[-1]
        if self._smart:
            if self._wrapper is None:
                import shutil

                from ingle.cli.wrap import Wrapper

                self._wrapper = Wrapper(shutil.get_terminal_size().columns)
            text = self._wrapper.feed(text)
        self._write(text)

    def end_answer(self) -> None:
        """Closes an answer: a newline where the text did not end in one. An empty answer stays empty."""
        if self._last != "\n":
            self._write("\n")
        self._last = "\n"
        self._wrapper = None

    def close_answer(self) -> None:
        """`end_answer` on the way out: whether it can still be delivered does not matter any more."""
        with suppress(OSError, ValueError, Undeliverable):
            self.end_answer()

    def line(self, text: str) -> None:
        """A line of data, as it is."""
        self._write(text + "\n")

    def json(self, value: Mapping[str, Any]) -> None:
        """One JSON object on one line."""
        import json

        self.line(json.dumps(value, ensure_ascii=False))

    def flush(self) -> None:
        """Raises BrokenPipeError or Undeliverable when what was written could not be delivered."""
        self._write("")

    def _write(self, text: str) -> None:
        try:
            self._out.write(text)
            self._out.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise Undeliverable(f"standard output: {error.strerror}", "is the disk full?") from None

    # -- stderr ------------------------------------------------------------------------------------------------

    def note(self, text: str) -> None:
        """Something worth knowing. `--quiet` silences it."""
        if not self.quiet:
            self._say(text, DIM)

    def report(self, text: str) -> None:
        """Something that was asked for and is not the answer (--stats): not silenced."""
        self._say(text, DIM)

    def warn(self, text: str) -> None:
        self._say(f"warning: {text}", YELLOW)

    def error(self, message: str, hint: str | None = None) -> None:
        """One line of what happened, one of what to do. An answer that was under way is closed first."""
        self.close_answer()
        self._say(f"error: {message}", RED)
        if hint:
            self._say(f"hint: {hint}", DIM)

    def ask(self, question: str) -> None:
        """A question that the next line of standard input answers. For terminals."""
        with suppress(OSError, ValueError):
            self._err.write(question)
            self._err.flush()

    def redraw(self, text: str) -> None:
        """A line that the next one takes the place of; empty: away with it. Only where `shows_progress`."""
        with suppress(OSError, ValueError):
            self._err.write(f"\r\x1b[K{text}")
            self._err.flush()

    def _say(self, text: str, colour: str) -> None:
        # Whoever closed stderr does not want to hear it, and that is no reason to stop answering.
        if self._err.isatty():
            text = _wrapped(text.translate(_CONTROLS))
        with suppress(OSError, ValueError):
            self._err.write(f"\x1b[{colour}m{text}\x1b[0m\n" if self._colour else text + "\n")
            self._err.flush()

    # -- the end -----------------------------------------------------------------------------------------------

    def abandon_stdout(self) -> None:
        """Point stdout at nothing, so that the interpreter's last flush cannot complain about a closed pipe."""
        with suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._out.fileno())
            os.close(nowhere)


def _wrapped(text: str) -> str:
    import shutil
    import textwrap

    columns = shutil.get_terminal_size().columns
    return textwrap.fill(text, max(columns - 1, 20), break_long_words=False, break_on_hyphens=False)


class _Closed(io.StringIO):
    """Stands for a stream whose descriptor was closed before the process began (`>&-`), where Python has None."""

    def write(self, _text: str) -> int:
        raise BrokenPipeError


def _usable(stream: TextIO | None) -> TextIO:
    return stream if stream is not None else _Closed()
