# Server-sent events as OpenAI-compatible servers send them: lines → what a chunk says. Knows no sockets.
"""``ChunkReader`` takes a stream's lines and says what each adds.

Ways of servers that are met in practice: a first chunk with a role and no content, thinking in ``reasoning_content`` or
``reasoning``, a last chunk with ``usage`` and no choices, comments and blank lines to keep a connection alive, an error
as an event in the middle.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

_TOKEN_FIELDS = ("content", "reasoning_content", "reasoning", "tool_calls", "function_call", "refusal")


class BadStream(Exception):
    """The server has sent what no client could read, or an error; `str` says it in few words."""


@dataclass(slots=True)
class ChunkReader:
    """What the stream has said so far."""

    num_chunks: int = 0  # that brought tokens
    finish_reason: str | None = None
    is_done: bool = False  # the server has said [DONE]
    usage: dict[str, Any] | None = None
    _data: list[str] = field(default_factory=list)

    def feed(self, line: bytes) -> bool:
        """Take one line, without or with its end; whether it completed an event that brought tokens.

        Raises BadStream for nonsense.
        """
        try:
            text = line.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError:
            raise BadStream("sent what is not UTF-8 text") from None
        if text.startswith(":"):
            return False
        if text:
            name, colon, value = text.partition(":")
            if not colon or name not in ("data", "event", "id", "retry"):
                raise BadStream("sent a line that is no server-sent event")
            if name == "data":
                self._data.append(value.removeprefix(" "))
            return False
        return self.flush()

    def flush(self) -> bool:
        """The end of an event (or of the stream)."""
        if not self._data:
            return False
        data = "\n".join(self._data)
        self._data.clear()
        if data.strip() == "[DONE]":
            self.is_done = True
            return False
        try:
            chunk = json.loads(data)
        except (ValueError, RecursionError):
            raise BadStream("sent an event that is not JSON") from None
        if not isinstance(chunk, dict):
            raise BadStream("sent an event that is no chunk of an answer")
        return self._take(chunk)

    def _take(self, chunk: dict[str, Any]) -> bool:
        if chunk.get("error"):
            raise BadStream(f"sent an error: {_message(chunk['error'])}")
        if isinstance(chunk.get("usage"), dict):
            self.usage = chunk["usage"]
        choices = chunk.get("choices")
        if not isinstance(choices, list) or not choices:
            return False
        choice = choices[0]
        if not isinstance(choice, dict):
            raise BadStream("sent an event that is no chunk of an answer")
        if isinstance(choice.get("finish_reason"), str):
            self.finish_reason = choice["finish_reason"]
        delta = choice.get("delta")
        has_tokens = isinstance(delta, dict) and any(delta.get(name) for name in _TOKEN_FIELDS)
        self.num_chunks += has_tokens
        return has_tokens

    def count(self, name: str, default: int) -> int:
        """A number of the usage, `default` where the server has not told it."""
        value = (self.usage or {}).get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else default

    @property
    def num_cached_tokens(self) -> int | None:
        details = (self.usage or {}).get("prompt_tokens_details")
        value = details.get("cached_tokens") if isinstance(details, dict) else None
        return value if isinstance(value, int) else None


def _message(error: Any) -> str:
    text = error.get("message") if isinstance(error, dict) else error
    flat = " ".join(str(text).split())
    return "".join(c for c in flat if c.isprintable())[:120]
