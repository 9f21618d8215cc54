# What follows from a header for memory, reuse and speech: tables over architectures, sums over tensors.
# This file may not know files, terminals or the runtime; it reads a ModelInfo.
"""Facts about a model that its header implies: ``ingle show`` says them.

Sources: ``llm_arch_is_recurrent`` and ``llm_arch_is_hybrid`` (llama-arch.cpp), ``load_swa_pattern`` and its callers
(src/models/*.cpp of llama.cpp).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from ingle.models.gguf_header import Scalar

if TYPE_CHECKING:
    from ingle.models.gguf_info import ModelInfo

# Layers keep a state instead of KV (recurrent), or some do (hybrid): it cannot be cut or shared.
_RECURRENT: Final = frozenset({"mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"})
_HYBRID: Final = frozenset(
    {"jamba", "falcon-h1", "plamo2", "granitehybrid", "lfm2", "lfm2moe", "nemotron_h", "nemotron_h_moe"}
    | {"qwen3next", "kimi-linear", "qwen35", "qwen35moe"}
)

# Architecture → every how many layers one sees all tokens, the others only a window; None: the file must say which.
# Others may name a window in their header, and llama.cpp does not look at it.
_WINDOW_PATTERNS: Final[dict[str, int | None]] = {
    "cohere2": 4,
    "gemma2": 2,
    "gemma3": 6,
    "gemma3n": 5,
    "gemma4": None,
    "gpt-oss": 2,
    "olmo2": 4,
}

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
    if info.architecture in _RECURRENT | _HYBRID:
        return Reuse.WHOLE
    return Reuse.WINDOW_BLOCKS if num_window_layers(info) else Reuse.BLOCKS


def num_window_layers(info: ModelInfo) -> int:
    """How many layers look at the last `sliding_window` tokens only; 0 where none do, or where llama.cpp ignores it."""
    arch = info.architecture
    if not info.is_generative:  # then nobody has checked its numbers
        return 0
    if info.sliding_window is None or arch not in _WINDOW_PATTERNS:
        return 0
    key = f"{arch}.attention.sliding_window_pattern"
    if key in info.arrays:
        return sum(bool(value) for value in info.read_array(key)[: info.num_layers])
    said = info.metadata.get(key, _WINDOW_PATTERNS[arch])
    if not isinstance(said, int) or isinstance(said, bool):
        return 0
    # llama_hparams::set_swa_pattern: 0 means every layer has a window, else the last of each `said` has none.
    return sum(said == 0 or layer % said < said - 1 for layer in range(info.num_layers))


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
