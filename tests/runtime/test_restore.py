"""What comes back from the page store is what was there: to the last bit, in every kind of model, or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from ingle.runtime import page_files
from ingle.runtime.config import EngineConfig
from ingle.runtime.engine import Engine
from ingle.runtime.executor import Executor
from ingle.runtime.llama import LlamaModel
from ingle.runtime.request import Request, RequestOutput, SamplingParams
from ingle.runtime.step import CopyCells, DropCells, Row, StepPlan
from tests.runtime.test_tiny_models import WRITERS, Judge

BLOCK = 8
GREEDY = SamplingParams(temperature=0, ignore_eos=True, logprobs=2)


def words(count: int, seed: int, num_vocab: int = 250) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(5, num_vocab, count)]


def execute(executor: Executor, tokens: list[int], start: int, end: int, slot: int = 0) -> np.ndarray:
    """Compute tokens[start:end] in `slot`; the logits of the last, copied."""
    row = Row(slot, start, np.asarray(tokens[start:end], np.int32), 1)
    return executor.execute(StepPlan((), (row,))).logits[0].copy()


# -- exactness ---------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["smollm2-f16", "smollm2-q8_0", "gemma3-f16", "gemma3-q8_0"])
def case(
    request: pytest.FixtureRequest, smollm2_path: Path, tmp_path: Path
) -> Iterator[tuple[LlamaModel, EngineConfig]]:
    """Real weights and KV types, and a tiny model with sliding windows; flash attention."""
    name, kv_type = request.param.split("-")
    path = smollm2_path if name == "smollm2" else WRITERS["gemma3"](tmp_path / "tiny.gguf")
    config = EngineConfig(type_k=kv_type, type_v=kv_type, flash_attn=True, block_size=BLOCK, num_threads=1)
    model = LlamaModel(path, 0)
    yield model, config
    model.close()


def test_logits_after_a_restore_are_equal_to_the_last_bit(case: tuple[LlamaModel, EngineConfig]) -> None:
    model, config = case
    tokens = words(160, seed=1)
    old, new = Executor(model, config, 512), Executor(model, config, 512)
    pages = []
    for start in range(0, len(tokens), BLOCK):  # saved as they fill
        execute(old, tokens, start, start + BLOCK)
        pages.append(old.save_cells(0, start, start + BLOCK))
    for border in np.random.default_rng(2).integers(1, len(pages), 20).tolist():
        for number in range(border):
            assert new.restore_cells(0, number * BLOCK, (number + 1) * BLOCK, pages[number], BLOCK)
        at = border * BLOCK
        for count in (1, 3):  # the next token alone, and a short prompt
            old.apply([CopyCells(0, 1, 0, at)])
            kept = execute(old, [*tokens[:at], 7, 8, 9], at, at + count, slot=1)
            restored = execute(new, [*tokens[:at], 7, 8, 9], at, at + count)
            assert np.array_equal(kept, restored), f"at {at}: {np.abs(kept - restored).max()}"
            old.apply([DropCells(1, 0)])
            new.apply([DropCells(0, at)])
        new.apply([DropCells(0, 0)])
    old.close()
    new.close()


def test_bytes_that_are_no_cells_are_refused_and_change_nothing(case: tuple[LlamaModel, EngineConfig]) -> None:
    model, config = case
    tokens = words(2 * BLOCK, seed=1)
    executor = Executor(model, config, 256)
    execute(executor, tokens, 0, BLOCK)
    page = executor.save_cells(0, 0, BLOCK)
    expected = execute(executor, tokens, BLOCK, BLOCK + 1)
    executor.apply([DropCells(0, BLOCK)])
    for bad in (page[:40], np.zeros(100, np.uint8), np.empty(0, np.uint8)):
        assert not executor.restore_cells(1, 0, BLOCK, bad, BLOCK)
    assert not executor.restore_cells(1, BLOCK, 2 * BLOCK, page, BLOCK), "cells of other positions"
    executor.check({0: BLOCK})
    assert np.array_equal(execute(executor, tokens, BLOCK, BLOCK + 1), expected)
    executor.close()


# -- the engine --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["llama-plain", "gemma3-plain", "mamba-plain", "lfm2-plain"])
def judge(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    name, attention = request.param.split("-")
    judge = Judge(WRITERS[name](tmp_path_factory.mktemp(name) / "tiny.gguf"), attention)
    yield judge
    judge.close()


Open = Callable[..., Engine]


@pytest.fixture
def open_engine(judge: Judge, tmp_path: Path) -> Open:
    def open_engine(**changes: object) -> Engine:
        return Engine.open(judge.path, judge.config(**({"page_dir": tmp_path / "kv", "block_size": BLOCK} | changes)))

    return open_engine


def ask(engine: Engine, tokens: list[int], num_output: int = 10, salt: str = "") -> list[RequestOutput]:
    return list(engine.stream(engine.add(Request(tokens, GREEDY, max_output_tokens=num_output, cache_salt=salt))))


def answer_of(outputs: list[RequestOutput]) -> list[int]:
    return [token for output in outputs for token in output.new_tokens]


def test_a_conversation_goes_on_in_another_process(judge: Judge, open_engine: Open) -> None:
    tokens = words(100, seed=3)
    with open_engine() as engine:
        outputs = ask(engine, tokens)
    turn = [*tokens, *answer_of(outputs), *words(5, seed=4)]
    with open_engine() as engine:
        again = ask(engine, turn)
        metrics = again[-1].metrics
        judge.accepts(turn, again)
        computed = len(tokens) + len(answer_of(outputs)) - 1  # the last token of an answer never is
        assert metrics.num_disk_tokens == metrics.num_cached_tokens == computed
        assert metrics.restore_s > 0


def test_what_left_the_context_comes_back_from_ram(judge: Judge, open_engine: Open) -> None:
    tokens = words(100, seed=5)
    with open_engine() as engine:
        outputs = ask(engine, tokens)
        assert engine.shrink() is False  # it had not grown; the cells are free all the same
        assert engine.stats().num_blocks_cached == 0
        turn = [*tokens, *answer_of(outputs), 9]
        again = ask(engine, turn)
        judge.accepts(turn, again)
        metrics = again[-1].metrics
        assert metrics.num_host_tokens == metrics.num_cached_tokens > 100
        assert metrics.num_disk_tokens == 0


def test_the_pool_grows_with_use_and_shrinks_again(judge: Judge, open_engine: Open) -> None:
    with open_engine(initial_kv_tokens=256, max_num_seqs=2) as engine:
        small = engine.stats().num_blocks_total
        tokens = words(600, seed=6)
        judge.accepts(tokens, ask(engine, tokens))
        assert engine.stats().num_blocks_total >= 600 // BLOCK
        assert engine.shrink() is True
        assert engine.stats().num_blocks_total == small
        turn = [*tokens, *words(3, seed=7)]
        again = ask(engine, turn)
        judge.accepts(turn, again)
        assert (again[-1].metrics.num_cached_tokens > 0) == engine.info.shares_prefixes


def test_others_salt_types_and_models_never_match(judge: Judge, open_engine: Open, tmp_path: Path) -> None:
    tokens = words(100, seed=8)
    with open_engine() as engine:
        ask(engine, tokens)
    turn = [*tokens, 3, 4]
    with open_engine() as engine:
        assert ask(engine, turn, salt="somebody else")[-1].metrics.num_cached_tokens == 0
    with open_engine(type_k="f16") as engine:
        assert ask(engine, turn)[-1].metrics.num_cached_tokens == 0
    copy = tmp_path / "other.gguf"
    copy.write_bytes(judge.path.read_bytes()[:-4] + b"\x01\x02\x03\x04")  # one weight differs
    os.utime(copy, ns=(judge.path.stat().st_mtime_ns, judge.path.stat().st_mtime_ns))
    with Engine.open(copy, judge.config(page_dir=tmp_path / "kv", block_size=BLOCK)) as engine:
        assert ask(engine, turn)[-1].metrics.num_cached_tokens == 0


def test_conversations_without_a_common_beginning_share_no_page(open_engine: Open, tmp_path: Path) -> None:
    with open_engine() as engine:
        ask(engine, words(64, seed=9))
    first = set((tmp_path / "kv").glob("*/*/*.kv"))
    with open_engine() as engine:
        assert ask(engine, words(64, seed=10))[-1].metrics.num_cached_tokens == 0
    both = set((tmp_path / "kv").glob("*/*/*.kv"))
    assert len(both) == 2 * len(first)
    assert first < both


@pytest.mark.parametrize("harm", ["cut", "flipped", "swapped", "gone"])
def test_bad_pages_are_removed_and_their_tokens_computed(
    judge: Judge, open_engine: Open, tmp_path: Path, harm: str
) -> None:
    tokens = words(100, seed=11)
    with open_engine() as engine:
        outputs = ask(engine, tokens)
    pages = sorted((tmp_path / "kv").glob("*/*/*.kv"))
    contents = [path.read_bytes() for path in pages]
    for number, path in enumerate(pages):
        raw = bytearray(contents[number])
        if harm == "cut":
            path.write_bytes(raw[: len(raw) // 2])
        elif harm == "flipped":
            raw[-1 - number] ^= 1
            path.write_bytes(raw)
        elif harm == "swapped":
            path.write_bytes(contents[number - 1])
        else:
            path.unlink()
    turn = [*tokens, *answer_of(outputs), 8]
    with open_engine() as engine:
        again = ask(engine, turn)
        judge.accepts(turn, again)
        stats = engine.stats().pages
        assert stats is not None
        if len(pages) > 1 or harm != "swapped":  # one page can only take its own place
            assert again[-1].metrics.num_cached_tokens == 0
            assert (stats.num_bad > 0) == (harm != "gone")
    assert page_files.verify(tmp_path / "kv").num_removed in range(len(pages))
    with open_engine() as engine:
        judge.accepts(turn, ask(engine, turn))


def test_a_miss_is_explained(judge: Judge, open_engine: Open) -> None:
    tokens = words(100, seed=12)
    with open_engine() as engine:
        ask(engine, tokens)
    edited = [*tokens[:50], tokens[50] + 1, *tokens[51:]]
    with open_engine() as engine:
        outputs = ask(engine, edited)
        judge.accepts(edited, outputs)
        metrics = outputs[-1].metrics
        miss = engine.explain(edited, metrics.num_cached_tokens)
        assert miss is not None
        if engine.info.shares_prefixes:
            assert metrics.num_cached_tokens == metrics.num_disk_tokens == 50, "a part of a stored block"
            assert (miss.position, miss.cause) == (50, "the text differs")
            assert (miss.ours[0], miss.stored[0]) == (edited[50], tokens[50])
        else:
            assert "as a whole or not at all" in miss.cause
        new = words(40, seed=13)
        miss = engine.explain(new, ask(engine, new)[-1].metrics.num_cached_tokens)
        assert miss is not None
        assert miss.position == 0


@pytest.mark.parametrize("judge", ["llama-plain", "gemma3-plain"], indirect=True)
def test_the_last_block_is_kept_and_explained_though_it_never_filled(judge: Judge, open_engine: Open) -> None:
    tokens = words(3 * BLOCK + 5, seed=15)
    with open_engine() as engine:
        ask(engine, tokens, num_output=1)
    edited = [*tokens[:-2], tokens[-2] + 1, 4, 5, 6]
    with open_engine() as engine:
        outputs = ask(engine, edited)
        judge.accepts(edited, outputs)
        assert outputs[-1].metrics.num_disk_tokens == outputs[-1].metrics.num_cached_tokens == len(tokens) - 2
        miss = engine.explain(edited, len(tokens) - 2)
        assert miss is not None
        assert (miss.position, miss.cause) == (len(tokens) - 2, "the text differs")
        assert miss.stored == tuple(tokens[-2:])


def test_without_a_store_nothing_is_written(judge: Judge, tmp_path: Path) -> None:
    with Engine.open(judge.path, judge.config(block_size=BLOCK)) as engine:
        ask(engine, words(64, seed=14))
        assert engine.stats().pages is None
        assert engine.explain([1, 2, 3], 0) is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("judge", ["llama-plain"], indirect=True)
def test_what_reuse_saves_is_known_from_the_process_that_computed(open_engine: Open) -> None:
    tokens = words(3 * BLOCK + 100, seed=16)
    with open_engine() as engine:
        assert ask(engine, words(8, seed=17))[-1].metrics.saved_s is None, "eight tokens say nothing about long prompts"
        ask(engine, tokens)
        assert engine._pager is not None
        measured = engine._pager._rates.compute_token_s
        assert measured is not None
    with open_engine() as engine:
        metrics = ask(engine, [*tokens, 3])[-1].metrics
        assert metrics.saved_s == pytest.approx(metrics.num_cached_tokens * measured - metrics.restore_s, rel=0.01)
