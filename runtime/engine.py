"""The engine: requests in, tokens and text out. Owns one model, one context and one thread's attention.

    with Engine.open(path, EngineConfig()) as engine:
        rid = engine.add(Request(engine.tokenize("Once", add_special=True, parse_special=False)))
        for output in engine.stream(rid):
            print(output.text, end="")

Every step is: schedule (which tokens of which sequences), execute (one llama_decode), update (sample, append, finish).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

import numpy as np

from ingle.models.gguf_info import ModelInfo, read_model_info
from ingle.runtime.blocks import root_hash
from ingle.runtime.config import EngineConfig
from ingle.runtime.detokenizer import Detokenizer, TextStream
from ingle.runtime.engine_info import CELL_STEP, describe, fingerprint
from ingle.runtime.errors import InvalidRequest, OutOfMemory, PromptTooLong, QueueFull
from ingle.runtime.executor import Executor
from ingle.runtime.kv_manager import KVManager
from ingle.runtime.llama import LlamaModel
from ingle.runtime.llama_context import FilterChain
from ingle.runtime.loading import load_model
from ingle.runtime.metrics import EngineStats
from ingle.runtime.request import (
    FinishReason,
    Request,
    RequestId,
    RequestMetrics,
    RequestOutput,
    SamplingParams,
    TokenLogprob,
)
from ingle.runtime.sampler import Sampler, needs_filters
from ingle.runtime.scheduler import Scheduler
from ingle.runtime.sequence import Sequence
from ingle.runtime.step import Logits, StepResult


class Engine:
    """See the module. Not thread-safe, but for `interrupt`; several engines may live in one process."""

    def __init__(self, model: LlamaModel, model_info: ModelInfo, config: EngineConfig, stack: ExitStack) -> None:
        self._stack = stack
        self._model = model
        self._config = config
        self.info = describe(model, model_info, config)
        block_size = config.block_size
        limit = max(config.kv_tokens or self.info.n_ctx, self.info.n_ctx)
        self._max_cells = _round_up(_round_up(limit, block_size), CELL_STEP)
        num_cells = min(_round_up(_round_up(config.initial_kv_tokens, block_size), CELL_STEP), self._max_cells)
        self._executor = Executor(model, config, num_cells)
        stack.callback(self._executor.close)
        shares = self.info.shares_prefixes and config.enable_prefix_caching
        self._kv = KVManager(
            self._executor.num_cells // block_size, block_size, config.num_slots - 1, model.window, shares
        )
        self._scheduler = Scheduler(self._kv, config.n_batch, config.prefill_chunk, config.max_num_seqs)
        self._fingerprint = fingerprint(model_info, config)
        self._detokenizer = Detokenizer(model.piece)
        self._sequences: dict[RequestId, Sequence] = {}
        self._filters: dict[tuple[int, float, float, float], FilterChain] = {}
        self._unread: list[RequestOutput] = []
        self._next_id = 0
        self._interrupted_s: float | None = None
        self._num_steps = self._num_resizes = self._num_prompt_tokens = self._num_output_tokens = 0
        self._cache_hits = 0
        self._last_abort_s: float | None = None

    @classmethod
    def open(
        cls,
        path: Path,
        config: EngineConfig | None = None,
        *,
        model_info: ModelInfo | None = None,
        model: LlamaModel | None = None,
    ) -> Engine:
        """Check the file's header, load the weights, make a small context.

        `model_info`, `model`: the header and the weights of `path`, where they have been read already; the engine owns
        the model from here on, and closes it when this raises. Raises `ingle.models.errors.BadModelFile` for a file
        that is wrong, `EngineError` for what fails later.
        """
        config = config or EngineConfig()
        with ExitStack() as stack:
            if model is not None:
                stack.callback(model.close)
            model_info = model_info or read_model_info(path)
            if model is None:
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
        """Token ids of `text`. `add_special`: with the model's BOS/EOS; `parse_special`: names of control tokens
        count.
        """
        return self._model.tokenize(text, add_special=add_special, parse_special=parse_special)

    def detokenize(self, tokens: Iterable[int], *, special: bool = False) -> str:
        return self._model.detokenize(tokens, special=special)

    # -- requests ------------------------------------------------------------------------------------------------------

    def add(self, request: Request) -> RequestId:
        """Accept a request, or raise `InvalidRequest`, `PromptTooLong` or `QueueFull` with the numbers.

        An interruption from before is over: it was about what ran then.
        """
        self._check(request)
        self._interrupted_s = None
        self._executor.clear_interrupt()
        sampling = request.sampling
        seed = sampling.seed if sampling.seed is not None else int.from_bytes(os.urandom(4), "little")
        limit = self.info.n_ctx
        for bound in (request.max_output_tokens, self._config.max_output_tokens):
            if bound is not None:
                limit = min(limit, len(request.tokens) + bound)
        rid = RequestId(self._next_id)
        self._next_id += 1
        sequence = Sequence(
            rid,
            request,
            root_hash(self._fingerprint, request.cache_salt),
            limit,
            RequestMetrics(time.perf_counter(), seed, len(request.tokens)),
            Sampler(sampling, seed, self._filter_chain(sampling)),
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
        self._last_abort_s = time.perf_counter() - since_s
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
                outputs = self.step()
                self._unread += [output for output in outputs if output.request_id != rid]
                yield from (output for output in outputs if output.request_id == rid)
                if self._interrupted_s is not None and (last := self.abort(rid)) is not None:
                    yield last
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
        self._grow_pool()
        plan = self._scheduler.schedule()
        if not plan.rows:
            self._executor.apply(plan.ops)
            return outputs + self._fail_stuck()
        self._note_starts()
        outputs += self._update(self._executor.execute(plan))
        if self._config.check_integrity:
            self.check()
        return outputs

    def clear_cache(self) -> None:
        """Forget the KV of everything that has ended."""
        self._kv.clear_cache()
        self._executor.apply(self._kv.take_ops())

    # -- before the decode ---------------------------------------------------------------------------------------------

    def _check(self, request: Request) -> None:
        """Refuse what can never be served, with the numbers, before it costs anything."""
        ids = np.asarray(request.tokens)
        if ids.dtype.kind not in "iu" or ids.ndim != 1:
            raise InvalidRequest("the prompt is not a list of token ids")
        num_tokens, num_vocab = len(ids), self.info.n_vocab
        outside = ids[(ids < 0) | (ids >= num_vocab)]
        if len(outside):
            raise InvalidRequest(f"token id {outside[0]} is not in the vocabulary of {num_vocab}")
        if any(not 0 <= token < num_vocab for token in request.sampling.logit_bias):
            raise InvalidRequest(f"logit_bias names a token that is not in the vocabulary of {num_vocab}")
        if num_tokens >= self.info.n_ctx:
            raise PromptTooLong(num_tokens, self.info.n_ctx)
        if self._config.max_input_tokens is not None and num_tokens > self._config.max_input_tokens:
            raise PromptTooLong(num_tokens, self._config.max_input_tokens, "the input limit")
        if len(self._scheduler.waiting) >= self._config.max_queue:
            raise QueueFull(f"{self._config.max_queue} requests are waiting already", "try again later")

    def _filter_chain(self, sampling: SamplingParams) -> FilterChain | None:
        """llama.cpp's filters for these settings; requests with the same settings share one, since it has no state."""
        if not needs_filters(sampling):
            return None
        key = (sampling.top_k, sampling.typical_p, sampling.top_p, sampling.min_p)
        if (chain := self._filters.get(key)) is None:
            top_k, typical_p, top_p, min_p = key
            chain = FilterChain(self.info.n_vocab, top_k=top_k, typical_p=typical_p, top_p=top_p, min_p=min_p)
            self._stack.callback(chain.close)
            self._filters[key] = chain
        return chain

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
        """If blocks are short and the limit allows, move to a larger context. If memory refuses, make do with this
        one.
        """
        if self._executor.num_cells >= self._max_cells or (short := self._scheduler.num_blocks_short()) <= 0:
            return
        wanted = (self._kv.pool.num_total + short) * self._kv.block_size
        num_cells = min(_round_up(max(wanted, 2 * self._executor.num_cells), CELL_STEP), self._max_cells)
        self._executor.apply(self._kv.take_ops())
        try:
            self._executor.resize(num_cells, self._kv.runs(), whole=not self.info.shares_prefixes)
        except OutOfMemory:
            self._max_cells = self._executor.num_cells
            return
        self._num_resizes += 1
        self._kv.pool.grow(self._executor.num_cells // self._kv.block_size)
        self._kv.set_first_positions(self._executor.first_positions())

    def _fail_stuck(self) -> list[RequestOutput]:
        """Nothing runs and the first in line does not fit the pool, which cannot grow: it alone fails."""
        if self._scheduler.running or not self._scheduler.waiting:
            return []
        sequence = self._scheduler.waiting[0]
        cells = self._executor.num_cells
        why = f"{sequence.num_tokens} tokens do not fit the {cells} KV cells there is memory for"
        return [self._finish(sequence, FinishReason.ERROR, error=why)]

    def _note_starts(self) -> None:
        now = time.perf_counter()
        for item in self._scheduler.scheduled:
            metrics = item.sequence.metrics
            if metrics.first_scheduled_s is None:
                metrics.first_scheduled_s = now
                self._num_prompt_tokens += metrics.num_prompt_tokens
                self._cache_hits += metrics.num_cached_tokens

    # -- after the decode ----------------------------------------------------------------------------------------------

    def _update(self, result: StepResult) -> list[RequestOutput]:
        """Commit what was computed; sample a token for every sequence that has no pending one left."""
        self._num_steps += 1
        self._scheduler.update_computed(result.computed)
        self._kv.set_first_positions(result.first_positions)
        if not result.computed:
            if result.interrupted and not self.info.shares_prefixes:
                self._kv.restart()
            self._executor.apply(self._kv.take_ops())
            return [] if result.interrupted else self._shed()
        outputs: list[RequestOutput] = []
        for item in self._scheduler.scheduled:
            if item.sequence.num_pending == 0:
                outputs.append(self._advance(item.sequence, result.logits[len(outputs)]))
        return outputs

    def _advance(self, sequence: Sequence, logits: Logits) -> RequestOutput:
        """Sample the next token of `sequence` from its row of `logits` [vocab], and see whether that ends it."""
        token = sequence.sampler.sample(logits, sequence.tokens)
        logprob = sequence.sampler.logprob(logits, token)
        metrics = sequence.metrics
        metrics.last_token_s = time.perf_counter()
        if metrics.first_token_s is None:
            metrics.first_token_s = metrics.last_token_s
        metrics.num_output_tokens += 1
        self._num_output_tokens += 1
        sequence.append(token)
        ends = not sequence.request.sampling.ignore_eos and self._model.is_eog(token)
        text = "" if ends else sequence.text.push(token)
        reason = None
        if ends or sequence.text.stopped_by is not None:
            reason = FinishReason.STOP
        elif sequence.num_tokens >= sequence.max_tokens:
            reason = FinishReason.LENGTH
        logprobs = () if logprob is None else (logprob,)
        if reason is not None:
            return self._finish(sequence, reason, token, text, logprobs)
        return RequestOutput(sequence.id, (token,), text, metrics, logprobs=logprobs)

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
        token: int | None = None,
        text: str = "",
        logprobs: tuple[TokenLogprob, ...] = (),
        error: str | None = None,
    ) -> RequestOutput:
        """End a sequence: its blocks are available, its last output says why."""
        self._scheduler.remove(sequence)
        del self._sequences[sequence.id]
        sequence.metrics.finished_s = time.perf_counter()
        return RequestOutput(
            sequence.id,
            () if token is None else (token,),
            text + sequence.text.finish(),
            sequence.metrics,
            reason,
            sequence.text.stopped_by,
            logprobs,
            error,
        )

    # -- about itself --------------------------------------------------------------------------------------------------

    def stats(self) -> EngineStats:
        """Counts now and since the engine was opened."""
        running = self._scheduler.running
        contexts = [sequence.num_tokens for sequence in running]
        blocks = self._kv.counts()
        return EngineStats(
            num_requests_running=len(running),
            num_requests_waiting=len(self._scheduler.waiting),
            mean_context_tokens=sum(contexts) / len(contexts) if contexts else 0.0,
            max_context_tokens=max(contexts, default=0),
            block_size=self._kv.block_size,
            num_blocks_total=blocks.total,
            num_blocks_used=blocks.used,
            num_blocks_shared=blocks.shared,
            num_blocks_cached=blocks.cached,
            num_blocks_free=blocks.free,
            peak_blocks_used=blocks.peak_used,
            num_steps=self._num_steps,
            num_pool_resizes=self._num_resizes,
            num_preemptions=self._scheduler.num_preemptions,
            num_prompt_tokens=self._num_prompt_tokens,
            num_output_tokens=self._num_output_tokens,
            prefix_cache_hits_tokens=self._cache_hits,
            last_abort_s=self._last_abort_s,
        )

    def check(self) -> None:
        """Assert every invariant of the blocks, and that llama.cpp's cells agree with the tables."""
        self._executor.apply(self._kv.take_ops())
        self._kv.check()
        if self.info.shares_prefixes:
            self._executor.check({table.slot: table.num_tokens for table in self._kv.tables()})


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step
