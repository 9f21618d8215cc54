# `ingle chat`: turns, from whoever types or pipes them, to answers. The terminal itself is repl.py's.
"""A conversation, turn by turn."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ingle.cli import settings as settings_file
from ingle.cli import source, stats
from ingle.cli.conversation import Conversation, Turn
from ingle.cli.errors import FAILURE, Terminated, describe
from ingle.cli.loading import OpenModel, open_model
from ingle.cli.options import ModelFlags, SamplingFlags
from ingle.cli.output import Output
from ingle.cli.run import JSON_VERSION, with_stop
from ingle.cli.settings import Settings
from ingle.cli.signals import Signals
from ingle.cli.thinking import ThinkFilter

if TYPE_CHECKING:
    from ingle.runtime.request import RequestOutput

RESERVE_TOKENS = 256
"""Room kept for an answer when earlier exchanges have to leave; a quarter of a small context."""

WARN_AT = 0.8
"""Share of the room for prompts from which the user is told what will be dropped next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatFlags:
    """The command line of `ingle chat`."""

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

    def turns(self) -> Iterator[str]:
        """What was typed, one turn at a time, until the end."""

    def while_answering(self) -> AbstractContextManager[None]:
        """Held while an answer is shown."""


class LineReader:
    """Every line of standard input is a turn. Prints nothing."""

    is_interactive = False

    def turns(self) -> Iterator[str]:
        import sys

        if sys.stdin is None:
            return
        for number, line in enumerate(sys.stdin.buffer, 1):
            yield source.decode(line, f"line {number} of standard input").rstrip("\r\n")

    def while_answering(self) -> AbstractContextManager[None]:
        return nullcontext()


def chat(flags: ChatFlags, output: Output, signals: Signals) -> int:
    """Returns 0, or 1 when a piped turn could not be answered."""
    settings = settings_file.load()
    output.quiet = bool(settings.pick("quiet", flags.quiet))
    config = flags.model.engine_config(settings)
    flags.sampling.params(settings)  # a bad flag is said before the model is loaded
    with open_model(
        flags.model.name(settings), config, output, offline=flags.model.is_offline(settings), verbose=flags.verbose
    ) as model:
        return Chat(flags, settings, model, output, signals).run(_reader(flags, output))


def _reader(flags: ChatFlags, output: Output) -> Reader:
    if flags.json or not source.stdin_is_terminal() or not output.is_terminal:
        return LineReader()
    from ingle.cli.repl import Terminal

    return Terminal(output)


class Chat:
    """The state of `ingle chat`: the conversation and the settings that /set can change."""

    def __init__(
        self, flags: ChatFlags, settings: Settings, model: OpenModel, output: Output, signals: Signals
    ) -> None:
        self.flags = flags
        self.settings = settings
        self.model = model
        self.output = output
        self.sampling = flags.sampling
        self.conversation = Conversation(model.engine, model.template, settings.pick("system", flags.system))
        self._signals = signals
        self._num_failed = 0

    def run(self, reader: Reader) -> int:
        """Answer every turn of `reader`."""
        from ingle.cli.chat_commands import Leave, obey

        if reader.is_interactive:
            info = self.model.engine.info
            self.output.note(f"{self.model.ref.name} · context {info.n_ctx} tokens · /help · Ctrl-D leaves")
        for text in reader.turns():
            if not text.strip():
                continue
            try:
                if text.startswith("/") and not text.startswith("//"):
                    obey(self, text)
                else:
                    with reader.while_answering():
                        self._answer(text[1:] if text.startswith("//") else text)
            except Leave:
                break
            except (BrokenPipeError, MemoryError):
                raise
            except Exception as error:
                report = describe(error)
                if report.message is None or "unexpected" in report.message:
                    raise
                self.output.error(report.message, report.hint)
                self._num_failed += 1
        return FAILURE if self._num_failed and not reader.is_interactive else 0

    # -- one turn ----------------------------------------------------------------------------------------------

    def _answer(self, question: str) -> None:
        from ingle.runtime.errors import PromptTooLong
        from ingle.runtime.request import Request

        engine = self.model.engine
        n_ctx = engine.info.n_ctx
        max_tokens = self.sampling.max_output_tokens(self.settings)
        turn = self.conversation.begin(
            question, self._prompt_limit(), enable_thinking=self.settings.pick("think", self.flags.think)
        )
        if len(turn.prompt.tokens) >= n_ctx:
            raise PromptTooLong(len(turn.prompt.tokens), n_ctx)
        if turn.dropped:
            self.output.warn(
                f"the context ({n_ctx} tokens) is full: dropping {_described([e.question for e in turn.dropped])}"
            )
        params = with_stop(self.sampling.params(self.settings), self.model.template.stop)
        self._finish(turn, *self._generate(turn, Request(turn.prompt.tokens, params, max_tokens)))

    def _prompt_limit(self) -> int:
        """Tokens a prompt may have so that an answer fits behind it."""
        n_ctx = self.model.engine.info.n_ctx
        max_tokens = self.sampling.max_output_tokens(self.settings)
        return n_ctx - min(RESERVE_TOKENS if max_tokens is None else max_tokens, n_ctx // 4)

    def _generate(self, turn: Turn, request: Any) -> tuple[list[int], str, RequestOutput]:
        """Token ids, text and last output of the answer; shows it as it comes."""
        engine = self.model.engine
        thoughts = ThinkFilter(inside=turn.prompt.opens_thinking) if self.flags.hide_think else None
        show = (lambda _text: None) if self.flags.json else self.output.answer
        generated: list[int] = []
        pieces: list[str] = []
        last: RequestOutput | None = None
        with self._signals.answering(engine):
            request_id = engine.add(request)
            for last in engine.stream(request_id):
                generated += last.new_tokens
                pieces.append(last.text)
                show(thoughts.feed(last.text) if thoughts else last.text)
                if self._signals.stopped_by is not None and not last.finished:
                    engine.interrupt()  # it came before the stream was listening
        assert last is not None
        if thoughts:
            show(thoughts.finish())
        if not self.flags.json:
            self.output.end_answer()
        return generated, "".join(pieces), last

    def _finish(self, turn: Turn, generated: list[int], answer: str, last: RequestOutput) -> None:
        """Keep what was said and tell what the user should know of it."""
        output = self.output
        if generated:
            self.conversation.commit(turn, generated, answer, exact=last.stop_string is None)
        if self.flags.json:
            output.json(self._as_json(turn, answer, last))
        if self.flags.stats:
            output.report(stats.sentence(last.metrics))
        stopped_by = self._signals.stopped_by
        if stopped_by is not None and stopped_by != signal.SIGINT:
            raise Terminated(stopped_by)
        if last.error is not None:
            output.error(last.error)
        elif last.finish_reason == "abort":
            output.note("(stopped)" if generated else "(stopped before it began: the message is not kept)")
        elif last.finish_reason == "length" and self.sampling.max_output_tokens(self.settings) is None:
            output.warn("the answer ends here because the context is full; /new starts afresh")
        self._warn_of_end()

    def _warn_of_end(self) -> None:
        n_ctx = self.model.engine.info.n_ctx
        used = self.conversation.num_tokens
        if used > WARN_AT * self._prompt_limit() and self.conversation.exchanges:
            oldest = _described([self.conversation.exchanges[0].question])
            self.output.note(
                f"note: {used} of {n_ctx} tokens of context used; {oldest} will be dropped first. /new starts afresh"
            )

    def _as_json(self, turn: Turn, answer: str, last: RequestOutput) -> dict[str, Any]:
        text = answer
        if self.flags.hide_think:
            thoughts = ThinkFilter(inside=turn.prompt.opens_thinking)
            text = thoughts.feed(answer) + thoughts.finish()
        return {
            "version": JSON_VERSION,
            "model": self.model.ref.name,
            "text": text,
            "finish_reason": str(last.finish_reason),
            "usage": stats.usage(last.metrics),
            "timings": stats.timings(last.metrics),
            "seed": last.metrics.seed,
            "dropped_exchanges": len(turn.dropped),
        }


def _described(questions: list[str]) -> str:
    """The oldest exchange(s), recognisable by their first words."""
    shown = ", ".join(f'"{_shortened(question)}"' for question in questions[:3])
    if len(questions) == 1:
        return f"the oldest exchange ({shown})"
    return f"the {len(questions)} oldest exchanges ({shown}{', …' if len(questions) > 3 else ''})"


def _shortened(text: str, limit: int = 40) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"
