"""What an engine says about itself: counts now and since it was opened."""

from __future__ import annotations

from dataclasses import dataclass


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

    @property
    def kv_cache_usage(self) -> float:
        """Share of the blocks that running requests hold, 0 … 1."""
        return self.num_blocks_used / self.num_blocks_total
