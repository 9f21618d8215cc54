# Messages → the token ids the engine is given, first turn and later ones. Pure: wants a tokenizer and a template.
# This file may not know engines, terminals or files.
"""From a conversation to tokens.

Two things are kept that a plain "render, then tokenize" loses:

**Control tokens in what people type stay text.** A rendered template must be tokenized with control tokens recognised,
or `<|im_end|>` would not end anything; but the same letters inside a message (a pasted transcript, a hostile document)
must not. So in each message the texts that the tokenizer would take for control tokens are replaced by placeholders
that the template cannot touch, and the rendered text is tokenized in stretches: template and message with control
tokens recognised, placeholders as plain text.

**A conversation keeps the ids it generated.** The next prompt is the last prompt's ids, then the generated ids, then
the tokens of what the template adds after the answer. Re-tokenizing the answer's text could give other ids, which
would be a history that never happened (and a prefix-cache miss). A template that rewrites earlier turns (drops their
thinking, say) makes that impossible; then the whole text is tokenized again, and the engine reuses what still agrees.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ingle.models.chat_template import Message

# Private-use characters: no template looks for them, and str.strip() leaves them alone.
_OPEN = "\ue0f0"
_CLOSE = "\ue0f1"
_PLACEHOLDER = re.compile(f"{_OPEN}([0-9]+){_CLOSE}")
_MARKERS = re.compile(f"[{_OPEN}{_CLOSE}]")


class Tokenizer(Protocol):
    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Token ids of `text`."""

    def control_tokens(self) -> tuple[str, ...]:
        """The texts that `parse_special` takes for control tokens, longest first."""


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
        self._controls: re.Pattern[str] | None = None  # asked for by the first message that has some

    def build(self, messages: Sequence[Message], *, enable_thinking: bool | None = None) -> Prompt:
        """The prompt for `messages`, tokenized from scratch."""
        text = self._render(messages, enable_thinking)
        return Prompt(tuple(self._tokens(text, at_start=True)), text)

    def count(self, messages: Sequence[Message]) -> int:
        """How many tokens `messages` are, where no answer is to follow."""
        return len(self._tokens(self._render(messages, None, add_generation_prompt=False), at_start=True))

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

    def _render(
        self, messages: Sequence[Message], enable_thinking: bool | None, *, add_generation_prompt: bool = True
    ) -> str:
        from ingle.models.chat_template import Message

        masked = [Message(message.role, self._mask(message.content)) for message in messages]
        return self._template.render(
            masked, add_generation_prompt=add_generation_prompt, enable_thinking=enable_thinking
        )

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
        pattern = self._control_pattern() if self._has_control(text) else _MARKERS
        masked = self._known[text] = pattern.sub(lambda found: self._placeholder(found[0]), text)
        return masked

    def _control_pattern(self) -> re.Pattern[str]:
        """Control tokens, longest first, and our own markers: what lies between its matches holds none."""
        if self._controls is None:
            names = (*self._tokenizer.control_tokens(), _OPEN, _CLOSE)
            self._controls = re.compile("|".join(map(re.escape, names)))
        return self._controls

    def _placeholder(self, text: str) -> str:
        if text not in self._masked:
            self._masked.append(text)
        return f"{_OPEN}{self._masked.index(text)}{_CLOSE}"

    def _has_control(self, text: str) -> bool:
        plain = self._tokenizer.tokenize(text, add_special=False, parse_special=False)
        return plain != self._tokenizer.tokenize(text, add_special=False, parse_special=True)
