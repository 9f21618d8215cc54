# How a byte-level BPE cuts text before it merges, told from tokenizer.json, and llama.cpp's name of it.
# This file may not know vocabularies.
"""The table of known pre-tokenizers.

llama.cpp's own converter tells them apart by hashing the tokens of a test text, which takes a running tokenizer. The
description in tokenizer.json is as telling: its ``pre_tokenizer`` section, brought into one form, is hashed and
looked up. Regular expressions in the rows are those of the tokenizer files; llama.cpp's are in ``llm_tokenizer_bpe``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

_CONTRACTIONS: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES: Final = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_CL100K: Final = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_QWEN2: Final = _CL100K.replace(r"\p{N}{1,3}", r"\p{N}")
_QWEN35: Final = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_UPPER: Final = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER: Final = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_WORD: Final = r"[^\r\n\p{L}\p{N}]?"
_TEKKEN: Final = (
    rf"{_WORD}{_UPPER}*{_LOWER}+|{_WORD}{_UPPER}+{_LOWER}*|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)
_O200K: Final = (
    rf"{_WORD}{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|{_WORD}{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)
_CASES: Final = "llama.cpp cuts some words with non-ASCII capitals or combining marks at other places"


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """A known one: llama.cpp's `name`, the `steps` in the form of `canonical`, and what differs there, if anything."""

    name: str
    steps: tuple[tuple[Any, ...], ...]
    ignore_merges: bool = False  # a word that is a token is taken whole
    note: str | None = None


def _split(pattern: str) -> tuple[tuple[Any, ...], ...]:
    return (("split", pattern), ("bytes", False, False))


_KNOWN: Final = (
    PreTokenizer("llama-bpe", _split(_CL100K), ignore_merges=True),  # Llama 3
    PreTokenizer("dbrx", _split(_CL100K)),  # the same cuts; Phi-4
    PreTokenizer("qwen2", _split(_QWEN2)),
    PreTokenizer("qwen35", _split(_QWEN35)),
    PreTokenizer("tekken", _split(_TEKKEN), ignore_merges=True, note=_CASES),  # Mistral Nemo
    # Phi-4 mini. llama.cpp's "gpt-4o" also cuts before combining marks, which this one of the same expression does not.
    PreTokenizer("granite-embed-multi-97m", _split(_O200K), note=_CASES),
    PreTokenizer("gpt-2", (("bytes", False, True),)),
    PreTokenizer("smollm", (("digits", True), ("bytes", False, True))),  # also StarCoder, Granite
)


def identify(tokenizer: Mapping[str, Any]) -> PreTokenizer | None:
    """The known pre-tokenizer that a parsed tokenizer.json describes."""
    wanted = digest(tokenizer)
    for known in _KNOWN:
        if _hash(known.steps, known.ignore_merges) == wanted:
            return known
    return None


def digest(tokenizer: Mapping[str, Any]) -> str:
    """SHA-256 over the canonical form of the pre-tokenizer, in hexadecimal."""
    model = tokenizer.get("model")
    ignore_merges = isinstance(model, dict) and model.get("ignore_merges") is True
    return _hash(canonical(tokenizer.get("pre_tokenizer")), ignore_merges)


def canonical(section: Any) -> tuple[tuple[Any, ...], ...]:
    """A ``pre_tokenizer`` section as a flat tuple of steps; what it may hold beyond the table is kept as JSON."""
    if section is None:
        return ()
    if not isinstance(section, dict):
        return (("unknown", json.dumps(section, sort_keys=True)),)
    kind = section.get("type")
    if kind == "Sequence" and isinstance(section.get("pretokenizers"), list):
        return tuple(step for part in section["pretokenizers"] for step in canonical(part))
    if kind == "Split" and isinstance(section.get("pattern"), dict):
        pattern = section["pattern"].get("Regex")
        # "Isolated" keeps matches and what lies between; "Removed" inverted keeps the matches, which here cover all.
        manner = (section.get("behavior"), bool(section.get("invert")))
        if isinstance(pattern, str) and manner in (("Isolated", False), ("Removed", True)):
            return (("split", pattern.replace("\r", r"\r").replace("\n", r"\n")),)
    if kind == "Digits":
        return (("digits", bool(section.get("individual_digits"))),)
    if kind == "ByteLevel":
        return (("bytes", bool(section.get("add_prefix_space", True)), bool(section.get("use_regex", True))),)
    return (("unknown", json.dumps(section, sort_keys=True)),)


def _hash(steps: tuple[tuple[Any, ...], ...], ignore_merges: bool) -> str:
    return hashlib.sha256(json.dumps([steps, ignore_merges]).encode()).hexdigest()
