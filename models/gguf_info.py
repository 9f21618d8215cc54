# A GGUF file on disk → ModelInfo: everything the rest of the house asks about a model, from its header alone.
# This file may not know llama.cpp bindings, networks or terminals; it imports nothing outside the standard library.
"""``read_model_info``: the door every model file passes before native code sees it.

No weights are read: the header is parsed from a mapping of the file. A file that passes has been checked for
everything llama.cpp's own loader checks and for what makes it abort (see gguf_parser and gguf_rules).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final

from ingle.models import gguf_parser, gguf_rules
from ingle.models.errors import BadModelFile, UnsupportedModel
from ingle.models.ggml_types import FILE_TYPES
from ingle.models.gguf_header import ArrayRef, Header, HeaderError, Scalar, TensorInfo
from ingle.models.gguf_reader import Buffer
from ingle.models.gguf_shards import UNSUPPORTED_HINT, ParseShard, add_shards, user_error
from ingle.models.mapped_file import DAMAGED_HINT, MappedFile
from ingle.models.short_vocabulary import ShortVocabulary, check_short_vocabulary

__all__ = ["ArrayRef", "ModelInfo", "TensorInfo", "read_model_info"]

TOKENS_KEY: Final = "tokenizer.ggml.tokens"
_DRAFT_HINT: Final = "Name the model that it drafts for with -m."
# Tokens that give away the chat format of a model without a template.
_CHAT_MARKERS: Final = (
    *("<|im_start|>", "<|im_end|>", "<start_of_turn>", "<end_of_turn>"),
    *("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
)
# Pre-tokenizers for which llama-vocab.cpp turns add_bos on when the file does not say.
_PRE_ADDS_BOS: Final = frozenset(
    {"llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano"}
    | {"tekken", "chameleon"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """A model as its header describes it. Sizes are in bytes and tokens; `None` means the file does not say."""

    path: Path
    size_bytes: int  # of all shards
    gguf_version: int
    architecture: str
    name: str | None
    size_label: str | None
    licence: str | None
    file_type: str | None  # "Q4_K_M"
    num_params: int
    n_ctx_train: int  # tokens
    num_layers: int
    n_embd: int
    n_head: int | tuple[int, ...]  # one number, or one a layer where layers differ
    n_head_kv: int | tuple[int, ...]
    key_length: int  # values a head
    value_length: int
    sliding_window: int | None  # tokens
    vocab_size: int
    tokenizer_model: str | None
    chat_template: str | None
    bos_token: str | None
    eos_token: str | None
    add_bos: bool
    characters: frozenset[str] | None  # all that text may consist of; None: any character has a token
    chat_markers: frozenset[str]  # which of _CHAT_MARKERS are in the vocabulary
    split_count: int
    not_generative: str | None  # "an embedding model: it cannot generate text"
    short_vocabulary: ShortVocabulary | None  # of a file that can only draft; its `vocab_size` counts rows
    layer_values: Mapping[str, tuple[int, ...]] = field(repr=False)  # arrays of whole numbers with one for each layer
    metadata: Mapping[str, Scalar] = field(repr=False)
    arrays: Mapping[str, ArrayRef] = field(repr=False)
    tensors: Sequence[TensorInfo] = field(repr=False)

    @property
    def is_generative(self) -> bool:
        return self.not_generative is None

    @property
    def weights_bytes(self) -> int:
        """Bytes of all tensors, without header and padding."""
        return sum(t.num_bytes for t in self.tensors)

    @property
    def bits_per_weight(self) -> float:
        return 8 * self.weights_bytes / self.num_params if self.num_params else 0.0

    def kv_bytes_per_token(self, type_k: str = "f16", type_v: str = "f16") -> int:
        """Bytes of K and V cache one token takes over all layers that have a cache (see ``kv_layout``).

        Raises ValueError for an unknown type or one whose blocks do not divide a row.
        """
        from ingle.models.kv_layout import kv_layout

        return kv_layout(self).bytes_per_token(type_k, type_v)

    def read_array(self, key: str) -> list[Scalar]:
        """Decode the metadata array `key` from the file. Raises KeyError when there is none, BadModelFile when the
        file has changed since its header was read."""
        ref = self.arrays[key]
        with MappedFile(self.path) as buf:
            try:
                return gguf_parser.read_array(buf, ref)
            except HeaderError:
                raise BadModelFile(f"{self.path} has changed on disk since it was opened", DAMAGED_HINT) from None


def read_model_info(
    path: str | os.PathLike[str], *, require_generative: bool = True, to_draft: bool = False
) -> ModelInfo:
    """Read and check the header of the GGUF at `path` (for a split model: of all its shards, given the first).

    With `require_generative` false, embedding models and the like are described instead of refused; with `to_draft`
    files that can do nothing but draft, whose vocabulary is short, are as good as others.
    Raises ModelNotFound, BadModelFile, UnsupportedModel.
    """
    file = Path(path)
    try:
        with MappedFile(file) as buf:
            header = gguf_parser.parse_header(buf, keep=TOKENS_KEY)
            return describe_header(
                file, buf, header, _parse_shard, require_generative=require_generative, to_draft=to_draft
            )
    except HeaderError as error:
        raise user_error(file, error) from None


def describe_header(
    path: Path,
    buf: Buffer,
    header: Header,
    parse_shard: ParseShard,
    *,
    require_generative: bool,
    to_draft: bool = False,
) -> ModelInfo:
    """Check what `header`, parsed from `buf` and with its tokens kept, says, and its other shards. Raises HeaderError,
    BadModelFile, UnsupportedModel."""
    arch = gguf_rules.architecture(header)
    reason = gguf_rules.why_not_generative(header, arch)
    is_draft = reason == gguf_rules.DRAFT_FILE
    if reason is not None and require_generative and not (is_draft and to_draft):
        raise UnsupportedModel(f"{path} is {reason}", _DRAFT_HINT if is_draft else UNSUPPORTED_HINT)
    tokens, vocabulary = header.kept, set(header.kept)
    split_count = add_shards(path, header, parse_shard)

    def read(ref: ArrayRef) -> list[Scalar]:
        return gguf_parser.read_array(buf, ref)

    short = check_short_vocabulary(header, arch, read) if is_draft else None
    if reason is None or short is not None:
        gguf_rules.check_hyperparameters(header, arch, read)
        if short is None:
            gguf_rules.check_tokenizer(header, tokens, vocabulary)
        gguf_rules.check_tensors(header, len(tokens) if short is None else short.num_rows)
    markers = frozenset(m for m in _CHAT_MARKERS if m.encode() in vocabulary)
    characters = gguf_rules.covered_characters(header, tokens, vocabulary)
    return _describe(path, header, arch, reason, short, tokens, markers, characters, split_count, buf)


def _parse_shard(path: Path) -> Header | None:
    if not path.exists():
        return None
    with MappedFile(path) as buf:
        return gguf_parser.parse_header(buf)


def _describe(
    path: Path,
    header: Header,
    arch: str,
    reason: str | None,
    short: ShortVocabulary | None,
    tokens: list[bytes],
    chat_markers: frozenset[str],
    characters: frozenset[str] | None,
    split_count: int,
    buf: Buffer,
) -> ModelInfo:
    num_layers = _int(header, f"{arch}.block_count")
    n_embd = _int(header, f"{arch}.embedding_length")
    n_head = _per_layer(header, f"{arch}.attention.head_count", buf)
    n_head_kv = _per_layer(header, f"{arch}.attention.head_count_kv", buf) or n_head
    first_head = n_head[0] if isinstance(n_head, tuple) else n_head
    head_length = n_embd // first_head if first_head else 0
    file_type = header.scalars.get("general.file_type")
    return ModelInfo(
        path=path,
        size_bytes=header.size_bytes,
        gguf_version=header.version,
        architecture=arch,
        name=_str(header, "general.name"),
        size_label=_str(header, "general.size_label"),
        licence=_str(header, "general.license"),
        file_type=FILE_TYPES.get(file_type) if isinstance(file_type, int) else None,
        num_params=sum(t.num_values for t in header.tensors),
        n_ctx_train=_int(header, f"{arch}.context_length"),
        num_layers=num_layers,
        n_embd=n_embd,
        n_head=n_head,
        n_head_kv=n_head_kv,
        key_length=_int(header, f"{arch}.attention.key_length") or head_length,
        value_length=_int(header, f"{arch}.attention.value_length") or head_length,
        sliding_window=_int(header, f"{arch}.attention.sliding_window") or None,
        vocab_size=len(tokens) or _int(header, f"{arch}.vocab_size"),
        tokenizer_model=_str(header, "tokenizer.ggml.model"),
        chat_template=_str(header, "tokenizer.chat_template"),
        bos_token=_special_token(header, tokens, "bos", 1),
        eos_token=_special_token(header, tokens, "eos", 2),
        add_bos=_adds_bos(header),
        characters=characters,
        chat_markers=chat_markers,
        split_count=split_count,
        not_generative=reason,
        short_vocabulary=short,
        layer_values=MappingProxyType(_layer_values(header, num_layers, buf)),
        metadata=MappingProxyType(header.scalars),
        arrays=MappingProxyType(header.arrays),
        tensors=tuple(header.tensors),
    )


def _special_token(header: Header, tokens: list[bytes], name: str, spm_default: int) -> str | None:
    token_id = header.scalars.get(f"tokenizer.ggml.{name}_token_id")
    if token_id is None and _str(header, "tokenizer.ggml.model") == "llama":
        token_id = spm_default
    if not isinstance(token_id, int) or not 0 <= token_id < len(tokens):
        return None
    return tokens[token_id].decode("utf-8", "replace")


def _adds_bos(header: Header) -> bool:
    """llama-vocab.cpp: the key when there, else what the kind of tokenizer is known to want."""
    said = header.scalars.get("tokenizer.ggml.add_bos_token")
    if isinstance(said, bool):
        return said
    return _str(header, "tokenizer.ggml.model") in ("llama", "bert") or (
        _str(header, "tokenizer.ggml.pre") in _PRE_ADDS_BOS
    )


def _layer_values(header: Header, num_layers: int, buf: Buffer) -> dict[str, tuple[int, ...]]:
    return {
        key: tuple(int(value) for value in gguf_parser.read_array(buf, ref))
        for key, ref in header.arrays.items()
        if ref.count == num_layers and ref.type not in ("str", "f32", "f64") and not key.startswith("tokenizer.")
    }


def _int(header: Header, key: str) -> int:
    value = header.scalars.get(key, 0)
    return int(value) if isinstance(value, int) else 0


def _str(header: Header, key: str) -> str | None:
    value = header.scalars.get(key)
    return value if isinstance(value, str) and value else None


def _per_layer(header: Header, key: str, buf: Buffer) -> int | tuple[int, ...]:
    ref = header.arrays.get(key)
    if ref is None or ref.type in ("str", "f32", "f64") or not ref.count:
        return _int(header, key)
    values = tuple(int(v) for v in gguf_parser.read_array(buf, ref))
    return values[0] if len(set(values)) == 1 else values
