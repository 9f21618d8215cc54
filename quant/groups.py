# Which linear layers share an input, and what a scaling of that input's channels folds into. A table by architecture.
# This file may not know how scales are found; it reads names and shapes, never weights.
"""``groups_of``: the scalable groups of a model.

Multiplying the columns of every linear that reads an input by s, and dividing what produces that input by s, changes
nothing. Four kinds of group (Lin et al., AWQ, 2023), by the names that GGUF gives the tensors:

    q, k, v                  ÷ the norm before attention
    gate, up, router         ÷ the norm before the feed-forward
    down                     ÷ rows of up (the product with the activated gate is linear in up)
    attention's output       ÷ rows of v; heads that share a v share their scales

Architectures are rows: an architecture is listed when these hold for it in llama.cpp's graph, and tested to.
Biases scale with the rows they belong to. Gemma's norms are stored as 1 + w in GGUF, so they divide like any other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from ingle.models.gguf_info import ModelInfo

Index = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Fold:
    """Values `start` to `start + count` along the rows of a tensor (a vector's own values) are divided."""

    tensor: str
    start: int
    count: int


@dataclass(frozen=True, slots=True)
class Group:
    """Linears with one input. `column_of` [cols]: which of `num_scales` scales each column takes. Of `folds` [count]:
    the value at i is divided by scale i."""

    name: str
    linears: tuple[str, ...]
    num_scales: int
    column_of: Index
    folds: tuple[Fold, ...]


@dataclass(frozen=True, slots=True)
class _Kind:
    """`readers`: of these, those a layer has are the linears. `into`: a norm, or linears with rows to divide."""

    readers: tuple[str, ...]
    into: tuple[str, ...]
    per_head: bool = False


_ATTENTION: Final = _Kind(("attn_q", "attn_k", "attn_v", "attn_qkv"), ("attn_norm",))
_OUTPUT: Final = _Kind(("attn_output",), ("attn_v", "attn_qkv"), per_head=True)
_FEED_FORWARD: Final = _Kind(("ffn_gate", "ffn_up"), ("ffn_norm",))
_EXPERTS: Final = _Kind(("ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps", "ffn_gate_up_exps"), ("ffn_norm",))
_DOWN: Final = _Kind(("ffn_down",), ("ffn_up",))

_DENSE: Final = (_ATTENTION, _OUTPUT, _FEED_FORWARD, _DOWN)
_MIXED: Final = (_ATTENTION, _OUTPUT, _EXPERTS)  # experts' down projections keep their inputs: each has its own

ARCHITECTURES: Final[Mapping[str, tuple[_Kind, ...]]] = {
    "llama": (*_DENSE, _EXPERTS),  # Llama, Mistral, SmolLM2; Mixtral has experts
    "mistral3": _DENSE,
    "qwen2": _DENSE,
    "qwen3": _DENSE,
    "qwen3moe": _MIXED,
    "gemma2": _DENSE,
    "gemma3": _DENSE,
    "phi3": _DENSE,
    "smollm3": _DENSE,
    "granite": _DENSE,
}
"""general.architecture → the kinds of group its layers have."""

_ODD_TENSORS: Final = (
    "attn_gate",
    "ffn_gate_shexp",
    "ffn_up_shexp",
    "ffn_gate_inp_shexp",
    "attn_sub_norm",
    "ffn_sub_norm",
)
"""Tensors that read an input of a group, or stand between one and its producer, without being in the table."""


def groups_of(info: ModelInfo) -> tuple[Group, ...] | None:
    """The groups of a model, layer by layer; None for an architecture without a row, which cannot be scaled."""
    kinds = ARCHITECTURES.get(info.architecture)
    if kinds is None:
        return None
    shapes = {tensor.name: tensor.shape for tensor in info.tensors}
    groups = []
    for layer in range(info.num_layers):
        prefix = f"blk.{layer}."
        if any(f"{prefix}{odd}.weight" in shapes for odd in _ODD_TENSORS):
            continue
        for kind in kinds:
            group = _group(kind, prefix, shapes, info, layer)
            if group is not None:
                groups.append(group)
    return tuple(groups)


def _group(kind: _Kind, prefix: str, shapes: Mapping[str, Sequence[int]], info: ModelInfo, layer: int) -> Group | None:
    linears = tuple(name for part in kind.readers if (name := f"{prefix}{part}.weight") in shapes)
    sources = [part for part in kind.into if f"{prefix}{part}.weight" in shapes]
    if not linears or not sources:
        return None
    num_cols = shapes[linears[0]][0]
    assert all(shapes[name][0] == num_cols for name in linears)
    source = f"{prefix}{sources[0]}"
    num_rows = shapes[f"{source}.weight"][-1]  # of a norm: its length
    column_of = np.arange(num_cols)
    count = num_cols
    if kind.per_head:
        length, heads_kv = info.value_length, _of_layer(info.n_head_kv, layer)
        heads = num_cols // length
        if heads * length != num_cols or not heads_kv or heads % heads_kv:
            return None
        count = heads_kv * length
        head, within = np.divmod(column_of, length)
        column_of = head // (heads // heads_kv) * length + within
    if num_rows < count:
        return None
    start = num_rows - count  # fused tensors end with what is divided: q, k, v and gate, up
    names = [name for suffix in ("weight", "bias") if (name := f"{source}.{suffix}") in shapes]
    folds = tuple(Fold(name, start, count) for name in names)
    return Group(linears[0].removesuffix(".weight"), linears, count, column_of, folds)


def _of_layer(value: int | tuple[int, ...], layer: int) -> int:
    return value[layer] if isinstance(value, tuple) else value
