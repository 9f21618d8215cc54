# What the runtime demands of a model's keys and tensors before native code may see them.
# This file may not know the container's bytes (gguf_parser does) nor paths; it reads a parsed Header.
"""Semantic checks of a GGUF model.

llama.cpp throws on most of what is wrong with a model, which is merely unfriendly, but *aborts the process* on some of
it (``GGML_ASSERT`` in llama-model.cpp ``load_hparams``, llama-vocab.cpp ``load``, the rope, norm and binary kernels).
The checks below cover both, so that a bad file ends in a sentence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence, Set
from typing import Final

from ingle.models.ggml_types import NOT_FOR_WEIGHTS
from ingle.models.gguf_header import ArrayRef, Header, HeaderError, Scalar

ReadArray = Callable[[ArrayRef], list[Scalar]]

_MAX_LAYERS: Final = 512  # LLAMA_MAX_LAYERS
_MAX_EXPERTS: Final = 1024  # LLAMA_MAX_EXPERTS
_ROPE_SCALINGS: Final = ("none", "linear", "yarn", "longrope")
_NO_ATTENTION: Final = frozenset({"mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"})

_EMBEDDING: Final = "an embedding model: it cannot generate text"
_DIFFUSION: Final = "a diffusion language model: it does not generate text token by token"
_DRAFT_HEAD: Final = "a draft head for another model: it cannot run alone"
_SPEECH: Final = "a speech model: it does not generate text"
DRAFT_FILE: Final = "a draft file: it has no tokenizer; use it with --draft"

TOKEN_IDS_KEY: Final = "ingle.draft.token_ids"
"""An array that only draft files with a short vocabulary have (see short_vocabulary)."""

# general.architecture → why it is not a text generator. Everything else is taken for one.
NOT_GENERATIVE: Final[dict[str, str]] = {
    "bert": _EMBEDDING,
    "modern-bert": _EMBEDDING,
    "nomic-bert": _EMBEDDING,
    "nomic-bert-moe": _EMBEDDING,
    "neo-bert": _EMBEDDING,
    "jina-bert-v2": _EMBEDDING,
    "jina-bert-v3": _EMBEDDING,
    "eurobert": _EMBEDDING,
    "gemma-embedding": _EMBEDDING,
    "llama-embed": _EMBEDDING,
    "t5encoder": _EMBEDDING,
    "t5": "an encoder-decoder model, a kind not supported here",
    "clip": "a vision or audio projector: it cannot run alone",
    "wavtokenizer-dec": _SPEECH,
    "qwen3tts": _SPEECH,
    "pockettts": _SPEECH,
    "dream": _DIFFUSION,
    "llada": _DIFFUSION,
    "llada-moe": _DIFFUSION,
    "rnd1": _DIFFUSION,
    "eagle3": _DRAFT_HEAD,
    "dflash": _DRAFT_HEAD,
    "gemma4-assistant": _DRAFT_HEAD,
}

# general.type → the same, for files that are no model at all.
_NOT_A_MODEL: Final[dict[str, str]] = {
    "adapter": "a LoRA adapter: it only works on top of a model",
    "mmproj": "a vision or audio projector: it cannot run alone",
    "imatrix": "an importance matrix, not a model",
}


def architecture(header: Header) -> str:
    """``general.architecture``, required of every model."""
    value = scalar(header, "general.architecture", "str", required=True)
    assert isinstance(value, str)
    if not value:
        raise HeaderError("general.architecture is empty")
    return value


def why_not_generative(header: Header, arch: str) -> str | None:
    """Why this cannot answer a prompt, in words that follow "is "; None when it can."""
    kind = header.scalars.get("general.type")
    if isinstance(kind, str) and kind in _NOT_A_MODEL:
        return _NOT_A_MODEL[kind]
    if arch in NOT_GENERATIVE:
        return NOT_GENERATIVE[arch]
    pooling = header.scalars.get(f"{arch}.pooling_type", 0)  # LLAMA_POOLING_TYPE_NONE = 0
    if header.scalars.get(f"{arch}.attention.causal") is False or (pooling not in (0, False)):
        return _EMBEDDING
    return DRAFT_FILE if TOKEN_IDS_KEY in header.arrays else None


def check_hyperparameters(header: Header, arch: str, read: ReadArray) -> None:
    """Sizes that ``load_hparams`` asserts on, and head counts the graph divides by. Raises HeaderError."""
    for name in ("context_length", "embedding_length", "block_count"):
        positive(header, f"{arch}.{name}")
    layers = positive(header, f"{arch}.block_count")
    if layers > _MAX_LAYERS:
        raise HeaderError(f"{arch}.block_count is {layers}; at most {_MAX_LAYERS} layers are supported")
    if optional(header, f"{arch}.nextn_predict_layers") > layers:
        raise HeaderError(f"{arch}.nextn_predict_layers is larger than the block count {layers}")
    _check_experts(header, arch, layers, read)
    _check_heads(header, arch, layers, read)
    scaling = scalar(header, f"{arch}.rope.scaling.type", "str")
    if scaling is not None and scaling not in _ROPE_SCALINGS:
        raise HeaderError(f"{arch}.rope.scaling.type is {scaling!r}, not one of {', '.join(_ROPE_SCALINGS)}")
    for name in ("layer_norm_rms_epsilon", "layer_norm_epsilon", "group_norm_epsilon"):
        eps = scalar(header, f"{arch}.attention.{name}", "f32")
        if eps is not None and not (math.isfinite(float(eps)) and float(eps) >= 0):
            raise HeaderError(f"{arch}.attention.{name} is {eps}")
    for name in ("rope.freq_base", "rope.scaling.factor"):
        value = scalar(header, f"{arch}.{name}", "f32")
        if value is not None and not (math.isfinite(float(value)) and float(value) >= 0):
            raise HeaderError(f"{arch}.{name} is {value}")


def _check_experts(header: Header, arch: str, layers: int, read: ReadArray) -> None:
    experts = optional(header, f"{arch}.expert_count")
    used = max(per_layer(header, f"{arch}.expert_used_count", layers, read, default=0))
    groups = optional(header, f"{arch}.expert_group_count")
    groups_used = optional(header, f"{arch}.expert_group_used_count")
    if arch in ("hunyuan_vl", "hunyuan-dense") and experts <= 1:
        experts = used = 0
    if experts > _MAX_EXPERTS:
        raise HeaderError(f"{arch}.expert_count is {experts}; at most {_MAX_EXPERTS} are supported")
    if used > experts or (experts > 0 and used == 0):
        raise HeaderError(f"{arch}.expert_used_count is {used} with {experts} experts")
    if groups and (groups >= experts or (groups > 1 and (experts % groups or not 0 < groups_used < groups))):
        raise HeaderError(f"{arch}: {groups} expert groups ({groups_used} used) do not fit {experts} experts")


def _check_heads(header: Header, arch: str, layers: int, read: ReadArray) -> None:
    heads = per_layer(header, f"{arch}.attention.head_count", layers, read, default=0)
    heads_kv = per_layer(header, f"{arch}.attention.head_count_kv", layers, read, default=None) or heads
    if not any(heads) and arch not in _NO_ATTENTION:
        raise HeaderError(f"{arch}.attention.head_count is missing or zero")
    for layer, (num_q, num_kv) in enumerate(zip(heads, heads_kv, strict=True)):
        if num_q and num_kv and (num_kv > num_q or num_q % num_kv):
            raise HeaderError(f"layer {layer}: {num_q} attention heads cannot share {num_kv} key/value heads")
    embedding = positive(header, f"{arch}.embedding_length")
    key_length = optional(header, f"{arch}.attention.key_length") or (embedding // heads[0] if heads[0] else 0)
    rope = optional(header, f"{arch}.rope.dimension_count")
    if rope % 2 or (key_length and rope > key_length):
        raise HeaderError(f"{arch}.rope.dimension_count is {rope} with attention heads of {key_length}")


def check_tokenizer(header: Header, tokens: Sequence[bytes], vocabulary: Set[bytes]) -> None:
    """What ``llama_vocab::impl::load`` demands: arrays of the right types and lengths, no token twice.

    `vocabulary` is the set of `tokens`, made once by the caller.
    """
    model = scalar(header, "tokenizer.ggml.model", "str", required=True)
    if model in ("none", "no_vocab"):
        raise HeaderError("it has no tokenizer, so it cannot read or write text", unsupported=True)
    array(header, "tokenizer.ggml.tokens", ("str",), required=True)
    if not tokens:
        raise HeaderError("tokenizer.ggml.tokens is empty")
    for name, types in (("scores", ("f32", "i32")), ("token_type", ("i32",))):
        ref = array(header, f"tokenizer.ggml.{name}", types)
        if ref is not None and ref.count != len(tokens):
            raise HeaderError(f"tokenizer.ggml.{name} has {ref.count} entries for {len(tokens)} tokens")
    merges = array(header, "tokenizer.ggml.merges", ("str",))
    if merges is None and model in ("gpt2", "gemma4") and header.scalars.get("tokenizer.ggml.pre") != "kimi-k2":
        raise HeaderError("tokenizer.ggml.merges is missing")
    array(header, "tokenizer.ggml.suppress_tokens", ("i32",))
    if len(vocabulary) != len(tokens):
        first = _first_duplicate(tokens)
        raise HeaderError(f"tokenizer.ggml.tokens holds {first.decode('utf-8', 'replace')!r} twice")
    for name in ("bos", "eos"):
        token_id = optional(header, f"tokenizer.ggml.{name}_token_id")
        if token_id >= len(tokens):
            raise HeaderError(f"tokenizer.ggml.{name}_token_id is {token_id} in a vocabulary of {len(tokens)}")


def covered_characters(header: Header, tokens: Sequence[bytes], vocabulary: Set[bytes]) -> frozenset[str] | None:
    """The characters that text for this model may have; None: any.

    SentencePiece falls back to one token a byte. Where a vocabulary lacks them, llama.cpp ends the process
    (llama_vocab::byte_to_token throws) on the first character that is no token either.
    """
    if header.scalars.get("tokenizer.ggml.model") != "llama":
        return None
    if all(b"<0x%02X>" % byte in vocabulary or bytes([byte]) in vocabulary for byte in range(256)):
        return None
    characters = {text for token in tokens if len(text := token.decode("utf-8", "replace")) == 1}
    return frozenset(characters | ({" "} if "\N{LOWER ONE EIGHTH BLOCK}" in characters else set()))


def _first_duplicate(tokens: Sequence[bytes]) -> bytes:
    seen: set[bytes] = set()
    for token in tokens:
        if token in seen:
            return token
        seen.add(token)
    raise AssertionError("no duplicate")


def check_tensors(header: Header, num_tokens: int) -> None:
    """Weights exist, fit the vocabulary and have types the kernels multiply. Raises HeaderError."""
    if not header.tensors:
        raise HeaderError("it holds no tensors: a vocabulary without weights", unsupported=True)
    for tensor in header.tensors:
        name, shape = tensor.name, tensor.shape
        if name in ("token_embd.weight", "output.weight") and (len(shape) != 2 or shape[1] != num_tokens):
            raise HeaderError(f"tensor {name!r} has shape {'×'.join(map(str, shape))} for {num_tokens} tokens")
        if len(shape) == 1 and name.endswith(("norm.weight", ".bias")) and tensor.type != "F32":
            # ggml's element-wise kernels take F32 as their second operand and abort on anything else.
            raise HeaderError(f"tensor {name!r} has type {tensor.type}; norms and biases must be F32")
        if len(shape) > 1 and tensor.type in NOT_FOR_WEIGHTS and _is_matrix(name):
            raise HeaderError(f"tensor {name!r} has type {tensor.type}, which no kernel multiplies")


def _is_matrix(name: str) -> bool:
    stem = name.removesuffix(".weight").rsplit(".", 1)[-1]
    return stem in ("token_embd", "output") or stem.startswith(("attn_", "ffn_gate", "ffn_up", "ffn_down"))


def scalar(header: Header, key: str, kind: str, *, required: bool = False) -> Scalar | None:
    """The value of `key`, checked to be of GGUF type `kind`; None when absent and not required."""
    if key in header.scalars:
        if header.types[key] != kind:
            raise HeaderError(f"{key} has type {header.types[key]}, not {kind}")
        return header.scalars[key]
    if key in header.arrays:
        raise HeaderError(f"{key} is an array, not a single {kind}")
    if required:
        raise HeaderError(f"{key} is missing")
    return None


def positive(header: Header, key: str) -> int:
    """A required u32 above zero."""
    value = scalar(header, key, "u32", required=True)
    if not value:
        raise HeaderError(f"{key} is 0")
    return int(value)


def optional(header: Header, key: str) -> int:
    """An optional u32; 0 when absent."""
    return int(scalar(header, key, "u32") or 0)


def array(header: Header, key: str, kinds: tuple[str, ...], *, required: bool = False) -> ArrayRef | None:
    """The array `key`, its item type one of `kinds`; None when absent and not required."""
    ref = header.arrays.get(key)
    if ref is None:
        if key in header.scalars:
            raise HeaderError(f"{key} is a single value, not an array")
        if required:
            raise HeaderError(f"{key} is missing")
        return None
    if ref.type not in kinds:
        raise HeaderError(f"{key} is an array of {ref.type}, not of {' or '.join(kinds)}")
    return ref


def per_layer(header: Header, key: str, layers: int, read: ReadArray, *, default: int | None) -> list[int]:
    """A u32 for every layer, or one for all of them. Absent: `default` for each layer, or [] for None."""
    if key in header.arrays:
        ref = array(header, key, ("u32", "i32", "bool"))
        assert ref is not None
        if ref.count != layers:
            raise HeaderError(f"{key} has {ref.count} entries for {layers} layers")
        values = [int(v) for v in read(ref)]
        if min(values) < 0:
            raise HeaderError(f"{key} has a negative entry")
        return values
    value = scalar(header, key, "u32")
    if value is None:
        return [] if default is None else [default] * layers
    return [int(value)] * layers
