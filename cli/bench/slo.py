# What the user calls quick enough: limits on the latencies of one request.
"""``--slo ttft=500ms,tpot=50ms``."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ingle.cli.bench.target import Answer

NAMES = ("ttft", "tpot", "e2el")

_LIMIT = re.compile(r"(ttft|tpot|e2el)=(\d+(?:\.\d+)?)(ms|s)")


@dataclass(frozen=True, slots=True)
class Slo:
    """Seconds; None: no limit."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2el_s: float | None = None

    def is_met(self, answer: Answer) -> bool:
        """Whether an answer kept every limit. One token has no time between tokens, and keeps that."""
        for name in NAMES:
            limit, value = getattr(self, f"{name}_s"), getattr(answer, f"{name}_s")
            if limit is not None and value is not None and value > limit:
                return False
        return answer.error is None


def parse(text: str) -> Slo:
    """Raises ValueError, which says what is wanted."""
    limits: dict[str, float] = {}
    for part in text.split(","):
        match = _LIMIT.fullmatch(part.strip())
        if match is None or f"{match[1]}_s" in limits:
            raise ValueError("limits such as ttft=500ms,tpot=50ms,e2el=10s, each once")
        limits[f"{match[1]}_s"] = float(match[2]) / (1000 if match[3] == "ms" else 1)
    return Slo(**limits)
