"""llama.cpp, as much of it as Ingle uses. The only file that imports llama_cpp (its low-level ctypes API).

Wraps handles so that each is freed once and in order, arrays so that numpy goes straight into ``llama_batch`` and
logits come out without a copy, and failures so that they are exceptions. Decides nothing. A context is not
thread-safe: its owner is one thread.
"""

from __future__ import annotations

import ctypes
import importlib.util
import sys
import types
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from ingle.runtime.config import EngineConfig
from ingle.runtime.errors import EngineError, InvalidRequest, ModelLoadError, OutOfMemory
from ingle.runtime.step import Logits, Tokens


def _import_low_level() -> Any:
    """llama_cpp.llama_cpp without the package's ``__init__``, which imports the high-level API (0.15 s) that Ingle
    never uses.
    """
    if "llama_cpp" in sys.modules:
        return importlib.import_module("llama_cpp.llama_cpp")
    spec = importlib.util.find_spec("llama_cpp")
    if spec is None or spec.submodule_search_locations is None:
        raise EngineError("llama-cpp-python is not installed", "pip install llama-cpp-python")
    package = types.ModuleType("llama_cpp")
    package.__path__ = list(spec.submodule_search_locations)
    sys.modules["llama_cpp"] = package
    try:
        return importlib.import_module("llama_cpp.llama_cpp")
    finally:
        del sys.modules["llama_cpp"]  # whoever wants the whole package still gets it


lib = _import_low_level()

GGML_TYPES = {
    name: getattr(lib, f"GGML_TYPE_{name.upper()}")
    for name in ("f32", "f16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
} | {"bf16": 30}  # GGML_TYPE_BF16, which the bindings leave out

_ERROR_LEVEL = 4  # GGML_LOG_LEVEL_ERROR
_log_lines: list[str] = []  # the last error lines, for messages
_log_sink: Callable[[str], None] | None = None


@lib.llama_log_callback  # type: ignore[untyped-decorator]
def _log(level: int, text: bytes, _user_data: object) -> None:
    line = text.decode("utf-8", "replace")
    if _log_sink is not None:
        _log_sink(line)
    if level == _ERROR_LEVEL:
        _log_lines.append(line.strip())
        del _log_lines[:-8]


def log_to(sink: Callable[[str], None] | None) -> None:
    """Send llama.cpp's own log lines to `sink` (``--verbose``); they are dropped otherwise."""
    global _log_sink
    _log_sink = sink


def _last_error() -> str:
    """What llama.cpp last complained of, without the name of the C function."""
    for line in reversed(_log_lines):
        _, _, text = line.rpartition(": ") if line.count(": ") == 1 else line.partition(": ")
        if text:
            return text
    return "llama.cpp gave no reason"


def _init_backend() -> None:
    lib.llama_log_set(_log, ctypes.c_void_p(0))
    lib.llama_backend_init()


_init_backend()


def system_info() -> str:
    """llama.cpp's line about the instruction sets and backends it was compiled with (llama_print_system_info)."""
    return str(lib.llama_print_system_info().decode())


def version() -> str:
    """The build of llama.cpp (llama_version) inside llama-cpp-python."""
    return str(lib.llama_version().decode())


def supports_gpu_offload() -> bool:
    return bool(lib.llama_supports_gpu_offload())


def devices() -> tuple[str, ...]:
    """Descriptions of the compute devices compiled in and present, the CPU among them (ggml_backend_dev_*)."""
    ggml = lib.load_shared_library("ggml", lib._base_path)
    ggml.ggml_backend_dev_count.restype = ctypes.c_size_t
    ggml.ggml_backend_dev_get.restype = ctypes.c_void_p
    ggml.ggml_backend_dev_get.argtypes = [ctypes.c_size_t]
    ggml.ggml_backend_dev_description.restype = ctypes.c_char_p
    ggml.ggml_backend_dev_description.argtypes = [ctypes.c_void_p]
    count = ggml.ggml_backend_dev_count()
    return tuple(ggml.ggml_backend_dev_description(ggml.ggml_backend_dev_get(i)).decode() for i in range(count))


class LlamaModel:
    """A loaded model and its vocabulary (llama_model_load_from_file). Read-only; several contexts may share it."""

    def __init__(self, path: Path, num_gpu_layers: int, on_progress: Callable[[float], bool] | None = None) -> None:
        """Load `path`, a file whose header has been checked.

        `num_gpu_layers`: so many layers on the GPU. `on_progress` gets 0 … 1 and returns False to give up. Raises
        `ModelLoadError` with llama.cpp's reason.
        """
        params = lib.llama_model_default_params()
        params.n_gpu_layers = num_gpu_layers
        if on_progress is not None:
            callback = lib.llama_progress_callback(lambda fraction, _: on_progress(fraction))
            params.progress_callback = callback
        _log_lines.clear()
        self._handle = lib.llama_model_load_from_file(str(path).encode(), params)
        if not self._handle:
            raise ModelLoadError(f"{path.name}: {_last_error()}", "this version of llama.cpp may not know the model")
        self._vocab = lib.llama_model_get_vocab(self._handle)
        self.num_vocab: int = lib.llama_vocab_n_tokens(self._vocab)
        self.n_ctx_train: int = lib.llama_model_n_ctx_train(self._handle)
        self.num_layers: int = lib.llama_model_n_layer(self._handle)
        self.size_bytes: int = lib.llama_model_size(self._handle)
        self.window: int | None = lib.llama_model_n_swa(self._handle) or None
        self.is_recurrent = bool(lib.llama_model_is_recurrent(self._handle))
        self.is_hybrid = bool(lib.llama_model_is_hybrid(self._handle))
        self.has_encoder = bool(lib.llama_model_has_encoder(self._handle))
        self.has_decoder = bool(lib.llama_model_has_decoder(self._handle))
        buffer = ctypes.create_string_buffer(256)
        lib.llama_model_desc(self._handle, buffer, len(buffer))
        self.description = buffer.value.decode("utf-8", "replace")

    @property
    def handle(self) -> Any:
        return self._handle

    def close(self) -> None:
        """Free the weights. Every context of this model must be closed first."""
        if self._handle:
            lib.llama_model_free(self._handle)
            self._handle = None

    # -- vocabulary ----------------------------------------------------------------------------------------------------

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Token ids of `text` (llama_tokenize). `add_special`: BOS/EOS as the model wants them; `parse_special`: text
        such as ``<|im_start|>`` becomes the control token it names."""
        data = text.encode("utf-8", "surrogatepass").decode("utf-8", "replace").encode()
        capacity = len(data) + 8
        buffer = (ctypes.c_int32 * capacity)()
        count = lib.llama_tokenize(self._vocab, data, len(data), buffer, capacity, add_special, parse_special)
        if count < 0:
            capacity = -count
            buffer = (ctypes.c_int32 * capacity)()
            count = lib.llama_tokenize(self._vocab, data, len(data), buffer, capacity, add_special, parse_special)
        if count < 0:
            raise InvalidRequest(f"the model's tokenizer cannot handle this text of {len(data)} bytes")
        return list(buffer[:count])

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """The bytes a token stands for (llama_token_to_piece): maybe part of a character; empty for control tokens
        unless `special`."""
        size = 64
        while True:
            buffer = ctypes.create_string_buffer(size)
            count = lib.llama_token_to_piece(self._vocab, token, buffer, size, 0, special)
            if count >= 0:
                return buffer.raw[:count]
            size = -count

    def detokenize(self, tokens: Iterable[int], *, special: bool = False) -> str:
        """The text of `tokens` (llama_detokenize)."""
        ids = np.fromiter(tokens, dtype=np.int32)
        pointer = ids.ctypes.data_as(ctypes.POINTER(ctypes.c_int32))
        size = 8 * len(ids) + 64
        while True:
            buffer = ctypes.create_string_buffer(size)
            count = lib.llama_detokenize(self._vocab, pointer, len(ids), buffer, size, False, special)
            if count >= 0:
                return buffer.raw[:count].decode("utf-8", "replace")
            size = -count

    def is_eog(self, token: int) -> bool:
        """Whether `token` ends a generation: EOS, EOT and the like."""
        return bool(lib.llama_vocab_is_eog(self._vocab, token))

    def is_control(self, token: int) -> bool:
        return bool(lib.llama_vocab_is_control(self._vocab, token))


class LlamaContext:
    """A context: its KV cells, compute buffers and one reusable batch (llama_init_from_model)."""

    def __init__(self, model: LlamaModel, num_cells: int, config: EngineConfig) -> None:
        """Allocate `num_cells` cells, shared by all slots. Raises `OutOfMemory` when llama.cpp gets no memory for
        them.
        """
        params = lib.llama_context_default_params()
        params.n_ctx = num_cells
        params.n_batch = params.n_ubatch = config.n_batch
        params.n_seq_max = params.n_outputs_max = config.num_slots
        params.n_threads = config.threads()
        params.n_threads_batch = config.num_threads_batch or params.n_threads
        params.flash_attn_type = {None: -1, False: 0, True: 1}[config.flash_attn]
        params.type_k = GGML_TYPES[config.type_k]
        params.type_v = GGML_TYPES[config.type_v]
        params.kv_unified = True
        params.swa_full = True  # sliding-window layers keep as many cells as the others, so that prefixes can be shared
        params.no_perf = True
        _log_lines.clear()
        self._handle = lib.llama_init_from_model(model.handle, params)
        if not self._handle:
            raise OutOfMemory(f"no context of {num_cells} tokens: {_last_error()}", "choose a smaller -c/--ctx-size")
        self.num_cells: int = lib.llama_n_ctx(self._handle)
        self.num_slots = config.num_slots
        self._memory = lib.llama_get_memory(self._handle)
        self._num_vocab = model.num_vocab
        self._views: dict[tuple[int, int], Logits] = {}
        self._make_batch(config.n_batch)
        self._interrupted = False
        self._abort_callback = lib.ggml_abort_callback(lambda _: self._interrupted)
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

    def interrupt(self) -> None:
        """Make an interruptible decode that is under way return 2. Safe from other threads and from signal handlers."""
        self._interrupted = True

    def clear_interrupt(self) -> None:
        self._interrupted = False

    # -- cells ---------------------------------------------------------------------------------------------------------

    def copy_cells(self, source: int, target: int, start: int, end: int) -> None:
        lib.llama_memory_seq_cp(self._memory, source, target, start, end)

    def drop_cells(self, slot: int, start: int) -> None:
        dropped = lib.llama_memory_seq_rm(self._memory, slot, start, -1)
        assert dropped, f"slot {slot} could not be cut at {start}"

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
            raise EngineError(f"restoring {len(data)} bytes of KV cells failed: {_last_error()}")


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


def _pointer(array: npt.NDArray[Any], to: Any) -> Any:
    return ctypes.cast(array.ctypes.data, ctypes.POINTER(to))
