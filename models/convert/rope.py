# How a model's rotary position embedding is said in GGUF: keys, and tables of factors as tensors.
# This file may not know architectures beyond which scalings their graph in llama.cpp applies.
"""RoPE parameters: ``rope_theta``/``rope_scaling`` of older configs, ``rope_parameters`` of newer ones → GGUF.

llama.cpp's side: `llama_model_base::load_hparams`, the end of `llama_context`'s constructor (yarn), and
`llama_model::get_rope_factors`. The other side: transformers' ``modeling_rope_utils``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ingle.models.convert.config import Config
from ingle.models.convert.refusal import nowhere
from ingle.models.errors import BadModelFile

_ATTENTION_TYPES: Final = ("full_attention", "sliding_attention")
_TAU: Final = 2 * math.pi


@dataclass(frozen=True, slots=True)
class Rope:
    """Keys behind ``ARCH.rope.``, and the factor tensors (float32, one value a pair of dimensions) by name."""

    num_dimensions: int
    keys: Mapping[str, str | int | float] = field(default_factory=dict)
    tensors: Mapping[str, Sequence[float]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def read_rope(config: Config, *, scalings: frozenset[str], partial: bool) -> Rope:
    """The rotary embedding of `config`. `scalings`: what the architecture's graph applies; `partial`: whether it can
    rotate a part of each head. Raises UnsupportedModel for anything it would compute otherwise."""
    full, sliding = _parameters(config)
    kind = _kind(full)
    theta = _number(full, "rope_theta")
    if theta is None or theta <= 0:
        raise BadModelFile(f"config.json: rope_theta is {theta}")
    share = _number(full, "partial_rotary_factor")
    num_dimensions = config.head_dim if share is None else int(config.head_dim * share)
    if num_dimensions != config.head_dim and not partial:
        raise nowhere(f"it rotates {num_dimensions} of {config.head_dim} dimensions a head (partial_rotary_factor)")
    if num_dimensions <= 0 or num_dimensions % 2 or num_dimensions > config.head_dim:
        raise BadModelFile(f"config.json: partial_rotary_factor {share} of {config.head_dim} dimensions")
    if kind != "default" and kind not in scalings:
        raise nowhere(f"it scales RoPE by {kind!r}")
    keys: dict[str, str | int | float] = {"dimension_count": num_dimensions, "freq_base": theta}
    if sliding is not None:
        if _kind(sliding) != "default":
            raise nowhere(f"it scales the RoPE of its sliding window layers by {_kind(sliding)!r}")
        keys["freq_base_swa"] = _number(sliding, "rope_theta") or 10_000.0
    make = {"default": _default, "linear": _linear, "llama3": _llama3, "yarn": _yarn, "longrope": _longrope}[kind]
    rope = make(config, full, num_dimensions, theta)
    return Rope(num_dimensions, {**keys, **rope.keys}, rope.tensors, rope.notes)


def _parameters(config: Config) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Parameters of the full attention layers, and of the sliding ones where the model tells them apart."""
    said = dict(config.table("rope_parameters")) or dict(config.table("rope_scaling"))
    local = config.number_or_none("rope_local_base_freq")
    if any(name in said for name in _ATTENTION_TYPES):
        if set(said) - set(_ATTENTION_TYPES):
            raise nowhere(f"it has RoPE parameters for {', '.join(sorted(set(said) - set(_ATTENTION_TYPES)))}")
        full, sliding = dict(said.get("full_attention") or {}), dict(said.get("sliding_attention") or {})
        sliding.setdefault("rope_theta", local)
    else:
        full, sliding = said, {} if local is None else {"rope_theta": local}
    full.setdefault("rope_theta", config.number_or_none("rope_theta"))
    if full.get("partial_rotary_factor") is None:
        full["partial_rotary_factor"] = config.number_or_none("partial_rotary_factor")
    original = config.count_or_none("original_max_position_embeddings")  # transformers lets this one win
    if original is not None or full.get("original_max_position_embeddings") is None:
        full["original_max_position_embeddings"] = original or config.count("max_position_embeddings")
    return full, sliding or None


def _kind(parameters: Mapping[str, Any]) -> str:
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    if kind == "su":  # the first name of longrope
        return "longrope"
    if kind == "yarn" and "long_factor" in parameters:  # Phi-3 once called it this
        return "longrope"
    return str(kind)


def _number(parameters: Mapping[str, Any], key: str) -> float | None:
    value = parameters.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise BadModelFile(f"config.json: {key} of the RoPE parameters is {value!r}, not a number")
    return float(value)


def _positive(parameters: Mapping[str, Any], key: str) -> float:
    value = _number(parameters, key)
    if value is None or value <= 0:
        raise BadModelFile(f"config.json: {key} of the RoPE parameters is {value}")
    return value


def _default(config: Config, said: Mapping[str, Any], num_dimensions: int, theta: float) -> Rope:
    return Rope(num_dimensions)


def _linear(config: Config, said: Mapping[str, Any], num_dimensions: int, theta: float) -> Rope:
    return Rope(num_dimensions, {"scaling.type": "linear", "scaling.factor": _positive(said, "factor")})


def _llama3(config: Config, said: Mapping[str, Any], num_dimensions: int, theta: float) -> Rope:
    """Llama 3.1: long wavelengths are divided, short ones kept, those between interpolated."""
    factor, low, high = (_positive(said, key) for key in ("factor", "low_freq_factor", "high_freq_factor"))
    original = _positive(said, "original_max_position_embeddings")
    if high <= low:
        raise BadModelFile(f"config.json: high_freq_factor {high} is not above low_freq_factor {low}")
    divisors = []
    for i in range(0, num_dimensions, 2):
        turns = original / (_TAU * theta ** (i / num_dimensions))  # of this pair within the original context
        smooth = min(max((turns - low) / (high - low), 0.0), 1.0)
        divisors.append(1 / ((1 - smooth) / factor + smooth))
    return Rope(num_dimensions, tensors={"rope_freqs.weight": divisors})


def _yarn(config: Config, said: Mapping[str, Any], num_dimensions: int, theta: float) -> Rope:
    """YaRN (Peng et al. 2023). llama.cpp reads neither beta here nor `truncate`, so both must be as it assumes."""
    factor = _number(said, "factor")
    original = int(_positive(said, "original_max_position_embeddings"))
    if factor is None:
        factor = config.count("max_position_embeddings") / original
    if factor < 1:
        raise nowhere(f"its YaRN scaling shrinks the context (factor {factor})")
    fast, slow = _number(said, "beta_fast") or 32.0, _number(said, "beta_slow") or 1.0
    if (fast, slow) != (32.0, 1.0) or said.get("truncate") is False:
        raise nowhere(f"its YaRN scaling has beta_fast {fast}, beta_slow {slow}, truncate {said.get('truncate', True)}")
    usual = 0.1 * math.log(factor) + 1
    attention = _number(said, "attention_factor")
    if attention is None:
        scale, all_dim = _number(said, "mscale"), _number(said, "mscale_all_dim")
        attention = usual
        if scale and all_dim and factor > 1:
            attention = (0.1 * scale * math.log(factor) + 1) / (0.1 * all_dim * math.log(factor) + 1)
    keys: dict[str, str | int | float] = {
        "scaling.type": "yarn",
        "scaling.factor": factor,
        "scaling.original_context_length": original,
    }
    if not math.isclose(attention, usual, rel_tol=1e-6):
        keys["scaling.attn_factor"] = attention / usual
    return Rope(num_dimensions, keys)


def _longrope(config: Config, said: Mapping[str, Any], num_dimensions: int, theta: float) -> Rope:
    """LongRoPE (Ding et al. 2024): one table of factors for short contexts, another for long ones."""
    original = int(_positive(said, "original_max_position_embeddings"))
    factor = _number(said, "factor") or config.count("max_position_embeddings") / original
    attention = _number(said, "attention_factor")
    if attention is None:
        attention = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    tensors = {}
    for length in ("long", "short"):
        values = said.get(f"{length}_factor")
        if not isinstance(values, list) or len(values) != num_dimensions // 2:
            raise BadModelFile(f"config.json: {length}_factor is not a list of {num_dimensions // 2} numbers")
        tensors[f"rope_factors_{length}.weight"] = [_positive({"factor": v}, "factor") for v in values]
    keys: dict[str, str | int | float] = {
        "scaling.type": "longrope",
        "scaling.original_context_length": original,
        "scaling.attn_factor": attention,
    }
    note = f"contexts (-c) above {original} tokens use the long RoPE factors from the first token on"
    return Rope(num_dimensions, keys, tensors, (note,))
