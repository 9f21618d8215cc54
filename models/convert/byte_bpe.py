# A byte-level BPE of a tokenizer.json → Vocabulary ("gpt2" in GGUF).
# This file may not know special tokens: tokenizer.py adds them.
"""GPT-2's kind of tokenizer: every byte has a letter, words are cut by a regular expression, merges are ranked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ingle.models.convert.pre_tokenizers import digest, identify
from ingle.models.convert.refusal import elsewhere, nowhere
from ingle.models.convert.vocabulary import Token, Vocabulary, place
from ingle.models.errors import BadModelFile

_HINT = "The file is damaged: fetch it again."


def is_byte_level(tokenizer: Mapping[str, Any]) -> bool:
    """Whether a tokenizer.json with a BPE model works on bytes (else it is SentencePiece's kind)."""
    parts = [tokenizer.get("pre_tokenizer"), tokenizer.get("decoder")]
    while parts:
        part = parts.pop()
        if isinstance(part, dict):
            if part.get("type") == "ByteLevel":
                return True
            for inner in (part.get("pretokenizers"), part.get("decoders")):
                parts += inner if isinstance(inner, list) else []
    return False


def read_byte_bpe(tokenizer: Mapping[str, Any], directory: Path) -> Vocabulary:
    """The vocabulary without special tokens. Raises UnsupportedModel for an unknown way of cutting words."""
    model = tokenizer["model"]
    known = identify(tokenizer)
    if known is None:
        raise elsewhere(f"its pre-tokenizer is unknown (hash {digest(tokenizer)[:16]})", directory)
    for option in ("continuing_subword_prefix", "end_of_word_suffix", "dropout"):
        if model.get(option):
            raise nowhere(f"its tokenizer uses {option}")
    notes = () if known.note is None else (known.note,)
    return Vocabulary(
        model="gpt2",
        pre=known.name,
        tokens=read_vocab(model),
        merges=[f"{left} {right}" for left, right in read_merges(model)],
        notes=(*notes, *_normalizer_notes(tokenizer.get("normalizer"))),
    )


def _normalizer_notes(normalizer: Any) -> tuple[str, ...]:
    if normalizer is None or (isinstance(normalizer, dict) and normalizer.get("normalizers") == []):
        return ()
    if isinstance(normalizer, dict) and normalizer.get("type") == "NFC":
        return ("text in decomposed Unicode (NFD) is tokenized as it stands, without NFC",)
    kind = normalizer.get("type") if isinstance(normalizer, dict) else normalizer
    raise nowhere(f"its tokenizer normalizes text ({kind})")


def read_vocab(model: Mapping[str, Any]) -> list[Token | None]:
    """``vocab`` of a BPE model: tokens by id. Raises BadModelFile."""
    vocab = model.get("vocab")
    if not isinstance(vocab, dict) or not vocab:
        raise BadModelFile("tokenizer.json has no vocab", _HINT)
    tokens: list[Token | None] = []
    for text, number in vocab.items():
        if type(number) is not int:
            raise BadModelFile(f"tokenizer.json: the token {text!r} has the number {number!r}", _HINT)
        place(tokens, number, Token(text))
    return tokens


def read_merges(model: Mapping[str, Any]) -> list[tuple[str, str]]:
    """``merges`` of a BPE model, as pairs, in order of rank: written "a b" once, ["a", "b"] since. Raises
    BadModelFile."""
    merges = model.get("merges")
    pairs = [tuple(m.split(" ")) if isinstance(m, str) else tuple(m) for m in merges] if merges else []
    if not pairs or any(len(pair) != 2 or not all(isinstance(side, str) for side in pair) for pair in pairs):
        raise BadModelFile("tokenizer.json has no merges, or malformed ones", _HINT)
    if any(" " in side for pair in pairs for side in pair):
        raise nowhere("its tokenizer merges pieces with spaces in them")
    return [(left, right) for left, right in pairs]
