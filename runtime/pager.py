"""The pager: blocks between the context and the page store. Saves those that fill up, restores what a prompt begins
with.

Restored blocks become a retired chain, and the scheduler then finds them as it finds any other; nothing else knows
where they came from. The pager works between steps, on the engine's thread.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as SequenceOf
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

import numpy as np

from ingle.runtime.blocks import BlockTable, ChainHash, chain_hash
from ingle.runtime.errors import EngineError
from ingle.runtime.explain import Miss, find_parting
from ingle.runtime.kv_manager import KVManager
from ingle.runtime.page import Page, Payload
from ingle.runtime.page_run import PageRun
from ingle.runtime.page_store import PageStore, StoreStats, Tier
from ingle.runtime.prefix import num_common_tokens
from ingle.runtime.scheduler import Scheduler
from ingle.runtime.sequence import Sequence
from ingle.runtime.step import KvOp, Tokens

RATE_TOKENS = 64
"""A step of fewer tokens takes longer for each."""


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
    def restore_cells(self, slot: int, start: int, end: int, payload: Payload, num_wanted: int) -> bool: ...
    def save_slot(self, slot: int) -> Payload: ...
    def restore_slot(self, slot: int, payload: Payload, num_tokens: int) -> bool: ...
    def first_positions(self) -> dict[int, int]: ...


@dataclass(frozen=True, slots=True)
class Part:
    """A stored block whose first `num_wanted` tokens are a sequence's; then it ends, or goes on with others."""

    parent: ChainHash
    name: ChainHash
    num_wanted: int


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """What is stored of a sequence beyond what is resident: whole blocks from number `first` on, one for each tier, and
    then perhaps a part of one. `names`: of the sequence's whole blocks, the root before them."""

    sequence: Sequence
    names: list[ChainHash]
    first: int
    tiers: list[Tier]
    part: Part | None
    run: PageRun | None

    def pages(self, number: int) -> Iterator[Page]:
        """The stored blocks from `number` on, which may be later than `first` when others came to be resident."""
        return islice(self.run, number - self.first, None) if self.run is not None else iter(())

    def close(self) -> None:
        if self.run is not None:
            self.run.close()


class Pager:
    """Moves blocks for one engine."""

    def __init__(self, kv: KVManager, executor: CellStore, store: PageStore) -> None:
        self._kv = kv
        self._executor = executor
        self._store = store
        self._rates = Rates(compute_token_s=store.recall_rate())
        self._has_measured = False
        window = kv.index.window
        self._saves_whole_blocks = window is None or window >= kv.block_size  # llama.cpp saves what its window sees
        self._found: Found | None = None  # of the sequence that starts next
        self.saving_s = 0.0  # spent copying bytes out, on the engine's thread

    def note_prefill(self, num_tokens: int, seconds: float) -> None:
        """A step computed `num_tokens` of prompts in `seconds`. Short ones say nothing about a token of a long one."""
        if num_tokens >= RATE_TOKENS:
            self._rates.note_compute(num_tokens, seconds)
            self._has_measured = True

    def saved_s(self, num_tokens: int, restore_s: float) -> float | None:
        """What reusing `num_tokens` has saved, if it is known how long computing them takes."""
        rate = self._rates.compute_token_s
        return None if rate is None else num_tokens * rate - restore_s

    def stats(self) -> StoreStats:
        return self._store.stats()

    def save(self, filled: Iterable[tuple[BlockTable, int]]) -> None:
        """Store blocks that the last step filled, unless they are stored already or have lost window cells."""
        started = time.perf_counter()
        self._save_blocks(filled)
        self.saving_s += time.perf_counter() - started

    def _save_blocks(self, blocks: Iterable[tuple[BlockTable, int]]) -> None:
        for table, number in blocks:
            block = table.blocks[number]
            assert block.parent is not None
            name = block.hash or chain_hash(block.parent, np.asarray(block.tokens, dtype="<i4").tobytes())
            start = number * self._kv.block_size
            if (
                self._saves_whole_blocks
                and table.first_position <= start
                and self._store.find(block.parent, name) is None
            ):
                payload = self._executor.save_cells(table.slot, start, start + len(block.tokens))
                self._store.put(Page(block.parent, name, tuple(block.tokens), payload))

    def save_rest(self) -> None:
        """For when the cells are about to go: store the last block of every finished sequence, which never filled, and
        how long computing takes."""
        if self._has_measured and self._rates.compute_token_s is not None:
            self._store.remember_rate(self._rates.compute_token_s)
            self._has_measured = False
        self._executor.apply(self._kv.take_ops())
        size = self._kv.block_size
        tails = [(table, table.num_tokens // size) for table in self._kv.retired() if table.num_tokens % size]
        with suppress(EngineError):  # llama.cpp would not give the bytes: those tokens are computed again
            self._save_blocks(tails if self._kv.shares else ())

    def save_whole(self, table: BlockTable) -> None:
        """Store all of a recurrent or hybrid sequence as one page: its state cannot be had in parts."""
        tokens = [token for block in table.blocks for token in block.tokens]
        name = chain_hash(table.root, np.asarray(tokens, dtype="<i4").tobytes())
        if tokens and self._store.find(table.root, name) is None:
            self._store.put(Page(table.root, name, tuple(tokens), self._executor.save_slot(table.slot)))

    def look_ahead(self, scheduler: Scheduler) -> None:
        """Begin to read what the next sequence to start will want of files; the pool may have to grow meanwhile."""
        for sequence in scheduler.about_to_start()[:1]:
            if self._kv.shares and not sequence.is_looked_up:
                self._found = self._look_up(sequence)

    def restore_next(self, scheduler: Scheduler) -> None:
        """For the sequences that are about to start, once each: bring back what is stored of their tokens beyond what
        is resident, if that pays. Changes nothing where there is nothing, or no room for it now."""
        for sequence in scheduler.about_to_start():
            if not sequence.is_looked_up:
                sequence.is_looked_up = True
                self._restore(sequence)

    def _restore(self, sequence: Sequence) -> None:
        if not self._kv.shares:
            self._restore_whole(sequence)
            return
        found, self._found = self._found, None
        with closing(found if found is not None and found.sequence is sequence else self._look_up(sequence)) as found:
            self._restore_blocks(found)

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
            self._note_restored(sequence, [tier], num_tokens)
            sequence.metrics.restore_s += time.perf_counter() - started
        elif reserved:
            self._store.discard(page)
        self._kv.retire(table)

    def _look_up(self, sequence: Sequence) -> Found:
        """What is stored of the sequence's tokens beyond what is resident, as far as restoring it pays. Files of whole
        blocks begin to be read."""
        size = self._kv.block_size
        names = _chain(sequence.tokens, size, sequence.root)
        num_resident = self._kv.num_resident_tokens(sequence.tokens, sequence.root)
        first = end = num_resident // size
        tiers: list[Tier] = []
        while end + 1 < len(names) and (tier := self._store.find(names[end], names[end + 1])) is not None:
            tiers.append(tier)
            end += 1
        if end == first or not self._rates.pays(end - first, (end - first) * size):
            end, tiers = first, []
        last = self._look_up_part(sequence.tokens, end * size, names[end])
        if last is not None and end * size + last.num_wanted <= num_resident:
            last = None
        return Found(
            sequence, names, first, tiers, last, self._store.get_run(names[first : end + 1]) if tiers else None
        )

    def _look_up_part(self, tokens: Tokens, start: int, parent: ChainHash) -> Part | None:
        """The stored block, full or not, that has most of its first tokens in common with those from `start` on."""
        wanted = tokens[start : min(start + self._kv.block_size, len(tokens) - 1)].tolist()
        best: Part | None = None
        for name, stored in self._store.children(parent).items():
            num_common = num_common_tokens(wanted, stored)
            if num_common > (best.num_wanted if best else 0):
                best = Part(parent, name, num_common)
        return best if best is not None and self._rates.pays(1, best.num_wanted) else None

    def _restore_blocks(self, found: Found) -> None:
        size = self._kv.block_size
        sequence, tokens = found.sequence, found.sequence.tokens
        end = found.first + len(found.tiers)
        num_tokens = end * size + (found.part.num_wanted if found.part else 0)
        if not (found.tiers or found.part):
            return
        table = self._kv.open(tokens[: end * size + 1], sequence.root, num_tokens)
        if table is None:
            return
        self._kv.cut_open_block(table)
        self._executor.apply(self._kv.take_ops())
        started = time.perf_counter()
        before = table.num_tokens
        tiers = found.tiers[before // size - found.first :]
        for page in found.pages(before // size):
            if not self._restore_page(table, page, tokens, size):
                break
        num_blocks = (table.num_tokens - before) // size
        self._note_restored(sequence, tiers[:num_blocks], size)
        if found.part is not None and table.num_tokens == end * size:
            tier = self._store.find(found.part.parent, found.part.name)
            last = self._store.get(found.part.parent, found.part.name)
            if last is not None and self._restore_page(table, last, tokens, found.part.num_wanted):
                self._note_restored(sequence, [tier], found.part.num_wanted)
        self._kv.take_filled()  # they come from the store
        self._kv.retire(table)
        seconds = time.perf_counter() - started
        sequence.metrics.restore_s += seconds
        if num_blocks:
            self._rates.note_restore(num_blocks, seconds)
        if table.num_tokens > before:
            self._kv.set_first_positions(self._executor.first_positions())  # room may have been made in windows

    @staticmethod
    def _note_restored(sequence: Sequence, tiers: SequenceOf[Tier | None], tokens_each: int) -> None:
        sequence.metrics.num_host_tokens += tokens_each * tiers.count(Tier.HOST)
        sequence.metrics.num_disk_tokens += tokens_each * tiers.count(Tier.DISK)

    def _restore_page(self, table: BlockTable, page: Page, tokens: Tokens, num_wanted: int) -> bool:
        """Put the first `num_wanted` tokens of a stored block behind those of `table`; False where it is not what it
        should be, or not for this context."""
        start = table.num_tokens
        ids = tokens[start : start + num_wanted]
        if page.tokens[:num_wanted] == tuple(ids.tolist()) and self._executor.restore_cells(
            table.slot, start, start + len(page.tokens), page.payload, num_wanted
        ):
            self._kv.commit(table, ids)
            return True
        self._store.discard(page)
        return False


def _chain(tokens: Tokens, block_size: int, root: ChainHash) -> list[ChainHash]:
    """The chain hashes of `tokens`: the root, then one for each full block that leaves a token to compute behind it."""
    names = [root]
    for start in range(0, (len(tokens) - 1) // block_size * block_size, block_size):
        names.append(chain_hash(names[-1], tokens[start : start + block_size].tobytes()))
    return names
