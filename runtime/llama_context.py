"""A llama.cpp context: KV cells, one reusable batch, logits. And its sampler chain, over one reusable candidate array.

numpy arrays go straight into ``llama_batch``, and logits come out without a copy. Decides nothing. A context is not
thread-safe: its owner is one thread.
"""

from __future__ import annotations

import ctypes
from contextlib import ExitStack
from typing import Any

import numpy as np
import numpy.typing as npt

from ingle.runtime.config import EngineConfig
from ingle.runtime.errors import EngineError, OutOfMemory
from ingle.runtime.llama import LlamaModel, clear_log, last_error, lib
from ingle.runtime.request import SamplingParams
from ingle.runtime.step import Logits, Tokens

GGML_TYPES = {
    name: getattr(lib, f"GGML_TYPE_{name.upper()}")
    for name in ("f32", "f16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
} | {"bf16": 30}  # GGML_TYPE_BF16, which the bindings leave out


class Interrupt:
    """A flag that llama.cpp's abort callback reads: while it is set, interruptible decodes return 2.

    May be set by other threads and by signal handlers; outlives the contexts that read it.
    """

    __slots__ = ("is_set",)

    def __init__(self) -> None:
        self.is_set = False


class LlamaContext:
    """A context: its KV cells, compute buffers and one reusable batch (llama_init_from_model)."""

    def __init__(
        self,
        model: LlamaModel,
        num_cells: int,
        config: EngineConfig,
        interrupt: Interrupt | None = None,
        *,
        is_bare: bool = False,
        num_outputs: int | None = None,
        unified: bool = True,
        watch: Any = None,
    ) -> None:
        """Allocate `num_cells` cells, shared by all slots; where not `unified`, an equal share for each slot.

        `is_bare`: there is one slot, and sliding windows keep no more than they see, as llama.cpp's own tools have it.

        `num_outputs`: the most rows of one decode whose logits may be wanted, at least one a slot. `watch`: a callback
        of graph_watch.py, called while graphs are computed. Raises `OutOfMemory` when llama.cpp gets no memory for the
        cells, `EngineError` when it refuses for another reason. While `interrupt` is set, interruptible decodes are
        cut short.
        """
        params = lib.llama_context_default_params()
        params.n_ctx = num_cells
        params.n_batch = params.n_ubatch = config.n_batch
        params.n_seq_max = 1 if is_bare else config.num_slots
        params.n_outputs_max = 1 if is_bare else max(num_outputs or 0, config.num_outputs)
        params.n_threads = params.n_threads_batch = config.threads()
        params.flash_attn_type = {None: -1, False: 0, True: 1}[config.flash_attn]
        params.type_k = GGML_TYPES[config.type_k]
        params.type_v = GGML_TYPES[config.type_v]
        params.kv_unified = unified
        if watch is not None:
            params.cb_eval = watch
        params.swa_full = not is_bare  # sliding-window layers keep as many cells as the others: prefixes can be shared
        params.no_perf = True
        clear_log()
        self._handle = lib.llama_init_from_model(model.handle, params)
        if not self._handle:
            reason = last_error()
            if "alloc" in reason or "memory" in reason:
                raise OutOfMemory(f"no context of {num_cells} tokens: {reason}", "choose a smaller -c/--ctx-size")
            raise EngineError(f"llama.cpp made no context: {reason}")
        self.num_cells: int = lib.llama_n_ctx(self._handle)
        self._memory = lib.llama_get_memory(self._handle)
        self._num_vocab = model.num_vocab
        self._views: dict[tuple[int, int], Logits] = {}
        self._make_batch(config.n_batch)
        self._watch = watch  # llama.cpp calls it as long as the context lives
        interrupt = interrupt or Interrupt()
        self._abort_callback = lib.ggml_abort_callback(lambda _: interrupt.is_set)
        self._watching = False

    def _make_batch(self, capacity: int) -> None:
        """Arrays of `capacity` rows and the ``llama_batch`` that points at them; every row belongs to one slot."""
        self.tokens: Tokens = np.zeros(capacity, dtype=np.int32)
        self.positions: npt.NDArray[np.int32] = np.zeros(capacity, dtype=np.int32)
        self.slots: npt.NDArray[np.int32] = np.zeros(capacity, dtype=np.int32)
        self.wanted: npt.NDArray[np.int8] = np.zeros(capacity, dtype=np.int8)  # rows whose logits are wanted
        self._slot_counts: npt.NDArray[np.int32] = np.ones(capacity, dtype=np.int32)
        addresses = self.slots.ctypes.data + 4 * np.arange(capacity, dtype=np.uintp)
        self._slot_pointers: npt.NDArray[np.uintp] = np.ascontiguousarray(addresses)
        self._batch = lib.llama_batch(
            n_tokens=0,
            token=_pointer(self.tokens, ctypes.c_int32),
            embd=None,
            pos=_pointer(self.positions, ctypes.c_int32),
            n_seq_id=_pointer(self._slot_counts, ctypes.c_int32),
            seq_id=_pointer(self._slot_pointers, ctypes.POINTER(ctypes.c_int32)),
            logits=_pointer(self.wanted, ctypes.c_int8),
        )

    def close(self) -> None:
        if self._handle:
            self._views.clear()
            lib.llama_free(self._handle)
            self._handle = None

    def decode(self, num_rows: int, *, interruptible: bool) -> int:
        """Compute the first `num_rows` rows of the batch arrays (llama_decode, whose code is returned: 0 done, 1 no
        cells found, 2 interrupted, negative a failure)."""
        assert 0 < num_rows <= len(self.tokens)
        if interruptible != self._watching:
            self._watching = interruptible
            callback = self._abort_callback if interruptible else lib.ggml_abort_callback()
            lib.llama_set_abort_callback(self._handle, callback, None)
        self._batch.n_tokens = num_rows
        return int(lib.llama_decode(self._handle, self._batch))

    def logits(self, num_rows: int) -> Logits:
        """[num_rows, vocab]: those wanted of the last decode, in batch order; a view that the next decode overwrites.
        Waits for the computation (llama_get_logits)."""
        pointer = lib.llama_get_logits(self._handle)
        key = (ctypes.addressof(pointer.contents), num_rows)
        if key not in self._views:
            array_type = ctypes.c_float * (num_rows * self._num_vocab)
            view = np.ctypeslib.as_array(array_type.from_address(key[0]))
            self._views[key] = view.reshape(num_rows, self._num_vocab)
        return self._views[key]

    # -- cells ---------------------------------------------------------------------------------------------------------

    def copy_cells(self, source: int, target: int, start: int, end: int) -> None:
        lib.llama_memory_seq_cp(self._memory, source, target, start, end)

    def drop_cells(self, slot: int, start: int) -> None:
        dropped = lib.llama_memory_seq_rm(self._memory, slot, start, -1)
        assert dropped, f"slot {slot} could not be cut at {start}"

    def clear(self) -> None:
        """Empty every slot (llama_memory_clear)."""
        lib.llama_memory_clear(self._memory, True)

    def first_position(self, slot: int) -> int:
        """The position from which on all cells of `slot` are there; 0 for an empty slot."""
        return max(0, int(lib.llama_memory_seq_pos_min(self._memory, slot)))

    def num_positions(self, slot: int) -> int:
        """One more than the last position of `slot`; 0 for an empty slot."""
        return int(lib.llama_memory_seq_pos_max(self._memory, slot)) + 1

    def save(self, slot: int) -> npt.NDArray[np.uint8]:
        """The cells of `slot`, as bytes that `restore` takes (llama_state_seq_get_data)."""
        size = lib.llama_state_seq_get_size(self._handle, slot)
        data = np.empty(size, dtype=np.uint8)
        written = lib.llama_state_seq_get_data(self._handle, _pointer(data, ctypes.c_uint8), size, slot)
        if written != size:
            raise EngineError(f"saving KV cells gave {written} bytes where {size} were expected")
        return data

    def restore(self, slot: int, data: npt.NDArray[np.uint8]) -> None:
        """Replace the cells of `slot` by saved ones, at the positions they had (llama_state_seq_set_data)."""
        read = lib.llama_state_seq_set_data(self._handle, _pointer(data, ctypes.c_uint8), len(data), slot)
        if not read:
            raise EngineError(f"restoring {len(data)} bytes of KV cells failed: {last_error()}")


class FilterChain:
    """llama.cpp's sampler chain of stateless filters, over one reusable candidate array (llama_sampler_apply)."""

    def __init__(self, num_vocab: int, *, top_k: int, typical_p: float, top_p: float, min_p: float) -> None:
        self._candidates = np.zeros(num_vocab, dtype=[("id", "<i4"), ("logit", "<f4"), ("p", "<f4")])
        self._ids = np.arange(num_vocab, dtype=np.int32)
        self._stack = ExitStack()
        self._chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
        self._stack.callback(lib.llama_sampler_free, self._chain)
        if top_k > 0:
            lib.llama_sampler_chain_add(self._chain, lib.llama_sampler_init_top_k(top_k))
        if typical_p < 1.0:
            lib.llama_sampler_chain_add(self._chain, lib.llama_sampler_init_typical(typical_p, 1))
        if top_p < 1.0:
            lib.llama_sampler_chain_add(self._chain, lib.llama_sampler_init_top_p(top_p, 1))
        if min_p > 0.0:
            lib.llama_sampler_chain_add(self._chain, lib.llama_sampler_init_min_p(min_p, 1))

    def apply(self, logits: Logits) -> tuple[npt.NDArray[np.int32], Logits]:
        """logits [vocab] → ids [n] and logits [n] of the candidates that pass, n ≥ 1, in no particular order."""
        self._candidates["id"] = self._ids
        self._candidates["logit"] = logits
        array = lib.llama_token_data_array(
            data=_pointer(self._candidates, lib.llama_token_data), size=len(logits), selected=-1, sorted=False
        )
        lib.llama_sampler_apply(self._chain, ctypes.byref(array))
        kept = np.ctypeslib.as_array(
            (ctypes.c_uint8 * (array.size * self._candidates.itemsize)).from_address(
                ctypes.addressof(array.data.contents)
            )
        ).view(self._candidates.dtype)
        return kept["id"].copy(), kept["logit"].copy()

    def close(self) -> None:
        self._stack.close()


class FilterChains:
    """One `FilterChain` for each combination of settings in use; chains have no state, so requests share them."""

    def __init__(self, num_vocab: int) -> None:
        self._num_vocab = num_vocab
        self._chains: dict[tuple[int, float, float, float], FilterChain] = {}

    def get(self, params: SamplingParams) -> FilterChain:
        key = (params.top_k, params.typical_p, params.top_p, params.min_p)
        if (chain := self._chains.get(key)) is None:
            top_k, typical_p, top_p, min_p = key
            chain = FilterChain(self._num_vocab, top_k=top_k, typical_p=typical_p, top_p=top_p, min_p=min_p)
            self._chains[key] = chain
        return chain

    def close(self) -> None:
        for chain in self._chains.values():
            chain.close()
        self._chains.clear()


def _pointer(array: npt.NDArray[Any], to: Any) -> Any:
    return ctypes.cast(array.ctypes.data, ctypes.POINTER(to))
