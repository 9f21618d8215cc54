"""What an engine says about itself: counts now and since it was opened."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from ingle.runtime.kv_manager import KVManager
from ingle.runtime.page_store import StoreStats
from ingle.runtime.request import RequestMetrics
from ingle.runtime.scheduler import Scheduler


@dataclass(slots=True)
class Counters:
    """What the engine counts as it goes."""

    num_steps: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0  # of those, found and not computed
    num_output_tokens: int = 0
    last_abort_s: float | None = None  # from the cancellation to its blocks being available

    def note_starts(self, scheduled: Iterable[RequestMetrics]) -> None:
        """These requests are part of a step; some for the first time."""
        now = time.perf_counter()
        for metrics in scheduled:
            if metrics.first_scheduled_s is None:
                metrics.first_scheduled_s = now
                self.num_prompt_tokens += metrics.num_prompt_tokens
                self.num_cached_tokens += metrics.num_cached_tokens


@dataclass(frozen=True, slots=True)
class DraftStats:
    """A snapshot of speculative decoding. Times are seconds."""

    num_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int
    accepted_by_position: tuple[int, ...]  # how many drafts were right there, and at all positions before
    num_given_up: int  # drafts of which only the first token was made, and not computed: it was doubtful
    mean_accepted_tokens: float | None  # of a draft
    draft_s: float  # making drafts
    verify_s: float  # steps that computed some
    plain_token_s: float | None  # of a single sequence without drafts; None: not measured
    net_speedup: float | None  # against plain steps as measured; None: they were not


@dataclass(slots=True)
class DraftCounters:
    """What speculative decoding counts as it goes. `plain_s`: what the tokens of `decode_s` would have taken
    without.
    """

    num_drafts: int = 0
    num_draft_tokens: int = 0
    accepted_by_position: list[int] = field(default_factory=list)
    num_given_up: int = 0
    draft_s: float = 0.0
    verify_s: float = 0.0
    decode_s: float = 0.0
    plain_s: float = 0.0

    def note_draft(self, num_tokens: int, num_right: int) -> None:
        """A draft of `num_tokens` was verified, and the first `num_right` were right."""
        self.num_drafts += 1
        self.num_draft_tokens += num_tokens
        places = self.accepted_by_position
        places.extend([0] * (num_tokens - len(places)))
        for position in range(num_right):
            places[position] += 1

    @property
    def lost_share(self) -> float:
        """Share of all time that drafts have cost more than they gave."""
        return max(0.0, 1 - self.plain_s / self.decode_s) if self.decode_s else 0.0

    def stats(self, plain_token_s: float | None) -> DraftStats:
        num_accepted = sum(self.accepted_by_position)
        was_tried = self.num_drafts + self.num_given_up > 0
        return DraftStats(
            num_drafts=self.num_drafts,
            num_draft_tokens=self.num_draft_tokens,
            num_accepted_tokens=num_accepted,
            accepted_by_position=tuple(self.accepted_by_position),
            num_given_up=self.num_given_up,
            mean_accepted_tokens=num_accepted / self.num_drafts if self.num_drafts else None,
            draft_s=self.draft_s,
            verify_s=self.verify_s,
            plain_token_s=plain_token_s,
            net_speedup=self.plain_s / self.decode_s if was_tried and self.plain_s else None,
        )


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
    drafts: DraftStats | None  # of speculative decoding; None: switched off


def collect(
    scheduler: Scheduler,
    kv: KVManager,
    counters: Counters,
    num_pool_resizes: int,
    pages: StoreStats | None,
    drafts: DraftStats | None,
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
        drafts=drafts,
    )
