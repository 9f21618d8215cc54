"""What a caller asks for and what it gets back. Plain values: nothing here knows the engine, llama.cpp or a
terminal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NewType

from ingle.runtime.errors import InvalidRequest

RequestId = NewType("RequestId", int)

MAX_LOGPROBS = 20
"""Alternatives a request may ask for beside each token, as in the OpenAI API."""


class FinishReason(StrEnum):
    """Why a request ended. ``stop`` and ``length`` are OpenAI's words."""

    STOP = "stop"  # an end-of-generation token or one of the stop strings
    LENGTH = "length"  # max_output_tokens reached, or the context is full
    ABORT = "abort"  # the caller cancelled
    DEADLINE = "deadline"  # deadline_s passed
    ERROR = "error"  # this request alone could not go on; RequestOutput.error says why


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is chosen. The defaults are llama.cpp's.

    ``temperature`` 0 takes the most likely token. ``top_k`` 0, ``top_p`` 1, ``min_p`` 0 and ``repeat_penalty`` 1 switch
    their filters off. Penalties look at the last ``penalty_last_n`` tokens of prompt and answer (−1: all of them).
    ``seed`` ``None`` draws one; the one used is in the metrics, and gives the same text again.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    repeat_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    penalty_last_n: int = 64
    seed: int | None = None
    stop: tuple[str, ...] = ()
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    logprobs: int | None = None  # report log-probabilities, with this many alternatives a token
    ignore_eos: bool = False  # go on to the length limit (benchmarks)

    def __post_init__(self) -> None:
        def refuse(name: str, value: object, range_text: str) -> None:
            raise InvalidRequest(f"{name} is {value}, which is not {range_text}")

        for name in ("temperature", "frequency_penalty", "presence_penalty", "repeat_penalty"):
            if not math.isfinite(value := getattr(self, name)):
                refuse(name, value, "a finite number")
        if self.temperature < 0:
            refuse("temperature", self.temperature, "0 or more")
        if self.top_k < 0:
            refuse("top_k", self.top_k, "0 (off) or more")
        for name in ("top_p", "min_p", "typical_p"):
            if not 0.0 <= (value := getattr(self, name)) <= 1.0:
                refuse(name, value, "between 0 and 1")
        if not 0.01 <= self.repeat_penalty <= 100:
            refuse("repeat_penalty", self.repeat_penalty, "between 0.01 and 100")
        for name in ("frequency_penalty", "presence_penalty"):
            if not -100 <= (value := getattr(self, name)) <= 100:
                refuse(name, value, "between -100 and 100")
        if self.penalty_last_n < -1:
            refuse("penalty_last_n", self.penalty_last_n, "-1 (all), 0 (off) or more")
        if self.seed is not None and not 0 <= self.seed < 2**64:
            refuse("seed", self.seed, "between 0 and 2^64 - 1")
        if self.logprobs is not None and not 0 <= self.logprobs <= MAX_LOGPROBS:
            refuse("logprobs", self.logprobs, f"between 0 and {MAX_LOGPROBS}")
        for token, bias in self.logit_bias.items():
            if bias != -math.inf and not -1e6 <= bias <= 1e6:  # minus infinity bans a token
                refuse(f"logit_bias of token {token}", bias, "between -1e6 and 1e6, or -inf")
        if any(not text for text in self.stop):
            raise InvalidRequest("a stop string is empty")

    @property
    def has_penalties(self) -> bool:
        """True when the tokens so far change the next one's logits."""
        return self.penalty_last_n != 0 and (
            self.repeat_penalty != 1.0 or self.frequency_penalty != 0.0 or self.presence_penalty != 0.0
        )


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt to be continued.

    ``max_output_tokens`` ``None``: until the model stops or the context is full. ``deadline_s`` counts from arrival.
    Lower ``priority`` goes first. Requests with different ``cache_salt`` never share a block.
    """

    tokens: Sequence[int]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_output_tokens: int | None = None
    deadline_s: float | None = None
    priority: int = 0
    cache_salt: str = ""

    def __post_init__(self) -> None:
        if len(self.tokens) == 0:
            raise InvalidRequest("the prompt is empty", "give at least one token")
        if self.max_output_tokens is not None and self.max_output_tokens < 0:
            raise InvalidRequest(f"max_output_tokens is {self.max_output_tokens}, which is not 0 or more")
        if self.deadline_s is not None and not self.deadline_s > 0:
            raise InvalidRequest(f"deadline_s is {self.deadline_s}, which is not above 0")


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The log-probability of a token under the model, before any sampling filter, with the likeliest alternatives."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()  # (token, logprob), most likely first


@dataclass(slots=True)
class RequestMetrics:
    """Times of one request, in seconds of ``time.perf_counter``'s clock, and its token counts."""

    arrival_s: float
    seed: int
    num_prompt_tokens: int
    num_cached_tokens: int = 0  # prompt tokens whose KV was found, not computed
    num_host_tokens: int = 0  # of those, found in the page store's RAM …
    num_disk_tokens: int = 0  # … and in its files
    restore_s: float = 0.0  # bringing them back
    saved_s: float | None = None  # about what computing them would have taken more, where that is known
    num_output_tokens: int = 0
    num_draft_tokens: int = 0  # guesses that were computed …
    num_accepted_tokens: int = 0  # … and of those, the right ones, which are part of the answer
    num_preemptions: int = 0
    first_scheduled_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None
    finished_s: float | None = None
    itl_s: list[float] = field(default_factory=list)  # the gap before each delivery but the first

    def note_tokens(self, now: float, num_tokens: int = 1) -> None:
        """So many tokens came together at `now`."""
        if self.first_token_s is None:
            self.first_token_s = now
        if self.last_token_s is not None:
            self.itl_s.append(now - self.last_token_s)
        self.last_token_s = now
        self.num_output_tokens += num_tokens

    @property
    def queue_s(self) -> float | None:
        """Accepted → first scheduled."""
        return None if self.first_scheduled_s is None else self.first_scheduled_s - self.arrival_s

    @property
    def ttft_s(self) -> float | None:
        """Accepted → first token, queueing included."""
        return None if self.first_token_s is None else self.first_token_s - self.arrival_s

    @property
    def prefill_s(self) -> float | None:
        """First scheduled → first token."""
        if self.first_token_s is None or self.first_scheduled_s is None:
            return None
        return self.first_token_s - self.first_scheduled_s

    @property
    def tpot_s(self) -> float | None:
        """(last − first token) / (tokens − 1); ``None`` below two tokens."""
        if self.first_token_s is None or self.last_token_s is None or self.num_output_tokens < 2:
            return None
        return (self.last_token_s - self.first_token_s) / (self.num_output_tokens - 1)

    @property
    def e2e_s(self) -> float | None:
        """Accepted → finished."""
        return None if self.finished_s is None else self.finished_s - self.arrival_s


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """What one step added to a request. ``text`` may lag behind ``new_tokens`` (half a character, a possible stop
    string).
    """

    request_id: RequestId
    new_tokens: tuple[int, ...]
    text: str
    metrics: RequestMetrics
    finish_reason: FinishReason | None = None
    stop_string: str | None = None  # the stop string that ended it, where one did
    logprobs: tuple[TokenLogprob, ...] = ()
    error: str | None = None

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None
