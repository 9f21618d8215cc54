# ggml's own quantizers (libggml-base), on arrays. With runtime/llama.py the only file that calls native code.
# This file may not know tensors by name, files or recipes: rows of numbers in, rows of blocks out.
"""``quantize`` and ``dequantize``, bit for bit what llama.cpp does, on all cores.

Follows ``ggml_quantize_chunk``, ``ggml_validate_row_data`` and the ``to_float`` functions of ggml's type traits. The C
code aborts the process on what it does not like, so every argument is checked here first. Rows do not depend on one
another, and ctypes lets go of the interpreter while C runs: threads take chunks of rows.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ingle.models.ggml_types import BY_NAME, NOT_FOR_WEIGHTS, row_bytes
from ingle.quant.errors import BadImatrix, BadWeights
from ingle.runtime import llama

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

QUANTIZATION_VERSION: Final = 2  # GGML_QNT_VERSION
WEIGHT_TYPES: Final = tuple(name for name in BY_NAME if name not in NOT_FOR_WEIGHTS)
"""Everything a weight matrix can be stored in, as `models.ggml_types` spells it."""

MAX_MAGNITUDE: Final = float(np.finfo(np.float16).max)
"""The largest weight that any type but F32 and BF16 takes: the scales of ggml's blocks are F16."""
_MAX_IMPORTANCE: Final = 1e12  # a mean square of activations; beyond, ggml's sums of weight · value² near overflow

_CHUNK_VALUES: Final = 1 << 18  # of one call: large enough to forget its cost, small enough to share out evenly


class _Traits(ctypes.Structure):
    """struct ggml_type_traits"""

    _fields_ = [
        ("type_name", ctypes.c_char_p),
        ("blck_size", ctypes.c_int64),
        ("blck_size_interleave", ctypes.c_int64),
        ("type_size", ctypes.c_size_t),
        ("is_quantized", ctypes.c_bool),
        ("to_float", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)),
        ("from_float_ref", ctypes.c_void_p),
    ]


def _load() -> Any:
    library = llama.lib.load_shared_library("ggml-base", llama.lib._base_path)
    library.ggml_quantize_init.argtypes = [ctypes.c_int]
    library.ggml_quantize_init.restype = None
    library.ggml_quantize_requires_imatrix.argtypes = [ctypes.c_int]
    library.ggml_quantize_requires_imatrix.restype = ctypes.c_bool
    library.ggml_quantize_chunk.argtypes = [
        ctypes.c_int,  # type
        ctypes.c_void_p,  # src
        ctypes.c_void_p,  # dst
        ctypes.c_int64,  # start
        ctypes.c_int64,  # nrows
        ctypes.c_int64,  # n_per_row
        ctypes.c_void_p,  # imatrix
    ]
    library.ggml_quantize_chunk.restype = ctypes.c_size_t
    library.ggml_validate_row_data.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t]
    library.ggml_validate_row_data.restype = ctypes.c_bool
    library.ggml_get_type_traits.argtypes = [ctypes.c_int]
    library.ggml_get_type_traits.restype = ctypes.POINTER(_Traits)
    return library


_ggml: Final = _load()


def requires_imatrix(type_name: str) -> bool:
    """Whether ggml has no quantizer for this type without importances (ggml_quantize_requires_imatrix)."""
    return bool(_ggml.ggml_quantize_requires_imatrix(BY_NAME[type_name].id))


def num_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def quantize(values: Floats, type_name: str, imatrix: Floats | None = None, *, num_threads: int | None = None) -> Bytes:
    """`values` [rows, cols] as blocks of `type_name` ("Q4_K"): uint8 [rows, bytes of a row].

    `imatrix` [cols] weighs the squared error of each column; without it ggml weighs by the values themselves.
    Raises BadWeights for NaN, infinite or too large values and rows that are not whole blocks, BadImatrix for
    importances that are not finite, negative, or missing where the type needs them.
    """
    assert values.ndim == 2
    assert values.dtype == np.float32
    num_rows, num_cols = values.shape
    try:
        size = row_bytes(type_name, num_cols)
    except ValueError as error:
        raise BadWeights(str(error)) from None
    check_finite(values, None if type_name in ("F32", "BF16") else MAX_MAGNITUDE)
    importance = _checked_imatrix(imatrix, num_cols)
    if importance is None and requires_imatrix(type_name):
        raise BadImatrix(f"{type_name} needs an importance matrix", "give one with --imatrix FILE")
    source = np.ascontiguousarray(values)
    out = np.empty((num_rows, size), np.uint8)
    kind = BY_NAME[type_name].id
    _ggml.ggml_quantize_init(kind)
    weights = None if importance is None else importance.ctypes.data

    def one(first: int, last: int) -> None:
        written = _ggml.ggml_quantize_chunk(
            kind, source[first:last].ctypes.data, out[first:last].ctypes.data, 0, last - first, num_cols, weights
        )
        assert written == (last - first) * size

    _over_rows(one, num_rows, num_cols, num_threads)
    if not is_valid(out, type_name):
        raise BadWeights(f"ggml's quantizer of {type_name} gave scales that are not finite")
    return out


def dequantize(data: Bytes, type_name: str, shape: tuple[int, ...], *, num_threads: int | None = None) -> Floats:
    """Blocks of `type_name` as float32 of `shape` (columns last). `data`: as many bytes as that takes, in any shape.

    Raises BadWeights for a type that ggml cannot read back.
    """
    num_cols = shape[-1]
    num_rows = int(np.prod(shape[:-1], dtype=np.int64))
    size = row_bytes(type_name, num_cols)
    assert data.dtype == np.uint8
    source = np.ascontiguousarray(data).reshape(num_rows, size)
    if type_name == "F32":
        return source.view(np.float32).reshape(shape)
    traits = _ggml.ggml_get_type_traits(BY_NAME[type_name].id).contents
    if not traits.to_float:
        raise BadWeights(f"{type_name} cannot be turned into floating point numbers")
    to_float = traits.to_float
    out = np.empty((num_rows, num_cols), np.float32)

    def one(first: int, last: int) -> None:
        to_float(source[first:last].ctypes.data, out[first:last].ctypes.data, (last - first) * num_cols)

    _over_rows(one, num_rows, num_cols, num_threads)
    return out.reshape(shape)


def is_valid(data: Bytes, type_name: str) -> bool:
    """Whether the floats inside the blocks are finite (ggml_validate_row_data, which adds a line on stderr if not)."""
    source = np.ascontiguousarray(data)
    return bool(_ggml.ggml_validate_row_data(BY_NAME[type_name].id, source.ctypes.data, source.nbytes))


def check_finite(values: Floats, limit: float | None, first_row: int = 0) -> None:
    """Raise BadWeights, naming row and column, for a value that is NaN, infinite, or beyond `limit`.

    `values` is [rows, cols]; `first_row` is what its first row is called.
    """
    if not values.size:
        return
    # Comparisons with NaN are false, so this one look finds all three.
    low, high = float(values.min()), float(values.max())
    largest = np.finfo(np.float32).max if limit is None else limit
    if low >= -largest and high <= largest:
        return
    row, col = np.unravel_index(int(np.argmin(np.abs(values) <= largest)), values.shape)
    value = float(values[row, col])
    what = "NaN" if np.isnan(value) else "infinite" if np.isinf(value) else f"{value:g}, too large for F16 scales"
    raise BadWeights(f"row {first_row + int(row)}, column {int(col)} is {what}")


def _checked_imatrix(imatrix: Floats | None, num_cols: int) -> Floats | None:
    if imatrix is None:
        return None
    if imatrix.shape != (num_cols,):
        raise BadImatrix(f"{imatrix.size} importances for {num_cols} columns")
    if not (imatrix.min() >= 0 and imatrix.max() <= _MAX_IMPORTANCE):
        bad = int(np.argmin((imatrix >= 0) & (imatrix <= _MAX_IMPORTANCE)))
        raise BadImatrix(f"the importance of column {bad} is {float(imatrix[bad]):g}")
    return np.ascontiguousarray(imatrix, np.float32)


def _over_rows(one: Callable[[int, int], None], num_rows: int, num_cols: int, num_threads: int | None) -> None:
    """Call `one` with ranges of rows that together are all of them, from several threads."""
    step = max(1, _CHUNK_VALUES // max(num_cols, 1))
    ranges = [(first, min(first + step, num_rows)) for first in range(0, num_rows, step)]
    threads = min(num_threads or num_cores(), len(ranges))
    if threads <= 1:
        for first, last in ranges:
            one(first, last)
        return
    pool = ThreadPoolExecutor(threads, thread_name_prefix="ingle-quantize")
    try:
        for future in [pool.submit(one, first, last) for first, last in ranges]:
            future.result()
    finally:
        pool.shutdown(cancel_futures=True)  # after Ctrl-C nothing more is begun
