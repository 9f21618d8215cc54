# Numbers about an answer and about the engine, for people and for JSON.
"""What ``--stats``, ``--json`` and ``/stats`` say."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ingle.runtime.request import RequestMetrics


def usage(metrics: RequestMetrics) -> dict[str, Any]:
    """OpenAI's ``usage`` object."""
    return {
        "prompt_tokens": metrics.num_prompt_tokens,
        "completion_tokens": metrics.num_output_tokens,
        "total_tokens": metrics.num_prompt_tokens + metrics.num_output_tokens,
        "prompt_tokens_details": {"cached_tokens": metrics.num_cached_tokens},
    }


def timings(metrics: RequestMetrics, load_ms: float | None = None) -> dict[str, Any]:
    """Milliseconds; null where there was nothing to measure."""
    times: dict[str, Any] = {} if load_ms is None else {"load_ms": round(load_ms, 2)}
    for name in ("queue", "prefill", "ttft", "tpot", "e2e"):
        value = getattr(metrics, f"{name}_s")
        times[f"{name}_ms"] = None if value is None else round(value * 1e3, 2)
    return times


def sentence(metrics: RequestMetrics) -> str:
    """One line about an answer."""
    computed = metrics.num_prompt_tokens - metrics.num_cached_tokens
    parts = [f"prompt {metrics.num_prompt_tokens} tokens ({metrics.num_cached_tokens} reused"]
    if metrics.prefill_s and computed:
        parts[0] += f", {computed / metrics.prefill_s:.0f}/s"
    parts[0] += ")"
    answer = f"answer {metrics.num_output_tokens} tokens"
    if metrics.tpot_s:
        answer += f" ({1 / metrics.tpot_s:.1f}/s)"
    parts.append(answer)
    if metrics.ttft_s is not None:
        parts.append(f"first token after {metrics.ttft_s:.2f} s")
    if metrics.e2e_s is not None:
        parts.append(f"all in {metrics.e2e_s:.2f} s")
    parts.append(f"seed {metrics.seed}")
    return " · ".join(parts)


def table(engine_stats: Any) -> list[str]:
    """The engine's statistics (a dataclass), one name and value a line."""
    flat = _flat(dataclasses.asdict(engine_stats))
    width = max(len(name) for name, _ in flat)
    return [f"{name:<{width}}  {_shown(value)}" for name, value in flat]


def _flat(values: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for name, value in values.items():
        if isinstance(value, dict):
            rows += _flat(value, f"{prefix}{name}.")
        else:
            rows.append((prefix + name, value))
    return rows


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
