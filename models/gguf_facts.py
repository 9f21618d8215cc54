# What follows from a header for memory, reuse and speech: tables over architectures, sums over tensors.
# This file may not know files, terminals or the runtime; it reads a ModelInfo.
"""Facts about a model that its header implies: ``ingle show`` says them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from ingle.models.gguf_header import Scalar
from ingle.models.kv_layout import kv_layout

if TYPE_CHECKING:
    from ingle.models.gguf_info import ModelInfo

_TOKENIZERS: Final[dict[str, str]] = {
    "llama": "SentencePiece",
    "gpt2": "byte-level BPE",
    "bert": "WordPiece",
    "t5": "unigram",
    "rwkv": "RWKV trie",
    "gemma4": "BPE",
}
_PROVENANCE: Final = ("general.", "quantize.", "ingle.")


class Reuse(StrEnum):
    """How much of what was computed a new prompt can take over."""

    BLOCKS = "blocks"
    WINDOW_BLOCKS = "blocks with window"
    WHOLE = "whole conversation only"


REUSE_WORDS: Final[dict[Reuse, str]] = {
    Reuse.BLOCKS: "any common beginning, to the token",
    Reuse.WINDOW_BLOCKS: "any common beginning whose last window of tokens is still there",
    Reuse.WHOLE: "a conversation as a whole or not at all",
}


def reuse(info: ModelInfo) -> Reuse:
    """What prefix sharing the architecture allows."""
    if not info.is_generative:  # then nobody has checked its numbers
        return Reuse.BLOCKS
    layers = kv_layout(info).layers
    if any(layer.has_state for layer in layers):
        return Reuse.WHOLE
    return Reuse.WINDOW_BLOCKS if any(layer.is_window for layer in layers) else Reuse.BLOCKS


def num_window_layers(info: ModelInfo) -> int:
    """How many layers look at the last `sliding_window` tokens only."""
    return sum(layer.is_window for layer in kv_layout(info).layers) if info.is_generative else 0


def kv_bytes_per_token(info: ModelInfo, kind: str) -> int | None:
    """Bytes of K and V a token takes, both stored as `kind`; None where that type does not fit the heads, and for
    what generates nothing.

    Window layers count in full: the runtime keeps their cells, so that beginnings can be shared.
    """
    if not info.is_generative:
        return None
    try:
        return info.kv_bytes_per_token(kind, kind)
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class TypeShare:
    """What of the weights is stored as `type`."""

    type: str
    num_tensors: int
    num_params: int
    num_bytes: int

    @property
    def bits_per_weight(self) -> float:
        return 8 * self.num_bytes / self.num_params if self.num_params else 0.0


def type_shares(info: ModelInfo) -> list[TypeShare]:
    """The weights by type, the one with most bytes first."""
    sums: dict[str, tuple[int, int, int]] = {}
    for tensor in info.tensors:
        num, values, size = sums.get(tensor.type, (0, 0, 0))
        sums[tensor.type] = (num + 1, values + tensor.num_values, size + tensor.num_bytes)
    return sorted((TypeShare(kind, *counts) for kind, counts in sums.items()), key=lambda s: (-s.num_bytes, s.type))


def tokenizer_kind(info: ModelInfo) -> str | None:
    """`tokenizer.ggml.model` in words."""
    model = info.tokenizer_model
    return None if model is None else _TOKENIZERS.get(model, model)


def special_tokens(info: ModelInfo) -> dict[str, tuple[int, str]]:
    """Role ("bos", "eot", …) → token id and text, as far as the file names them and the vocabulary has them."""
    prefix, suffix = "tokenizer.ggml.", "_token_id"
    ids: dict[str, int] = {}
    for key, value in info.metadata.items():
        if key.startswith(prefix) and key.endswith(suffix) and isinstance(value, int) and 0 <= value < info.vocab_size:
            ids[key[len(prefix) : -len(suffix)]] = value
    if not ids or "tokenizer.ggml.tokens" not in info.arrays:
        return {}
    tokens = info.read_array("tokenizer.ggml.tokens")
    return {role: (number, str(tokens[number])) for role, number in ids.items() if number < len(tokens)}


def provenance(info: ModelInfo) -> Mapping[str, Scalar]:
    """Where the file says it comes from and how it was made: ``general.*``, ``quantize.*`` and ``ingle.*``."""
    return {key: value for key, value in info.metadata.items() if key.startswith(_PROVENANCE)}
