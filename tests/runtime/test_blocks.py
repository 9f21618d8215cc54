# Chain hashes name contents; the pool counts references.
from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingle.runtime.blocks import HASH_BYTES, BlockPool, BlockTable, ChainHash, chain_hash, root_hash

ROOT = root_hash(b"model")
BLOCK_SIZE = 4


def chain(tokens: Sequence[int], fingerprint: bytes, salt: str, block_size: int = BLOCK_SIZE) -> list[ChainHash]:
    """The root and the name of every full block of `tokens`."""
    names = [root_hash(fingerprint, salt)]
    for start in range(0, len(tokens) - block_size + 1, block_size):
        names.append(chain_hash(names[-1], np.asarray(tokens[start : start + block_size], "<i4").tobytes()))
    return names


FEW_TOKENS = st.lists(st.integers(0, 1), min_size=4, max_size=12)
FINGERPRINTS = st.sampled_from([b"a" * 32, b"b" * 32, b"a" * 31, b""])
ANY = st.characters(exclude_categories=["Cs"])
SALTS = st.sampled_from(["", "tenant", "tenant ", "😀"])


@settings(deadline=None)
@given(a=st.tuples(FEW_TOKENS, FINGERPRINTS, SALTS), b=st.tuples(FEW_TOKENS, FINGERPRINTS, SALTS))
def test_blocks_have_the_same_name_iff_all_before_them_is_the_same(
    a: tuple[list[int], bytes, str], b: tuple[list[int], bytes, str]
) -> None:
    for number, (one, other) in enumerate(zip(chain(*a), chain(*b), strict=False)):
        same_prefix = a[0][: number * BLOCK_SIZE] == b[0][: number * BLOCK_SIZE]
        assert (one == other) == (same_prefix and a[1:] == b[1:])


@settings(deadline=None)
@given(
    tokens=st.lists(st.integers(0, 2**31 - 1), min_size=12, max_size=12), at=st.integers(0, 11), to=st.integers(0, 5)
)
def test_one_other_token_renames_its_block_and_all_after_it(tokens: list[int], at: int, to: int) -> None:
    changed = list(tokens)
    changed[at] = to
    differs = [one != other for one, other in zip(chain(tokens, b"m", ""), chain(changed, b"m", ""), strict=True)]
    expected = [number * BLOCK_SIZE > at and tokens[at] != to for number in range(4)]
    assert differs == expected


@settings(deadline=None)
@given(tokens=st.lists(st.integers(0, 3), min_size=8, max_size=8))
def test_names_depend_on_order_and_place(tokens: list[int]) -> None:
    """The two blocks of a text have two names even where their tokens are the same."""
    _, first, second = chain(tokens, b"m", "")
    assert first != second
    swapped = chain(tokens[4:] + tokens[:4], b"m", "")
    assert (swapped[1] == first) == (tokens[:4] == tokens[4:])


def test_names_are_the_same_in_every_process_and_version() -> None:
    """BLAKE2b-128 of salt or tokens, keyed with what comes before; names outlive a process where blocks are stored."""
    root = root_hash(b"model", "tenant")
    assert root.hex() == "22cae6a8b911a068c07cb9d848da149c"
    assert chain_hash(root, b"\x01\0\0\0").hex() == "4835990f98c0b063d65ffcbba0d1e93e"
    assert len(root) == HASH_BYTES == 16


@settings(deadline=None)
@given(one=st.text(ANY), other=st.text(ANY))
def test_salts_are_told_apart(one: str, other: str) -> None:
    assert (root_hash(b"m", one) == root_hash(b"m", other)) == (one == other)


# -- the pool ----------------------------------------------------------------------------------------------------------


def table(slot: int = 0) -> BlockTable:
    return BlockTable(slot, ROOT)


def fill(pool: BlockPool, into: BlockTable, num_blocks: int) -> None:
    for _ in range(num_blocks):
        block = pool.allocate(into)
        block.tokens += [7] * pool.block_size
        into.num_tokens += pool.block_size


def test_blocks_are_given_in_order_and_counted() -> None:
    pool, one = BlockPool(4, 2), table()
    fill(pool, one, 3)
    assert [block.index for block in one.blocks] == [0, 1, 2]
    assert (pool.num_total, pool.num_used, pool.num_free, pool.peak_used) == (4, 3, 1, 3)
    pool.check([one])


def test_a_shared_block_is_free_when_the_last_table_lets_go() -> None:
    pool, one, other = BlockPool(2, 2), table(0), table(1)
    fill(pool, one, 1)
    pool.share(one.blocks[0], other)
    assert one.blocks[0].num_refs == 2
    pool.check([one, other])
    assert pool.release(one) is None
    pool.check([one, other])
    block = pool.release(other)
    assert block is not None
    assert block.tokens == [7, 7]  # its owner may still read what it was
    pool.recycle(block)
    assert (block.tokens, block.hash, block.parent) == ([], None, None)
    assert (pool.num_free, pool.num_used, pool.peak_used) == (2, 0, 1)
    pool.check([one, other])


def test_the_last_freed_is_the_first_used_again() -> None:
    pool, one = BlockPool(3, 1), table()
    fill(pool, one, 3)
    for _ in range(2):
        block = pool.release(one)
        assert block is not None
        pool.recycle(block)
    fill(pool, one, 2)
    assert [block.index for block in one.blocks] == [0, 1, 2]


def test_growing_keeps_what_is_in_use() -> None:
    pool, one = BlockPool(2, 1), table()
    fill(pool, one, 2)
    held = list(one.blocks)
    pool.grow(5)
    assert one.blocks == held
    assert (pool.num_total, pool.num_free) == (5, 3)
    fill(pool, one, 3)
    assert [block.index for block in one.blocks] == [0, 1, 2, 3, 4]
    pool.check([one])


def test_misuse_is_our_mistake_and_asserts() -> None:
    pool, one, other = BlockPool(1, 2), table(0), table(1)
    block = pool.allocate(one)
    with pytest.raises(AssertionError, match="without a free block"):
        pool.allocate(other)
    with pytest.raises(AssertionError):
        pool.share(block, other)  # not full
    with pytest.raises(AssertionError):
        pool.recycle(block)  # still held
    with pytest.raises(AssertionError):
        pool.grow(0)
    pool.check([one])


def test_check_finds_references_that_no_table_has() -> None:
    pool, one = BlockPool(2, 1), table()
    fill(pool, one, 1)
    with pytest.raises(AssertionError, match="held by"):
        pool.check([])
    one.blocks[0].holders.append(one)
    with pytest.raises(AssertionError, match="held by"):
        pool.check([one])


def test_check_finds_a_shared_block_that_is_not_full() -> None:
    pool, one, other = BlockPool(1, 2), table(0), table(1)
    fill(pool, one, 1)
    pool.share(one.blocks[0], other)
    one.blocks[0].tokens.pop()
    with pytest.raises(AssertionError, match="shared and not full"):
        pool.check([one, other])


@settings(deadline=None)
@given(
    actions=st.lists(
        st.tuples(st.sampled_from(["allocate", "share", "release", "grow"]), st.integers(0, 99)), max_size=60
    )
)
def test_free_and_used_are_always_all(actions: list[tuple[str, int]]) -> None:
    pool, tables = BlockPool(3, 1), [table(slot) for slot in range(3)]
    for action, number in actions:
        one, other = tables[number % 3], tables[(number + 1) % 3]
        if action == "allocate" and pool.num_free:
            fill(pool, one, 1)
        elif action == "share" and other.blocks and other.blocks[-1] not in one.blocks:
            pool.share(other.blocks[-1], one)
        elif action == "release" and one.blocks:
            if (block := pool.release(one)) is not None:
                pool.recycle(block)
        elif action == "grow":
            pool.grow(pool.num_total + 1)
        pool.check(tables)
        held = {id(block) for each in tables for block in each.blocks}
        assert pool.num_used == len(held) <= pool.peak_used
        assert pool.num_used + pool.num_free == pool.num_total
