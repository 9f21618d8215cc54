# Messages → the token ids the engine is given, first turn and later ones. Pure: wants a tokenizer and a template.
# This file may not know engines, terminals or files.
"""From a conversation to tokens.

Two things are kept that a plain "render, then tokenize" loses:

**Control tokens in what people type stay text.** A rendered template must be tokenized with control tokens recognised,
or `<|im_end|>` would not end anything; but the same letters inside a message (a pasted transcript, a hostile document)
must not. So each message is searched for stretches that the tokenizer would take for control tokens, these are replaced
by placeholders the template cannot touch, and the rendered text is tokenized in stretches: template and message with
control tokens recognised, placeholders as plain text.

**A conversation keeps the ids it generated.** The next prompt is the last prompt's ids, then the generated ids, then
the tokens of what the template adds after the answer. Re-tokenizing the answer's text could give other ids, which
would be a history that never happened (and a prefix-cache miss). A template that rewrites earlier turns (drops their
thinking, say) makes that impossible; then the whole text is tokenized again, and the engine reuses what still agrees.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ingle.models.chat_template import Message

# Private-use characters: no template looks for them, and str.strip() leaves them alone.
_OPEN = "\ue0f0"
_CLOSE = "\ue0f1"
_PLACEHOLDER = re.compile(f"{_OPEN}([0-9]+){_CLOSE}")


class Tokenizer(Protocol):
    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Token ids of `text`."""


class Template(Protocol):
    @property
    def adds_bos(self) -> bool:
        """Whether rendered text begins with the BOS token's text."""

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        enable_thinking: bool | None = None,
    ) -> str:
        """The conversation as text, up to where the answer begins."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids for the engine and the text they came from (control tokens of messages still masked)."""

    tokens: tuple[int, ...]
    text: str

    @property
    def opens_thinking(self) -> bool:
        """True when the template itself has opened the thinking, so that the answer begins inside it."""
        from ingle.models.chat_template import opens_thinking

        return opens_thinking(self.text)


class PromptBuilder:
    """Builds the prompts of one conversation; owns the table of masked stretches."""

    def __init__(self, tokenizer: Tokenizer, template: Template) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._masked: list[str] = []
        self._known: dict[str, str] = {}  # message → masked: each is searched once, however often it is rendered

    def build(self, messages: Sequence[Message], *, enable_thinking: bool | None = None) -> Prompt:
        """The prompt for `messages`, tokenized from scratch."""
        text = self._render(messages, enable_thinking)
        return Prompt(tuple(self._tokens(text, at_start=True)), text)

    def extend(
        self,
        history: Sequence[int],
        before: Sequence[Message],
        answer: str,
        messages: Sequence[Message],
        *,
        enable_thinking: bool | None = None,
    ) -> Prompt:
        """The prompt for `messages`, which begin with `before` and its `answer`; `history`: the ids of both.

        What `before` rendered to at the time does not matter: both are rendered now, so that a template that writes the
        date does not make yesterday's history look rewritten.
        """
        text = self._render(messages, enable_thinking)
        added = self._after_answer(self._render(before, enable_thinking), self._mask(answer), text)
        if added is None:
            return Prompt(tuple(self._tokens(text, at_start=True)), text)
        tokens = self._tokens(added, at_start=False)
        if tokens and history and history[-1] == tokens[0]:  # the answer ended with what the template ends turns with
            tokens = tokens[1:]
        return Prompt((*history, *tokens), text)

    @staticmethod
    def _after_answer(last_text: str, answer: str, text: str) -> str | None:
        """What `text` holds after the last prompt and its answer; None when it does not begin with them."""
        if not text.startswith(last_text):
            return None
        rest = text[len(last_text) :]
        if rest.startswith(answer):
            return rest[len(answer) :]
        trimmed = answer.strip()  # many templates trim; the ids keep the space that was generated
        if trimmed and rest.lstrip().startswith(trimmed):
            return rest.lstrip()[len(trimmed) :]
        return None

    def _render(self, messages: Sequence[Message], enable_thinking: bool | None) -> str:
        from ingle.models.chat_template import Message

        masked = [Message(message.role, self._mask(message.content)) for message in messages]
        return self._template.render(masked, add_generation_prompt=True, enable_thinking=enable_thinking)

    # -- control tokens ----------------------------------------------------------------------------------------

    def _tokens(self, text: str, *, at_start: bool) -> list[int]:
        tokens: list[int] = []
        first = at_start and not self._template.adds_bos
        # split() with one group alternates: text, placeholder number, text, …
        for index, stretch in enumerate(_PLACEHOLDER.split(text)):
            is_masked = index % 2 == 1
            stretch = self._masked[int(stretch)] if is_masked else stretch
            if stretch or (first and index == 0):
                add_special = first and index == 0
                tokens += self._tokenizer.tokenize(stretch, add_special=add_special, parse_special=not is_masked)
        return tokens

    def _mask(self, text: str) -> str:
        """`text` with every stretch that would become a control token replaced by a placeholder."""
        if (known := self._known.get(text)) is not None:
            return known
        masked, rest = "", text
        while stretch := self._first_control(rest):
            start, end = stretch
            masked += rest[:start] + self._placeholder(rest[start:end])
            rest = rest[end:]
        self._known[text] = masked + rest
        return masked + rest

    def _placeholder(self, text: str) -> str:
        if text not in self._masked:
            self._masked.append(text)
        return f"{_OPEN}{self._masked.index(text)}{_CLOSE}"

    def _first_control(self, text: str) -> tuple[int, int] | None:
        """Half-open range of the first stretch of `text` that tokenizes to a control token (or is our own marker)."""
        marker = min((at for char in (_OPEN, _CLOSE) if (at := text.find(char)) >= 0), default=None)
        head = text if marker is None else text[:marker]
        if self._has_control(head):
            # The shortest beginning that has one ends where the first one ends; of that, the shortest end that still
            # has one is the stretch itself.
            end = _smallest(1, len(head), lambda n: self._has_control(head[:n]))
            length = _smallest(1, end, lambda n: self._has_control(head[end - n : end]))
            return end - length, end
        return None if marker is None else (marker, marker + 1)

    def _has_control(self, text: str) -> bool:
        plain = self._tokenizer.tokenize(text, add_special=False, parse_special=False)
        return plain != self._tokenizer.tokenize(text, add_special=False, parse_special=True)


def _smallest(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """The smallest n in [low, high] for which `holds(n)`; it holds for `high` and, once true, stays true."""
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low
