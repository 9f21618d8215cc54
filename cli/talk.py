# One turn of a conversation, from the question to what the user is told of the answer. `chat` and `run --session` both
# go through here. This file may not know where questions come from.
"""``Talk``: asks, shows, keeps, tells."""

from __future__ import annotations

import signal
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from ingle.cli import stats
from ingle.cli.conversation import Conversation, Turn
from ingle.cli.errors import CliError, Terminated
from ingle.cli.loading import OpenModel
from ingle.cli.options import SamplingFlags
from ingle.cli.output import Output
from ingle.cli.records import ModelId
from ingle.cli.run import with_stop
from ingle.cli.session import Session
from ingle.cli.settings import Settings
from ingle.cli.signals import Signals
from ingle.cli.thinking import ThinkFilter

if TYPE_CHECKING:
    from ingle.cli.transcript import Transcript
    from ingle.runtime.request import RequestMetrics, RequestOutput

RESERVE_TOKENS = 256
"""Room kept for an answer when earlier exchanges have to leave; a quarter of a small context."""

WARN_AT = 0.8
"""Share of the room for prompts from which the user is told what will be dropped next."""

SHOWN_LINES = 4
"""Lines of the last answer that resuming shows."""


class Flags(Protocol):
    """What of a command line concerns a turn."""

    @property
    def system(self) -> str | None: ...
    @property
    def think(self) -> bool | None: ...
    @property
    def hide_think(self) -> bool: ...
    @property
    def json(self) -> bool: ...
    @property
    def stats(self) -> bool: ...
    @property
    def sampling(self) -> SamplingFlags: ...


@dataclass(frozen=True, slots=True)
class LastTurn:
    """What the engine was asked last, and how it went."""

    tokens: tuple[int, ...]
    metrics: RequestMetrics


class Talk:
    """A model, a session with it, and the settings that can change meanwhile."""

    def __init__(
        self,
        flags: Flags,
        settings: Settings,
        model: OpenModel,
        output: Output,
        signals: Signals,
        kept_in: Transcript | None = None,
        *,
        is_chat: bool = False,
    ) -> None:
        self.is_chat = is_chat
        self.flags = flags
        self.settings = settings
        self.model = model
        self.output = output
        self.sampling = flags.sampling
        self.last: LastTurn | None = None
        self.signals = signals
        self._num_resumed_tokens = 0  # of a conversation that was resumed, until its first answer
        self.session = self._opened(kept_in)
        if flags.system is not None:
            self.session.set_system(flags.system)

    def switch(self, kept_in: Transcript | None) -> None:
        """Leave this conversation for the one in `kept_in`. A new one keeps the system prompt."""
        system = self.session.conversation.system
        self.session.close()
        self.session = self._opened(kept_in)
        self.last = None
        if not self.session.is_resumed:
            self.session.set_system(system)

    def _opened(self, kept_in: Transcript | None) -> Session:
        model = self.model
        conversation = Conversation(model.engine, model.template, self.settings.pick("system", None))
        model_id = ModelId(model.ref.name, model.ref.path.name, model.info.size_bytes)
        session = Session(conversation, model_id, self.output, kept_in)
        self._num_resumed_tokens = len(conversation.tokens) if session.is_resumed else 0
        return session

    def ask(self, question: str, *, seed: int | None = None) -> RequestOutput:
        """The answer, shown as it comes; returns its last output. `seed`: instead of the settings' own.

        Raises PromptTooLong, and Terminated when a signal other than Ctrl-C ended it.
        """
        from ingle.runtime.errors import PromptTooLong
        from ingle.runtime.request import Request

        n_ctx = self.model.engine.info.n_ctx
        max_tokens = self.sampling.max_output_tokens(self.settings)
        turn = self.session.conversation.begin(
            question, self._prompt_limit(), enable_thinking=self.settings.pick("think", self.flags.think)
        )
        if len(turn.prompt.tokens) >= n_ctx:
            raise PromptTooLong(len(turn.prompt.tokens), n_ctx)
        if turn.dropped:
            dropped = _described([exchange.question for exchange in turn.dropped])
            self.output.warn(f"the context ({n_ctx} tokens) is full: dropping {dropped}")
        params = with_stop(self.sampling.params(self.settings), self.model.template.stop)
        if seed is not None:
            params = replace(params, seed=seed)
        request = Request(turn.prompt.tokens, params, max_tokens)
        self.session.ask(turn)
        generated, answer, last = self._generate(turn, request)
        self._finish(turn, generated, answer, last)
        return last

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
        with self.signals.answering(engine):
            request_id = engine.add(request)
            self.signals.interrupt_again()
            for last in engine.stream(request_id):
                generated += last.new_tokens
                pieces.append(last.text)
                show(thoughts.feed(last.text) if thoughts else last.text)
        assert last is not None
        if thoughts:
            show(thoughts.finish())
        if not self.flags.json:
            self.output.end_answer()
        return generated, "".join(pieces), last

    def _finish(self, turn: Turn, generated: list[int], answer: str, last: RequestOutput) -> None:
        """Keep what was said and tell what the user should know of it."""
        output = self.output
        self.last = LastTurn(turn.prompt.tokens, last.metrics)
        if generated:
            self.session.answer(turn, generated, answer, str(last.finish_reason), exact=last.stop_string is None)
        if last.error is not None:
            raise CliError(last.error)
        if self.flags.json:
            output.json(self._as_json(turn, answer, last))
        if self.flags.stats:
            for line in stats.turn(self.model.engine, turn.prompt.tokens, last.metrics):
                output.report(line)
        stopped_by = self.signals.stopped_by
        if stopped_by is not None and stopped_by != signal.SIGINT:
            raise Terminated(stopped_by)
        max_tokens = self.sampling.max_output_tokens(self.settings)
        if last.finish_reason == "abort":
            output.note("(stopped)" if generated else "(stopped before it began; /retry asks again)")
        elif self.is_chat and max_tokens == 0:
            output.note("note: max_tokens is 0, so there is no answer; /set max_tokens default brings answers back")
        elif last.finish_reason == "length" and max_tokens is None:
            output.warn("the answer ends here because the context is full; /new starts afresh")
        self._say_what_came_back(last.metrics)
        self._warn_of_end()

    def _say_what_came_back(self, metrics: RequestMetrics) -> None:
        """After the first answer of a conversation that was resumed: to people always, else when nothing did."""
        num_resumed, self._num_resumed_tokens = self._num_resumed_tokens, 0
        if num_resumed and metrics.first_token_s is not None and (self.is_chat or not metrics.num_cached_tokens):
            self.output.note(stats.resumed(metrics, num_resumed))

    def _warn_of_end(self) -> None:
        n_ctx = self.model.engine.info.n_ctx
        conversation = self.session.conversation
        used = conversation.num_tokens
        if conversation.in_context and used > WARN_AT * self._prompt_limit():
            oldest = _described([conversation.in_context[0].question])
            self.output.note(
                f"note: {used} of {n_ctx} tokens of context used; {oldest} and about half of the rest will be dropped "
                "first. /new starts afresh"
            )

    def _as_json(self, turn: Turn, answer: str, last: RequestOutput) -> dict[str, Any]:
        text = answer
        if self.flags.hide_think:
            thoughts = ThinkFilter(inside=turn.prompt.opens_thinking)
            text = thoughts.feed(answer) + thoughts.finish()
        more = {"dropped_exchanges": len(turn.dropped), "session": self.session.name}
        return {**stats.as_json(self.model.ref.name, text, last), **more}

    # -- resuming ----------------------------------------------------------------------------------------------

    def say_where_we_were(self) -> None:
        """The last lines of a conversation that was resumed, and what is different now."""
        session, note = self.session, self.output.note
        exchanges = session.conversation.exchanges
        if session.former_model is not None:
            note(
                f"note: this conversation was with {session.former_model.name}; it goes on with {self.model.ref.name}, "
                "which reads it from the beginning"
            )
        note(f"{session.name} · {stats.number(len(exchanges), 'exchange')}")
        if exchanges:
            note(f"> {_shortened(exchanges[-1].question, 76)}")
            lines = exchanges[-1].answer.rstrip().splitlines()
            for line in ["…", *lines[-SHOWN_LINES:]] if len(lines) > SHOWN_LINES else lines:
                note(f"  {line.rstrip()}")
        if session.pending is not None:
            note(f"> {_shortened(session.pending, 76)}")
            note("  (no answer yet: /retry asks again)")


def _described(questions: list[str]) -> str:
    """The oldest exchange(s), recognisable by their first words."""
    shown = ", ".join(f'"{_shortened(question)}"' for question in questions[:3])
    if len(questions) == 1:
        return f"the oldest exchange ({shown})"
    return f"the {len(questions)} oldest exchanges ({shown}{', …' if len(questions) > 3 else ''})"


def _shortened(text: str, limit: int = 40) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"
