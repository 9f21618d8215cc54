"""The scheduler: whose tokens the next step computes. Policy only; knows sequences and the KV manager, no llama.cpp.

Every step has a budget of tokens. Sequences with one pending token (running answers) come first, each a row, with the
drafts behind it if it has any; then the rest goes to prompts in chunks, running ones before waiting ones. While answers
run, a chunk is at most `prefill_chunk`, so that no answer stalls for longer.

When blocks run out the newest, least urgent sequence is parked: its blocks stay, as anybody's to take, and it is
computed again from where they then end. The most urgent one always advances, so all finish.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass

from ingle.runtime.kv_manager import KVManager
from ingle.runtime.sequence import Sequence
from ingle.runtime.step import Row, StepPlan

INTERRUPTIBLE_TOKENS = 16
"""Steps of at least this many tokens are worth the abort callback, which costs about a microsecond a graph node."""


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A sequence's share of a step: its next `num_tokens` pending tokens, and `num_drafts` behind the last of them."""

    sequence: Sequence
    num_tokens: int
    num_drafts: int = 0


class Scheduler:
    """Queues of waiting and running sequences, each in order of (priority, arrival)."""

    def __init__(self, kv: KVManager, n_batch: int, prefill_chunk: int, max_num_seqs: int) -> None:
        self.kv = kv
        self.n_batch = n_batch
        self.prefill_chunk = min(prefill_chunk, n_batch)
        self.max_num_seqs = max_num_seqs
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.num_preemptions = 0
        self.scheduled: list[Scheduled] = []  # of the last plan, in the order of its rows

    @property
    def has_work(self) -> bool:
        return bool(self.running or self.waiting)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence."""
        bisect.insort(self.waiting, sequence, key=lambda s: s.order)

    def remove(self, sequence: Sequence) -> None:
        """A sequence has ended, for whatever reason: its blocks are available when this returns."""
        if sequence.table is None:
            self.waiting.remove(sequence)
        else:
            self.running.remove(sequence)
            self.kv.retire(sequence.table)
            sequence.table = None

    def schedule(self) -> StepPlan:
        """The next step. Changes tables and queues; `update_computed` must follow once the step has been carried
        out.
        """
        self.scheduled = []
        budget = self.n_batch
        for sequence in list(self.running):
            if sequence.num_pending == 1 and budget and self._reserve(sequence, 1):
                budget -= 1
        budget = self._add_drafts(budget)
        if self.scheduled:
            budget = min(budget, self.prefill_chunk)
        for sequence in list(self.running):
            if sequence.num_pending > 1 and budget:
                num_tokens = min(sequence.num_pending, budget)
                if self._reserve(sequence, num_tokens):
                    budget -= num_tokens
        while budget and self.waiting and len(self.running) < self.max_num_seqs:
            if not (admitted := self._admit(self.waiting[0], budget)):
                break
            budget -= admitted
        rows = tuple(self._row(item) for item in self.scheduled)
        return StepPlan(self.kv.take_ops(), rows, sum(len(row.tokens) for row in rows) >= INTERRUPTIBLE_TOKENS)

    def update_computed(self, computed: bool) -> None:
        """The plan has been carried out (or, where `computed` is False, was cut short and leaves nothing behind)."""
        for item in self.scheduled:
            table = item.sequence.table
            assert table is not None
            if computed:
                start = table.num_tokens
                self.kv.commit(table, item.sequence.tokens[start : start + item.num_tokens])
            else:
                item.sequence.num_drafts = 0
                self.kv.rollback(table)

    def about_to_start(self) -> list[Sequence]:
        """The waiting sequences there is a seat for, first ones first."""
        return self.waiting[: self.max_num_seqs - len(self.running)]

    def settle(self, item: Scheduled, num_accepted: int) -> None:
        """Of the drafts in `item`, the first `num_accepted` are known tokens now and count as computed; the cells of
        the rest go. Until then no block has any of them."""
        table = item.sequence.table
        assert table is not None
        item.sequence.num_drafts = 0
        start = table.num_tokens
        self.kv.commit(table, item.sequence.tokens[start : start + num_accepted])
        if num_accepted < item.num_drafts:
            self.kv.rollback(table)

    def num_blocks_short(self, *, keep_cached: bool) -> int:
        """Blocks that the running sequences, and the waiting ones there is a seat for, want beyond the free ones; and
        beyond those that only finished ones hold, unless `keep_cached`."""
        wanted = 0
        for sequence in self.running:
            assert sequence.table is not None
            num_tokens = sequence.num_tokens + sequence.num_drafts
            wanted += max(0, self.kv.num_blocks_for(num_tokens) - len(sequence.table.blocks))
        for sequence in self.about_to_start():
            wanted += self.kv.num_blocks_wanted(sequence.tokens, sequence.root, sequence.num_tokens + 1)
        short = wanted - self.kv.pool.num_free
        return short if keep_cached or short <= 0 else wanted - self.kv.num_available()

    def _reserve(self, sequence: Sequence, num_tokens: int) -> bool:
        """Schedule `num_tokens` of a running sequence, parking others behind it, or itself, if blocks run out."""
        while sequence.table is not None:
            if self.kv.reserve(sequence.table, sequence.table.num_tokens + num_tokens):
                self.scheduled.append(Scheduled(sequence, num_tokens))
                return True
            victims = [s for s in self.running if not any(item.sequence is s for item in self.scheduled)]
            self._park(victims[-1])
        return False

    def _add_drafts(self, budget: int) -> int:
        """Let the scheduled sequences bring their drafts along, where budget and blocks allow; the budget left. Drafts
        are only guesses: nobody is parked for them."""
        for number, item in enumerate(self.scheduled):
            sequence, table = item.sequence, item.sequence.table
            if sequence.num_drafts:
                assert table is not None
                sequence.num_drafts = min(sequence.num_drafts, budget)
                if not self.kv.reserve(table, table.num_tokens + 1 + sequence.num_drafts):
                    num_room = len(table.blocks) * self.kv.block_size - table.num_tokens - 1
                    sequence.num_drafts = min(sequence.num_drafts, num_room)
                self.scheduled[number] = Scheduled(sequence, 1, sequence.num_drafts)
                budget -= sequence.num_drafts
        return budget

    def park_last(self) -> None:
        """Make the least urgent running sequence wait."""
        self._park(self.running[-1])

    def _park(self, sequence: Sequence) -> None:
        assert sequence.table is not None
        self.running.remove(sequence)
        self.kv.retire(sequence.table)
        sequence.table = None
        sequence.num_drafts = 0
        sequence.is_looked_up = False
        sequence.metrics.num_preemptions += 1
        self.num_preemptions += 1
        self.add(sequence)

    def _admit(self, sequence: Sequence, budget: int) -> int:
        """Start a waiting sequence if all its known tokens, and one more, will fit. How many are scheduled; 0 if
        not.
        """
        table = self.kv.open(sequence.tokens, sequence.root, sequence.num_tokens + 1)
        if table is None:
            return 0
        self.waiting.remove(sequence)
        bisect.insort(self.running, sequence, key=lambda s: s.order)
        sequence.table = table
        if sequence.metrics.num_preemptions == 0:
            sequence.metrics.num_cached_tokens = table.num_tokens
        num_tokens = min(sequence.num_pending, budget)
        self.scheduled.append(Scheduled(sequence, num_tokens))
        return num_tokens

    def _row(self, item: Scheduled) -> Row:
        sequence = item.sequence
        assert sequence.table is not None
        start = sequence.table.num_tokens
        end = start + item.num_tokens
        num_logits = 1 + item.num_drafts if end == sequence.num_tokens else 0
        return Row(sequence.table.slot, start, sequence.tokens_and_drafts[start : end + item.num_drafts], num_logits)
