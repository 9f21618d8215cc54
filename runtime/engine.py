"""The engine: requests in, tokens and text out. Owns one model, one context and one thread's attention.

    with Engine.open(path) as engine:
        rid = engine.add(Request(engine.tokenize("Once", add_special=True, parse_special=False)))
        for output in engine.stream(rid):
            print(output.text, end="")

Every step is: schedule (which tokens of which sequences), execute (one llama_decode), update (sample, append, finish).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as SequenceOf
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType

import numpy as np

from ingle.models.gguf_info import ModelInfo, read_model_info
from ingle.models.needs import CELL_STEP
from ingle.models.resolve import ModelRef
from ingle.runtime.admission import check_request, max_tokens
from ingle.runtime.advance import Advance, advance
from ingle.runtime.blocks import root_hash
from ingle.runtime.config import EngineConfig
from ingle.runtime.detokenizer import Detokenizer, TextStream
from ingle.runtime.drafting import open_drafting, read_draft_info
from ingle.runtime.elastic_pool import ElasticPool, round_up
from ingle.runtime.engine_info import describe
from ingle.runtime.errors import InvalidRequest
from ingle.runtime.explain import Miss
from ingle.runtime.fingerprint import fingerprint
from ingle.runtime.kv_manager import KVManager
from ingle.runtime.llama import LlamaModel
from ingle.runtime.llama_context import FilterChains
from ingle.runtime.loading import load_model
from ingle.runtime.metrics import Counters, EngineStats, collect
from ingle.runtime.page_store import open_store
from ingle.runtime.pager import Pager
from ingle.runtime.planning import first_context, for_states, setting_of
from ingle.runtime.request import FinishReason, Request, RequestId, RequestMetrics, RequestOutput
from ingle.runtime.sampler import Sampler, needs_filters
from ingle.runtime.scheduler import Scheduled, Scheduler
from ingle.runtime.sequence import Sequence
from ingle.runtime.step import Logits, StepResult


class Engine:
    """See the module. Not thread-safe, but for `interrupt`; several engines may live in one process."""

    def __init__(self, model: LlamaModel, model_info: ModelInfo, config: EngineConfig, stack: ExitStack) -> None:
        self._stack = stack
        self._model = model
        if model.is_stateful:
            config = for_states(config)
        draft_info = read_draft_info(config)
        self.info = describe(model, model_info, config, draft_info)
        n_batch = min(config.n_batch, round_up(self.info.n_ctx, CELL_STEP))
        config = replace(config, n_batch=n_batch, draft=self.info.draft)
        block_size = config.block_size
        limit = config.kv_tokens or self.info.n_ctx
        max_cells = round_up(round_up(limit, block_size), CELL_STEP)
        initial_cells = min(round_up(round_up(config.initial_kv_tokens, block_size), CELL_STEP), max_cells)
        self._executor, config, notes = first_context(model, config, initial_cells)
        stack.callback(self._executor.close)
        self._config = config
        self.info = replace(self.info, notes=(*self.info.notes, *notes), setting=setting_of(model_info, config))
        self._kv = KVManager(
            self._executor.num_cells // block_size,
            block_size,
            config.num_slots - 1,
            model.window,
            shares=self.info.shares_prefixes,
            caches=config.enable_prefix_caching,
        )
        self._scheduler = Scheduler(self._kv, config.n_batch, config.prefill_chunk, config.max_num_seqs)
        self._fingerprint = fingerprint(model_info, config, self.info.num_gpu_layers)
        self._pool = ElasticPool(self._kv, self._executor, max_cells, whole=model.is_stateful)
        self._pager: Pager | None = None
        if config.page_dir is not None and config.enable_prefix_caching:
            store = open_store(config, self._fingerprint, model_info)
            stack.callback(store.close)
            self._pager = Pager(self._kv, self._executor, store)
            stack.callback(self._pager.save_rest)
        self._speculation = open_drafting(config, model, draft_info, self._executor.flag, stack)
        self._characters = model_info.characters
        self._detokenizer = Detokenizer(model.piece)
        self._sequences: dict[RequestId, Sequence] = {}
        self._filters = FilterChains(self.info.n_vocab)
        stack.callback(self._filters.close)
        self._unread: list[RequestOutput] = []
        self._next_id = 0
        self._interrupted_s: float | None = None
        self._counters = Counters()

    @classmethod
    def open(
        cls,
        source: Path | ModelRef,
        config: EngineConfig | None = None,
        *,
        model_info: ModelInfo | None = None,
        model: LlamaModel | None = None,
    ) -> Engine:
        """Check the header of the file `source`, load the weights, make a small context.

        `model_info`, `model`: the header and the weights of that file, where they have been read already (and the draft
        model's header checked against it, see `drafting.check_draft`); the engine owns the model from here on, and
        closes it when this raises. Raises `ingle.models.errors.BadModelFile` for a
        file that is wrong, `EngineError` for what fails later.
        """
        config = config or EngineConfig()
        path = source if isinstance(source, Path) else source.path
        with ExitStack() as stack:
            if model is not None:
                stack.callback(model.close)
            model_info = model_info or read_model_info(path)
            if model is None:
                read_draft_info(config, model_info)
                model = load_model(path, config)
                stack.callback(model.close)
            engine = cls(model, model_info, config, stack)
            engine._stack = stack.pop_all()
            return engine

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Free the context, then the model. Unfinished requests are gone."""
        self._stack.close()

    # -- text ----------------------------------------------------------------------------------------------------------

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Token ids of `text`. `add_special`: with the model's BOS/EOS; `parse_special`: names of control tokens count.

        Raises `InvalidRequest` for a character that the model's vocabulary cannot express.
        """
        if self._characters is not None and (missing := set(text) - self._characters):
            raise InvalidRequest(f"the model's vocabulary has no token for {min(missing)!r}", "choose another model")
        return self._model.tokenize(text, add_special=add_special, parse_special=parse_special)

    def detokenize(self, tokens: Iterable[int], *, special: bool = False) -> str:
        return self._model.detokenize(tokens, special=special)

    def control_tokens(self) -> tuple[str, ...]:
        """The texts that are tokens only with `parse_special`, control tokens above all; longest first."""
        return self._model.control_tokens()

    # -- requests ------------------------------------------------------------------------------------------------------

    def add(self, request: Request) -> RequestId:
        """Accept a request, or raise `InvalidRequest`, `PromptTooLong` or `QueueFull` with the numbers.

        An interruption from before is over: it was about what ran then.
        """
        check_request(request, self.info, self._config, len(self._scheduler.waiting))
        self._interrupted_s = None
        self._executor.clear_interrupt()
        sampling = request.sampling
        seed = sampling.seed if sampling.seed is not None else int.from_bytes(os.urandom(4), "little")
        rid = RequestId(self._next_id)
        self._next_id += 1
        sequence = Sequence(
            rid,
            request,
            root_hash(self._fingerprint, request.cache_salt),
            max_tokens(request, self.info, self._config),
            RequestMetrics(time.perf_counter(), seed, len(request.tokens)),
            Sampler(sampling, seed, self._filters.get(sampling) if needs_filters(sampling) else None),
            TextStream(self._detokenizer, sampling.stop),
        )
        self._sequences[rid] = sequence
        self._scheduler.add(sequence)
        return rid

    def abort(self, rid: RequestId) -> RequestOutput | None:
        """End a request now; its blocks are available when this returns. The last output; ``None`` if it had ended."""
        sequence = self._sequences.get(rid)
        if sequence is None:
            return None
        since_s = self._interrupted_s or time.perf_counter()
        output = self._finish(sequence, FinishReason.ABORT)
        self._executor.apply(self._kv.take_ops())
        self._counters.last_abort_s = time.perf_counter() - since_s
        return output

    def interrupt(self) -> None:
        """Cut the running step short, and end `stream` with `FinishReason.ABORT`. Safe from signal handlers and
        threads.
        """
        self._interrupted_s = time.perf_counter()
        self._executor.interrupt()

    def stream(self, rid: RequestId) -> Iterator[RequestOutput]:
        """Step until request `rid` is finished, giving its outputs. Leaving the loop early aborts it.

        What these steps add to other requests waits for their own `stream`, or for the next `step`.
        """
        try:
            while rid in self._sequences or any(output.request_id == rid for output in self._unread):
                if self._interrupted_s is not None and (last := self.abort(rid)) is not None:
                    yield last
                    return
                outputs = self.step()
                self._unread += [output for output in outputs if output.request_id != rid]
                yield from (output for output in outputs if output.request_id == rid)
        finally:
            self.abort(rid)

    @property
    def has_work(self) -> bool:
        """Whether any request is unfinished."""
        return bool(self._sequences)

    def step(self) -> list[RequestOutput]:
        """Compute one batch and say what it added, one output for each request that got a token or ended."""
        outputs = self._unread + self._end_early()
        self._unread = []
        if self._speculation is not None:
            self._speculation.propose(self._scheduler.running)
        if self._pager is not None:
            self._pager.look_ahead(self._scheduler)
        self._grow_pool()
        if self._pager is not None:
            self._pager.restore_next(self._scheduler)
        plan = self._scheduler.schedule()
        if not plan.rows:
            self._executor.apply(plan.ops)
            return outputs + self._fail_stuck()
        self._counters.note_starts([item.sequence.metrics for item in self._scheduler.scheduled])
        started = time.perf_counter()
        result = self._executor.execute(plan)
        seconds = time.perf_counter() - started
        if self._pager is not None and result.computed and plan.num_tokens >= 2 * max(len(plan.rows), plan.num_logits):
            self._pager.note_prefill(plan.num_tokens, seconds)
        new = self._update(result)
        if self._speculation is not None and result.computed:
            self._speculation.note_step(plan, new, seconds)
        outputs += new
        if self._config.check_integrity:
            self.check()
        return outputs

    def clear_cache(self) -> None:
        """Forget the KV of everything that has ended."""
        self._kv.clear_cache()
        self._executor.apply(self._kv.take_ops())

    def shrink(self) -> bool:
        """Give back KV memory that nothing running needs; whether there was any. With a page store, finished
        conversations are forgotten here and found there."""
        if self._pager is not None:
            self._pager.save_rest()
            self.clear_cache()
        return self._pool.shrink()

    def explain(self, tokens: SequenceOf[int], num_cached_tokens: int, cache_salt: str = "") -> Miss | None:
        """Why a prompt of `tokens` was reused up to `num_cached_tokens` and no further; ``None``: it could not be."""
        if self._pager is None or num_cached_tokens >= len(tokens) - 1:
            return None
        root = root_hash(self._fingerprint, cache_salt)
        return self._pager.explain(np.asarray(tokens, dtype=np.int32), num_cached_tokens, root)

    # -- before the decode ---------------------------------------------------------------------------------------------

    def _end_early(self) -> list[RequestOutput]:
        """Requests that end before this step: past their deadline, or with no token to give."""
        now = time.perf_counter()
        outputs = []
        for sequence in list(self._sequences.values()):
            deadline_s = sequence.request.deadline_s
            if sequence.num_tokens >= sequence.max_tokens:
                outputs.append(self._finish(sequence, FinishReason.LENGTH))
            elif deadline_s is not None and now - sequence.metrics.arrival_s > deadline_s:
                outputs.append(self._finish(sequence, FinishReason.DEADLINE))
        return outputs

    def _grow_pool(self) -> None:
        """If blocks are short, have more. What a page store has can make room; without one, growing keeps it."""
        if self._pool.can_grow:
            self._pool.grow(self._scheduler.num_blocks_short(keep_cached=self._pager is None))

    def _fail_stuck(self) -> list[RequestOutput]:
        """Nothing runs and the first in line does not fit the pool, which cannot grow: it alone fails."""
        if self._scheduler.running or not self._scheduler.waiting:
            return []
        sequence = self._scheduler.waiting[0]
        cells = self._executor.num_cells
        why = f"{sequence.num_tokens} tokens do not fit the {cells} KV cells there is memory for"
        return [self._finish(sequence, FinishReason.ERROR, error=why)]

    # -- after the decode ----------------------------------------------------------------------------------------------

    def _update(self, result: StepResult) -> list[RequestOutput]:
        """Commit what was computed; sample a token for every sequence that has no pending one left."""
        self._counters.num_steps += 1
        self._scheduler.update_computed(result.computed)
        self._kv.set_first_positions(result.first_positions)
        if not result.computed:
            if result.interrupted and not self.info.shares_prefixes:
                self._kv.restart()
            self._executor.apply(self._kv.take_ops())
            return [] if result.interrupted else self._shed()
        self._save_filled()
        outputs: list[RequestOutput] = []
        first = 0
        for item in self._scheduler.scheduled:
            if item.sequence.num_pending == 0:
                last = first + 1 + item.num_drafts
                outputs.append(self._advance(item, result.logits[first:last]))
                first = last
        return outputs

    def _save_filled(self) -> None:
        filled = self._kv.take_filled()
        if self._pager is not None and filled:
            self._pager.save(filled)

    def _advance(self, item: Scheduled, logits: Logits) -> RequestOutput:
        """Choose what follows in a sequence from its rows of `logits` [1 + drafts, vocab]; see whether that ends it."""
        sequence = item.sequence
        step = advance(sequence, logits, self._model.is_eog)
        self._counters.num_output_tokens += len(step.tokens)
        if item.num_drafts:
            assert self._speculation is not None
            num_right = len(step.tokens) - 1
            self._scheduler.settle(item, num_right)
            self._save_filled()
            self._speculation.note_verified(sequence, item.num_drafts, num_right, is_cut=step.reason is not None)
        if step.reason is not None:
            return self._finish(sequence, step.reason, step)
        return RequestOutput(sequence.id, step.tokens, step.text, sequence.metrics, logprobs=step.logprobs)

    def _shed(self) -> list[RequestOutput]:
        """llama.cpp found no cells for a step whose blocks were counted: let the least urgent wait, or fail the only
        one.
        """
        if len(self._scheduler.running) > 1:
            self._scheduler.park_last()
            return []
        why = "llama.cpp found no room in its KV cache"
        return [self._finish(self._scheduler.running[0], FinishReason.ERROR, error=why)]

    def _finish(
        self,
        sequence: Sequence,
        reason: FinishReason,
        step: Advance | None = None,
        error: str | None = None,
    ) -> RequestOutput:
        """End a sequence, with what the last step gave it: its blocks are available, its last output says why."""
        metrics = sequence.metrics
        if self._pager is not None:
            metrics.saved_s = self._pager.saved_s(metrics.num_cached_tokens, metrics.restore_s)
            if not self._kv.shares and sequence.table is not None:
                self._pager.save_whole(sequence.table)
        self._scheduler.remove(sequence)
        del self._sequences[sequence.id]
        if self._speculation is not None:
            self._speculation.forget(sequence.id)
        sequence.metrics.finished_s = time.perf_counter()
        return RequestOutput(
            sequence.id,
            step.tokens if step else (),
            (step.text if step else "") + sequence.text.finish(),
            sequence.metrics,
            reason,
            sequence.text.stopped_by,
            step.logprobs if step else (),
            error,
        )

    # -- about itself --------------------------------------------------------------------------------------------------

    def stats(self) -> EngineStats:
        """Counts now and since the engine was opened."""
        pages = None if self._pager is None else self._pager.stats()
        drafts = None if self._speculation is None else self._speculation.stats()
        return collect(self._scheduler, self._kv, self._counters, self._pool.num_resizes, pages, drafts)

    def check(self) -> None:
        """Assert every invariant of the blocks, and that llama.cpp's cells agree with the tables."""
        self._executor.apply(self._kv.take_ops())
        self._kv.check()
        if self.info.shares_prefixes:
            self._executor.check({table.slot: table.num_tokens for table in self._kv.tables()})
