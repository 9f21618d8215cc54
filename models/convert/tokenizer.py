# The tokenizer files of a model directory → a finished Vocabulary: added tokens, special ids, flags, chat templates.
# This file may not know weights nor the gguf library.
"""``read_tokenizer``: tokenizer.json where there is one (it is what transformers runs), else tokenizer.model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from ingle.models.convert.byte_bpe import is_byte_level, read_byte_bpe
from ingle.models.convert.config import read_json_if_there
from ingle.models.convert.pieces import SPACE, bpe_from_json, from_model, unigram_from_json
from ingle.models.convert.refusal import elsewhere, nowhere
from ingle.models.convert.sentencepiece_model import read_sentencepiece
from ingle.models.convert.vocabulary import Token, TokenType, Vocabulary, looks_special, place
from ingle.models.errors import BadModelFile

_HINT: Final = "The tokenizer's files are damaged: fetch them again."
# tokenizer_config.json → GGUF's name of the same.
_SPECIAL: Final = {
    "bos_token": "bos",
    "eos_token": "eos",
    "unk_token": "unknown",
    "pad_token": "padding",
    "sep_token": "seperator",  # sic: gguf's spelling
    "mask_token": "mask",
}
# Texts by which llama.cpp finds ends of turns on its own (llama_vocab::impl::load).
_KNOWN_ENDS: Final = frozenset(
    {"<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>", "<|eom_id|>"}
    | {"<EOT>", "_<EOT>", "<｜end▁of▁sentence｜>", "<end_of_utterance>"}
)


@dataclass(frozen=True, slots=True)
class _Files:
    """The parsed files beside the vocabulary itself; {} for those that are not there."""

    tokenizer: Mapping[str, Any]
    settings: Mapping[str, Any]  # tokenizer_config.json
    config: Mapping[str, Any]
    generation: Mapping[str, Any]
    added: Mapping[str, Any]  # added_tokens.json, of old: text → id


def read_tokenizer(directory: Path, vocab_size: int) -> Vocabulary:
    """The tokenizer of a model whose embedding has `vocab_size` rows. Raises UnsupportedModel, BadModelFile,
    ModelNotFound."""
    files = _Files(
        read_json_if_there(directory / "tokenizer.json"),
        read_json_if_there(directory / "tokenizer_config.json"),
        read_json_if_there(directory / "config.json"),
        read_json_if_there(directory / "generation_config.json"),
        read_json_if_there(directory / "added_tokens.json"),
    )
    vocabulary = _base(directory, files)
    tokens = _with_added(list(vocabulary.tokens), vocabulary, files)
    vocabulary = replace(vocabulary, tokens=tokens)
    special = _special_ids(tokens, files)
    add_bos, add_eos = _flags(vocabulary, special, files)
    vocabulary = replace(
        vocabulary,
        special_ids=special,
        add_bos=add_bos,
        add_eos=add_eos,
        strips_spaces=any(entry.get("lstrip") or entry.get("rstrip") for _, entry in _added(files)),
        chat_templates=_chat_templates(directory, files),
    )
    return vocabulary.finish(vocab_size)


def _base(directory: Path, files: _Files) -> Vocabulary:
    model = files.tokenizer.get("model")
    if files.tokenizer:
        if not isinstance(model, dict):
            raise BadModelFile("tokenizer.json has no model", _HINT)
        kind = model.get("type") or ("BPE" if "merges" in model else None)
        if kind == "BPE" and is_byte_level(files.tokenizer):
            return read_byte_bpe(files.tokenizer, directory)
        if kind == "BPE":
            return bpe_from_json(files.tokenizer, frozenset(number for number, _ in _added(files)))
        if kind == "Unigram":
            return unigram_from_json(files.tokenizer)
        raise elsewhere(f"its tokenizer is of the kind {kind}", directory)
    if (directory / "tokenizer.model").is_file():
        return from_model(read_sentencepiece(directory / "tokenizer.model"))
    raise elsewhere("it has neither tokenizer.json nor tokenizer.model", directory)


def _added(files: _Files) -> list[tuple[int, Mapping[str, Any]]]:
    """(id, description) of the tokens beyond the model's own, from whichever file has them."""
    said = files.tokenizer.get("added_tokens")
    if not said:
        table = files.settings.get("added_tokens_decoder") or {}
        said = [{**entry, "id": int(key)} for key, entry in table.items() if key.isdigit() and isinstance(entry, dict)]
        said = said or [{"id": number, "content": text} for text, number in files.added.items()]
    found: list[tuple[int, Mapping[str, Any]]] = []
    for entry in said:
        if not (isinstance(entry, dict) and type(entry.get("id")) is int and isinstance(entry.get("content"), str)):
            raise BadModelFile("an added token of the tokenizer is malformed", _HINT)
        found.append((entry["id"], entry))
    return found


def _with_added(tokens: list[Token | None], vocabulary: Vocabulary, files: _Files) -> list[Token | None]:
    taken = {token.text: number for number, token in enumerate(tokens) if token is not None}
    for number, entry in _added(files):
        text = entry["content"]
        if not text:
            continue
        if taken.get(text, number) != number:
            raise BadModelFile(f"the tokenizer has two numbers for {text!r}", _HINT)
        here = tokens[number] if number < len(tokens) else None
        if here is not None and here.type is TokenType.UNKNOWN:
            continue
        if entry.get("special") or looks_special(text):
            place(tokens, number, Token(text, TokenType.CONTROL))
        else:
            # llama.cpp looks for these in the text as typed, before spaces are marked.
            plain = text if vocabulary.model == "gpt2" else text.replace(SPACE, " ")
            place(tokens, number, Token(plain, TokenType.USER_DEFINED))
        taken[text] = number
    return tokens


def _special_ids(tokens: list[Token | None], files: _Files) -> dict[str, int]:
    ids = {token.text: number for number, token in enumerate(tokens) if token is not None}
    found: dict[str, int] = {}
    for key, name in _SPECIAL.items():
        said = files.settings.get(key)
        text = said.get("content") if isinstance(said, dict) else said
        if isinstance(text, str) and text in ids:
            found[name] = ids[text]
    for number, token in enumerate(tokens):
        if token is not None and token.type is TokenType.UNKNOWN:
            found.setdefault("unknown", number)
    for name, key in (("bos", "bos_token_id"), ("eos", "eos_token_id"), ("padding", "pad_token_id")):
        listed = _id_list(files.generation.get(key)) or _id_list(files.config.get(key))
        if name not in found and listed and listed[0] < len(tokens):
            found[name] = listed[0]
    texts = {number: text for text, number in ids.items()}
    ends = [*_id_list(files.generation.get("eos_token_id")), *_id_list(files.config.get("eos_token_id"))]
    known = {found.get("eos"), *(number for text, number in ids.items() if text in _KNOWN_ENDS)}
    more = [number for number in dict.fromkeys(ends) if number not in known and number in texts]
    return {**found, **dict(zip(("eot", "eom"), more, strict=False))}


def _id_list(value: Any) -> list[int]:
    values = value if isinstance(value, list) else [value]
    return [number for number in values if type(number) is int and number >= 0]


def _flags(vocabulary: Vocabulary, special: Mapping[str, int], files: _Files) -> tuple[bool, bool]:
    """(add_bos, add_eos): what the post-processor puts around text, else what tokenizer_config.json says, else what
    SentencePiece models are used to."""
    template = _template(files.tokenizer.get("post_processor"))
    if template is not None:
        names = [next(iter(part)) if isinstance(part, dict) and part else "" for part in template]
        before = names.index("Sequence") if "Sequence" in names else 0
        after = len(names) - before - 1 if "Sequence" in names else 0
        if before > 1 or after > 1:
            raise nowhere("its tokenizer puts several tokens around a text")
        bos, eos = before == 1, after == 1
    elif files.tokenizer and "add_bos_token" not in files.settings:
        bos = eos = False
    else:
        bos = bool(files.settings.get("add_bos_token", vocabulary.model == "llama"))
        eos = bool(files.settings.get("add_eos_token", vocabulary.model == "t5"))
    for wanted, name in ((bos, "bos"), (eos, "eos")):
        if wanted and name not in special:
            raise BadModelFile(f"the tokenizer adds a {name} token but none is named", _HINT)
    return bos, eos


def _template(section: Any) -> list[Any] | None:
    """The ``single`` template of a TemplateProcessing step, alone or in a sequence."""
    if not isinstance(section, dict):
        return None
    if section.get("type") == "TemplateProcessing" and isinstance(section.get("single"), list):
        return list(section["single"])
    for step in section.get("processors") or []:
        found = _template(step)
        if found is not None:
            return found
    return None


def _chat_templates(directory: Path, files: _Files) -> dict[str, str]:
    """Chat templates by name: chat_template.jinja and additional_chat_templates/ first, then the older places."""
    found: dict[str, str] = {}
    said = files.settings.get("chat_template") or read_json_if_there(directory / "chat_template.json").get(
        "chat_template"
    )
    if isinstance(said, str):
        found["default"] = said
    elif isinstance(said, list):
        for entry in said:
            if isinstance(entry, dict) and isinstance(entry.get("name"), str):
                found[entry["name"]] = str(entry.get("template", ""))
    path = directory / "chat_template.jinja"
    if path.is_file():
        try:
            found["default"] = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            raise BadModelFile(f"cannot read {path}", _HINT) from None
    return {name: text for name, text in found.items() if text}
