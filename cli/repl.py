# The keyboard and the screen of `ingle chat`. The only file that imports prompt_toolkit.
# This file may not know models or conversations: it hands over what was typed.
"""``Terminal``: a line editor with history, completion and pastes that keep their lines."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from ingle.cli.errors import Terminated
from ingle.cli.output import Output

QUOTES = '"""'

IDLE_S = 180.0
"""After so long without a key nobody is expected to notice a pause."""


class Terminal:
    """Reads turns from the terminal. Ctrl-D, or Ctrl-C twice on an empty line, ends it."""

    is_interactive = True

    def __init__(self, output: Output, *, completions: Callable[[], list[str]], on_idle: Callable[[], object]) -> None:
        """`completions`: what Tab completes a line to. `on_idle`: called once a turn, when no key has come for long."""
        self._output = output
        self._on_idle = on_idle
        self._session: PromptSession[str] = PromptSession(
            message="> ",
            multiline=True,
            prompt_continuation=". ",
            history=_history(output),
            completer=WordCompleter(completions, sentence=True),
            complete_while_typing=False,
            key_bindings=_keys(),
            enable_open_in_editor=False,
        )

    def turns(self) -> Iterator[str]:
        interrupted = False
        while True:
            try:
                text = self._read()
            except KeyboardInterrupt:
                if interrupted:
                    return
                interrupted = True
                self._output.note("(Ctrl-C again or Ctrl-D leaves)")
                continue
            except EOFError:
                return
            interrupted = False
            yield _unquoted(text)

    def edit(self, text: str) -> str | None:
        """`text` in the line editor. None when the user left it with Ctrl-C or Ctrl-D."""
        try:
            return _unquoted(self._read(text))
        except (KeyboardInterrupt, EOFError):
            return None

    def _read(self, default: str = "") -> str:
        with _signals_end_the_prompt(self._session) as listen:

            def begin() -> None:
                listen()
                self._session.app.create_background_task(self._watch())

            return self._session.prompt(default=default, pre_run=begin)

    async def _watch(self) -> None:
        """Call `on_idle` once no key has come for `IDLE_S`. Runs in the editor's loop, on the thread of everything."""
        app, loop = self._session.app, asyncio.get_running_loop()
        last_key_s = loop.time()

        def note_key(_processor: object) -> None:
            nonlocal last_key_s
            last_key_s = loop.time()

        app.key_processor.before_key_press += note_key
        try:
            while (rest_s := last_key_s + IDLE_S - loop.time()) > 0:
                await asyncio.sleep(rest_s)
            self._on_idle()
        except Exception as error:  # raised from here it would only be logged
            app.exit(exception=error)
        finally:
            app.key_processor.before_key_press -= note_key

    @contextmanager
    def while_answering(self) -> Iterator[None]:
        """What is typed meanwhile waits for the next prompt instead of appearing inside the answer."""
        try:
            import termios
        except ImportError:  # Windows
            yield
            return
        descriptor = sys.stdin.fileno()
        before = termios.tcgetattr(descriptor)
        silent = [*before[:3], before[3] & ~termios.ECHO, *before[4:]]
        termios.tcsetattr(descriptor, termios.TCSADRAIN, silent)
        try:
            yield
        finally:
            termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


@contextmanager
def _signals_end_the_prompt(session: PromptSession[str]) -> Iterator[Callable[[], None]]:
    """While a line is edited, SIGTERM and SIGHUP end the editing as `Terminated`: raised from a handler, the exception
    could land in a callback of the event loop, which would log it and go on. To be called from inside that loop."""
    numbers = [number for name in ("SIGTERM", "SIGHUP") if (number := getattr(signal, name, None)) is not None]
    before = {number: signal.getsignal(number) for number in numbers}

    def end(number: int) -> None:
        if session.app.is_running and not session.app.is_done:
            session.app.exit(exception=Terminated(number))

    def listen() -> None:
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:
                asyncio.get_running_loop().add_signal_handler(number, end, number)

    try:
        yield listen
    finally:
        for number, handler in before.items():  # the loop has left the defaults
            signal.signal(number, handler)


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.complete_state is not None and buffer.complete_state.current_completion is not None:
            buffer.complete_state = None
        elif is_unfinished(buffer.text):
            buffer.newline(copy_margin=False)
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.newline(copy_margin=False)

    @keys.add("c-c")
    def _(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=KeyboardInterrupt)

    return keys


def is_unfinished(text: str) -> bool:
    """Whether `text` has opened a block of many lines and not closed it."""
    return text.lstrip().startswith(QUOTES) and text.count(QUOTES) == 1


def _unquoted(text: str) -> str:
    stripped = text.strip()
    if len(stripped) >= 2 * len(QUOTES) and stripped.startswith(QUOTES) and stripped.endswith(QUOTES):
        return stripped[len(QUOTES) : -len(QUOTES)].strip("\n")
    return text


def _history(output: Output) -> History:
    """What was typed before, from a file that its owner alone can read; in memory where that cannot be."""
    from ingle.models.errors import StoreError
    from ingle.models.places import ensure_private_dir, state_dir

    try:
        path = ensure_private_dir(state_dir()) / "chat-history"
        _make_private(path)
    except (StoreError, OSError) as error:
        output.note(f"note: the history is not kept: {error}")
        return InMemoryHistory()
    return FileHistory(str(path))


def _make_private(path: Path) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
    path.chmod(0o600)
