# Which weights llama.cpp's CPU backend copies into another order when it loads them. A table, and who is in it.
# This file may not know how memory is counted.
"""Types that are repacked for the instruction sets of a CPU.

Follows ``ggml_repack_get_optimal_repack_type`` (ggml-cpu/repack.cpp) and ``qtype_has_amx_kernels`` (ggml-cpu/amx). What
is repacked lies in memory beside the mapped file, whose pages the kernel may drop again.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

from ingle.models.gguf_header import TensorInfo

_LOOKED_UP = ("token_embd.weight", "per_layer_token_embd.weight")  # read row by row, never multiplied


class _Rule(NamedTuple):
    """Where all `features` are there, tensors of `types` are repacked whose rows are a multiple of `rows`."""

    features: frozenset[str]
    types: frozenset[str]
    rows: int


# Feature names as llama_print_system_info has them.
_RULES: Final = (
    _Rule(frozenset({"AMX_INT8"}), frozenset({"Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS"}), 32),
    _Rule(frozenset({"AVX2"}), frozenset({"Q4_0", "Q4_K", "IQ4_NL", "MXFP4"}), 8),
    _Rule(frozenset({"AVX512"}), frozenset({"Q2_K"}), 8),
    _Rule(frozenset({"NEON", "DOTPROD"}), frozenset({"Q4_0", "Q8_0", "IQ4_NL", "MXFP4"}), 4),
    _Rule(frozenset({"NEON", "DOTPROD"}), frozenset({"Q4_K", "Q5_K", "Q6_K"}), 8),
    _Rule(frozenset({"NEON", "MATMUL_INT8"}), frozenset({"Q4_0", "Q8_0"}), 4),
    _Rule(frozenset({"NEON", "MATMUL_INT8"}), frozenset({"Q4_K", "Q5_K", "Q6_K"}), 8),
)


def repacked_bytes(tensors: Collection[TensorInfo], features: Collection[str], *, is_tied: bool) -> int:
    """Bytes that a CPU with `features` ("AVX2", …) repacks of `tensors`.

    `is_tied`: the token embedding is the output too, and repacked for that second use.
    """
    looked_up = {name for name in _LOOKED_UP if not (is_tied and name == "token_embd.weight")}
    return sum(t.num_bytes for t in tensors if t.name not in looked_up and _is_repacked(t, features))


def _is_repacked(tensor: TensorInfo, features: Collection[str]) -> bool:
    return len(tensor.shape) in (2, 3) and any(
        tensor.type in rule.types and tensor.shape[1] % rule.rows == 0 and rule.features <= set(features)
        for rule in _RULES
    )
