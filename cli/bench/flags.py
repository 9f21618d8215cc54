# What the command line of `ingle bench` may hold: lists, ranges, and what goes together. Values only.
"""``BenchFlags`` as typed, and the parsers of its texts. Imported at every start: nothing heavy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from ingle.cli import settings as parsing

if TYPE_CHECKING:
    from ingle.cli.bench.slo import Slo

T = TypeVar("T")

Mode = Literal["engine", "serving", "resume", "drafts"]

FORMATS = ("table", "md", "csv", "json", "jsonl")

MAX_COUNT = 2**31 - 1

DEFAULT_TOLERANCE = 0.05
"""How much worse a figure may be and not be called a regression."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchFlags:
    """None: not given."""

    model: str | None
    prompt: str | None
    generate: str | None
    depth: tuple[int, ...] | None
    repetitions: int | None
    quants: tuple[str, ...] | None
    resume: bool
    draft: str | None
    draft_tokens: object
    concurrency: tuple[int, ...] | None
    rate: tuple[float, ...] | None
    url: str | None
    api_key: str | None
    requests: int | None
    prompts: Path | None
    shared_prefix: int | None
    slo: Slo | None
    timeout_s: float | None
    threads: tuple[int, ...] | None
    batch_size: tuple[int, ...] | None
    cache_type_k: tuple[str, ...] | None
    cache_type_v: tuple[str, ...] | None
    flash_attn: tuple[bool | None, ...] | None
    gpu_layers: int | Literal["auto", "all"] | None
    ctx_size: object
    seed: int
    format: str
    json: bool
    save: str | None
    plot: Path | None
    offline: bool | None
    quiet: bool | None

    @property
    def mode(self) -> Mode:
        if self.resume:
            return "resume"
        if self.draft is not None:
            return "drafts"
        serving = (self.concurrency, self.rate, self.url, self.prompts, self.shared_prefix, self.slo, self.requests)
        return "serving" if any(value is not None for value in serving) else "engine"


def comma_list(parse: Callable[[str], T]) -> Callable[[str], tuple[T, ...]]:
    """A parser of `1,4,8`: each by `parse`, none twice."""

    def parsed(text: str) -> tuple[T, ...]:
        return tuple(dict.fromkeys(parse(part.strip()) for part in text.split(",")))

    return parsed


def count(text: str) -> int:
    """0 or more tokens; no machine holds as many as would overflow."""
    number = parsing.whole(text)
    if number > MAX_COUNT:
        raise ValueError("a whole number of reasonable size")
    return number


def positive_count(text: str) -> int:
    number = parsing.positive(text)
    if number > MAX_COUNT:
        raise ValueError("a whole number of reasonable size")
    return number


def positive_real(text: str) -> float:
    number = parsing.real(text)
    if not 0 < number < 1e9:
        raise ValueError("a number above 0")
    return number


def share(text: str) -> float:
    """`5%` or `0.05`."""
    number = parsing.real(text[:-1]) / 100 if text.endswith("%") else parsing.real(text)
    if not 0 <= number < 1:
        raise ValueError("a share such as 5% or 0.05")
    return number


def output_format(text: str) -> str:
    if text not in FORMATS:
        raise ValueError(f"one of {', '.join(FORMATS)}")
    return text


def length(text: str) -> tuple[int, int]:
    """`512` or `64:512`: the least and the most tokens."""
    low, colon, high = text.partition(":")
    try:
        first = positive_count(low)
        last = positive_count(high) if colon else first
    except ValueError:
        raise ValueError("a number of tokens, or a range such as 64:512") from None
    if last < first:
        raise ValueError("a range whose first number is the smaller one")
    return first, last
