# A model's config.json, read through its architecture's row: the GGUF keys it becomes and the tensors it promises.
# This file may not know tokenizers, weights or the gguf library.
"""``read_hyperparameters``: directory → Hyperparameters, or UnsupportedModel naming what stands in the way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ingle.models.convert import architectures
from ingle.models.convert.architectures import Architecture
from ingle.models.convert.config import Config, read_json
from ingle.models.convert.refusal import elsewhere, nowhere
from ingle.models.convert.rope import Rope, read_rope
from ingle.models.errors import BadModelFile

Key = bool | int | float | str | list[bool]


@dataclass(frozen=True, slots=True)
class Hyperparameters:
    """A model as its config describes it. `keys` are GGUF's, complete; `shapes` are the tensors it must have, by
    transformers' names, rows first."""

    architecture: Architecture
    keys: Mapping[str, Key]
    rope: Rope
    shapes: Mapping[str, tuple[int, ...]]
    num_layers: int
    num_heads: int
    num_kv_heads: int
    vocab_size: int
    tied: bool  # no output matrix of its own: the embedding serves
    notes: tuple[str, ...]


def read_hyperparameters(directory: Path) -> Hyperparameters:
    """What ``config.json`` says. Raises UnsupportedModel, BadModelFile, ModelNotFound."""
    said = read_json(directory / "config.json")
    row = _find_row(said, directory)
    text = said if row.text_below is None else said.get(row.text_below) or {}
    if not isinstance(text, dict):
        raise BadModelFile(f"config.json: {row.text_below} is not an object")
    _refuse_quantized(said, text)
    config = Config(text, row.defaults)
    _refuse_options(config, row)
    window, window_keys, notes = _windows(config, row)
    rope = read_rope(config, scalings=row.rope_scalings, partial=row.partial_rotary)
    context = config.count("max_position_embeddings")
    tied = config.flag("tie_word_embeddings")
    keys: dict[str, Key] = {
        "context_length": context if window is None else min(context, window),
        "embedding_length": config.hidden_size,
        "block_count": config.num_layers,
        "feed_forward_length": config.count("intermediate_size"),
        "vocab_size": config.count("vocab_size"),
        "attention.head_count": config.num_heads,
        "attention.head_count_kv": config.num_kv_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": config.number("rms_norm_eps"),
        **{f"rope.{key}": value for key, value in rope.keys.items()},
        **window_keys,
    }
    for key, name in row.numbers.items():
        value = config.number_or_none(key)
        if value is not None:
            keys[name] = value
    return Hyperparameters(
        architecture=row,
        keys={f"{row.name}.{key}": value for key, value in keys.items()},
        rope=rope,
        shapes=_shapes(config, row, tied),
        num_layers=config.num_layers,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        vocab_size=config.count("vocab_size"),
        tied=tied,
        notes=(*notes, *rope.notes),
    )


def _find_row(said: Mapping[str, Any], directory: Path) -> Architecture:
    classes, model_type = said.get("architectures") or [], said.get("model_type")
    if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
        raise BadModelFile("config.json: architectures is not a list of names")
    row = architectures.find(classes, model_type if isinstance(model_type, str) else None)
    if row is None:
        named = ", ".join(classes) or model_type
        if not named:
            raise BadModelFile("config.json names no architecture", "Is this the directory of a language model?")
        raise elsewhere(f"the architecture {named} cannot be converted here", directory)
    return row


def _refuse_quantized(*configs: Mapping[str, Any]) -> None:
    for config in configs:
        said = config.get("quantization_config") or config.get("compression_config")
        if said:
            method = said.get("quant_method", "unknown") if isinstance(said, dict) else "unknown"
            raise nowhere(f"its weights are quantized already ({method}); only f32, f16 and bf16 can be converted")


def _refuse_options(config: Config, row: Architecture) -> None:
    for key, allowed in row.only.items():
        value = config.raw(key)
        if value not in allowed and not (value is None and key in ("hidden_act", "hidden_activation")):
            raise nowhere(f"config.json: {key} is {value!r}")
    shared = config.hidden_size / config.num_heads
    if not row.free_head_dim and config.head_dim != shared:
        raise nowhere(f"config.json: head_dim is {config.head_dim}, not hidden_size / heads = {shared:g}")
    problem = row.objection(config)
    if problem is not None:
        raise nowhere(f"config.json: {problem}")


def _windows(config: Config, row: Architecture) -> tuple[int | None, dict[str, Key], tuple[str, ...]]:
    """(context that stays exact or None, keys, notes). Where llama.cpp's graph has no sliding window, attention is
    the same as with one for as long as everything lies within it; so that is the context the file declares."""
    size = None if config.explicitly_none("sliding_window") else config.count_or_none("sliding_window")
    if size is None and row.windows == "interleaved":
        raise nowhere("config.json: sliding_window is null")
    if size is None or row.windows == "none" or (row.windows == "if used" and not config.flag("use_sliding_window")):
        return None, {}, ()
    if row.windows != "interleaved":
        if size >= config.count("max_position_embeddings"):
            return None, {}, ()
        return size, {}, (f"its context is limited to its sliding window of {size} tokens",)
    said = config.per_layer("layer_types", config.num_layers)
    if said is None:
        period = config.count_or_none("sliding_window_pattern") or row.window_period
        slides = [(layer + 1) % period != 0 for layer in range(config.num_layers)]
    else:
        if set(said) - {"sliding_attention", "full_attention"}:
            raise nowhere("config.json: layer_types names other kinds than sliding_attention and full_attention")
        slides = [kind == "sliding_attention" for kind in said]
    return None, {"attention.sliding_window": size, "attention.sliding_window_pattern": slides}, ()


def _shapes(config: Config, row: Architecture, tied: bool) -> dict[str, tuple[int, ...]]:
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    inner = config.count("intermediate_size")
    sizes = {
        "hidden": config.hidden_size,
        "inner": inner,
        "2inner": 2 * inner,
        "query": query,
        "key": key,
        "query+2key": query + 2 * key,
        "head": config.head_dim,
    }
    layer = dict(row.layer)
    for flag, tensors in row.biases.items():
        if config.flag(flag):
            layer.update(tensors)
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.count("vocab_size"), config.hidden_size)}
    for number in range(config.num_layers):
        for name, shape in layer.items():
            shapes[f"model.layers.{number}.{name}"] = tuple(sizes[size] for size in shape)
    shapes["model.norm.weight"] = (config.hidden_size,)
    if not tied:
        shapes["lm_head.weight"] = (config.count("vocab_size"), config.hidden_size)
    return shapes
