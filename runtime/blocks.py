"""Blocks: the unit in which KV memory is counted, shared and evicted. Pure bookkeeping; no llama.cpp in sight.

**Cell**: llama.cpp's storage of one token's K and V. **Block**: ``block_size`` consecutive positions of one sequence.
**Block table**: a sequence's ordered blocks. **Slot**: a llama.cpp ``seq_id``; a block's cells carry the slot of every
table that holds the block. **Chain hash**: names a full block by everything that decides its contents: the tokens
before it, its own, and what was computed with (model, KV types, salt), so equal hash means equal KV.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NewType

ChainHash = NewType("ChainHash", bytes)

HASH_BYTES = 16


def root_hash(fingerprint: bytes, salt: str = "") -> ChainHash:
    """The parent of every first block: what the model is and how it is run (`fingerprint`), and the tenant's salt."""
    return ChainHash(
        hashlib.blake2b(salt.encode("utf-8", "surrogatepass"), key=fingerprint[:64], digest_size=HASH_BYTES).digest()
    )


def chain_hash(parent: ChainHash, token_bytes: bytes) -> ChainHash:
    """The name of the full block whose tokens (int32, little-endian) are `token_bytes` and whose predecessor is
    `parent`.
    """
    return ChainHash(hashlib.blake2b(token_bytes, key=parent, digest_size=HASH_BYTES).digest())


@dataclass(eq=False, slots=True)
class Block:
    """One block. `tokens` are those computed into it so far; it is full when there are `block_size`, and then has a
    hash.

    `parent` is the chain hash of the block before it, known once the block has a token. `holders` are the tables it is
    in.
    """

    index: int
    parent: ChainHash | None = None
    hash: ChainHash | None = None
    tokens: list[int] = field(default_factory=list)
    holders: list[BlockTable] = field(default_factory=list)

    @property
    def num_refs(self) -> int:
        return len(self.holders)

    def __repr__(self) -> str:
        name = self.hash.hex()[:8] if self.hash else "open"
        return f"Block({self.index}, {name}, tokens={len(self.tokens)}, refs={self.num_refs})"


@dataclass(eq=False, slots=True)
class BlockTable:
    """The blocks of one sequence, in order, and the slot whose cells they are.

    `num_tokens` have been computed; the blocks reach at least that far (further while a step is under way).
    `first_position`: cells before it are gone from sliding-window layers (0: all are there).
    """

    slot: int
    root: ChainHash
    blocks: list[Block] = field(default_factory=list)
    num_tokens: int = 0
    first_position: int = 0

    def __repr__(self) -> str:
        return f"BlockTable(slot={self.slot}, blocks={len(self.blocks)}, tokens={self.num_tokens})"


class BlockPool:
    """All the blocks there are: free ones in a stack, used ones in the tables that count references to them."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self._blocks: list[Block] = []
        self._free: list[Block] = []
        self.peak_used = 0
        self.grow(num_blocks)

    def grow(self, num_blocks: int) -> None:
        """Add blocks until there are `num_blocks`. Those in use keep their identity."""
        assert num_blocks >= len(self._blocks)
        new = [Block(index) for index in range(len(self._blocks), num_blocks)]  # an index is only a name to print
        self._blocks += new
        self._free += reversed(new)

    def shrink(self, num_blocks: int) -> None:
        """Forget free blocks until there are `num_blocks`; those in use stay."""
        num_gone = len(self._blocks) - num_blocks
        assert 0 <= num_gone <= len(self._free)
        gone = {id(block) for block in self._free[:num_gone]}
        self._free = self._free[num_gone:]
        self._blocks = [block for block in self._blocks if id(block) not in gone]

    @property
    def num_total(self) -> int:
        return len(self._blocks)

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_used(self) -> int:
        return len(self._blocks) - len(self._free)

    def allocate(self, table: BlockTable) -> Block:
        """Append a free, empty block to `table`. The caller has made sure that one is free."""
        assert self._free, "allocate() without a free block"
        block = self._free.pop()
        assert not block.holders
        assert not block.tokens
        assert block.hash is None
        block.holders.append(table)
        table.blocks.append(block)
        self.peak_used = max(self.peak_used, self.num_used)
        return block

    def share(self, block: Block, table: BlockTable) -> None:
        """Append `block`, which another table holds, to `table`. Only full blocks are shared: nobody writes to them
        again.
        """
        assert block.holders
        assert len(block.tokens) == self.block_size
        block.holders.append(table)
        table.blocks.append(block)

    def release(self, table: BlockTable) -> Block | None:
        """Take the last block off `table`; returns it when no table holds it any more. It is free then, and empty after
        the caller has read what it was (`recycle`)."""
        block = table.blocks.pop()
        block.holders.remove(table)
        return None if block.holders else block

    def recycle(self, block: Block) -> None:
        """Put a block that nobody holds on the free stack."""
        assert not block.holders
        block.parent = block.hash = None
        block.tokens.clear()
        self._free.append(block)

    def check(self, tables: Sequence[BlockTable]) -> None:
        """Assert that `tables`, all of them, account for every reference, and that free + used = total."""
        held: dict[int, list[BlockTable]] = {}
        for table in tables:
            for block in table.blocks:
                held.setdefault(id(block), []).append(table)
        for block in self._blocks:
            holders = held.get(id(block), [])
            assert sorted(map(id, block.holders)) == sorted(map(id, holders)), f"{block}: held by {holders}"
            assert block.num_refs <= 1 or len(block.tokens) == self.block_size, f"{block} is shared and not full"
        assert all(not block.holders for block in self._free)
        assert len({id(block) for block in self._free}) == len(self._free), "a block is free twice"
        assert self.num_free + len(held) == self.num_total
