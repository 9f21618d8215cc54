# `ingle chat`: turns, from whoever types or pipes them, to answers. The terminal itself is repl.py's, a turn talk.py's.
"""A conversation, turn by turn."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ingle.cli import settings as settings_file
from ingle.cli import shelf, source, stats
from ingle.cli.errors import FAILURE, InputProblem, Undeliverable, UsageProblem, describe
from ingle.cli.loading import open_for
from ingle.cli.options import ModelFlags, SamplingFlags
from ingle.cli.output import Output
from ingle.cli.signals import Signals
from ingle.cli.talk import Talk
from ingle.cli.transcript import Transcript
from ingle.models.errors import StoreError

if TYPE_CHECKING:
    from ingle.cli.session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatFlags:
    """The command line of `ingle chat`."""

    session: str | None
    resume: bool
    system: str | None
    think: bool | None
    hide_think: bool
    json: bool
    stats: bool
    verbose: bool
    quiet: bool | None
    model: ModelFlags
    sampling: SamplingFlags


class Reader(Protocol):
    """Where turns come from."""

    @property
    def is_interactive(self) -> bool:
        """Whether somebody is there who reads and types."""

    def turns(self) -> Iterator[str | InputProblem]:
        """What was typed, one turn at a time, until the end; in place of one that is no text, what is wrong with it."""

    def edit(self, text: str) -> str | None:
        """`text` as somebody changed it; None: it is to stay as it was."""

    def while_answering(self) -> AbstractContextManager[None]:
        """Held while an answer is shown."""


class LineReader:
    """Every line of standard input is a turn. Prints nothing."""

    is_interactive = False

    def turns(self) -> Iterator[str | InputProblem]:
        import sys

        if sys.stdin is None:
            return
        for number, line in enumerate(sys.stdin.buffer, 1):
            try:
                yield source.decode(line, f"line {number} of standard input").rstrip("\r\n")
            except InputProblem as problem:
                yield problem

    def edit(self, text: str) -> str | None:
        raise UsageProblem("/edit wants a terminal, or the new text behind it", "/edit TEXT")

    def while_answering(self) -> AbstractContextManager[None]:
        return nullcontext()


def chat(flags: ChatFlags, output: Output, signals: Signals) -> int:
    """Returns 0, or 1 when a piped turn could not be answered."""
    settings = settings_file.load()
    output.quiet = bool(settings.pick("quiet", flags.quiet))
    config = flags.model.engine_config(settings)
    flags.sampling.params(settings)  # a bad flag is said before the model is loaded
    is_interactive = source.stdin_is_terminal() and output.is_terminal and not flags.json
    kept_in = _kept_in(flags, output, is_interactive=is_interactive)
    with ExitStack() as stack:
        if kept_in is not None:
            stack.callback(kept_in.close)  # closed by its session too, which does no harm
        model = stack.enter_context(open_for(flags, settings, config, output, signals))
        talk = Talk(flags, settings, model, output, signals, kept_in, is_chat=True)
        stack.callback(lambda: talk.session.close())
        return Chat(talk, is_interactive=is_interactive).run()


def _kept_in(flags: ChatFlags, output: Output, *, is_interactive: bool) -> Transcript | None:
    """The transcript that was asked for; for somebody at a terminal one of its own, if that can be."""
    if flags.resume:
        if flags.session is not None:
            raise UsageProblem("--resume means the last conversation, and --session names one", "leave out one of them")
        return Transcript.open(shelf.path_of(shelf.last_used()))
    if flags.session is not None:
        return Transcript.open(shelf.path_of(flags.session))
    return unnamed(output) if is_interactive else None


def unnamed(output: Output) -> Transcript | None:
    """A new transcript with a name of its own. None, and a warning, where it could not be written."""
    try:
        return shelf.fresh()
    except (StoreError, OSError) as error:
        output.warn(f"this conversation is not saved: {describe(error).message}")
        return None


def _reader(chat: Chat) -> Reader:
    if not chat.is_interactive:
        return LineReader()
    from ingle.cli.repl import Terminal

    return Terminal(chat.talk.output, completions=chat.completions, on_idle=chat.idle)


class Chat:
    """The loop of `ingle chat`: what begins with / is a command, anything else is asked."""

    def __init__(self, talk: Talk, *, is_interactive: bool) -> None:
        self.talk = talk
        self.is_interactive = is_interactive
        self.reader = _reader(self)
        self._num_failed = 0

    @property
    def session(self) -> Session:
        return self.talk.session

    def run(self) -> int:
        """Answer every turn of the reader."""
        from ingle.cli.chat_commands import Leave

        if self.is_interactive:
            info = self.talk.model.engine.info
            self.talk.output.note(f"{self.talk.model.ref.name} · context {info.n_ctx} tokens · /help · Ctrl-D leaves")
        elif source.stdin_is_terminal():
            self.talk.output.note("reading turns from the terminal, one a line; Ctrl-D ends")
        if self.session.is_resumed:
            self.talk.say_where_we_were()
        for text in self.reader.turns():
            try:
                if isinstance(text, InputProblem):
                    raise text
                self._take(text)
            except Leave:
                break
            except KeyboardInterrupt:  # while a prompt was made, say
                if not self.is_interactive:
                    raise
                self.talk.signals.was_caught()
                self.talk.output.close_answer()
                self.talk.output.note("(stopped)")
            except (BrokenPipeError, Undeliverable, MemoryError):
                raise
            except Exception as error:
                report = describe(error)
                if report.message is None or report.is_bug:
                    raise
                if self.talk.flags.json:
                    self.talk.output.json({"version": stats.JSON_VERSION, "error": report.message, "hint": report.hint})
                else:
                    self.talk.output.error(report.message, report.hint)
                self._num_failed += 1
        self.say_where_it_is()
        return FAILURE if self._num_failed and not self.is_interactive else 0

    def _take(self, text: str) -> None:
        from ingle.cli.chat_commands import obey

        if not text.strip():
            return
        if text.startswith("/") and not text.startswith("//"):
            obey(self, text)
        else:
            self.ask(text[1:] if text.startswith("//") else text)

    def ask(self, question: str, *, seed: int | None = None) -> None:
        with self.reader.while_answering():
            self.talk.ask(question, seed=seed)

    def switch(self, kept_in: Transcript | None) -> None:
        """Leave this conversation, saying where it is, for another."""
        self.say_where_it_is()
        self.talk.switch(kept_in)

    def say_where_it_is(self) -> None:
        """How to get back to a conversation that nobody has named, at the moment it is left."""
        session = self.session
        if self.is_interactive and session.name is not None and shelf.is_generated(session.name) and session.is_on_disk:
            self.talk.output.note(
                f"kept as {session.name}: ingle chat --session {session.name} (or --resume) continues it"
            )

    def completions(self) -> list[str]:
        """Everything that Tab may complete a line to."""
        from ingle.cli.chat_commands import COMMANDS

        return [*COMMANDS, *(f"/resume {name}" for name in shelf.names())]

    def idle(self) -> None:
        """Nobody has typed for a while: give back memory that can be had again."""
        self.talk.model.engine.shrink()
