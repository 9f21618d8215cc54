# One conversation: its messages, the token ids it really has, and what leaves when the context is full.
# Pure: wants a PromptBuilder; this file may not know engines, terminals or files.
"""``Conversation``."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass

from ingle.cli.prompt import Prompt, PromptBuilder, Template, Tokenizer
from ingle.models.chat_template import Message


@dataclass(frozen=True, slots=True)
class Exchange:
    """A user's message and its answer, under the system prompt it was given.

    `tokens`: the ids of its prompt, then those that were generated; empty when the next prompt has to be made from the
    text. `first`: number of the earliest exchange that its prompt held, those before having left the context.
    """

    question: str
    answer: str
    tokens: tuple[int, ...] = ()
    system: str | None = None
    first: int = 0


@dataclass(frozen=True, slots=True)
class Turn:
    """A question that is about to be asked: its prompt, and the exchanges that had to leave to make room."""

    question: str
    prompt: Prompt
    system: str | None
    first: int
    dropped: tuple[Exchange, ...]


class Conversation:
    """Messages with their tokens. `begin` changes nothing; `commit`, `undo`, `restore` and `clear` do."""

    def __init__(self, tokenizer: Tokenizer, template: Template, system: str | None = None) -> None:
        self._builder = PromptBuilder(tokenizer, template)
        self._exchanges: list[Exchange] = []
        self.system = system
        """A change of it changes the beginning: the next prompt is tokenized anew."""

    @property
    def exchanges(self) -> Sequence[Exchange]:
        """All of them, also those that have left the context."""
        return self._exchanges

    @property
    def in_context(self) -> Sequence[Exchange]:
        """Those that the next prompt begins with, if there is room."""
        return self._exchanges[self._first :]

    @property
    def tokens(self) -> tuple[int, ...]:
        """The ids that the next prompt begins with; empty when they have to be made anew."""
        last = self._exchanges[-1] if self._exchanges else None
        return last.tokens if last is not None and last.system == self.system else ()

    @property
    def num_tokens(self) -> int:
        """How long the next prompt's beginning is, also where its ids have to be made anew."""
        if self.tokens or not self.in_context:
            return len(self.tokens)
        return self._builder.count(self._messages(self.in_context))

    def begin(self, question: str, limit_tokens: int, *, enable_thinking: bool | None = None) -> Turn:
        """The prompt for `question`, of at most `limit_tokens`.

        Where that is too little, so many of the oldest exchanges leave that the others take half of the room: whenever
        some leave, all that stay are computed anew. The prompt can still be longer, when the question alone is.
        """
        first = self._first
        prompt = self._prompt(first, question, enable_thinking)
        if len(prompt.tokens) > limit_tokens and first < len(self._exchanges):
            num = len(self._exchanges)
            bare = len(self._prompt(num, question, enable_thinking).tokens)
            enough = min((bare + limit_tokens) // 2, limit_tokens)
            candidates = range(first + 1, num)
            first = candidates.start + bisect.bisect_left(
                candidates, True, key=lambda n: len(self._prompt(n, question, enable_thinking).tokens) <= enough
            )
            prompt = self._prompt(first, question, enable_thinking)
        return Turn(question, prompt, self.system, first, tuple(self._exchanges[self._first : first]))

    def commit(self, turn: Turn, generated: Sequence[int], answer: str, *, exact: bool = True) -> Exchange:
        """`turn` was asked and answered.

        `exact` false: the ids say more than `answer` does (a stop string was cut off), so the next prompt is made from
        the text.
        """
        tokens = (*turn.prompt.tokens, *generated) if exact else ()
        exchange = Exchange(turn.question, answer, tokens, turn.system, turn.first)
        self._exchanges.append(exchange)
        return exchange

    def undo(self, num: int) -> list[Exchange]:
        """Take back the last `num` exchanges, and return them. What had left to make room for them is back."""
        kept = max(len(self._exchanges) - num, 0)
        undone = self._exchanges[kept:]
        del self._exchanges[kept:]
        return undone

    def restore(self, exchanges: Sequence[Exchange], system: str | None) -> None:
        """Be the conversation that these make."""
        self._exchanges = list(exchanges)
        self.system = system

    def clear(self) -> None:
        """Forget all exchanges; the system prompt stays."""
        self._exchanges = []

    @property
    def _first(self) -> int:
        return self._exchanges[-1].first if self._exchanges else 0

    def _prompt(self, first: int, question: str, enable_thinking: bool | None) -> Prompt:
        exchanges = self._exchanges[first:]
        messages = self._messages(exchanges, question)
        if not exchanges or exchanges[-1].first != first or not self.tokens:
            return self._builder.build(messages, enable_thinking=enable_thinking)
        last = exchanges[-1]
        before = self._messages(exchanges[:-1], last.question)
        return self._builder.extend(last.tokens, before, last.answer, messages, enable_thinking=enable_thinking)

    def _messages(self, exchanges: Sequence[Exchange], question: str | None = None) -> list[Message]:
        messages = [Message("system", self.system)] if self.system else []
        for exchange in exchanges:
            messages += [Message("user", exchange.question), Message("assistant", exchange.answer)]
        return messages if question is None else [*messages, Message("user", question)]
