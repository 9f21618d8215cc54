"""The prefix index: from token ids to the resident blocks that already hold their KV.

Full blocks are found by chain hash. Past the last full match, the next block of some chain may begin with the same
tokens: those are found by comparing token ids among the children of the matched block, so that reuse ends at the first
token that differs and not at a block border.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ingle.runtime.blocks import Block, BlockTable, ChainHash, chain_hash
from ingle.runtime.step import Tokens


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """The first `num_tokens` tokens are in the cells of `source`: `num_full_blocks` blocks, and a part of the next."""

    source: BlockTable
    num_tokens: int
    num_full_blocks: int


class PrefixIndex:
    """Which resident blocks there are, by chain hash and by parent. Holds no references; its owner tells it of
    changes.
    """

    def __init__(self, block_size: int, window: int | None) -> None:
        self.block_size = block_size
        self.window = window  # sliding-window layers see this many tokens; None: no such layers
        self._by_hash: dict[ChainHash, list[Block]] = {}
        self._by_parent: dict[ChainHash, list[Block]] = {}

    def add_open(self, block: Block) -> None:
        """`block` got its first token, and with it a parent."""
        assert block.parent is not None
        self._by_parent.setdefault(block.parent, []).append(block)

    def add_full(self, block: Block) -> None:
        """`block` is full and has its hash."""
        assert block.hash is not None
        self._by_hash.setdefault(block.hash, []).append(block)

    def remove(self, block: Block) -> None:
        """`block` is about to be emptied."""
        if block.hash is not None:
            _discard(self._by_hash, block.hash, block)
        if block.parent is not None:
            _discard(self._by_parent, block.parent, block)

    def match(self, tokens: Tokens, root: ChainHash) -> PrefixMatch | None:
        """The longest usable prefix of `tokens`, leaving at least one to compute. Does not modify anything."""
        limit = len(tokens) - 1
        parents = [root]  # parents[k]: chain hash of the first k blocks
        chain: list[list[Block]] = []
        while (len(chain) + 1) * self.block_size <= limit:
            start = len(chain) * self.block_size
            name = chain_hash(parents[-1], tokens[start : start + self.block_size].tobytes())
            if not (blocks := self._by_hash.get(name)):
                break
            chain.append(blocks)
            parents.append(name)
        for num_full in range(len(chain), -1, -1):
            best: PrefixMatch | None = None
            for table, num_tokens in self._candidates(tokens[:limit], parents[num_full], chain[:num_full]):
                if (best is None or num_tokens > best.num_tokens) and self.window_is_there(table, num_tokens):
                    best = PrefixMatch(table, num_tokens, num_tokens // self.block_size)
            if best is not None:
                return best
        return None

    def children(self, parent: ChainHash) -> list[tuple[int, ...]]:
        """The tokens of every resident block that follows `parent`."""
        return [tuple(block.tokens) for block in self._by_parent.get(parent, ())]

    def _candidates(
        self, tokens: Tokens, parent: ChainHash, chain: list[list[Block]]
    ) -> Iterator[tuple[BlockTable, int]]:
        """Tables that hold all of `chain`, each with the number of tokens it has in common with `tokens`."""
        start = len(chain) * self.block_size
        rest = tokens[start : start + self.block_size].tolist()
        for block in self._by_parent.get(parent, ()):
            if common := num_common_tokens(block.tokens, rest):
                for table in block.holders:
                    yield table, start + common
        if chain:
            for block in chain[-1]:
                for table in block.holders:
                    yield table, start

    def window_is_there(self, table: BlockTable, num_tokens: int) -> bool:
        """Whether the token at position `num_tokens` would find every earlier one that its window layers look at."""
        return self.window is None or table.first_position <= max(0, num_tokens - self.window)

    def check(self, tables: list[BlockTable]) -> None:
        """Assert that the index knows exactly the blocks of `tables` that have tokens."""
        blocks = {id(b): b for table in tables for b in table.blocks if b.tokens}
        full = {key for key, b in blocks.items() if len(b.tokens) == self.block_size}
        assert {id(b) for group in self._by_parent.values() for b in group} == blocks.keys()
        assert {id(b) for group in self._by_hash.values() for b in group} == full
        for parent, group in self._by_parent.items():
            assert group
            assert all(block.parent == parent for block in group)
        for name, group in self._by_hash.items():
            assert group
            assert all(block.hash == name for block in group)


def num_common_tokens(a: Sequence[int], b: Sequence[int]) -> int:
    """How many leading tokens two sequences share."""
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return min(len(a), len(b))


def _discard(groups: dict[ChainHash, list[Block]], key: ChainHash, block: Block) -> None:
    group = groups[key]
    group.remove(block)
    if not group:
        del groups[key]
