# What is known of each architecture that can be converted, as rows of a table: a new one is a new row.
# This file may not know files, tokenizers or the gguf library.
"""Architectures: how transformers names and shapes a model's tensors, and what llama.cpp's graph of it assumes.

Facts of the one side are from transformers' ``configuration_*`` and ``modeling_*``, of the other from llama.cpp's
``src/models/*.cpp`` (``load_arch_hparams``, ``load_arch_tensors`` and the graph).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from ingle.models.convert.config import Config

# A tensor below "model.layers.N." and the names of its sizes, rows first. Sizes: see `sizes_of`.
Shape = tuple[str, ...]

_NORMS: Final[dict[str, Shape]] = {
    "input_layernorm.weight": ("hidden",),
    "post_attention_layernorm.weight": ("hidden",),
}
_ATTENTION: Final[dict[str, Shape]] = {
    "self_attn.q_proj.weight": ("query", "hidden"),
    "self_attn.k_proj.weight": ("key", "hidden"),
    "self_attn.v_proj.weight": ("key", "hidden"),
    "self_attn.o_proj.weight": ("hidden", "query"),
}
_FEED_FORWARD: Final[dict[str, Shape]] = {
    "mlp.gate_proj.weight": ("inner", "hidden"),
    "mlp.up_proj.weight": ("inner", "hidden"),
    "mlp.down_proj.weight": ("hidden", "inner"),
}
_LLAMA: Final = {**_NORMS, **_ATTENTION, **_FEED_FORWARD}
_HEAD_NORMS: Final[dict[str, Shape]] = {"self_attn.q_norm.weight": ("head",), "self_attn.k_norm.weight": ("head",)}
_GEMMA: Final = {
    **_LLAMA,
    "pre_feedforward_layernorm.weight": ("hidden",),
    "post_feedforward_layernorm.weight": ("hidden",),
}
_PHI3: Final[dict[str, Shape]] = {
    **_NORMS,
    "self_attn.qkv_proj.weight": ("query+2key", "hidden"),
    "self_attn.o_proj.weight": ("hidden", "query"),
    "mlp.gate_up_proj.weight": ("2inner", "hidden"),
    "mlp.down_proj.weight": ("hidden", "inner"),
}
_QKV_BIAS: Final[dict[str, Shape]] = {
    "self_attn.q_proj.bias": ("query",),
    "self_attn.k_proj.bias": ("key",),
    "self_attn.v_proj.bias": ("key",),
}
_ATTENTION_BIAS: Final = {**_QKV_BIAS, "self_attn.o_proj.bias": ("hidden",)}
_MLP_BIAS: Final[dict[str, Shape]] = {
    "mlp.gate_proj.bias": ("inner",),
    "mlp.up_proj.bias": ("inner",),
    "mlp.down_proj.bias": ("hidden",),
}

_NO_BIAS: Final[dict[str, tuple[Any, ...]]] = {"attention_bias": (None, False), "mlp_bias": (None, False)}
_SILU: Final[dict[str, tuple[Any, ...]]] = {"hidden_act": ("silu", "swish")}
_GELU: Final[dict[str, tuple[Any, ...]]] = {
    "hidden_activation": ("gelu_pytorch_tanh",),
    "use_bidirectional_attention": (None, False),
}
_PLAIN: Final = {"tie_word_embeddings": False, "rms_norm_eps": 1e-6, "rope_theta": 10_000.0}

Windows = Literal["none", "all layers", "if used", "interleaved"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """One architecture. `name` is GGUF's; `classes` and `model_types` are transformers' names of it."""

    name: str
    classes: tuple[str, ...]
    model_types: tuple[str, ...]
    layer: Mapping[str, Shape]
    biases: Mapping[str, Mapping[str, Shape]] = field(default_factory=dict)  # config flag → tensors it brings
    defaults: Mapping[str, Any]  # where a config says nothing
    only: Mapping[str, tuple[Any, ...]]  # config key → the values llama.cpp's graph computes
    numbers: Mapping[str, str] = field(default_factory=dict)  # config key → GGUF key behind "ARCH."
    rope_scalings: frozenset[str]
    partial_rotary: bool = False
    interleaved_rope: bool = False  # q and k rows in llama.cpp's order of pairs (LLAMA_ROPE_TYPE_NORM)
    norm_plus_one: bool = False  # the norm multiplies by 1 + weight
    free_head_dim: bool = True  # head_dim may differ from hidden_size / heads
    windows: Windows = "none"
    window_period: int = 0  # interleaved: every so-manieth layer sees everything
    objection: Callable[[Config], str | None] = lambda config: None  # what else would be computed otherwise
    text_below: str | None = None  # multimodal: the key of the text model's config
    prefixes: Mapping[str, str] = field(default_factory=dict)  # multimodal: prefix of a tensor → the usual one
    left_out: tuple[str, ...] = ()  # multimodal: prefixes of tensors that are not the text model's


def _gemma_scale(layers_27b: int) -> Callable[[Config], str | None]:
    """llama.cpp knows the 27B models by their number of layers and divides their scores by √(hidden / heads)."""

    def objection(config: Config) -> str | None:
        shared = config.hidden_size // config.num_heads
        assumed = shared if config.num_layers == layers_27b else config.head_dim
        said = config.number("query_pre_attn_scalar")
        return None if math.isclose(said, assumed) else f"query_pre_attn_scalar is {said:g}, not {assumed}"

    return objection


def _gemma2_caps(config: Config) -> str | None:
    for key in ("attn_logit_softcapping", "final_logit_softcapping"):
        if config.explicitly_none(key):
            return f"{key} is null, and its graph always caps"
    return _gemma_scale(46)(config)


def _smollm3_rope(config: Config) -> str | None:
    said = config.per_layer("no_rope_layers", config.num_layers)
    step = config.count("no_rope_layer_interval")
    said = said or [int((layer + 1) % step != 0) for layer in range(config.num_layers)]
    rotates = [int((layer + 1) % 4 != 0) for layer in range(config.num_layers)]
    return None if said == rotates else "its layers without RoPE are not every fourth"


def _granite_scales(config: Config) -> str | None:
    for key in ("attention_multiplier", "embedding_multiplier", "residual_multiplier", "logits_scaling"):
        if config.number(key) == 0:
            return f"{key} is 0"
    return None


_LLAMA_SCALINGS: Final = frozenset({"linear", "llama3", "yarn", "longrope"})
_PLAIN_SCALINGS: Final = frozenset({"linear", "yarn"})  # graphs that pass no factor tensor to ggml_rope_ext

_GEMMA3: Final = Architecture(
    name="gemma3",
    classes=("Gemma3ForCausalLM",),
    model_types=("gemma3_text",),
    layer={**_GEMMA, **_HEAD_NORMS},
    defaults={
        **_PLAIN,
        "tie_word_embeddings": True,
        "vocab_size": 262208,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 131072,
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10_000.0,
    },
    only={**_GELU, **_NO_BIAS, "attn_logit_softcapping": (None,)},
    numbers={"final_logit_softcapping": "final_logit_softcapping"},
    rope_scalings=frozenset({"linear"}),
    norm_plus_one=True,
    windows="interleaved",
    window_period=6,
    objection=_gemma_scale(62),
)

ARCHITECTURES: Final[tuple[Architecture, ...]] = (
    Architecture(
        name="llama",
        classes=("LlamaForCausalLM", "LLaMAForCausalLM"),
        model_types=("llama",),
        layer=_LLAMA,
        biases={"attention_bias": _ATTENTION_BIAS, "mlp_bias": _MLP_BIAS},
        defaults={**_PLAIN, "max_position_embeddings": 2048},
        only=_SILU,
        rope_scalings=_LLAMA_SCALINGS,
        interleaved_rope=True,
    ),
    Architecture(
        name="llama",
        classes=("MistralForCausalLM",),
        model_types=("mistral",),
        layer=_LLAMA,
        defaults={**_PLAIN, "max_position_embeddings": 131072, "num_key_value_heads": 8, "sliding_window": 4096},
        only={**_SILU, **_NO_BIAS, "layer_types": (None,)},
        rope_scalings=_LLAMA_SCALINGS,
        interleaved_rope=True,
        windows="all layers",
    ),
    Architecture(
        name="qwen2",
        classes=("Qwen2ForCausalLM",),
        model_types=("qwen2",),
        layer={**_LLAMA, **_QKV_BIAS},
        defaults={**_PLAIN, "max_position_embeddings": 32768, "sliding_window": 4096},
        only=_SILU,
        rope_scalings=_PLAIN_SCALINGS,
        free_head_dim=False,
        windows="if used",
    ),
    Architecture(
        name="qwen3",
        classes=("Qwen3ForCausalLM",),
        model_types=("qwen3",),
        layer={**_LLAMA, **_HEAD_NORMS},
        defaults={**_PLAIN, "max_position_embeddings": 32768, "head_dim": 128, "sliding_window": 4096},
        only={**_SILU, **_NO_BIAS},
        rope_scalings=_PLAIN_SCALINGS,
        windows="if used",
    ),
    Architecture(
        name="gemma2",
        classes=("Gemma2ForCausalLM",),
        model_types=("gemma2",),
        layer=_GEMMA,
        defaults={
            **_PLAIN,
            "tie_word_embeddings": True,
            "max_position_embeddings": 8192,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "hidden_activation": "gelu_pytorch_tanh",
            "query_pre_attn_scalar": 256,
            "sliding_window": 4096,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
        },
        only={**_GELU, **_NO_BIAS, "tie_word_embeddings": (True,)},
        numbers={
            "attn_logit_softcapping": "attn_logit_softcapping",
            "final_logit_softcapping": "final_logit_softcapping",
        },
        rope_scalings=frozenset(),
        norm_plus_one=True,
        windows="interleaved",
        window_period=2,
        objection=_gemma2_caps,
    ),
    _GEMMA3,
    replace(
        _GEMMA3,
        classes=("Gemma3ForConditionalGeneration",),
        model_types=("gemma3",),
        text_below="text_config",
        prefixes={
            "language_model.model.": "model.",
            "language_model.lm_head.": "lm_head.",
            "model.language_model.": "model.",
        },
        left_out=(
            *("vision_tower.", "multi_modal_projector."),
            *("model.vision_tower.", "model.multi_modal_projector."),
        ),
    ),
    Architecture(
        name="phi3",
        classes=("Phi3ForCausalLM",),
        model_types=("phi3",),
        layer=_PHI3,
        defaults={
            **_PLAIN,
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 4096,
            "original_max_position_embeddings": 4096,
        },
        only={**_SILU, **_NO_BIAS},
        rope_scalings=frozenset({"longrope"}),
        partial_rotary=True,
        free_head_dim=False,
        windows="all layers",
    ),
    Architecture(
        name="smollm3",
        classes=("SmolLM3ForCausalLM",),
        model_types=("smollm3",),
        layer=_LLAMA,
        defaults={
            **_PLAIN,
            "tie_word_embeddings": True,
            "max_position_embeddings": 32768,
            "num_key_value_heads": 4,
            "rope_theta": 2_000_000.0,
            "no_rope_layer_interval": 4,
        },
        only={**_SILU, **_NO_BIAS},
        rope_scalings=_PLAIN_SCALINGS,
        interleaved_rope=True,
        windows="if used",
        objection=_smollm3_rope,
    ),
    Architecture(
        name="granite",
        classes=("GraniteForCausalLM",),
        model_types=("granite",),
        layer=_LLAMA,
        biases={"attention_bias": _ATTENTION_BIAS, "mlp_bias": _MLP_BIAS},
        defaults={
            **_PLAIN,
            "max_position_embeddings": 2048,
            "attention_multiplier": 1.0,
            "embedding_multiplier": 1.0,
            "residual_multiplier": 1.0,
            "logits_scaling": 1.0,
        },
        only=_SILU,
        numbers={
            "attention_multiplier": "attention.scale",
            "embedding_multiplier": "embedding_scale",
            "residual_multiplier": "residual_scale",
            "logits_scaling": "logit_scale",
        },
        rope_scalings=_LLAMA_SCALINGS,
        interleaved_rope=True,
        objection=_granite_scales,
    ),
)


def find(classes: list[str], model_type: str | None) -> Architecture | None:
    """The row for a config's ``architectures``, or for its ``model_type`` where it names no class."""
    for row in ARCHITECTURES:
        if any(name in row.classes for name in classes) or (not classes and model_type in row.model_types):
            return row
    return None
