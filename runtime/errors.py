"""What can go wrong between a request and its tokens.

    EngineError                 something native failed; the message says what
    ├── ModelLoadError          llama.cpp would not load the file
    ├── OutOfMemory             weights, KV cells or compute buffers do not fit
    ├── QueueFull               too many requests are waiting; try again
    └── InvalidRequest          the caller asked for what cannot be
        └── PromptTooLong       prompt tokens against the context limit

Each carries one line of what happened (``str(error)``) and one of what to do (``hint``, may be ``None``).
Raised in here, caught once at the edge (``ingle.cli``).
"""

from __future__ import annotations


class EngineError(Exception):
    """Base of this package's errors: one line of what happened and, in ``hint``, one of what to do."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class ModelLoadError(EngineError):
    """llama.cpp refused a file whose header was in order (an architecture it does not know, say)."""


class OutOfMemory(EngineError):
    """An allocation failed, or would fail: the message says how much was asked for."""


class QueueFull(EngineError):
    """The waiting queue is at its limit."""


class InvalidRequest(EngineError):
    """A request that can never be served as it stands."""


class PromptTooLong(InvalidRequest):
    """The prompt does not fit the limit, with room for one token of answer."""

    def __init__(self, num_prompt_tokens: int, limit_tokens: int, what: str = "the context") -> None:
        super().__init__(
            f"the prompt has {num_prompt_tokens} tokens and {what} holds {limit_tokens}",
            "shorten the prompt, or raise the limit with -c/--ctx-size",
        )
        self.num_prompt_tokens = num_prompt_tokens
        self.limit_tokens = limit_tokens
