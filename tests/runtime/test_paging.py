"""Scheduler + KV manager + a context that fails when a row would see a foreign or missing token, under random
traffic.
"""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ingle.runtime.blocks import root_hash
from ingle.runtime.detokenizer import Detokenizer, TextStream
from ingle.runtime.host_tier import HostTier
from ingle.runtime.kv_manager import KVManager
from ingle.runtime.page_store import PageStore
from ingle.runtime.pager import Pager
from ingle.runtime.request import Request, RequestId, RequestMetrics, SamplingParams
from ingle.runtime.sampler import Sampler
from ingle.runtime.scheduler import Scheduled, Scheduler
from ingle.runtime.sequence import Sequence
from ingle.runtime.verify import verify
from tests.fakes import FakeContext


def next_token(tokens: np.ndarray) -> int:
    """What our model of four words says after `tokens`: a function of all of them."""
    return hashlib.blake2b(tokens.tobytes(), digest_size=1).digest()[0] % 4


class Oracle:
    """Chooses what our model says."""

    def sample(self, logits: np.ndarray, tokens: np.ndarray) -> int:
        return next_token(tokens)


class Traffic:
    """A small engine: everything but the arithmetic."""

    def __init__(
        self, *, num_blocks, block_size, max_num_seqs, num_cached, n_batch, chunk, window, shares, store=None, drafts=0
    ) -> None:
        num_slots = max_num_seqs + num_cached
        self.kv = KVManager(num_blocks, block_size, num_slots, window, shares=shares)
        self.scheduler = Scheduler(self.kv, n_batch, chunk, max_num_seqs)
        self.context = FakeContext(num_blocks * block_size, num_slots, window, shares)
        self.pager = Pager(self.kv, self.context, PageStore(HostTier(store), None)) if store is not None else None
        self.sequences: list[Sequence] = []
        self.finished: list[Sequence] = []
        self.num_added = 0
        self.num_accepted = 0
        self.max_drafts = drafts
        self.rng = np.random.default_rng(0)

    def add(self, prompt: list[int], num_output: int, priority: int = 0, salt: str = "") -> Sequence:
        limit = self.kv.pool.num_total * self.kv.block_size
        prompt = prompt[: limit - 1]
        sequence = Sequence(
            RequestId(self.num_added),
            Request(prompt, priority=priority, cache_salt=salt),
            root_hash(b"model", salt),
            min(len(prompt) + num_output, limit),
            RequestMetrics(0.0, 0, len(prompt)),
            Sampler(SamplingParams(), 0, None),
            TextStream(Detokenizer(lambda token: b"")),
        )
        self.num_added += 1
        self.sequences.append(sequence)
        self.scheduler.add(sequence)
        return sequence

    def propose(self) -> None:
        """Drafts for those with one pending token: what is coming, up to a wrong token somewhere."""
        for sequence in self.scheduler.running:
            sequence.num_drafts = 0
            room = min(self.max_drafts, sequence.max_tokens - sequence.num_tokens - 1)
            if sequence.num_pending == 1 and room > 0:
                num_right, num_drafts = self.rng.integers(0, room + 1, 2)
                for number in range(num_drafts):
                    right = next_token(sequence.tokens_and_drafts)
                    sequence.add_draft(right if number < num_right else right ^ 1)

    def step(self, *, interrupt: bool = False) -> None:
        self.propose()
        if self.pager is not None:
            self.pager.look_ahead(self.scheduler)
            self.pager.restore_next(self.scheduler)
        plan = self.scheduler.schedule()
        assert plan.num_tokens <= self.scheduler.n_batch
        assert plan.rows or not self.scheduler.has_work, "there is work and nothing was scheduled"
        tokens = {s.table.slot: s.tokens_and_drafts for s in self.scheduler.running if s.table}
        result = self.context.execute(plan, tokens, interrupt=interrupt)
        self.scheduler.update_computed(result.computed)
        self.kv.set_first_positions(result.first_positions)
        if not result.computed:
            if not self.kv.shares:
                self.kv.restart()
            return
        filled = self.kv.take_filled()
        if self.pager is not None:
            self.pager.save(filled)
        for item in self.scheduler.scheduled:
            if item.sequence.num_pending == 0:
                self.advance(item)

    def advance(self, item: Scheduled) -> None:
        sequence = item.sequence
        num_before = sequence.num_tokens
        rows = np.zeros((1 + item.num_drafts, 1), np.float32)
        for token in verify(rows, sequence.tokens_and_drafts, Oracle()):
            sequence.append(token)
        if item.num_drafts:
            num_accepted = sequence.num_tokens - num_before - 1
            self.num_accepted += num_accepted
            self.scheduler.settle(item, num_accepted)
            filled = self.kv.take_filled()
            if self.pager is not None:
                self.pager.save(filled)
        if sequence.num_tokens >= sequence.max_tokens:
            self.end(sequence)

    def end(self, sequence: Sequence) -> None:
        if self.pager is not None and not self.kv.shares and sequence.table is not None:
            self.pager.save_whole(sequence.table)
        self.scheduler.remove(sequence)
        self.sequences.remove(sequence)
        self.finished.append(sequence)

    def grow(self, num_blocks: int) -> None:
        self.context.apply(self.kv.take_ops())
        self.context = self.context.resize(num_blocks * self.kv.block_size, self.kv.runs())
        if self.pager is not None:
            self.pager._executor = self.context
        self.kv.pool.grow(num_blocks)
        self.kv.set_first_positions(self.context.first_positions())

    def check(self) -> None:
        self.context.apply(self.kv.take_ops())
        self.kv.check()
        lengths = {table.slot: table.num_tokens for table in self.kv.tables()}
        for slot in range(self.context.num_slots):
            cells = self.context.full.of(slot)
            assert len(cells) == lengths.get(slot, 0)
        for table in self.kv.tables():
            tokens = [token for block in table.blocks for token in block.tokens]
            assert self.context.full.of(table.slot) == dict(enumerate(tokens))

    def drain(self) -> None:
        for _ in range(10_000):
            if not self.scheduler.has_work:
                return
            self.step()
            self.check()
        raise AssertionError("traffic does not end")


def reference(prompt: list[int], num_tokens: int) -> list[int]:
    tokens = list(prompt)
    while len(tokens) < num_tokens:
        tokens.append(next_token(np.asarray(tokens, dtype=np.int32)))
    return tokens


class PagingMachine(RuleBasedStateMachine):
    """Random adds, steps, interruptions, aborts, growth and cache clearing; the fake context and `check` are the
    judges.
    """

    @initialize(
        num_blocks=st.integers(5, 14),
        block_size=st.sampled_from([1, 3, 4]),
        max_num_seqs=st.integers(1, 4),
        num_cached=st.integers(0, 3),
        n_batch=st.integers(1, 12),
        chunk=st.integers(1, 6),
        window=st.sampled_from([None, None, 2, 5]),
        shares=st.sampled_from([True, True, True, False]),
        store=st.sampled_from([None, 0, 3_000, 10**6]),
        drafts=st.sampled_from([0, 1, 4, 9]),
    )
    def open(self, **config) -> None:
        if not config["shares"]:
            config["window"] = None
            config["drafts"] = 0
        self.traffic = Traffic(**config)

    @rule(
        base=st.integers(0, 2),
        length=st.integers(1, 30),
        edit=st.one_of(st.none(), st.integers(0, 29)),
        num_output=st.integers(1, 12),
        priority=st.integers(0, 1),
        salt=st.sampled_from(["", "", "tenant"]),
    )
    def add(self, base, length, edit, num_output, priority, salt) -> None:
        prompt = [(base + i * i) % 4 for i in range(length)]
        if edit is not None and edit < length:
            prompt[edit] ^= 1
        self.traffic.add(prompt, num_output, priority, salt)

    @rule(which=st.integers(0, 20), more=st.lists(st.integers(0, 3), min_size=1, max_size=6))
    def continue_conversation(self, which, more) -> None:
        if self.traffic.finished:
            earlier = self.traffic.finished[which % len(self.traffic.finished)]
            self.traffic.add([*earlier.tokens.tolist(), *more], 5)

    @rule(times=st.integers(1, 6))
    def step(self, times) -> None:
        for _ in range(times):
            self.traffic.step()

    @rule()
    def interrupted_step(self) -> None:
        self.traffic.step(interrupt=True)

    @precondition(lambda self: self.traffic.sequences)
    @rule(which=st.integers(0, 20))
    def abort(self, which) -> None:
        sequence = self.traffic.sequences[which % len(self.traffic.sequences)]
        self.traffic.scheduler.remove(sequence)
        self.traffic.sequences.remove(sequence)

    @rule(more=st.integers(1, 4))
    def grow(self, more) -> None:
        self.traffic.grow(self.traffic.kv.pool.num_total + more)

    @rule()
    def clear_cache(self) -> None:
        if self.traffic.pager is not None:
            self.traffic.pager.save_rest()
        self.traffic.kv.clear_cache()

    @invariant()
    def intact(self) -> None:
        if hasattr(self, "traffic"):
            self.traffic.check()

    def teardown(self) -> None:
        if not hasattr(self, "traffic"):
            return
        self.traffic.drain()
        for sequence in self.traffic.finished:
            prompt = list(sequence.request.tokens)
            assert sequence.tokens.tolist() == reference(prompt, sequence.num_tokens)
        self.traffic.kv.clear_cache()
        self.traffic.check()
        counts = self.traffic.kv.counts()
        assert counts.free == counts.total
        assert all(not cell.slots for array in self.traffic.context.arrays() for cell in array.cells)


TestPaging = PagingMachine.TestCase
TestPaging.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)


def traffic(**changes) -> Traffic:
    config = {
        "num_blocks": 16, "block_size": 4, "max_num_seqs": 4, "num_cached": 4,
        "n_batch": 64, "chunk": 8, "window": None, "shares": True,
    }  # fmt: skip
    return Traffic(**(config | changes))


def test_evicted_blocks_come_back_from_the_store() -> None:
    t = traffic(num_blocks=8, max_num_seqs=1, store=10**6)
    text = [0, 1, 2, 3, 3, 2, 1, 0, 2]
    t.add(text, 1)
    t.drain()
    t.add([1] * 30, 1)
    t.drain()
    t.kv.clear_cache()
    again = t.add([*text, 1, 1], 1)
    t.drain()
    assert (again.metrics.num_cached_tokens, again.metrics.num_host_tokens) == (8, 8)


def test_a_preempted_sequence_comes_back_from_the_store() -> None:
    t = traffic(num_blocks=6, num_cached=1, store=10**6)
    for i in range(3):
        t.add([i, i, i, i], 12, priority=i)
    t.drain()
    assert t.scheduler.num_preemptions > 0
    assert all(s.tokens.tolist() == reference(list(s.request.tokens), 16) for s in t.finished)


def test_second_turn_takes_over_the_first_ones_table() -> None:
    t = traffic()
    first = t.add([0, 1, 2, 3, 0, 1], 4)
    t.drain()
    second = t.add([*first.tokens.tolist(), 2, 2], 1)
    t.drain()
    assert second.metrics.num_cached_tokens == 9  # all that was computed: the last token of an answer never is
    assert len(t.kv.tables()) == 1


def test_reuse_ends_at_the_first_differing_token_and_not_at_a_block_border() -> None:
    t = traffic()
    t.add([0, 1, 2, 3, 0, 1, 2, 3, 0], 1)
    t.drain()
    edited = t.add([0, 1, 2, 3, 0, 1, 3, 3, 0], 1)
    t.drain()
    assert edited.metrics.num_cached_tokens == 6


def test_identical_prompt_leaves_one_token_to_compute() -> None:
    t = traffic()
    t.add([0, 1, 2, 3, 0, 1, 2, 3], 1)
    t.drain()
    again = t.add([0, 1, 2, 3, 0, 1, 2, 3], 1)
    t.drain()
    assert again.metrics.num_cached_tokens == 7


def test_running_requests_share_blocks_and_salt_keeps_tenants_apart() -> None:
    t = traffic(chunk=64)
    prompt = [0, 1, 2, 3] * 3
    t.add(prompt, 8)
    t.step()
    same, other = t.add(prompt, 8), t.add(prompt, 8, salt="other")
    t.step()
    assert same.metrics.num_cached_tokens == 11
    assert other.metrics.num_cached_tokens == 0
    assert t.kv.counts().shared == 2  # two full blocks; the third, partly shared, is each one's own


def test_decode_rows_come_first_and_a_prompt_takes_one_chunk_beside_them() -> None:
    t = traffic(num_blocks=64, n_batch=32, chunk=5)
    t.add([0, 1], 20)
    t.step()
    t.add([3] * 30, 1)
    plan = t.scheduler.schedule()
    assert [len(row.tokens) for row in plan.rows] == [1, 5]


def test_alone_a_prompt_may_fill_the_batch() -> None:
    t = traffic(n_batch=32, chunk=5)
    t.add([3] * 40, 1)
    assert [len(row.tokens) for row in t.scheduler.schedule().rows] == [32]


def test_least_urgent_is_parked_when_blocks_run_out_and_everyone_finishes() -> None:
    t = traffic(num_blocks=6, num_cached=1)
    sequences = [t.add([i, i, i, i], 12, priority=i) for i in range(3)]
    t.drain()
    assert sequences[0].metrics.num_preemptions == 0
    assert sequences[2].metrics.num_preemptions > 0
    assert [s.num_tokens for s in t.finished] == [16, 16, 16]
    assert t.finished[0] is sequences[0]


def test_eviction_takes_the_least_recently_used_chain_from_its_end() -> None:
    t = traffic(num_blocks=8, max_num_seqs=1)
    old, new = [0] * 12, [1] * 12
    for prompt in (old, new):
        t.add(prompt, 1)
        t.drain()
    t.add([2] * 15, 1)  # four blocks: two are free, two come from the end of `old`
    t.drain()
    assert t.kv.index.match(np.asarray([*old, 0], np.int32), root_hash(b"model", "")).num_tokens == 4
    assert t.kv.index.match(np.asarray([*new, 0], np.int32), root_hash(b"model", "")).num_tokens == 12


def test_abort_makes_blocks_available_at_once() -> None:
    t = traffic()
    sequence = t.add([0] * 40, 4)
    t.step()
    assert t.kv.counts().used == 11
    t.scheduler.remove(sequence)
    counts = t.kv.counts()
    assert (counts.used, counts.cached + counts.free) == (0, 16)


def test_window_layers_refuse_a_prefix_whose_window_was_overwritten() -> None:
    t = traffic(num_blocks=8, window=4, max_num_seqs=1)
    t.add([0, 1, 2, 3] * 5, 4)
    t.drain()
    for word in (1, 2):  # the second goes round the end of the cells and takes some that the first chain no longer sees
        t.add([word] * 7, 1)
        t.drain()
    (chain,) = (table for table in t.kv.tables() if table.blocks[0].tokens == [0, 1, 2, 3])
    assert (chain.num_tokens, chain.first_position) == (16, 5)
    again = t.add([0, 1, 2, 3, 0, 1, 2, 3, 1], 1)  # eight tokens match; the ninth would look back to position 5
    t.drain()
    assert again.metrics.num_cached_tokens == 0


@pytest.mark.parametrize("num_cached", [0, 3])
def test_an_architecture_that_cannot_share_reuses_a_conversation_whole_or_not_at_all(num_cached: int) -> None:
    t = traffic(shares=False, num_cached=num_cached)
    first = t.add([0, 1, 2, 3] * 3, 3)
    t.drain()
    again = t.add([0, 1, 2, 3] * 3, 3)
    t.drain()
    assert again.metrics.num_cached_tokens == 0  # its state is past the prompt's end already
    second = t.add([*first.tokens.tolist(), 2], 3)
    t.drain()
    assert second.metrics.num_cached_tokens == 14


def test_a_draft_belongs_to_no_block_until_it_is_right() -> None:
    t = traffic(num_cached=0, drafts=0)
    sequence = t.add([0, 1, 2], 30)
    t.step()
    for token in (9, 9, 9, 9, 9):
        sequence.add_draft(token)
    plan = t.scheduler.schedule()
    (row,) = plan.rows
    assert (row.start, row.tokens.tolist()[1:], row.num_logits) == (3, [9] * 5, 6)
    t.context.execute(plan, {row.slot: sequence.tokens_and_drafts})
    t.scheduler.update_computed(True)
    assert sequence.table is not None
    assert [block.tokens for block in sequence.table.blocks] == [[0, 1, 2, sequence.tokens[3]], [], []]
    assert [number for _, number in t.kv.take_filled()] == [0]
    t.scheduler.settle(t.scheduler.scheduled[0], 0)
    t.check()  # five cells are gone
    assert sequence.num_computed == 4


def test_drafts_that_are_right_fill_blocks_in_one_step() -> None:
    t = traffic(num_blocks=32, drafts=9)
    sequence = t.add([0, 1, 2], 90)
    t.drain()
    assert sequence.tokens.tolist() == reference([0, 1, 2], 93)
    assert t.num_accepted > 20


def test_nobody_is_parked_for_a_draft() -> None:
    t = traffic(num_blocks=4, num_cached=0, drafts=0)
    first, second = t.add([0] * 7, 20), t.add([1] * 7, 20, priority=1)
    t.step()
    assert first.table is not None
    for token in (1, 1, 1, 1):
        first.add_draft(token)
    t.scheduler.schedule()
    assert [(item.sequence, item.num_drafts) for item in t.scheduler.scheduled] == [(first, 0), (second, 0)]
    assert t.scheduler.num_preemptions == 0


def test_drafts_come_after_every_answer_has_its_row() -> None:
    t = traffic(num_blocks=32, n_batch=4, chunk=4)
    sequences = [t.add([word], 20) for word in range(3)]
    t.step()
    for _ in range(6):
        sequences[0].add_draft(0)
    t.scheduler.schedule()
    assert [(item.num_tokens, item.num_drafts) for item in t.scheduler.scheduled] == [(1, 1), (1, 0), (1, 0)]
