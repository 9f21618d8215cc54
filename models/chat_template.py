# Messages → the text a model was trained to read.
# This file may not know tokens, engines or where a model file lies; jinja2 is loaded by the first rendering.
"""``ChatTemplate``: the GGUF's own Jinja template, or a stated fallback where a model has none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from ingle.models.errors import ChatTemplateError

if TYPE_CHECKING:
    from ingle.models.gguf_info import ModelInfo

_PROBE: Final = "ingle-system-probe"
_RAW_HINT: Final = "Use --raw to send the prompt without a template."


@dataclass(frozen=True, slots=True)
class Message:
    """A turn. `role`: system, user, assistant or tool. `reasoning`: an assistant's thoughts, apart from the answer."""

    role: str
    content: str
    reasoning: str | None = None
    name: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """In the keys templates look for."""
        found: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.reasoning is not None:
            found["reasoning_content"] = self.reasoning
        if self.name is not None:
            found["name"] = self.name
        return found


@dataclass(frozen=True, slots=True)
class _Fallback:
    """A format for models without a template, chosen when the vocabulary holds all `markers`."""

    name: str
    markers: frozenset[str]
    source: str
    stop: tuple[str, ...]


_FALLBACKS: Final = (
    _Fallback(
        "chatml",
        frozenset({"<|im_start|>", "<|im_end|>"}),
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
        ("<|im_end|>",),
    ),
    _Fallback(
        "gemma",
        frozenset({"<start_of_turn>", "<end_of_turn>"}),
        "{{ bos_token }}{% for m in messages %}"
        "{% if m.role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
        "{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\\n' + m.content | trim"
        " + '<end_of_turn>\\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}",
        ("<end_of_turn>",),
    ),
    _Fallback(
        "llama3",
        frozenset({"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"}),
        "{{ bos_token }}{% for m in messages %}"
        "{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' + m.content | trim + '<|eot_id|>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}",
        ("<|eot_id|>",),
    ),
    # The last row fits every vocabulary: a transcript in plain words, for models never taught to chat.
    _Fallback(
        "plain",
        frozenset(),
        "{% for m in messages %}{% if m.role == 'system' %}{{ m.content + '\\n\\n' }}{% else %}"
        "{{ ('Assistant: ' if m.role == 'assistant' else 'User: ') + m.content + '\\n' }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}Assistant:{% endif %}",
        ("\nUser:",),
    ),
)


class ChatTemplate:
    """A compiled-on-demand chat template.

    `source` is Jinja text. `stop` are strings that end an answer beyond the model's own end tokens: empty for a
    model's own template. `origin` is "model" or the name of the fallback ("chatml", "gemma", "llama3", "plain").
    """

    def __init__(
        self,
        source: str,
        *,
        bos_token: str | None = None,
        eos_token: str | None = None,
        stop: tuple[str, ...] = (),
        origin: str = "model",
    ) -> None:
        self.source = source
        self.bos_token = bos_token
        self.eos_token = eos_token
        self.stop = stop
        self.origin = origin

    @classmethod
    def from_info(cls, info: ModelInfo) -> ChatTemplate:
        """The template in the model's header, else the first fallback whose markers its vocabulary holds."""
        if info.chat_template is not None:
            return cls(info.chat_template, bos_token=info.bos_token, eos_token=info.eos_token)
        row = next(row for row in _FALLBACKS if row.markers <= info.chat_markers)
        return cls(row.source, bos_token=info.bos_token, eos_token=info.eos_token, stop=row.stop, origin=row.name)

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        enable_thinking: bool | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **extra: Any,
    ) -> str:
        """The prompt for `messages`, ending where the assistant's answer begins when `add_generation_prompt`.

        System messages a template refuses or ignores are put in front of the first user message. `enable_thinking`
        None leaves the template's own default. Raises ChatTemplateError.
        """
        turns = list(messages)
        if any(m.role == "system" for m in turns) and not self.supports_system:
            turns = _fold_system(turns)
        return self._render(turns, add_generation_prompt, enable_thinking, tools, extra)

    @property
    def supports_thinking(self) -> bool:
        """Whether `enable_thinking` makes a difference to this template."""
        return "enable_thinking" in self.source

    @cached_property
    def supports_system(self) -> bool:
        """Whether a system message is accepted and reaches the prompt (found out by rendering one)."""
        try:
            text = self._render([Message("system", _PROBE), Message("user", "?")], True, None, None, {})
        except ChatTemplateError:
            return False
        return _PROBE in text

    @cached_property
    def adds_bos(self) -> bool:
        """Whether rendered text begins with the BOS token: then it must be tokenized without adding another."""
        if not self.bos_token:
            return False
        try:
            return self._render([Message("user", "?")], True, None, None, {}).startswith(self.bos_token)
        except ChatTemplateError:
            return self.source.lstrip().startswith(("{{ bos_token", "{{- bos_token", "{{bos_token"))

    def _render(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool,
        enable_thinking: bool | None,
        tools: Sequence[Mapping[str, Any]] | None,
        extra: Mapping[str, Any],
    ) -> str:
        from ingle.models.chat_sandbox import TemplateFailure

        variables: dict[str, Any] = {
            "messages": [m.as_dict() for m in messages],
            "tools": None if tools is None else [dict(t) for t in tools],
            "add_generation_prompt": add_generation_prompt,
            "bos_token": self.bos_token or "",
            "eos_token": self.eos_token or "",
            **extra,
        }
        if enable_thinking is not None:
            variables["enable_thinking"] = enable_thinking
        try:
            return self._compiled(**variables)
        except TemplateFailure as failure:
            raise ChatTemplateError(f"the model's chat template cannot be used: {failure}", _RAW_HINT) from None

    @cached_property
    def _compiled(self) -> Callable[..., str]:
        from ingle.models.chat_sandbox import compile_template

        return compile_template(self.source)


def opens_thinking(prompt: str) -> bool:
    """Whether a rendered prompt leaves a thinking block open, so that the model's first words are hidden thoughts."""
    return prompt.rstrip().endswith(("<think>", "<thinking>", "<|think|>"))


def _fold_system(messages: Sequence[Message]) -> list[Message]:
    """All system messages in front of the first user message's text (or as a user message, where there is none)."""
    system = "\n\n".join(m.content for m in messages if m.role == "system")
    rest = [m for m in messages if m.role != "system"]
    for i, m in enumerate(rest):
        if m.role == "user":
            rest[i] = Message("user", f"{system}\n\n{m.content}", m.reasoning, m.name)
            return rest
    return [Message("user", system), *rest]
