"""What an engine says about itself: counts now and since it was opened."""

from __future__ import annotations

from dataclasses import dataclass

from ingle.runtime.kv_manager import KVManager
from ingle.runtime.page_store import StoreStats
from ingle.runtime.scheduler import Scheduler


@dataclass(slots=True)
class Counters:
    """What the engine counts as it goes."""

    num_steps: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0  # of those, found and not computed
    num_output_tokens: int = 0
    last_abort_s: float | None = None  # from the cancellation to its blocks being available


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot. Tokens and blocks are counts; times are seconds."""

    num_requests_running: int
    num_requests_waiting: int
    mean_context_tokens: float  # over running requests
    max_context_tokens: int
    block_size: int
    num_blocks_total: int
    num_blocks_used: int  # held by running requests
    num_blocks_shared: int  # … by more than one table
    num_blocks_cached: int  # held only by finished ones, anybody's to take
    num_blocks_free: int
    peak_blocks_used: int
    num_steps: int
    num_pool_resizes: int
    num_preemptions: int
    num_prompt_tokens: int
    num_output_tokens: int
    prefix_cache_hits_tokens: int
    last_abort_s: float | None  # from the cancellation to its blocks being available
    pages: StoreStats | None  # of the page store; None: switched off


def collect(
    scheduler: Scheduler, kv: KVManager, counters: Counters, num_pool_resizes: int, pages: StoreStats | None
) -> EngineStats:
    """The snapshot of an engine made of these."""
    contexts = [sequence.num_tokens for sequence in scheduler.running]
    blocks = kv.counts()
    return EngineStats(
        num_requests_running=len(contexts),
        num_requests_waiting=len(scheduler.waiting),
        mean_context_tokens=sum(contexts) / len(contexts) if contexts else 0.0,
        max_context_tokens=max(contexts, default=0),
        block_size=kv.block_size,
        num_blocks_total=blocks.total,
        num_blocks_used=blocks.used,
        num_blocks_shared=blocks.shared,
        num_blocks_cached=blocks.cached,
        num_blocks_free=blocks.free,
        peak_blocks_used=blocks.peak_used,
        num_steps=counters.num_steps,
        num_pool_resizes=num_pool_resizes,
        num_preemptions=scheduler.num_preemptions,
        num_prompt_tokens=counters.num_prompt_tokens,
        num_output_tokens=counters.num_output_tokens,
        prefix_cache_hits_tokens=counters.num_cached_tokens,
        last_abort_s=counters.last_abort_s,
        pages=pages,
    )
