"""Drafts from a smaller model with the same vocabulary: a context of its own, batched over the sequences.

It draws with the sequence's own sampler, and so with *the same noise* as the target (seed, position, token id): where
the two distributions agree, so do the draws. What it has computed of a sequence is kept in tables of its own
`KVManager`, and rolled back by the same rule as in the target: cells of drafts belong to no block until they are known
to be right.

It reads only the end of a long text (`window`): a draft is a guess about the next few words, and reading all of a long
prompt twice could cost more than all drafts win. The first token of the text always stands in front, because models
lean on it.

Views, tables and hashes hold the target's tokens, as everything does; what the draft model computes are rows of its own
vocabulary (`draft_vocabulary`), which may be short.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

import numpy as np

from ingle.models.needs import CELL_STEP
from ingle.runtime.blocks import BlockTable, root_hash
from ingle.runtime.config import DraftConfig, EngineConfig
from ingle.runtime.cost import TILE_ROWS, StepCosts
from ingle.runtime.draft import GoesOn, Offer, count_right
from ingle.runtime.draft_guesses import Guesses
from ingle.runtime.draft_vocabulary import DraftVocabulary
from ingle.runtime.elastic_pool import ElasticPool, round_up
from ingle.runtime.executor import Executor
from ingle.runtime.kv_manager import KVManager
from ingle.runtime.llama import LlamaModel
from ingle.runtime.llama_context import Interrupt
from ingle.runtime.request import RequestId
from ingle.runtime.sequence import Sequence
from ingle.runtime.step import Logits, Row, StepPlan, Tokens

MAX_VIEW_TOKENS = 1024
"""A view of a text grows up to this with the answer, and then begins anew: as it does where most is unread."""

MAX_MODEL_DRAFTS = 15
"""For a step, where no other number was asked for: of so many hardly ever all are right, and each takes its time."""

CHUNK_TOKENS = 128
"""Of a text that is new to the draft model, read in one step."""

MIN_READ_TOKENS = 16
"""Read at once, they tell what reading takes."""

SETUP_STEPS = 256
"""Steps over which the reading of a text is spread when it is weighed whether drafts pay: no more than are left."""

NUM_CACHED = 2
"""Finished conversations whose cells stay for their next turn."""


@dataclass(eq=False, slots=True)
class _View:
    """What the draft model sees of a sequence: its tokens from `base` on. `table` counts those computed that are known
    to be right; `ahead` are tokens whose cells follow them: the last one known (it may have to be computed again), then
    drafts."""

    table: BlockTable
    base: int
    ahead: list[int] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class _Turn:
    """A sequence that is being drafted for: the tokens to compute next, how many drafts are wanted in all, and what is
    guessed to be the next of them."""

    sequence: Sequence
    view: _View
    todo: Tokens
    num_wanted: int
    guesses: list[int] = field(default_factory=list)
    is_given_up: bool = False


def draft_config(config: EngineConfig) -> EngineConfig:
    """What the context of a draft model has, where the target's has `config`."""
    n_batch = max(CHUNK_TOKENS, config.max_num_seqs)
    return replace(config, max_cached_chains=NUM_CACHED, n_batch=n_batch, page_dir=None, draft=None)


def draft_cells(config: EngineConfig, window: int) -> tuple[int, int]:
    """Cells of that context: at first, and at most."""
    most = (config.max_num_seqs + NUM_CACHED) * (MAX_VIEW_TOKENS + CELL_STEP)
    return round_up(2 * window, CELL_STEP), round_up(most, CELL_STEP)


class ModelDrafter:
    """Owns the context, not the model."""

    def __init__(
        self,
        model: LlamaModel,
        vocabulary: DraftVocabulary,
        ends: Callable[[int], bool],
        config: EngineConfig,
        draft: DraftConfig,
        interrupt: Interrupt,
    ) -> None:
        """`config`, `interrupt`: the target's. `ends`: whether a token, the target's, ends a generation."""
        self._stack = ExitStack()
        self._vocabulary = vocabulary
        self._ends = ends
        self._window = draft.window
        self._max_drafts = draft.num_tokens or MAX_MODEL_DRAFTS
        first, most = draft_cells(config, draft.window)
        config = draft_config(config)
        self._executor = Executor(model, config, first, interrupt)
        self._stack.callback(self._executor.close)
        self._kv = KVManager(
            self._executor.num_cells // config.block_size,
            config.block_size,
            config.num_slots - 1,
            model.window,
            shares=True,
            caches=config.enable_prefix_caching,
        )
        self._pool = ElasticPool(self._kv, self._executor, most, whole=False)
        self._checks = config.check_integrity
        self._n_batch = config.n_batch
        self._views: dict[RequestId, _View] = {}
        self._costs = StepCosts()
        self._guesses = Guesses(self._costs)
        self._read_token_s: float | None = None

    def close(self) -> None:
        self._stack.close()

    def offer(self, sequence: Sequence, num_tokens: int) -> Offer | None:
        view = self._views.get(sequence.id)
        num_unread = min(sequence.num_tokens if view is None else _num_unread(sequence, view), 2 * self._window)
        num_steps = max(1, min(SETUP_STEPS, sequence.max_tokens - sequence.num_tokens))
        setup_s = max(0, num_unread - 2) * (self._read_token_s or 0.0) / num_steps
        num_tokens = min(num_tokens, self._max_drafts)
        return Offer("model", num_tokens, token_s=self._costs.estimate(1) or 0.0, setup_s=setup_s)

    def draft(self, wanted: SequenceOf[tuple[Sequence, Offer, int]], goes_on: GoesOn) -> None:
        turns = [turn for sequence, _, num_tokens in wanted if (turn := self._begin(sequence, num_tokens)) is not None]
        if turns and self._read_ahead(turns):
            alone = turns[0] if len(turns) == 1 else None  # several fill their tiles with each other
            if alone is not None:
                alone.guesses = self._guesses.make(alone.sequence, len(alone.todo), alone.num_wanted)
            while turns:
                turns = self._step(turns, goes_on)
            if alone is not None and (alone.sequence.num_drafts or alone.is_given_up):
                self._guesses.compare(alone.sequence.tokens_and_drafts[alone.sequence.num_tokens :].tolist())
        if self._checks:
            self._executor.apply(self._kv.take_ops())
            self._kv.check()
            ahead = {view.table.slot: len(view.ahead) for view in self._views.values()}
            self._executor.check({t.slot: t.num_tokens + ahead.get(t.slot, 0) for t in self._kv.tables()})

    def forget(self, id: RequestId) -> None:
        self._guesses.forget(id)
        self._close(id)

    # -- what of a sequence is computed ----------------------------------------------------------------------------

    def _begin(self, sequence: Sequence, num_tokens: int) -> _Turn | None:
        """Bring the view of `sequence` up to what is known, with room for its drafts; ``None``: there is none."""
        view = self._views.get(sequence.id)
        if view is not None:
            is_long = sequence.num_tokens + num_tokens - view.base > MAX_VIEW_TOKENS
            if is_long or _num_unread(sequence, view) > 2 * self._window:
                self._close(sequence.id)
                view = None
        if view is None:
            base = max(0, sequence.num_tokens - self._window) // self._window * self._window
            seen = _seen(sequence, base)
            table = self._open(seen, num_tokens)
            if table is None:
                return None
            view = self._views[sequence.id] = _View(table, base)
        seen = _seen(sequence, view.base)
        table = view.table
        first = table.num_tokens
        num_kept = count_right(view.ahead, seen[first : len(seen) - 1].tolist())
        self._kv.commit(table, seen[first : first + num_kept])
        if num_kept < len(view.ahead):
            self._kv.rollback(table)
        view.ahead.clear()
        if not self._reserve(table, len(seen) + num_tokens):
            return None
        return _Turn(sequence, view, seen[table.num_tokens :], num_tokens)

    def _open(self, seen: Tokens, num_tokens: int) -> BlockTable | None:
        root = root_hash(b"")
        wanted = len(seen) + num_tokens
        table = self._kv.open(seen, root, wanted)
        if table is None and self._pool.can_grow:
            self._grow(self._kv.num_blocks_wanted(seen, root, wanted))
            table = self._kv.open(seen, root, wanted)
        return table

    def _close(self, id: RequestId) -> None:
        view = self._views.pop(id, None)
        if view is not None:
            if view.ahead:
                self._kv.rollback(view.table)
            self._kv.retire(view.table)

    def _reserve(self, table: BlockTable, num_tokens: int) -> bool:
        if self._kv.reserve(table, num_tokens):
            return True
        if self._pool.can_grow:
            self._grow(self._kv.num_blocks_for(num_tokens) - len(table.blocks))
        return self._kv.reserve(table, num_tokens)

    def _grow(self, num_blocks: int) -> None:
        """Have `num_blocks` free ones if memory allows. Cells that belong to no block are not moved."""
        for view in self._views.values():
            if view.ahead:
                view.ahead.clear()
                self._kv.rollback(view.table)
        self._pool.grow(num_blocks - self._kv.pool.num_free)

    # -- computing -------------------------------------------------------------------------------------------------

    def _read_ahead(self, turns: list[_Turn]) -> bool:
        """Compute what is new but for the last few tokens of each; False where that was cut short."""
        share = self._n_batch // len(turns)
        while any(len(turn.todo) > share for turn in turns):
            rows = []
            for turn in turns:
                num_tokens = min(share, len(turn.todo) - 1)
                if num_tokens:
                    tokens = self._vocabulary.rows(turn.todo[:num_tokens])
                    rows.append(Row(turn.view.table.slot, turn.view.table.num_tokens, tokens, 0))
            started = time.perf_counter()
            if self._execute(rows, turns, interruptible=True) is None:
                return False
            num_read = sum(len(row.tokens) for row in rows)
            self._read_token_s = (time.perf_counter() - started) / num_read
            for turn in turns:
                self._note_computed(turn, min(share, len(turn.todo) - 1))
        return True

    def _step(self, turns: list[_Turn], goes_on: GoesOn) -> list[_Turn]:
        """One draft for each, and as many as were guessed right; returns those that want more."""
        rows = []
        for turn in turns:
            table, tokens, num_logits = turn.view.table, turn.todo, 1
            if turn.guesses:
                tokens = np.concatenate([tokens, np.array(turn.guesses, dtype=np.int32)])
                num_logits = len(tokens)  # all of them: the output head has tiles, too
            start = table.num_tokens + len(turn.view.ahead)
            rows.append(Row(table.slot, start, self._vocabulary.rows(tokens), num_logits))
        num_tokens = sum(len(row.tokens) for row in rows)
        started = time.perf_counter()
        logits = self._execute(rows, turns, interruptible=num_tokens >= CHUNK_TOKENS // 2)
        if logits is None:
            return []
        seconds = time.perf_counter() - started
        if num_tokens == len(turns) or (len(turns) == 1 and num_tokens <= TILE_ROWS):
            self._costs.note(num_tokens, seconds)
        elif num_tokens >= MIN_READ_TOKENS:
            self._read_token_s = seconds / num_tokens
        more = []
        end = 0
        for turn, row in zip(turns, rows, strict=True):
            end += row.num_logits
            self._note_computed(turn, len(turn.todo) - 1)  # nothing, but for the first draft
            turn.view.ahead += turn.todo.tolist()
            if self._choose(turn, logits[end - 1 - len(turn.guesses) : end], goes_on):
                more.append(turn)
        return more

    def _choose(self, turn: _Turn, logits: Logits, goes_on: GoesOn) -> bool:
        """Draft from `logits` [1 + guesses, rows of the draft model] for as long as the guesses are right; whether more
        is wanted."""
        sequence, guesses, ahead = turn.sequence, turn.guesses, turn.view.ahead
        is_first = not sequence.num_drafts
        first_lead = 0.0
        num_kept = 0
        for row in logits:
            token, lead = sequence.sampler.sample_and_lead(self._vocabulary.logits(row), sequence.tokens_and_drafts)
            sequence.add_draft(token)
            if sequence.num_drafts == 1:
                first_lead = lead
            is_right = guesses[num_kept : num_kept + 1] == [token]
            num_kept += is_right
            is_over = sequence.num_drafts == turn.num_wanted or self._ends(token)
            if is_over or not is_right:
                break
        turn.todo = np.array([token], dtype=np.int32)
        ahead += guesses[:num_kept]
        if num_kept < len(guesses):
            self._kv.rollback(turn.view.table, len(ahead))
        turn.guesses = []
        if is_first and not goes_on(sequence, first_lead):
            sequence.num_drafts = 0
            turn.is_given_up = True
            return False
        return not is_over

    def _execute(self, rows: SequenceOf[Row], turns: SequenceOf[_Turn], *, interruptible: bool) -> Logits | None:
        """The logits of `rows`; ``None`` where the step was cut short, and then no cells of drafts are left."""
        result = self._executor.execute(StepPlan(self._kv.take_ops(), tuple(rows), interruptible))
        self._kv.set_first_positions(result.first_positions)
        if result.computed:
            return result.logits
        for turn in turns:
            turn.view.ahead.clear()
            self._kv.rollback(turn.view.table)
        return None

    def _note_computed(self, turn: _Turn, num_tokens: int) -> None:
        self._kv.commit(turn.view.table, turn.todo[:num_tokens])
        self._kv.take_filled()  # nobody saves them
        turn.todo = turn.todo[num_tokens:]


def _num_unread(sequence: Sequence, view: _View) -> int:
    return sequence.num_tokens - view.base - view.table.num_tokens - len(view.ahead)


def _seen(sequence: Sequence, base: int) -> Tokens:
    """The tokens of `sequence` from `base` on, its very first in front."""
    seen = sequence.tokens[base:].copy()
    seen[0] = sequence.tokens[0]
    return seen
