"""llama.cpp itself: its library, its log, a loaded model with its vocabulary. The only file that imports llama_cpp.

Handles are freed once, failures are exceptions. Decides nothing. Imports no numpy, so that weights can be loading while
everything else is being imported.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ingle.runtime.errors import EngineError, InvalidRequest, ModelLoadError

SPIN_COUNT = "5000"
"""How long ggml's threads spin at a barrier before they sleep (libgomp's GOMP_SPINCOUNT): about a third of a
millisecond. libgomp's own default, many milliseconds, is no quicker on an idle machine beyond the noise, and when
something else runs beside us a waiting thread keeps the one it waits for off the core: with other processes on both of
two cores a token took up to 0.8 s instead of 0.01 s.
"""


def _spin_briefly() -> None:
    """libgomp reads its settings when it is loaded, which importing llama.cpp does. What the user has set stays."""
    if "GOMP_SPINCOUNT" not in os.environ and "OMP_WAIT_POLICY" not in os.environ:
        os.environ["GOMP_SPINCOUNT"] = SPIN_COUNT


def _import_low_level() -> Any:
    """llama_cpp.llama_cpp without the package's ``__init__``, which imports the high-level API (0.15 s) that Ingle
    never uses.
    """
    _spin_briefly()
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

_ONLY_SPECIAL = lib.LLAMA_TOKEN_ATTR_CONTROL | lib.LLAMA_TOKEN_ATTR_UNKNOWN  # llama_vocab::impl::tokenizer_st_partition

_GPU_TYPES = (1, 2)  # GGML_BACKEND_DEVICE_TYPE_GPU, …_IGPU

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


def clear_log() -> None:
    """Forget the error lines so far, so that `last_error` is about what comes next."""
    _log_lines.clear()


def last_error() -> str:
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


def commit() -> str:
    """The commit its kernels were built from (ggml_commit); "unknown" where the build did not know it."""
    ggml = lib.load_shared_library("ggml-base", lib._base_path)
    ggml.ggml_commit.restype = ctypes.c_char_p
    return str(ggml.ggml_commit().decode())


def supports_gpu_offload() -> bool:
    return bool(lib.llama_supports_gpu_offload())


def cpu_features() -> frozenset[str]:
    """Instruction sets that the CPU has and llama.cpp was compiled for, in its own words ("AVX2", "NEON")."""
    words = system_info().replace("|", " ").replace(":", " ").split()
    triples = zip(words, words[1:], words[2:], strict=False)
    return frozenset(name for name, equals, value in triples if (equals, value) == ("=", "1"))


@dataclass(frozen=True, slots=True)
class Device:
    """A compute device of a backend. Bytes are of its own memory as the backend sees it now; for the CPU, of RAM."""

    description: str
    is_gpu: bool
    free_bytes: int
    total_bytes: int


def compute_devices() -> tuple[Device, ...]:
    """The compute devices compiled in and present, the CPU among them (ggml_backend_dev_*)."""
    ggml = _device_functions()
    found = []
    for index in range(ggml.ggml_backend_dev_count()):
        device = ggml.ggml_backend_dev_get(index)
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        ggml.ggml_backend_dev_memory(device, ctypes.byref(free), ctypes.byref(total))
        found.append(
            Device(
                description=ggml.ggml_backend_dev_description(device).decode(),
                is_gpu=ggml.ggml_backend_dev_type(device) in _GPU_TYPES,
                free_bytes=free.value,
                total_bytes=total.value,
            )
        )
    return tuple(found)


def devices() -> tuple[str, ...]:
    """Descriptions of the compute devices."""
    return tuple(device.description for device in compute_devices())


def _device_functions() -> Any:
    ggml = lib.load_shared_library("ggml", lib._base_path)
    ggml.ggml_backend_dev_count.restype = ctypes.c_size_t
    ggml.ggml_backend_dev_get.restype = ctypes.c_void_p
    ggml.ggml_backend_dev_get.argtypes = [ctypes.c_size_t]
    ggml.ggml_backend_dev_description.restype = ctypes.c_char_p
    ggml.ggml_backend_dev_description.argtypes = [ctypes.c_void_p]
    ggml.ggml_backend_dev_type.restype = ctypes.c_int
    ggml.ggml_backend_dev_type.argtypes = [ctypes.c_void_p]
    ggml.ggml_backend_dev_memory.restype = None
    size_pointer = ctypes.POINTER(ctypes.c_size_t)
    ggml.ggml_backend_dev_memory.argtypes = [ctypes.c_void_p, size_pointer, size_pointer]
    return ggml


def quantize_model(
    source: Path,
    out: Path,
    file_type: int,
    *,
    imatrix: Mapping[str, Sequence[float]] | None = None,
    tensor_types: Sequence[tuple[str, int]] = (),
    allow_requantize: bool = False,
    num_threads: int = 0,
    dry_run: bool = False,
) -> None:
    """llama.cpp's own quantizer (llama_model_quantize), to compare ours with. `file_type` is a llama_ftype;
    `tensor_types` are (regular expression, ggml type). A dry run only logs. Raises `EngineError` with llama.cpp's
    reason."""
    params = lib.llama_model_quantize_default_params()
    params.nthread = num_threads
    params.ftype = file_type
    params.allow_requantize = allow_requantize
    params.dry_run = dry_run
    rows = [(name.encode(), (ctypes.c_float * len(data))(*data), len(data)) for name, data in (imatrix or {}).items()]
    entries = (lib.llama_model_imatrix_data * (len(rows) + 1))()  # the last one, all zeros, is the end
    for entry, (name, data, size) in zip(entries, rows, strict=False):
        entry.name, entry.data, entry.size = name, data, size
    if imatrix is not None:
        params.imatrix = entries
    overrides = (lib.llama_model_tensor_override * (len(tensor_types) + 1))()
    for override, (pattern, kind) in zip(overrides, tensor_types, strict=False):
        override.pattern, override.type = pattern.encode(), kind
    params.tt_overrides = overrides
    clear_log()
    if lib.llama_model_quantize(str(source).encode(), str(out).encode(), ctypes.byref(params)):
        raise EngineError(f"{source.name}: {last_error()}")


class LlamaModel:
    """A loaded model and its vocabulary (llama_model_load_from_file). Read-only; several contexts may share it."""

    def __init__(self, path: Path, num_gpu_layers: int, *, plain: bool = False, is_mapped: bool = True) -> None:
        """Load `path`, a file whose header has been checked, so many layers of it on the GPU. `plain`: weights lie in
        memory of our own just as in the file, not mapped and not repacked, so that a graph watcher finds them and may
        change them. `is_mapped` False: not mapped, but repacked where that is faster. Raises `ModelLoadError` with
        llama.cpp's reason."""
        params = lib.llama_model_default_params()
        params.n_gpu_layers = num_gpu_layers
        params.use_extra_bufts = not plain
        if plain or not is_mapped:
            params.load_mode = lib.LLAMA_LOAD_MODE_NONE
        clear_log()
        self._handle = lib.llama_model_load_from_file(str(path).encode(), params)
        if not self._handle:
            raise ModelLoadError(f"{path.name}: {last_error()}", "this version of llama.cpp may not know the model")
        self._vocab = lib.llama_model_get_vocab(self._handle)
        self.num_vocab: int = lib.llama_vocab_n_tokens(self._vocab)
        self.n_ctx_train: int = lib.llama_model_n_ctx_train(self._handle)
        self.num_layers: int = lib.llama_model_n_layer(self._handle)
        self.size_bytes: int = lib.llama_model_size(self._handle)
        self.window: int | None = lib.llama_model_n_swa(self._handle) or None
        self.is_recurrent = bool(lib.llama_model_is_recurrent(self._handle))
        self.is_hybrid = bool(lib.llama_model_is_hybrid(self._handle))
        self.is_stateful = self.is_recurrent or self.is_hybrid  # keeps a state that cannot be cut or shared
        self.has_encoder = bool(lib.llama_model_has_encoder(self._handle))
        self.has_decoder = bool(lib.llama_model_has_decoder(self._handle))
        self._control_tokens: tuple[str, ...] | None = None  # asked for when text has some
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
        ids = list(tokens)
        array = (ctypes.c_int32 * len(ids))(*ids)
        size = 8 * len(ids) + 64
        while True:
            buffer = ctypes.create_string_buffer(size)
            count = lib.llama_detokenize(self._vocab, array, len(ids), buffer, size, False, special)
            if count >= 0:
                return buffer.raw[:count].decode("utf-8", "replace")
            size = -count

    @property
    def bos(self) -> int | None:
        """The token that begins a text, where the vocabulary has one (llama_vocab_bos)."""
        token = int(lib.llama_vocab_bos(self._vocab))
        return token if token >= 0 else None

    def is_eog(self, token: int) -> bool:
        """Whether `token` ends a generation: EOS, EOT and the like."""
        return bool(lib.llama_vocab_is_eog(self._vocab, token))

    def control_tokens(self) -> tuple[str, ...]:
        """The texts that llama_tokenize takes for tokens only under `parse_special`, longest first."""
        if self._control_tokens is None:
            texts: list[str] = [
                lib.llama_vocab_get_text(self._vocab, token).decode("utf-8", "replace")
                for token in range(self.num_vocab)
                if lib.llama_vocab_get_attr(self._vocab, token) & _ONLY_SPECIAL
            ]
            self._control_tokens = tuple(sorted(filter(None, texts), key=len, reverse=True))
        return self._control_tokens
