# Whether two models mean the same by a token id: their vocabularies compared, from the headers alone.
# This file may not know what that is wanted for.
"""``find_difference``: the first thing in which two vocabularies differ, in words.

Makers pad vocabularies to round sizes; tokens that are marked as unused at the end of the longer one are no difference.
"""

from __future__ import annotations

from typing import Final

from ingle.models.gguf_info import ModelInfo

_TOKENS: Final = "tokenizer.ggml.tokens"
_TYPES: Final = "tokenizer.ggml.token_type"
_NORMAL: Final = 1  # LLAMA_TOKEN_TYPE_NORMAL, what a file without types means
_UNUSED: Final = 5  # LLAMA_TOKEN_TYPE_UNUSED


def find_difference(one: ModelInfo, other: ModelInfo) -> str | None:
    """What tells the vocabulary of `one` from that of `other`, with both facts; None: they are the same.

    Raises BadModelFile when a file has changed since its header was read.
    """
    if one.tokenizer_model != other.tokenizer_model:
        return f"its tokenizer is {other.tokenizer_model}, not {one.tokenizer_model}"
    ours, theirs = _tokens(one), _tokens(other)
    for number, (a, b) in enumerate(zip(ours, theirs, strict=False)):
        if a != b:
            if a[0] != b[0]:
                return f"token {number} is {_shown(b[0])} in it and {_shown(a[0])} here"
            return f"token {number} ({_shown(a[0])}) is of type {b[1]} in it and of type {a[1]} here"
    num_common = min(len(ours), len(theirs))
    for text, kind in (*ours[num_common:], *theirs[num_common:]):
        if kind != _UNUSED:
            return f"it has {len(theirs)} tokens, not {len(ours)}, and {_shown(text)} is no padding"
    return None


def _tokens(info: ModelInfo) -> list[tuple[object, object]]:
    """(text, type) of each token."""
    if _TOKENS not in info.arrays:
        return []
    texts = info.read_array(_TOKENS)
    kinds = info.read_array(_TYPES) if _TYPES in info.arrays else [_NORMAL] * len(texts)
    return list(zip(texts, kinds, strict=False))


def _shown(text: object) -> str:
    return repr(text.decode("utf-8", "replace") if isinstance(text, bytes) else text)
