# One conversation: its messages, the token ids it really has, and what leaves when the context is full.
# Pure: wants a PromptBuilder; this file may not know engines, terminals or files.
"""``Conversation``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ingle.cli.prompt import Prompt, PromptBuilder, Template, Tokenizer
from ingle.models.chat_template import Message


@dataclass(frozen=True, slots=True)
class Exchange:
    """A user's message and its answer."""

    question: str
    answer: str


@dataclass(frozen=True, slots=True)
class Turn:
    """A question that is about to be asked: its prompt, and the exchanges that had to leave to make room."""

    question: str
    prompt: Prompt
    dropped: tuple[Exchange, ...]


class Conversation:
    """Messages with their tokens. `begin` changes nothing; `commit` and `forget` do."""

    def __init__(self, tokenizer: Tokenizer, template: Template, system: str | None = None) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._system = system
        self._exchanges: list[Exchange] = []
        self._start_afresh()

    def _start_afresh(self) -> None:
        self._builder = PromptBuilder(self._tokenizer, self._template)
        self._last: Prompt | None = None
        self._generated: tuple[int, ...] = ()

    @property
    def exchanges(self) -> Sequence[Exchange]:
        return self._exchanges

    @property
    def num_tokens(self) -> int:
        """Tokens that the next turn begins with (0 when they have to be made anew)."""
        return len(self._last.tokens) + len(self._generated) if self._last else 0

    @property
    def system(self) -> str | None:
        return self._system

    @system.setter
    def system(self, text: str | None) -> None:
        """A new system prompt changes the beginning: the whole conversation is tokenized again under it."""
        self._system = text
        self._last = None

    def clear(self) -> None:
        """Forget all exchanges; the system prompt stays."""
        self._exchanges.clear()
        self._start_afresh()

    def begin(self, question: str, limit_tokens: int, *, enable_thinking: bool | None = None) -> Turn:
        """The prompt for `question`, with as many of the latest exchanges as fit in `limit_tokens`.

        The prompt can still be longer than the limit, when the question alone is.
        """
        prompt = self._prompt(self._exchanges, question, enable_thinking, self._last)
        num_dropped = 0
        while len(prompt.tokens) > limit_tokens and num_dropped < len(self._exchanges):
            num_dropped += 1
            prompt = self._prompt(self._exchanges[num_dropped:], question, enable_thinking, None)
        return Turn(question, prompt, tuple(self._exchanges[:num_dropped]))

    def commit(self, turn: Turn, generated: Sequence[int], answer: str, *, exact: bool = True) -> None:
        """`turn` was asked and answered.

        `exact` false: the ids say more than `answer` does (a stop string was cut off), so the next prompt is made from
        the text.
        """
        del self._exchanges[: len(turn.dropped)]
        self._exchanges.append(Exchange(turn.question, answer))
        self._last = turn.prompt if exact else None
        self._generated = tuple(generated)

    def _prompt(
        self, exchanges: Sequence[Exchange], question: str, enable_thinking: bool | None, last: Prompt | None
    ) -> Prompt:
        messages = [Message("system", self._system)] if self._system else []
        for exchange in exchanges:
            messages += [Message("user", exchange.question), Message("assistant", exchange.answer)]
        messages.append(Message("user", question))
        if last is None:
            return self._builder.build(messages, enable_thinking=enable_thinking)
        answer = exchanges[-1].answer
        return self._builder.extend(last, self._generated, answer, messages, enable_thinking=enable_thinking)
