# The names a user may ask for, and what each one gives to which tensor, as tables. Facts of llama.cpp, no logic.
# This file may not know models: a rule's condition is a question about a `Spot`, which recipe.py fills in.
"""llama.cpp's mixes (``llama_ftype``) and its rules for the tensors in them.

Facts from ``llama_ftype_get_default_type``, ``llama_tensor_get_type_impl``, ``tensor_type_fallback`` and
``tensor_allows_quantization`` (src/llama-quant.cpp); tests compare every mix with ``llama_model_quantize``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, NamedTuple

from ingle.models.ggml_types import FILE_TYPES


class Part(Enum):
    """What a tensor is to the rules, told by its name (``tensor_category``)."""

    OUTPUT = auto()
    TOKEN_EMBD = auto()
    ATTN_V = auto()  # fused and compressed ones too
    ATTN_K = auto()
    ATTN_Q = auto()
    ATTN_OUTPUT = auto()
    FFN_UP = auto()
    FFN_GATE = auto()
    FFN_DOWN = auto()
    OTHER = auto()


# The first row whose text is in a tensor's name says what it is, after two that want the whole name.
WHOLE_NAMES: Final[Mapping[str, Part]] = {
    "output.weight": Part.OUTPUT,
    "token_embd.weight": Part.TOKEN_EMBD,
    "per_layer_token_embd.weight": Part.TOKEN_EMBD,
}
NAME_PARTS: Final = (
    ("attn_qkv.weight", Part.ATTN_V),
    ("attn_kv_b.weight", Part.ATTN_V),
    ("attn_v.weight", Part.ATTN_V),
    ("attn_k.weight", Part.ATTN_K),
    ("attn_q.weight", Part.ATTN_Q),
    ("attn_output.weight", Part.ATTN_OUTPUT),
    ("ffn_up", Part.FFN_UP),
    ("ffn_gate", Part.FFN_GATE),
    ("ffn_down", Part.FFN_DOWN),
)

# Matrices that stay as they are: small, or more sensitive than they are large.
KEPT_WHOLE_NAMES: Final = frozenset({"position_embd.weight", "token_types.weight"})
KEPT: Final = (
    *("_norm.weight", "ffn_gate_inp.weight", "ffn_gate_tid2eid.weight", "altup", "laurel", "per_layer_model_proj"),
    *("ssm_conv1d", "shortconv.conv.weight", "indexer.k_proj.weight", "indexer.q_proj.weight"),
    *(
        f"time_mix_{name}.weight"
        for name in ("first", "w0", "w1", "w2", "v0", "v1", "v2", "a0", "a1", "a2", "g1", "g2")
    ),
    *(f"time_mix_{name}.weight" for name in ("decay_w1", "decay_w2", "lerp_fused")),
    *("attn_rel_b.weight", ".position_embd", "sam.pos_embd", "sam.neck.", "sam.net_", ".rel_pos", ".patch_embd"),
    *(".patch_merger", "a.rvq.codebook", "mm.a.code_embd"),
)
KEPT_BY_ARCHITECTURE: Final[Mapping[str, tuple[str, ...]]] = {
    "glm5-next": (
        *("hc_", "indexer.attn_q_b", "indexer.attn_k", "indexer.proj", "indexer_compressor_gate"),
        *("indexer_compressor_ape", "ssm_f_a.weight", "ssm_f_b.weight", "ssm_g_a.weight", "ssm_g_b.weight"),
        *("ssm_beta.weight", "attn_kv_a_mqa.weight", "attn_k_b.weight", "attn_v_b.weight"),
    ),
}
# Matrices that get Q8_0 in every mix of quantized types.
AT_LEAST_Q8_0: Final[Mapping[str, tuple[str, ...]]] = {"glm5-next": ("attn_q_a", "attn_q_b", "nextn.eh_proj")}

# Rows that are not whole blocks: what to take instead. If that does not divide them either, it is F16.
FALLBACK: Final[Mapping[str, str]] = {
    **dict.fromkeys(("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_XS"), "IQ4_NL"),
    **dict.fromkeys(("Q2_0", "Q2_K", "Q3_K", "TQ1_0", "TQ2_0"), "Q4_0"),
    "Q4_K": "Q5_0",
    "Q5_K": "Q5_1",
    "Q6_K": "Q8_0",
}

# Layer counts that llama.cpp takes for a "70B" model; of llama only with fewer KV heads than heads.
SEVENTY_B: Final = frozenset({("llama", 80), ("qwen2", 80), ("deci", 80), ("olmo", 80), ("jais2", 68)})


@dataclass(frozen=True, slots=True)
class Mix:
    """A name, its number in files (``llama_ftype``), and the type of a tensor that no rule is about."""

    name: str
    file_type: int
    default_type: str


_DEFAULTS: Final = {  # where it is not the mix's own name, nor that with its last letter gone
    "MXFP4_MOE": "MXFP4",
    "IQ2_S": "IQ2_XS",
    "IQ2_M": "IQ2_S",
    "IQ3_XS": "IQ3_S",
    "IQ3_M": "IQ3_S",
}


def _default_type(name: str) -> str:
    stem = name[:-2] if name.endswith(("_K_S", "_K_M", "_K_L")) else name
    return _DEFAULTS.get(name, stem)


# llama.cpp knows NVFP4 files, and makes none.
MIXES: Final[Mapping[str, Mix]] = {
    name: Mix(name, number, _default_type(name)) for number, name in FILE_TYPES.items() if name != "NVFP4"
}
ALIASES: Final[Mapping[str, str]] = {"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M", "INT8": "Q8_0"}


class Spot(NamedTuple):
    """Where in which model a tensor stands, as far as rules ask."""

    architecture: str
    layer: int  # of this part of the network: usually the number of tensors of its kind that came before
    num_layers: int
    num_heads_per_kv: int  # 0: no attention
    num_experts: int
    is_70b: bool
    has_imatrix: bool
    is_stack: bool  # three dimensions: one matrix an expert
    fits: bool  # rows are whole blocks of the mix's own type


Condition = Callable[[Spot], bool]
Rule = tuple[Condition, str]


def always(_spot: Spot) -> bool:
    return True


def _first(share: int) -> Condition:
    """The first 1/`share` of the layers."""
    return lambda spot: spot.layer < spot.num_layers // share


def _early(count: int) -> Condition:
    return lambda spot: spot.layer < count


def more_bits(spot: Spot) -> bool:
    """``use_more_bits``: the first and last eighth of the layers, and every third between."""
    eighth = spot.num_layers // 8
    return spot.layer < eighth or spot.layer >= 7 * spot.num_layers // 8 or (spot.layer - eighth) % 3 == 2


def _middle(spot: Spot) -> bool:
    return spot.num_layers // 8 <= spot.layer < 7 * spot.num_layers // 8


def _shared(spot: Spot) -> bool:
    return spot.num_heads_per_kv >= 4


def _falcon(spot: Spot) -> bool:
    return spot.architecture == "falcon"


def _eight(spot: Spot) -> bool:
    return spot.num_experts == 8


def _imatrix(spot: Spot) -> bool:
    return spot.has_imatrix


def _expert_stack(spot: Spot) -> bool:
    return spot.is_stack and spot.architecture != "bailingmoe3"


def _stack(spot: Spot) -> bool:
    return spot.is_stack


def _no(condition: Condition) -> Condition:
    return lambda spot: not condition(spot)


def _both(*conditions: Condition) -> Condition:
    return lambda spot: all(condition(spot) for condition in conditions)


def _either(*conditions: Condition) -> Condition:
    return lambda spot: any(condition(spot) for condition in conditions)


TINY: Final = ("IQ2_XXS", "IQ2_XS", "IQ1_S", "IQ2_S", "IQ2_M", "IQ1_M")  # mixes around two bits
_RICHER: Final = ("IQ2_S", "IQ2_M")  # the better of them
_POORER: Final = tuple(mix for mix in TINY if mix not in _RICHER)

Table = Mapping[tuple[Part, str], tuple[Rule, ...]]


def _tiny() -> Table:
    table: dict[tuple[Part, str], tuple[Rule, ...]] = {}
    for mix in TINY:
        better = "IQ3_S" if mix in _RICHER else "Q2_K"
        table[Part.ATTN_V, mix] = (
            (_either(_shared, lambda spot: spot.num_experts >= 4), "Q4_K"),
            (always, better),
        )
        table[Part.ATTN_K, mix] = ((_eight, "Q4_K"),)
        table[Part.FFN_DOWN, mix] = ((_first(8), better),)
        table[Part.ATTN_OUTPUT, mix] = ((_eight, "Q5_K"),)
        table[Part.TOKEN_EMBD, mix] = ((always, better),)
    for mix in _RICHER:
        table[Part.ATTN_OUTPUT, mix] += ((always, "IQ3_S"),)
    for mix in ("IQ1_S", "IQ1_M"):
        table[Part.ATTN_OUTPUT, mix] += ((always, "IQ2_XXS"),)
    return table


def _output() -> Table:
    """The last matrix, or the embeddings where they are one and the same."""
    rules: dict[str, tuple[Rule, ...]] = {
        mix: ((_either(_falcon, lambda spot: not spot.fits), "Q8_0"), (always, "Q6_K")) for mix in MIXES
    }
    for mix in (*TINY, "IQ3_XXS"):
        rules[mix] = (rules[mix][0], (always, "Q5_K"))
    rules["MXFP4_MOE"] = rules["Q8_0"] = ((always, "Q8_0"),)
    return {(Part.OUTPUT, mix): rule for mix, rule in rules.items()}


_V = Part.ATTN_V
_DOWN = Part.FFN_DOWN
_OUT = Part.ATTN_OUTPUT

# (part, mix) → rules; the first whose condition holds gives the type. No rule: the mix's own type.
RULES: Final[Table] = {
    **_tiny(),
    **_output(),
    (Part.TOKEN_EMBD, "IQ3_XXS"): ((always, "IQ3_S"),),
    **{(Part.TOKEN_EMBD, mix): ((always, "Q4_K"),) for mix in ("TQ1_0", "TQ2_0", "Q2_0")},
    (_V, "Q2_K"): ((_shared, "Q4_K"), (always, "Q3_K")),
    (_V, "Q2_K_S"): ((_shared, "Q4_K"),),
    (_V, "IQ3_XXS"): ((_shared, "Q4_K"), (_imatrix, "IQ3_XXS"), (always, "IQ3_S")),
    (_V, "IQ3_XS"): ((_shared, "Q4_K"),),
    (_V, "IQ3_S"): ((_shared, "Q4_K"),),
    (_V, "IQ3_M"): ((always, "Q4_K"),),
    (_V, "Q3_K_M"): ((_early(2), "Q5_K"), (always, "Q4_K")),
    (_V, "Q3_K_L"): ((always, "Q5_K"),),
    (_V, "IQ4_NL"): ((_shared, "Q5_K"),),
    (_V, "IQ4_XS"): ((_shared, "Q5_K"),),
    (_V, "Q4_K_M"): ((more_bits, "Q6_K"),),
    (_V, "Q5_K_M"): ((more_bits, "Q6_K"),),
    (_V, "Q4_K_S"): ((_early(4), "Q5_K"),),
    (Part.ATTN_K, "IQ3_XS"): ((always, "IQ3_XXS"),),
    (Part.ATTN_K, "IQ3_XXS"): ((always, "IQ2_S"),),
    (Part.ATTN_Q, "IQ3_XS"): ((always, "IQ3_XXS"),),
    (Part.ATTN_Q, "IQ3_XXS"): ((always, "IQ2_S"),),
    (_DOWN, "Q2_K"): ((always, "Q3_K"),),
    (_DOWN, "Q2_K_S"): ((_first(8), "Q4_K"),),
    (_DOWN, "IQ3_XXS"): ((_both(_no(_imatrix), _first(8)), "Q4_K"), (_no(_imatrix), "Q3_K")),
    (_DOWN, "Q3_K_M"): ((_first(16), "Q5_K"), (_either(_no(_falcon), more_bits), "Q4_K")),
    (_DOWN, "Q3_K_L"): ((_falcon, "Q4_K"), (always, "Q5_K")),
    (_DOWN, "IQ3_M"): ((_either(_first(8), _both(_eight, more_bits)), "Q4_K"),),
    (_DOWN, "Q4_K_M"): (
        (_both(_falcon, _first(16)), "Q6_K"),
        (_both(_falcon, more_bits), "Q5_K"),
        (_both(_no(_falcon), more_bits), "Q6_K"),
    ),
    (_DOWN, "IQ4_NL"): ((_both(_first(8), _no(_imatrix)), "Q5_K"),),
    (_DOWN, "IQ4_XS"): ((_both(_first(8), _no(_imatrix)), "Q5_K"),),
    (_DOWN, "Q5_K_M"): ((more_bits, "Q6_K"),),
    (_DOWN, "Q4_K_S"): ((_both(_no(_falcon), _first(8)), "Q5_K"),),
    (_DOWN, "Q4_0"): ((_both(_imatrix, _first(8)), "Q4_1"),),
    (_DOWN, "Q5_0"): ((_both(_imatrix, _first(8)), "Q5_1"),),
    (_OUT, "Q2_K"): ((_falcon, "Q2_K"), (_eight, "Q5_K"), (always, "Q3_K")),
    (_OUT, "IQ3_XXS"): ((_falcon, "IQ3_XXS"), (_eight, "Q5_K"), (always, "IQ3_S")),
    (_OUT, "Q3_K_M"): ((_falcon, "Q3_K"), (_eight, "Q5_K"), (always, "Q4_K")),
    (_OUT, "Q3_K_L"): ((_falcon, "Q4_K"), (_no(_eight), "Q5_K")),
    (_OUT, "IQ3_M"): ((_falcon, "IQ3_S"), (_eight, "Q5_K"), (always, "Q4_K")),
    **{
        (_OUT, mix): ((_both(_eight, _no(_falcon)), "Q5_K"),)
        for mix in ("IQ3_XS", "Q3_K_S", "IQ4_NL", "Q4_K_S", "Q4_K_M", "IQ3_S", "IQ4_XS")
    },
    **{(part, "IQ3_XS"): ((_middle, "IQ3_XXS"),) for part in (Part.FFN_GATE, Part.FFN_UP)},
    **{(part, "MXFP4_MOE"): ((_expert_stack, "MXFP4"), (always, "Q8_0")) for part in Part if part is not Part.OUTPUT},
    **{
        (part, "MXFP4_MOE"): ((_stack, "MXFP4"), (always, "Q8_0"))
        for part in (Part.FFN_UP, Part.FFN_GATE, Part.FFN_DOWN)
    },
}
