# What a load is sent to, and what comes back. The words that the load generator and its targets share.
"""``Target``: something that answers requests, an engine in this process or a server. ``Answer``: what came of one."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Protocol

from ingle.cli.bench.work import Work


@dataclass(slots=True, eq=False)
class Answer:
    """One request's fate, times in seconds of ``time.perf_counter``'s clock.

    ``intended_s``: when it was to be sent; latencies count from here, so that a target that stalls cannot hide behind
    requests which were sent late because of it. ``deliveries_s``: every moment at which tokens arrived, of any channel.
    ``error``: why there is no answer; None: there is one.
    """

    work: Work
    intended_s: float
    sent_s: float | None = None
    deliveries_s: list[float] = field(default_factory=list)
    finished_s: float | None = None
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    num_cached_tokens: int | None = None  # None: the target does not say
    num_preemptions: int = 0
    queue_s: float | None = None  # None: the target does not say
    error: str | None = None

    def fail(self, reason: str) -> None:
        self.error = reason
        self.finished_s = self.finished_s or time.perf_counter()

    @property
    def ttft_s(self) -> float | None:
        return self.deliveries_s[0] - self.intended_s if self.deliveries_s else None

    @property
    def tpot_s(self) -> float | None:
        """None below two tokens."""
        if self.num_output_tokens < 2 or not self.deliveries_s:
            return None
        return (self.deliveries_s[-1] - self.deliveries_s[0]) / (self.num_output_tokens - 1)

    @property
    def itl_s(self) -> list[float]:
        return [b - a for a, b in zip(self.deliveries_s, self.deliveries_s[1:], strict=False)]

    @property
    def e2el_s(self) -> float | None:
        return None if self.finished_s is None else self.finished_s - self.intended_s


@dataclass(frozen=True, slots=True)
class Occupancy:
    """KV blocks at one moment: those of running requests, those kept for reuse, all."""

    time_s: float
    num_used: int
    num_cached: int
    num_total: int
    num_running: int
    num_waiting: int


class Target(Protocol):
    """Answers requests. `ask` is called by many threads at once."""

    def ask(self, answer: Answer) -> None:
        """Send `answer.work` now, and return when it is answered, or failed, or `stop` was called. Never raises for
        what the target does wrong: `answer.error` says it."""

    def stop(self) -> None:
        """Give up everything under way, soon. May be called by a signal handler."""

    def occupancy(self) -> list[Occupancy]:
        """Since the last call; empty where the target does not say."""

    def forget(self) -> None:
        """Empty its prefix cache, where this can be asked for; between series, when nothing is under way."""

    def close(self) -> None:
        """Nothing is under way any more."""
