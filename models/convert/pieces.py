# SentencePiece's kinds of tokenizer, BPE and unigram, from tokenizer.model or tokenizer.json → Vocabulary.
# This file may not know special tokens: tokenizer.py adds them.
"""Spaces become ▁; then pieces are merged by score ("llama" in GGUF), or the likeliest cut is found ("t5").

llama.cpp's BPE has no normalization of its own and merges by the score of the result. From a tokenizer.json the scores
are the ranks of the merges: the same, as long as the merges are all that SentencePiece would do, which is checked.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Any, Final

from ingle.models.convert.byte_bpe import read_merges, read_vocab
from ingle.models.convert.refusal import nowhere
from ingle.models.convert.sentencepiece_model import SentencePieceModel
from ingle.models.convert.vocabulary import Token, TokenType, Vocabulary
from ingle.models.errors import BadModelFile

SPACE: Final = "\N{LOWER ONE EIGHTH BLOCK}"
_BYTE: Final = re.compile(r"<0x[0-9A-F]{2}>")
_HINT: Final = "The file is damaged: fetch it again."


def from_model(model: SentencePieceModel) -> Vocabulary:
    """The vocabulary of a tokenizer.model."""
    if not model.escape_whitespaces or model.whitespace_is_suffix:
        raise nowhere("its tokenizer keeps spaces elsewhere than in front of words")
    tokens = [Token(p.text, TokenType(p.type), p.score) for p in model.pieces]
    if model.is_bpe:
        if model.charsmap or model.remove_extra_whitespaces:
            raise nowhere("its SentencePiece BPE normalizes text")
        return _bpe(tokens, prefix=model.add_dummy_prefix)
    return _unigram(
        tokens,
        byte_fallback=model.byte_fallback,
        prefix=model.add_dummy_prefix,
        remove_extra=model.remove_extra_whitespaces,
        charsmap=model.charsmap or None,
    )


def bpe_from_json(tokenizer: Mapping[str, Any], added: frozenset[int]) -> Vocabulary:
    """The vocabulary of a tokenizer.json that SentencePiece's BPE became. `added`: ids its added_tokens describe."""
    model = tokenizer["model"]
    if not model.get("byte_fallback"):
        raise nowhere("its BPE tokenizer works neither on bytes nor with bytes to fall back to")
    prefix = _spaces(tokenizer, model.get("vocab") or {})
    tokens, merges = read_vocab(model), read_merges(model)
    # Added tokens are looked for in the text before anything is merged. (Gemma's runs of spaces are some, and merges.)
    apart = {token.text for number, token in enumerate(tokens) if token is not None and number in added}
    ranks = _ranks([(left, right) for left, right in merges if left + right not in apart])
    _check_complete(tokens, added, merges)
    scored: list[Token | None] = []
    for number, token in enumerate(tokens):
        if token is None:
            scored.append(None)
        elif token.text == model.get("unk_token"):
            scored.append(Token(token.text, TokenType.UNKNOWN))
        elif _BYTE.fullmatch(token.text):
            scored.append(Token(token.text, TokenType.BYTE))
        else:
            scored.append(Token(token.text, TokenType.NORMAL, -float(ranks.get(token.text, len(ranks) + number))))
    return _bpe(scored, prefix=prefix)


def _ranks(merges: list[tuple[str, str]]) -> dict[str, int]:
    """Result of a merge → its rank among results. Raises UnsupportedModel where a result has two separate ranks."""
    ranks: dict[str, int] = {}
    before = None
    for left, right in merges:
        result = left + right
        if result != before and result in ranks:
            raise nowhere("the merges of its tokenizer are not in the order of scores")
        ranks.setdefault(result, len(ranks))
        before = result
    return ranks


def _check_complete(tokens: list[Token | None], added: frozenset[int], merges: list[tuple[str, str]]) -> None:
    """Every two tokens that make up a third must be a merge: llama.cpp merges them without asking for one."""
    texts = {token.text for token in tokens if token is not None}
    pairs = set(merges)
    for number, token in enumerate(tokens):
        if token is None or number in added or len(token.text) < 2 or _BYTE.fullmatch(token.text):
            continue
        for at in range(1, len(token.text)):
            left, right = token.text[:at], token.text[at:]
            if left in texts and right in texts and (left, right) not in pairs:
                raise nowhere(f"its tokenizer has no merge for {left!r} and {right!r}")


def _spaces(tokenizer: Mapping[str, Any], texts: Mapping[str, Any]) -> bool:
    """Whether a space is put in front of text. Raises UnsupportedModel for any other treatment of text than
    SentencePiece's: spaces become ▁, and no more."""
    prefix = replaced = False
    for step in _flat(tokenizer.get("normalizer"), "normalizers"):
        if step == {"type": "Prepend", "prepend": SPACE}:
            prefix = True
        elif step == {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}:
            replaced = True
        else:
            raise nowhere(f"its tokenizer normalizes text ({step.get('type')})")
    for step in _flat(tokenizer.get("pre_tokenizer"), "pretokenizers"):
        if step.get("type") == "Metaspace" and step.get("replacement") == SPACE:
            prefix, replaced = prefix or _prepends(step), True
            if step.get("split", True) and any(SPACE in text.lstrip(SPACE)[:-1] for text in texts):
                raise nowhere("its tokenizer cuts at spaces but has tokens with spaces inside")
            if step.get("split", True) and any(len(text) > 1 and not text.strip(SPACE) for text in texts):
                raise nowhere("its tokenizer cuts at spaces but has tokens of several spaces")
        elif not (step.get("type") == "Split" and step.get("pattern") == {"String": " "} and replaced):
            raise nowhere(f"its tokenizer cuts text ({step.get('type')})")
    if not replaced:
        raise nowhere("its tokenizer does not mark spaces")
    return prefix


def _flat(section: Any, inner: str) -> list[dict[str, Any]]:
    if section is None:
        return []
    if not isinstance(section, dict):
        raise BadModelFile("tokenizer.json: a step is not an object", _HINT)
    if section.get("type") == "Sequence":
        return [step for part in section.get(inner) or [] for step in _flat(part, inner)]
    return [section]


def _prepends(metaspace: Mapping[str, Any]) -> bool:
    scheme = metaspace.get("prepend_scheme")
    return scheme in ("always", "first") if scheme is not None else bool(metaspace.get("add_prefix_space", True))


def unigram_from_json(tokenizer: Mapping[str, Any]) -> Vocabulary:
    """The vocabulary of a tokenizer.json with a unigram model."""
    model = tokenizer["model"]
    entries = model.get("vocab")
    if not isinstance(entries, list) or not entries:
        raise BadModelFile("tokenizer.json has no vocab", _HINT)
    tokens = []
    for number, entry in enumerate(entries):
        if not (isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], str)):
            raise BadModelFile(f"tokenizer.json: token {number} is malformed", _HINT)
        kind = TokenType.UNKNOWN if number == model.get("unk_id") else TokenType.NORMAL
        tokens.append(Token(entry[0], kind, float(entry[1])))
    charsmap, strips, collapses = None, False, False
    for step in _flat(tokenizer.get("normalizer"), "normalizers"):
        if step.get("type") == "Precompiled":
            charsmap = _charsmap(step)
        elif step.get("type") == "Strip" and step.get("strip_right"):
            strips = True
        elif step.get("type") == "Replace" and step.get("pattern") == {"Regex": " {2,}"}:
            collapses = True
        else:
            raise nowhere(f"its tokenizer normalizes text ({step.get('type')})")
    steps = _flat(tokenizer.get("pre_tokenizer"), "pretokenizers")
    if steps and steps[0].get("type") == "WhitespaceSplit":
        strips = collapses = True
        steps = steps[1:]
    if len(steps) != 1 or steps[0].get("type") != "Metaspace" or strips != collapses:
        raise nowhere("its unigram tokenizer treats spaces in an unusual way")
    return _unigram(
        tokens,
        byte_fallback=bool(model.get("byte_fallback")),
        prefix=_prepends(steps[0]),
        remove_extra=collapses,
        charsmap=charsmap,
    )


def _charsmap(step: Mapping[str, Any]) -> bytes | None:
    try:
        return base64.b64decode(step.get("precompiled_charsmap") or "", validate=True) or None
    except (binascii.Error, TypeError, ValueError):
        raise BadModelFile("tokenizer.json: precompiled_charsmap is not base64", _HINT) from None


def _bpe(tokens: list[Token | None] | list[Token], *, prefix: bool) -> Vocabulary:
    return Vocabulary(
        model="llama",
        pre="default",
        tokens=tokens,
        has_scores=True,
        add_space_prefix=prefix,
    )


def _unigram(
    tokens: list[Token], *, byte_fallback: bool, prefix: bool, remove_extra: bool, charsmap: bytes | None
) -> Vocabulary:
    if byte_fallback:
        raise nowhere("its unigram tokenizer falls back to bytes")
    return Vocabulary(
        model="t5",
        pre="default",
        tokens=tokens,
        has_scores=True,
        add_space_prefix=prefix,
        remove_extra_whitespaces=remove_extra,
        charsmap=charsmap,
    )
