"""The paged KV manager: which blocks exist, who shares them, when they leave, and how many there may be.

llama.cpp places cells and its attention kernels find them through the mask; this decides what they are for. Every
change is bookkeeping here and a `KvOp` in a list that the next step carries out before it decodes, so the manager
never touches a context and is tested without one.

A table belongs to a running sequence, or is *retired*: its sequence has ended and its blocks stay resident, to be
found by the next prompt that begins the same way. Retired tables give up their blocks, least recently used first and
from the end, as soon as somebody needs them: they count as available.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ingle.runtime.blocks import Block, BlockPool, BlockTable, ChainHash, chain_hash
from ingle.runtime.prefix import PrefixIndex, PrefixMatch
from ingle.runtime.step import CellRun, CopyCells, DropCells, KvOp, Tokens


@dataclass(frozen=True, slots=True)
class BlockCounts:
    """used + cached + free = total; shared blocks are used by more than one table."""

    total: int
    used: int
    shared: int
    cached: int
    free: int
    peak_used: int


class KVManager:
    """Blocks, tables and slots of one context.

    `window`: tokens that sliding-window layers look back (``None``: there are none). `shares`: whether the
    architecture can drop and share parts of a sequence; where it cannot (recurrent, hybrid) nothing is matched, and
    nothing retired.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        num_slots: int,
        window: int | None,
        *,
        shares: bool,
        caches: bool = True,
    ) -> None:
        self.block_size = block_size
        self.pool = BlockPool(num_blocks, block_size)
        self.index = PrefixIndex(block_size, window)
        self.shares = shares
        self.caches = caches
        self._free_slots = list(range(num_slots - 1, -1, -1))
        self._running: list[BlockTable] = []
        self._retired: list[BlockTable] = []  # least recently used first
        self._ops: list[KvOp] = []
        self._filled: list[tuple[BlockTable, int]] = []

    # -- a table's life ----------------------------------------------------------------------------------------------

    def open(self, tokens: Tokens, root: ChainHash, num_tokens: int) -> BlockTable | None:
        """A table for a sequence that begins with `tokens`, their cached part in it, with room for `num_tokens` in all.

        ``None``, and nothing changed, where slots or blocks are lacking.
        """
        match = self._match(tokens, root)
        if self._num_missing(match, num_tokens) > self.num_available() - self._num_only_retired(match):
            return None
        whole = match is not None and match.num_tokens == match.source.num_tokens
        if match is not None and match.source in self._retired and (whole or self._only_slot(match.source)):
            table = match.source  # take it over: no copy needed
            self._retired.remove(table)
            if not whole:
                self._cut(table, self._num_usable_blocks(match))
        else:
            slot = self._take_slot(keep=match.source if match else None)
            if slot is None:
                return None
            table = BlockTable(slot, root)
            if match is not None:
                self._share(match, table)
        self._running.append(table)
        reserved = self.reserve(table, num_tokens)
        assert reserved, "blocks that were counted as available are not"
        return table

    def num_blocks_wanted(self, tokens: Tokens, root: ChainHash, num_tokens: int) -> int:
        """Blocks that `open` would have to allocate."""
        return self._num_missing(self._match(tokens, root), num_tokens)

    def reserve(self, table: BlockTable, num_tokens: int) -> bool:
        """Make `table` reach `num_tokens` tokens, taking retired blocks if it must. False: not enough, nothing
        changed.
        """
        missing = self.num_blocks_for(num_tokens) - len(table.blocks)
        if missing <= 0:
            return True
        if not self._make_room(missing):
            return False
        for _ in range(missing):
            self.pool.allocate(table)
        return True

    def commit(self, table: BlockTable, tokens: Tokens) -> None:
        """The KV of `tokens` is now in the cells behind `table`'s earlier ones. Blocks that fill up get their names."""
        ids = tokens.tolist()
        done = 0
        while done < len(ids):
            number, offset = divmod(table.num_tokens, self.block_size)
            block = table.blocks[number]
            part = ids[done : done + self.block_size - offset]
            if not block.tokens and self.shares:
                block.parent = _hash_of(table.blocks[number - 1]) if number else table.root
                self.index.add_open(block)
            block.tokens += part
            table.num_tokens += len(part)
            done += len(part)
            if len(block.tokens) == self.block_size and block.parent is not None:
                block.hash = chain_hash(block.parent, _token_bytes(block.tokens))
                self.index.add_full(block)
                self._filled.append((table, number))

    def rollback(self, table: BlockTable, num_kept: int = 0) -> None:
        """Drop the cells past the committed tokens and `num_kept` more: rejected drafts, or of a step cut short."""
        self._ops.append(DropCells(table.slot, table.num_tokens + num_kept if self.shares else 0))
        if not self.shares:  # a recurrent state cannot be cut: nothing is kept, begin again
            self._trim(table, 0)
            table.num_tokens = 0

    def restart(self) -> None:
        """The context has lost everything: running tables begin again, retired ones are gone."""
        self.clear_cache()
        for table in self._running:
            self._trim(table, 0)
            table.num_tokens = 0
        self._ops.clear()

    def cut_open_block(self, table: BlockTable) -> None:
        """Forget the part of a block at the end of `table`, if there is one; reserved blocks stay."""
        num_full, rest = divmod(table.num_tokens, self.block_size)
        if rest:
            num_reserved = len(table.blocks)
            self._cut(table, num_full)
            reserved = self.reserve(table, num_reserved * self.block_size)
            assert reserved, "blocks just given back are not there"

    def retire(self, table: BlockTable) -> None:
        """Its sequence has ended or has to wait: keep the blocks for whoever comes with the same prefix."""
        if table.num_tokens == 0 or not self.caches:
            self.release(table)
            return
        self._trim(table, self.num_blocks_for(table.num_tokens))
        self._running.remove(table)
        self._retired.append(table)

    def release(self, table: BlockTable) -> None:
        """Drop a table: its slot is free, and its blocks are too unless another table holds them."""
        (self._retired if table in self._retired else self._running).remove(table)
        self._ops.append(DropCells(table.slot, 0))
        self._trim(table, 0)
        self._free_slots.append(table.slot)

    def clear_cache(self) -> None:
        """Release every retired table."""
        for table in list(self._retired):
            self.release(table)

    # -- what others ask ---------------------------------------------------------------------------------------------

    def num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def num_available(self) -> int:
        """Blocks that could be had now: the free ones and those that only retired tables hold."""
        return self.pool.num_free + sum(1 for _ in self._only_retired())

    def take_ops(self) -> tuple[KvOp, ...]:
        """The operations collected since the last call, for the next step to carry out in order."""
        ops = tuple(self._ops)
        self._ops.clear()
        return ops

    def take_filled(self) -> list[tuple[BlockTable, int]]:
        """The blocks, as (table, number in it), that `commit` has filled since the last call."""
        filled, self._filled = self._filled, []
        return filled

    def num_resident_tokens(self, tokens: Tokens, root: ChainHash) -> int:
        """How many of `tokens` `open` would find."""
        match = self._match(tokens, root)
        return 0 if match is None else match.num_tokens

    def set_first_positions(self, first_positions: dict[int, int]) -> None:
        """What the context still has of each slot in its sliding-window layers. What is gone never comes back."""
        for table in self.tables():
            table.first_position = max(table.first_position, first_positions.get(table.slot, 0))

    def tables(self) -> list[BlockTable]:
        return self._running + self._retired

    def retired(self) -> list[BlockTable]:
        """The tables of sequences that have ended, least recently used first."""
        return list(self._retired)

    def runs(self) -> list[CellRun]:
        """Every cell in use, once: the maximal runs of blocks that the same slots hold. For moving to another
        context.
        """
        runs: list[CellRun] = []
        seen: set[int] = set()
        for table in self.tables():
            last: tuple[int, ...] | None = None
            for number, block in enumerate(table.blocks[: self.num_blocks_for(table.num_tokens)]):
                start = number * self.block_size
                end = min(start + self.block_size, table.num_tokens)
                holders = sorted(block.holders, key=lambda holder: (holder.first_position, holder.slot))
                slots = tuple(holder.slot for holder in holders)
                if id(block) in seen:
                    last = None
                elif slots == last:
                    runs[-1] = CellRun(slots, runs[-1].start, end)
                else:
                    runs.append(CellRun(slots, start, end))
                    last = slots
                seen.add(id(block))
        return runs

    def counts(self) -> BlockCounts:
        cached = sum(1 for _ in self._only_retired())
        shared = len({id(block) for table in self._running for block in table.blocks if block.num_refs > 1})
        return BlockCounts(
            total=self.pool.num_total,
            used=self.pool.num_used - cached,
            shared=shared,
            cached=cached,
            free=self.pool.num_free,
            peak_used=self.pool.peak_used,
        )

    def check(self) -> None:
        """Assert every invariant of the bookkeeping (DESIGN: free + used = total, references, sharing, names)."""
        tables = self.tables()
        self.pool.check(tables)
        slots = [table.slot for table in tables] + self._free_slots
        assert len(set(slots)) == len(slots), "a slot is held twice"
        for table in tables:
            assert len(table.blocks) >= self.num_blocks_for(table.num_tokens)
            assert sum(len(block.tokens) for block in table.blocks) == table.num_tokens
            parent = table.root
            for block in table.blocks[: table.num_tokens // self.block_size] if self.shares else ():
                assert block.parent == parent
                assert block.hash == chain_hash(parent, _token_bytes(block.tokens))
                parent = block.hash
        for table in self._retired:
            assert len(table.blocks) == self.num_blocks_for(table.num_tokens)
        if self.shares:
            self.index.check(tables)

    # -- how ---------------------------------------------------------------------------------------------------------

    def _match(self, tokens: Tokens, root: ChainHash) -> PrefixMatch | None:
        if not self.caches:
            return None
        if self.shares:
            return self.index.match(tokens, root)
        whole = [table for table in self._retired if table.root == root and _begins_with(tokens, table)]
        if not whole:
            return None
        longest = max(whole, key=lambda table: table.num_tokens)
        return PrefixMatch(longest, longest.num_tokens, longest.num_tokens // self.block_size)

    def _num_missing(self, match: PrefixMatch | None, num_tokens: int) -> int:
        """Blocks to allocate for `num_tokens` beyond those that `match` shares."""
        return self.num_blocks_for(num_tokens) - (match.num_full_blocks if match else 0)

    def _num_only_retired(self, match: PrefixMatch | None) -> int:
        """Of the blocks that `match` shares, those that would no longer be anybody's to take."""
        if match is None:
            return 0
        running = {id(table) for table in self._running}
        blocks = match.source.blocks[: match.num_full_blocks]
        return sum(not any(id(holder) in running for holder in block.holders) for block in blocks)

    def _share(self, match: PrefixMatch, table: BlockTable) -> None:
        """Full blocks become `table`'s too. The part of a block that follows lands in a block of its own: the cells are
        shared by llama.cpp, the accounting takes them as new, so a block that somebody may still write to has one
        owner.
        """
        source = match.source
        if source in self._retired:  # most recently used now
            self._retired.remove(source)
            self._retired.append(source)
        size = self.block_size
        num_blocks, num_rest = divmod(match.num_tokens, size)
        if num_rest and not (self.pool.num_free or self._evict(1, keep=source)):
            num_blocks, num_rest = self._num_usable_blocks(match), 0
        for block in source.blocks[:num_blocks]:
            self.pool.share(block, table)
        table.num_tokens = num_blocks * size
        table.first_position = source.first_position
        if num_blocks or num_rest:
            self._ops.append(CopyCells(source.slot, table.slot, 0, table.num_tokens + num_rest))
        if num_rest:
            self.pool.allocate(table)
            self.commit(table, np.asarray(source.blocks[num_blocks].tokens[:num_rest], dtype=np.int32))

    def _num_usable_blocks(self, match: PrefixMatch) -> int:
        """The full blocks of `match`, or none where a window that begins behind them would have a gap."""
        num_tokens = match.num_full_blocks * self.block_size
        return match.num_full_blocks if self.index.window_is_there(match.source, num_tokens) else 0

    def _make_room(self, num_blocks: int) -> bool:
        """Have `num_blocks` free, evicting from retired tables. False, and nothing changed, where that is not
        enough.
        """
        if self.pool.num_free >= num_blocks:
            return True
        if self.num_available() < num_blocks:
            return False
        return self._evict(num_blocks - self.pool.num_free, keep=None)

    def _evict(self, num_blocks: int, keep: BlockTable | None) -> bool:
        """Free up to `num_blocks` blocks of retired tables other than `keep`: least recently used first, from the
        end.
        """
        target = self.pool.num_free + num_blocks
        for table in [table for table in self._retired if table is not keep]:
            if self.pool.num_free >= target:
                break
            num_kept = len(table.blocks)
            while num_kept and self.pool.num_free < target:
                num_kept -= 1
                self._trim(table, num_kept)
            if self.shares and num_kept * self.block_size > table.first_position:
                self._cut(table, num_kept)
            else:  # nothing left, or nothing that could be used
                self.release(table)
        return self.pool.num_free >= target

    def _only_slot(self, source: BlockTable) -> bool:
        """Whether the slot of the retired table `source` is the only one to be had."""
        return not self._free_slots and self._retired == [source]

    def _cut(self, table: BlockTable, num_blocks: int) -> None:
        """Keep only the first `num_blocks` blocks of `table`, all of them full."""
        self._trim(table, num_blocks)
        table.num_tokens = num_blocks * self.block_size
        if not num_blocks:
            table.first_position = 0
        self._ops.append(DropCells(table.slot, table.num_tokens))

    def _take_slot(self, keep: BlockTable | None) -> int | None:
        """A free slot, from the least recently used retired table if need be, but not from `keep`."""
        if not self._free_slots:
            for table in self._retired:
                if table is not keep:
                    self.release(table)
                    break
        return self._free_slots.pop() if self._free_slots else None

    def _trim(self, table: BlockTable, num_blocks: int) -> None:
        """Give back the blocks of `table` behind the first `num_blocks`."""
        while len(table.blocks) > num_blocks:
            block = self.pool.release(table)
            if block is not None:
                self.index.remove(block)
                self.pool.recycle(block)

    def _only_retired(self) -> Iterable[Block]:
        """Blocks that no running table holds."""
        running = {id(table) for table in self._running}
        seen: set[int] = set()
        for table in self._retired:
            for block in table.blocks:
                if id(block) not in seen and not any(id(holder) in running for holder in block.holders):
                    seen.add(id(block))
                    yield block


def _begins_with(tokens: Tokens, table: BlockTable) -> bool:
    """Whether `table`'s tokens are the beginning of `tokens`, and not all of them."""
    if table.num_tokens >= len(tokens):
        return False
    ids: list[int] = tokens[: table.num_tokens].tolist()
    return ids == [token for block in table.blocks for token in block.tokens]


def _hash_of(block: Block) -> ChainHash:
    assert block.hash is not None, "a block has tokens while the one before it is not full"
    return block.hash


def _token_bytes(ids: list[int]) -> bytes:
    return np.asarray(ids, dtype="<i4").tobytes()
