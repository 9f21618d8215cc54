# Numbers about an answer and about the engine, for people and for JSON.
"""What ``--stats``, ``--json`` and ``/stats`` say."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ingle.runtime.engine import Engine
    from ingle.runtime.explain import Miss
    from ingle.runtime.metrics import DraftStats, EngineStats
    from ingle.runtime.request import RequestMetrics, RequestOutput

JSON_VERSION = 1

SHOWN_TOKENS = 40
SHOWN_CHARACTERS = 60
"""How much of both sides is shown where a prompt stops being known."""

SHOWN_PLACES = 8
"""Positions in a draft for which it is said how often they were right."""


def as_json(model: str, text: str, last: RequestOutput, load_ms: float | None = None) -> dict[str, Any]:
    """The object about an answer."""
    return {
        "version": JSON_VERSION,
        "model": model,
        "text": text,
        "finish_reason": str(last.finish_reason),
        "usage": usage(last.metrics),
        "cache": cache(last.metrics),
        "drafts": drafts(last.metrics),
        "timings": timings(last.metrics, load_ms),
        "seed": last.metrics.seed,
    }


def usage(metrics: RequestMetrics) -> dict[str, Any]:
    """OpenAI's ``usage`` object."""
    return {
        "prompt_tokens": metrics.num_prompt_tokens,
        "completion_tokens": metrics.num_output_tokens,
        "total_tokens": metrics.num_prompt_tokens + metrics.num_output_tokens,
        "prompt_tokens_details": {"cached_tokens": metrics.num_cached_tokens},
    }


def cache(metrics: RequestMetrics) -> dict[str, Any]:
    """Where the cached tokens were, and what that was worth."""
    return {
        "resident_tokens": _num_resident(metrics),
        "host_tokens": metrics.num_host_tokens,
        "disk_tokens": metrics.num_disk_tokens,
        "restore_ms": _ms(metrics.restore_s),
        "saved_ms": _ms(metrics.saved_s),
    }


def drafts(metrics: RequestMetrics) -> dict[str, Any]:
    """Tokens that were guessed ahead and computed, and the right ones among them."""
    return {"draft_tokens": metrics.num_draft_tokens, "accepted_tokens": metrics.num_accepted_tokens}


def timings(metrics: RequestMetrics, load_ms: float | None = None) -> dict[str, Any]:
    """Milliseconds; null where there was nothing to measure."""
    times: dict[str, Any] = {} if load_ms is None else {"load_ms": round(load_ms, 2)}
    for name in ("queue", "prefill", "ttft", "tpot", "e2e"):
        value = getattr(metrics, f"{name}_s")
        times[f"{name}_ms"] = _ms(value)
    return times


def sentence(metrics: RequestMetrics) -> str:
    """One line about an answer."""
    computed = metrics.num_prompt_tokens - metrics.num_cached_tokens
    parts = [f"prompt {metrics.num_prompt_tokens} tokens ({metrics.num_cached_tokens} reused, {computed} computed"]
    if metrics.prefill_s and computed:
        parts[0] += f", {computed / metrics.prefill_s:.0f}/s"
    parts[0] += ")"
    answer = f"answer {metrics.num_output_tokens} tokens"
    if metrics.tpot_s:
        answer += f" ({1 / metrics.tpot_s:.1f}/s)"
    parts.append(answer)
    if metrics.itl_s:
        gaps = sorted(metrics.itl_s)
        median, p95 = (gaps[math.ceil(share * len(gaps)) - 1] * 1e3 for share in (0.5, 0.95))
        parts.append(f"between tokens {median:.1f} ms (P95 {p95:.1f}, at most {gaps[-1] * 1e3:.1f})")
    if metrics.ttft_s is not None:
        parts.append(f"first token after {metrics.ttft_s:.2f} s")
    if metrics.e2e_s is not None:
        parts.append(f"all in {metrics.e2e_s:.2f} s")
    parts.append(f"seed {metrics.seed}")
    return " · ".join(parts)


def turn(engine: Engine, tokens: Sequence[int], metrics: RequestMetrics) -> list[str]:
    """What `--stats` says of an answer to the prompt `tokens`: its times, what was reused, and where that ended."""
    return [sentence(metrics), *reuse(engine, tokens, metrics), *guessed(metrics, engine.stats().drafts)]


def guessed(metrics: RequestMetrics, totals: DraftStats | None) -> list[str]:
    """What guessing ahead did for an answer, and since the engine was opened (`totals`); nothing where it is off."""
    if totals is None:
        return []
    drafted, right = metrics.num_draft_tokens, metrics.num_accepted_tokens
    lines = [f"drafts {drafted} tokens, {right} right" + (f" ({right / drafted:.0%})" if drafted else "")]
    if totals.mean_accepted_tokens is not None:
        lines[0] += f" · {totals.mean_accepted_tokens:.1f} a draft"
        lines[0] += f" · {duration(totals.draft_s)} drafting, {duration(totals.verify_s)} verifying"
    if totals.net_speedup is not None:
        lines[0] += f" · {totals.net_speedup:.2f} times as fast as without"
    return lines


def drafted(totals: DraftStats) -> list[str]:
    """What guessing ahead did since the engine was opened, and how far into a draft the guesses were right."""
    lines = [f"drafts in all: {totals.num_draft_tokens} tokens in {number(totals.num_drafts, 'draft')}"]
    lines[0] += f", {totals.num_accepted_tokens} right"
    if totals.num_given_up:
        lines[0] += f", {number(totals.num_given_up, 'doubtful one')} given up"
    if totals.plain_token_s is not None:
        lines[0] += f" · a token without takes {duration(totals.plain_token_s)}"
    if totals.num_drafts:
        counts = totals.accepted_by_position
        shares = ", ".join(f"{count / totals.num_drafts:.0%}" for count in counts[:SHOWN_PLACES])
        more = ", …" if len(counts) > SHOWN_PLACES else ""
        lines.append(f"of the drafts, right up to their token 1, 2, …: {shares}{more}")
    return lines


def reuse(engine: Engine, tokens: Sequence[int], metrics: RequestMetrics) -> list[str]:
    """How much of the prompt `tokens` was reused and from where; at its first computed token, why."""
    cached, total = metrics.num_cached_tokens, metrics.num_prompt_tokens
    lines = [f"reused {cached} of {total} prompt tokens"]
    if cached:
        lines[0] += f": {_num_resident(metrics)} resident, {metrics.num_host_tokens} from RAM, "
        lines[0] += f"{metrics.num_disk_tokens} from disk"
        if metrics.restore_s:
            lines[0] += f" · brought back in {duration(metrics.restore_s)}"
        if metrics.saved_s is not None and metrics.saved_s > 0:
            lines[0] += f" · about {duration(metrics.saved_s)} saved"
    miss = engine.explain(tokens, cached)
    return lines if miss is None else lines + _explained(engine, miss)


def _explained(engine: Engine, miss: Miss) -> list[str]:
    lines = [f"at token {miss.position}: {miss.cause}"]
    for name, side in (("here", miss.ours), ("stored", miss.stored)):
        if side:
            lines.append(f"  {name:<8}{_snippet(engine.detokenize(side[:SHOWN_TOKENS], special=True))}")
    return lines


def resumed(metrics: RequestMetrics, num_tokens: int) -> str:
    """One line for the first answer of a conversation that was resumed with `num_tokens` tokens of history."""
    cached, total = metrics.num_cached_tokens, metrics.num_prompt_tokens
    took = f" in {duration(metrics.prefill_s)}" if metrics.prefill_s is not None else ""
    if not cached:
        return f"resumed: none of the {num_tokens} tokens so far were stored any more; computed again{took}"
    back = f"resumed: {cached} of {total} tokens came from pages in {duration(metrics.restore_s)}"
    return f"{back}, {total - cached} were computed{took}"


def duration(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def number(count: int, noun: str) -> str:
    """`1 page`, `2 pages`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def size(num_bytes: int) -> str:
    """In the largest unit that leaves a digit in front of the point."""
    amount = float(num_bytes)
    for unit in ("B", "kB", "MB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}"
        amount /= 1000
    return f"{amount:.1f} GB"


def age(seconds: float) -> str:
    for unit_s, unit in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= unit_s:
            return f"{number(int(seconds // unit_s), unit)} ago"
    return "just now"


def _num_resident(metrics: RequestMetrics) -> int:
    return metrics.num_cached_tokens - metrics.num_host_tokens - metrics.num_disk_tokens


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e3, 2)


def _snippet(text: str) -> str:
    """The beginning of `text` on one line: what cannot be printed as in a Python string."""
    shown = repr(text[:SHOWN_CHARACTERS])
    return shown if len(shown) <= SHOWN_CHARACTERS else f"{shown[: SHOWN_CHARACTERS - 1]}…"


def engine(figures: EngineStats) -> list[str]:
    """The engine's statistics: one name and value a line, and what there is of drafts in words."""
    values = dataclasses.asdict(figures)
    del values["drafts"]
    flat = _flat(values)
    width = max(len(name) for name, _ in flat)
    lines = [f"{name:<{width}}  {_shown(value)}" for name, value in flat]
    return lines if figures.drafts is None else lines + drafted(figures.drafts)


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
