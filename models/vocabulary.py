# Whether two models mean the same by a token id: their vocabularies compared, from the headers alone.
# This file may not know what that is wanted for.
"""``find_difference``: the first thing in which two vocabularies differ, in words.

Makers pad vocabularies to round sizes; tokens that are marked as unused at the end of the longer one are no difference.
A draft file with a short vocabulary has no texts; it has the ``digest`` of the vocabulary that it was made for.
"""

from __future__ import annotations

import hashlib
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
    if one.short_vocabulary is not None or other.short_vocabulary is not None:
        ours, theirs = digest(one), digest(other)
        if ours == theirs:
            return None
        sizes = f"{_num_tokens(other)} tokens (digest {theirs[:8]}), not {_num_tokens(one)} ({ours[:8]})"
        return f"it belongs to a vocabulary of {sizes}"
    if one.tokenizer_model != other.tokenizer_model:
        return f"its tokenizer is {other.tokenizer_model}, not {one.tokenizer_model}"
    our_tokens, their_tokens = _tokens(one), _tokens(other)
    for number, (a, b) in enumerate(zip(our_tokens, their_tokens, strict=False)):
        if a != b:
            if a[0] != b[0]:
                return f"token {number} is {_shown(b[0])} in it and {_shown(a[0])} here"
            return f"token {number} ({_shown(a[0])}) is of type {b[1]} in it and of type {a[1]} here"
    num_common = min(len(our_tokens), len(their_tokens))
    for text, kind in (*our_tokens[num_common:], *their_tokens[num_common:]):
        if kind != _UNUSED:
            return f"it has {len(their_tokens)} tokens, not {len(our_tokens)}, and {_shown(text)} is no padding"
    return None


def digest(info: ModelInfo) -> str:
    """The same, 64 hexadecimal digits, for vocabularies between which there is no difference: SHA-256 over tokenizer,
    texts and types, without what is unused at the end. Raises as `find_difference` does."""
    if info.short_vocabulary is not None:
        return info.short_vocabulary.digest
    tokens = _tokens(info)
    while tokens and tokens[-1][1] == _UNUSED:
        tokens.pop()
    found = hashlib.sha256(f"{info.tokenizer_model}\n{len(tokens)}\n".encode())
    found.update("".join(f"{kind} {len(str(text))} {text}\n" for text, kind in tokens).encode("utf-8", "surrogatepass"))
    return found.hexdigest()


def _num_tokens(info: ModelInfo) -> int:
    return info.vocab_size if info.short_vocabulary is None else info.short_vocabulary.num_tokens


def _tokens(info: ModelInfo) -> list[tuple[object, object]]:
    """(text, type) of each token."""
    if _TOKENS not in info.arrays:
        return []
    texts = info.read_array(_TOKENS)
    kinds = info.read_array(_TYPES) if _TYPES in info.arrays else [_NORMAL] * len(texts)
    return list(zip(texts, kinds, strict=False))


def _shown(text: object) -> str:
    return repr(text.decode("utf-8", "replace") if isinstance(text, bytes) else text)
