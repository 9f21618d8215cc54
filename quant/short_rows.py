# Which tokens a short vocabulary keeps, and what is read in place of the others. Pure.
# This file may not know files, models or what is drafted.
"""``choose_tokens`` and ``reads_as``: a vocabulary → the rows of a draft file.

A draft is a guess, so it need not know every word: its output head is cut down to the tokens that are likely (Zhao et
al., "FR-Spec: Accelerating Large-Vocabulary Language Models via Frequency-Ranked Speculative Sampling", 2025). How
frequent a token is nobody has to count: BPE's merges, and the ids with them, come in that order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from ingle.models.gguf_info import TOKENS_KEY, ModelInfo

NUM_TOKENS: Final = 65_536
"""Of the tokens of a vocabulary of at least twice as many. Code from a 1.5B model, drafted three tokens at a time by a
0.5B one of the same 151,936: 2.42 of three were right with all of them, 2.34 with so many and 2.23 with half as many,
and a draft took 16 or 22 % less."""

_NORMAL: Final = 1  # LLAMA_TOKEN_TYPE_NORMAL
_UNKNOWN: Final = 2  # LLAMA_TOKEN_TYPE_UNKNOWN
_UNUSED: Final = 5  # LLAMA_TOKEN_TYPE_UNUSED
_BYTE: Final = 6  # LLAMA_TOKEN_TYPE_BYTE
_BYTE_LEVEL: Final = frozenset({"gpt2"})  # tokenizers whose texts have a character for each byte


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """`texts` and `kinds` (llama_token_type) of all tokens, as the file has them."""

    texts: Sequence[str]
    kinds: Sequence[int]
    is_byte_level: bool

    @classmethod
    def of(cls, info: ModelInfo) -> Vocabulary:
        """Raises BadModelFile when the file has changed since its header was read."""
        texts = [str(text) for text in info.read_array(TOKENS_KEY)]
        key = "tokenizer.ggml.token_type"
        kinds = [int(kind) for kind in info.read_array(key)] if key in info.arrays else [_NORMAL] * len(texts)
        return cls(texts, kinds, info.tokenizer_model in _BYTE_LEVEL)


def num_worth_keeping(vocab_size: int) -> int | None:
    """Of a vocabulary, how many tokens a draft file should know; None: all."""
    return NUM_TOKENS if vocab_size >= 2 * NUM_TOKENS else None


def choose_tokens(vocabulary: Vocabulary, used: Iterable[int], num_tokens: int) -> list[int]:
    """Ids of the tokens to keep, ascending: those without which a text could not be read at all, those that are `used`,
    and then the lowest until there are `num_tokens`. More, where the first two are more; never what is marked as unused
    and is not used."""
    kept = set(used)
    rest = []
    for token, (text, kind) in enumerate(zip(vocabulary.texts, vocabulary.kinds, strict=True)):
        if kind == _UNUSED:
            continue
        if kind != _NORMAL or (vocabulary.is_byte_level and len(text) == 1):
            kept.add(token)
        elif token not in kept:
            rest.append(token)
    return sorted(kept.union(rest[: max(0, num_tokens - len(kept))]))


def reads_as(vocabulary: Vocabulary, token_ids: Sequence[int]) -> list[int]:
    """[tokens] For each token its row among `token_ids`. For one that is left out, that of the longest kept token with
    which its text ends: what comes next depends most on how the last word ended. Where there is none, the last byte's,
    else the unknown token's, else row 0."""
    texts, kinds = vocabulary.texts, vocabulary.kinds
    rows = {token: row for row, token in enumerate(token_ids)}
    endings = {texts[token]: row for token, row in rows.items() if kinds[token] == _NORMAL}
    bytes_of = {texts[token]: row for token, row in rows.items() if kinds[token] == _BYTE}
    num_characters = max(map(len, endings), default=0)
    unknown = next((row for token, row in rows.items() if kinds[token] == _UNKNOWN), 0)

    def nearest(text: str) -> int:
        for start in range(max(1, len(text) - num_characters), len(text)):
            if (row := endings.get(text[start:])) is not None:
                return row
        byte = f"<0x{text.encode()[-1]:02X}>" if text else ""
        return bytes_of.get(byte, unknown)

    return [rows[token] if token in rows else nearest(text) for token, text in enumerate(texts)]
