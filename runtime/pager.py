"""The pager: blocks between the context and the page store. Saves those that fill up, restores what a prompt begins
with.

Restored blocks become a retired chain, and the scheduler then finds them as it finds any other; nothing else knows
where they came from. The pager works between steps, on the engine's thread.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ingle.runtime.blocks import BlockTable, ChainHash, chain_hash
from ingle.runtime.explain import Miss, find_parting
from ingle.runtime.kv_manager import KVManager
from ingle.runtime.page import Page, Payload
from ingle.runtime.page_store import PageStore, StoreStats, Tier
from ingle.runtime.scheduler import Scheduler
from ingle.runtime.sequence import Sequence
from ingle.runtime.step import KvOp, Tokens


@dataclass(slots=True)
class Rates:
    """Seconds, measured while running, newer ones weighing more: computing a token of a prompt, restoring a block."""

    compute_token_s: float | None = None
    restore_block_s: float | None = None

    def note_compute(self, num_tokens: int, seconds: float) -> None:
        self.compute_token_s = _moved(self.compute_token_s, seconds / num_tokens)

    def note_restore(self, num_blocks: int, seconds: float) -> None:
        self.restore_block_s = _moved(self.restore_block_s, seconds / num_blocks)

    def pays(self, num_blocks: int, num_tokens: int) -> bool:
        """Whether restoring so many blocks is quicker than computing their tokens; yes while either is unknown."""
        if self.compute_token_s is None or self.restore_block_s is None:
            return True
        return num_blocks * self.restore_block_s < num_tokens * self.compute_token_s


def _moved(average: float | None, value: float) -> float:
    return value if average is None else 0.7 * average + 0.3 * value


class CellStore(Protocol):
    """What the pager asks of an `Executor`."""

    def apply(self, ops: Iterable[KvOp]) -> None: ...
    def save_cells(self, slot: int, start: int, end: int) -> Payload: ...
    def restore_cells(self, slot: int, start: int, end: int, payload: Payload) -> bool: ...
    def save_slot(self, slot: int) -> Payload: ...
    def restore_slot(self, slot: int, payload: Payload, num_tokens: int) -> bool: ...
    def first_positions(self) -> dict[int, int]: ...


class Pager:
    """Moves blocks for one engine."""

    def __init__(self, kv: KVManager, executor: CellStore, store: PageStore) -> None:
        self._kv = kv
        self._executor = executor
        self._store = store
        self._rates = Rates()
        window = kv.index.window
        self._saves_whole_blocks = window is None or window >= kv.block_size  # llama.cpp saves what its window sees
        self.saving_s = 0.0  # spent copying bytes out, on the engine's thread

    def note_prefill(self, num_tokens: int, seconds: float) -> None:
        """A step computed `num_tokens` of prompts in `seconds`."""
        self._rates.note_compute(num_tokens, seconds)

    def saved_s(self, num_tokens: int, restore_s: float) -> float | None:
        """What reusing `num_tokens` has saved, if it is known how long computing them takes."""
        rate = self._rates.compute_token_s
        return None if rate is None else num_tokens * rate - restore_s

    def stats(self) -> StoreStats:
        return self._store.stats()

    def save(self, filled: Iterable[tuple[BlockTable, int]]) -> None:
        """Store blocks that the last step filled, unless they are stored already or have lost window cells."""
        started = time.perf_counter()
        size = self._kv.block_size
        for table, number in filled:
            block = table.blocks[number]
            assert block.parent is not None
            assert block.hash is not None
            start = number * size
            if (
                self._saves_whole_blocks
                and table.first_position <= start
                and self._store.find(block.parent, block.hash) is None
            ):
                payload = self._executor.save_cells(table.slot, start, start + size)
                self._store.put(Page(block.parent, block.hash, tuple(block.tokens), payload))
        self.saving_s += time.perf_counter() - started

    def save_whole(self, table: BlockTable) -> None:
        """Store all of a recurrent or hybrid sequence as one page: its state cannot be had in parts."""
        tokens = [token for block in table.blocks for token in block.tokens]
        name = chain_hash(table.root, np.asarray(tokens, dtype="<i4").tobytes())
        if tokens and self._store.find(table.root, name) is None:
            self._store.put(Page(table.root, name, tuple(tokens), self._executor.save_slot(table.slot)))

    def restore_next(self, scheduler: Scheduler) -> None:
        """For the sequences that are about to start, once each: bring back what is stored of their tokens beyond what
        is resident, if that pays. Changes nothing where there is nothing, or no room for it now."""
        for sequence in scheduler.waiting[: scheduler.max_num_seqs - len(scheduler.running)]:
            if not sequence.is_looked_up:
                sequence.is_looked_up = True
                self._restore(sequence)

    def _restore(self, sequence: Sequence) -> None:
        if self._kv.shares:
            self._restore_blocks(sequence)
        else:
            self._restore_whole(sequence)

    def explain(self, tokens: Tokens, num_cached: int, root: ChainHash) -> Miss:
        """Why `tokens` was reused up to `num_cached` and no further."""
        size = self._kv.block_size
        ids = tuple(tokens.tolist())
        if not self._kv.shares:
            return Miss(num_cached, "this model reuses a conversation as a whole or not at all", ids[num_cached:])
        number = num_cached // size
        parent = _chain(tokens[: number * size + 1], size, root)[-1]
        own = ids[number * size : (number + 1) * size]
        blocks = [*self._kv.index.children(parent), *self._store.children(parent).values()]
        miss = find_parting(ids, number * size, [block for block in blocks if block != own])
        return miss if miss.position >= num_cached else Miss(num_cached, miss.cause, ids[num_cached:])

    def _restore_whole(self, sequence: Sequence) -> None:
        tokens = sequence.tokens
        ids = tuple(tokens.tolist())
        fitting = [
            (len(stored), name)
            for name, stored in self._store.children(sequence.root).items()
            if len(stored) < len(ids) and stored == ids[: len(stored)]
        ]
        num_tokens, name = max(fitting, default=(0, sequence.root))
        if num_tokens <= self._kv.num_resident_tokens(tokens, sequence.root):
            return
        tier = self._store.find(sequence.root, name)
        page = self._store.get(sequence.root, name)
        if page is None or (table := self._kv.open(tokens[: num_tokens + 1], sequence.root, num_tokens)) is None:
            return
        self._kv.rollback(table)  # a shorter conversation may have been taken over
        reserved = self._kv.reserve(table, num_tokens)
        self._executor.apply(self._kv.take_ops())
        started = time.perf_counter()
        if reserved and self._executor.restore_slot(table.slot, page.payload, num_tokens):
            self._kv.commit(table, tokens[:num_tokens])
            self._note_restored(sequence, [tier], num_tokens, time.perf_counter() - started)
        elif reserved:
            self._store.discard(page)
        self._kv.retire(table)

    def _restore_blocks(self, sequence: Sequence) -> None:
        size = self._kv.block_size
        tokens = sequence.tokens
        names = _chain(tokens, size, sequence.root)
        resident = self._kv.num_resident_tokens(tokens, sequence.root) // size
        end = resident
        tiers: list[Tier | None] = []
        while end + 1 < len(names) and (tier := self._store.find(names[end], names[end + 1])) is not None:
            tiers.append(tier)
            end += 1
        if end == resident or not self._rates.pays(end - resident, (end - resident) * size):
            return
        table = self._kv.open(tokens[: end * size + 1], sequence.root, end * size)
        if table is None:
            return
        self._kv.cut_open_block(table)
        self._executor.apply(self._kv.take_ops())
        started = time.perf_counter()
        first = number = table.num_tokens // size
        for page in self._store.get_run(names[first : end + 1]):
            if not self._restore_block(table.slot, number, page, tokens):
                break
            self._kv.commit(table, tokens[number * size : (number + 1) * size])
            number += 1
        self._kv.take_filled()  # they come from the store
        self._kv.retire(table)
        if number > first:
            seconds = time.perf_counter() - started
            self._rates.note_restore(number - first, seconds)
            self._kv.set_first_positions(self._executor.first_positions())  # room may have been made in windows
            self._note_restored(sequence, tiers[first - resident : number - resident], size, seconds)

    @staticmethod
    def _note_restored(sequence: Sequence, tiers: list[Tier | None], tokens_each: int, seconds: float) -> None:
        sequence.metrics.num_host_tokens += tokens_each * tiers.count(Tier.HOST)
        sequence.metrics.num_disk_tokens += tokens_each * tiers.count(Tier.DISK)
        sequence.metrics.restore_s += seconds

    def _restore_block(self, slot: int, number: int, page: Page, tokens: Tokens) -> bool:
        """Put a stored block into `slot`; False where it is not what it should be, or not for this context."""
        size = self._kv.block_size
        start, end = number * size, (number + 1) * size
        if page.tokens == tuple(tokens[start:end].tolist()) and self._executor.restore_cells(
            slot, start, end, page.payload
        ):
            return True
        self._store.discard(page)
        return False


def _chain(tokens: Tokens, block_size: int, root: ChainHash) -> list[ChainHash]:
    """The chain hashes of `tokens`: the root, then one for each full block that leaves a token to compute behind it."""
    names = [root]
    for start in range(0, (len(tokens) - 1) // block_size * block_size, block_size):
        names.append(chain_hash(names[-1], tokens[start : start + block_size].tobytes()))
    return names
