# A draft file that knows only some of a vocabulary's tokens: what its header has to say of them, checked.
# This file may not know how tokens are chosen or drafted, nor the container's bytes; it imports no numpy.
"""``ShortVocabulary``: which tokens of a full vocabulary the rows of a draft file stand for.

Such a file has no tokenizer: for llama.cpp its vocabulary is as large as its embedding (LLAMA_VOCAB_TYPE_NONE). Three
keys say what its rows mean, and for which vocabulary:

- ``ingle.draft.token_ids``, u32 [rows]: the token each row stands for, ascending
- ``ingle.draft.reads_as``, u32 [tokens]: the row that is read in place of each token
- ``ingle.draft.vocabulary``, str: the digest of the full vocabulary (``vocabulary.digest``)
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ingle.models import gguf_rules
from ingle.models.gguf_header import Header, HeaderError, Scalar
from ingle.models.gguf_rules import TOKEN_IDS_KEY, ReadArray

if TYPE_CHECKING:
    from ingle.models.gguf_info import ModelInfo

READS_AS_KEY: Final = "ingle.draft.reads_as"
DIGEST_KEY: Final = "ingle.draft.vocabulary"
NO_TOKENIZER: Final = "none"
"""What llama.cpp takes for a vocabulary without texts."""

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class ShortVocabulary:
    """Of a draft file: `num_rows` of the `num_tokens` tokens of the vocabulary with that digest."""

    num_rows: int
    num_tokens: int
    digest: str


def check_short_vocabulary(header: Header, arch: str, read: ReadArray) -> ShortVocabulary:
    """What the header of a draft file says, once everything in it is known to be within bounds. Raises HeaderError."""
    model = gguf_rules.scalar(header, "tokenizer.ggml.model", "str", required=True)
    if model != NO_TOKENIZER or "tokenizer.ggml.tokens" in header.arrays:
        raise HeaderError(f"a draft file that has a tokenizer ({model}): its tokens would be taken for others")
    ids_ref = gguf_rules.array(header, TOKEN_IDS_KEY, ("u32",), required=True)
    rows_ref = gguf_rules.array(header, READS_AS_KEY, ("u32",), required=True)
    digest = gguf_rules.scalar(header, DIGEST_KEY, "str", required=True)
    assert ids_ref is not None
    assert rows_ref is not None
    assert isinstance(digest, str)
    if _DIGEST.fullmatch(digest) is None:
        raise HeaderError(f"{DIGEST_KEY} is no digest")
    num_rows, num_tokens = ids_ref.count, rows_ref.count
    if not 0 < num_rows <= num_tokens:
        raise HeaderError(f"{TOKEN_IDS_KEY} has {num_rows} entries for a vocabulary of {num_tokens} tokens")
    declared = gguf_rules.positive(header, f"{arch}.vocab_size")
    if declared != num_rows:
        raise HeaderError(f"{arch}.vocab_size is {declared}, and {TOKEN_IDS_KEY} has {num_rows} entries")
    token_ids, reads_as = _numbers(read(ids_ref)), _numbers(read(rows_ref))
    if any(a >= b for a, b in itertools.pairwise(token_ids)):
        raise HeaderError(f"{TOKEN_IDS_KEY} does not ascend")
    if (last := token_ids[-1]) >= num_tokens:
        raise HeaderError(f"{TOKEN_IDS_KEY} names token {last} in a vocabulary of {num_tokens}")
    if (row := max(reads_as)) >= num_rows:
        raise HeaderError(f"{READS_AS_KEY} names row {row} of {num_rows}")
    for row, token in enumerate(token_ids):
        if reads_as[token] != row:
            raise HeaderError(f"{READS_AS_KEY} has row {reads_as[token]} for token {token}, which is row {row}")
    return ShortVocabulary(num_rows, num_tokens, digest)


def token_ids(info: ModelInfo) -> list[int]:
    """[rows] Of a draft file. Raises BadModelFile when it has changed since its header was read."""
    return _numbers(info.read_array(TOKEN_IDS_KEY))


def reads_as(info: ModelInfo) -> list[int]:
    """[tokens] Of a draft file. Raises as `token_ids` does."""
    return _numbers(info.read_array(READS_AS_KEY))


def _numbers(values: list[Scalar]) -> list[int]:
    return [int(value) for value in values]
