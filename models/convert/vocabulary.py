# A tokenizer as GGUF stores it. This file may not know the files it was read from.
"""``Vocabulary``: tokens, their types and scores, merges, special ids and flags; ``finish`` fits it to a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Final, Literal

from ingle.models.errors import BadModelFile

_HINT: Final = "The tokenizer's files do not belong together, or are damaged: fetch them again."


class TokenType(IntEnum):
    """``llama_token_type``."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class Token:
    """One token of a vocabulary."""

    text: str
    type: TokenType = TokenType.NORMAL
    score: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """`model` and `pre` are ``tokenizer.ggml.model`` and ``.pre``. `tokens` by id, holes None until ``finish``."""

    model: Literal["gpt2", "llama", "t5"]
    pre: str
    tokens: Sequence[Token | None]
    merges: Sequence[str] | None = None
    has_scores: bool = False
    add_bos: bool | None = None  # None: the tokenizer's file does not say
    add_eos: bool | None = None
    add_space_prefix: bool | None = None
    remove_extra_whitespaces: bool | None = None
    charsmap: bytes | None = None  # SentencePiece's precompiled normalization
    strips_spaces: bool = False  # beside special tokens
    special_ids: Mapping[str, int] = field(default_factory=dict)  # "bos" → id
    chat_templates: Mapping[str, str] = field(default_factory=dict)  # "default" and others
    notes: tuple[str, ...] = ()

    def finish(self, vocab_size: int) -> Vocabulary:
        """One token for each row of the embedding: holes become unused tokens, what has no row is dropped."""
        dropped = [token.text for token in self.tokens[vocab_size:] if token is not None]
        tokens = [*self.tokens[:vocab_size], *[None] * (vocab_size - len(self.tokens))]
        texts = {token.text for token in tokens if token is not None}
        filled: list[Token] = []
        for number, token in enumerate(tokens):
            if token is None:
                text = f"[PAD{number}]"
                while text in texts:
                    text += "]"
                token = Token(text, TokenType.UNUSED, -10_000.0)
            filled.append(token)
        if len({token.text for token in filled}) != len(filled):
            raise BadModelFile("two of the tokenizer's tokens have the same text", _HINT)
        if len(dropped) > 64:
            raise BadModelFile(
                f"the tokenizer has {len(self.tokens)} tokens, the model's embedding {vocab_size}", _HINT
            )
        for name, number in self.special_ids.items():
            if number >= vocab_size:
                raise BadModelFile(f"the {name} token is number {number}, the embedding has {vocab_size} rows", _HINT)
        notes = (f"tokens without an embedding are left out: {', '.join(dropped)}",) if dropped else ()
        return replace(self, tokens=filled, notes=(*self.notes, *notes))


def place(tokens: list[Token | None], number: int, token: Token) -> None:
    """Put `token` at `number`, making holes before it where there are none yet. Raises BadModelFile for absurd ids."""
    if not 0 <= number < 2**22:
        raise BadModelFile(f"the token {token.text!r} has the number {number}", _HINT)
    tokens.extend([None] * (number + 1 - len(tokens)))
    tokens[number] = token


def looks_special(text: str) -> bool:
    """Whether a token that its tokenizer does not call special is meant to be: typed text must not become it."""
    return text.endswith(">") and (
        text.startswith("<unused")
        or (text.startswith("<|") and text.endswith("|>"))
        or (text.startswith("<｜") and text.endswith("｜>"))
    )
