# What each layer of a model keeps of a token, or of a whole conversation. Pure arithmetic over a header.
# This file may not know machines, contexts or how much memory there is.
"""Which layers have a KV cache and how wide its rows are; which have a recurrent state and how large it is.

Follows ``llama_kv_cache``, ``llama_memory_recurrent`` and ``load_hparams`` of the architectures in llama.cpp. Sliding
windows make no difference here: the runtime opens contexts with ``swa_full``, where window layers keep all cells.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ingle.models.ggml_types import row_bytes

if TYPE_CHECKING:
    from ingle.models.gguf_info import ModelInfo

STATE_VALUE_BYTES: Final = 4  # recurrent states are F32
_CONVOLUTION: Final = 4  # of Kimi's linear attention where the file does not say

# Architectures whose layers are all recurrent and have no cache.
_RECURRENT: Final = frozenset({"mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"})
# Hybrids whose recurrent layers are those without KV heads.
_WHERE_NO_HEADS: Final = frozenset(
    {"lfm2", "lfm2moe", "jamba", "granitehybrid", "plamo2", "kimi-linear", "kimi-k3", "bailingmoe3", "glm5-next"}
)
# Hybrids of which every Nth layer has attention and the others are recurrent, and N where the file does not say.
_EVERY_NTH: Final = {"qwen3next": 4, "qwen35": 4, "qwen35moe": 4, "qwen4exp": 4, "minimax-01": 8}
# Hybrids whose layers are both at once.
_BOTH: Final = frozenset({"falcon-h1"})
# Architectures of which every Nth layer sees everything and the others a window, and N where the file does not say
# (llama_model_base::load_swa_pattern). Others have windows only where a pattern stands in the file.
_FULL_EVERY_NTH: Final = {"gemma2": 2, "gemma3": 6, "gemma3n": 5, "gpt-oss": 2, "plamo3": 8} | dict.fromkeys(
    ("llama4", "cohere2", "olmo2", "exaone4", "exaone-moe", "afmoe", "mellum"), 4
)
_FULL_FIRST_OF_N: Final = {"cohere2moe": 4, "laguna": 4, "smallthinker": 4}
# Layers from the first that have a cache of their own, the rest using theirs, where the file does not say.
_LAYERS_WITH_KV: Final = {"gemma3n": 20}


@dataclass(frozen=True, slots=True)
class LayerKv:
    """One layer. Values of K and of V that a token adds; `has_state`: it keeps a state a conversation."""

    k_values: int
    v_values: int
    is_window: bool = False
    has_state: bool = False


@dataclass(frozen=True, slots=True)
class KvLayout:
    """All layers, and the values of a recurrent layer's state."""

    layers: tuple[LayerKv, ...]
    state_values: int

    def bytes_per_token(self, type_k: str, type_v: str, *, widest_v: int = 0) -> int:
        """Bytes of one cell over all layers. `widest_v`: every layer's V takes at least so many values (without flash
        attention V is transposed, and llama.cpp pads it to the widest layer's). Raises ValueError for an unknown type
        or one whose blocks do not divide a row."""
        return sum(
            row_bytes(type_k, layer.k_values) + row_bytes(type_v, max(layer.v_values, widest_v))
            for layer in self.layers
            if layer.k_values
        )

    def state_bytes(self, num_slots: int) -> int:
        """Bytes of the recurrent states of `num_slots` sequences."""
        num_layers = sum(layer.has_state for layer in self.layers)
        return num_layers * self.state_values * STATE_VALUE_BYTES * num_slots

    @property
    def num_kinds(self) -> int:
        """Caches that llama.cpp keeps apart: one of window layers, one of the others."""
        return len({layer.is_window for layer in self.layers if layer.k_values})


def kv_layout(info: ModelInfo) -> KvLayout:
    """What the model of `info` keeps."""
    return KvLayout(tuple(_layer(info, index) for index in range(info.num_layers)), _state_values(info))


def _layer(info: ModelInfo, index: int) -> LayerKv:
    arch = info.architecture
    is_window = _is_window(info, index)
    has_state = _has_state(info, index)
    num_heads = info.n_head_kv[index] if isinstance(info.n_head_kv, tuple) else info.n_head_kv
    num_with_kv = _number(info, "attention.shared_kv_layers")
    last = info.num_layers - num_with_kv if num_with_kv else _LAYERS_WITH_KV.get(arch, info.num_layers)
    if not num_heads or index >= last or (has_state and arch not in _BOTH):
        return LayerKv(0, 0, is_window, has_state)
    suffix = "_swa" if is_window else ""
    key_length = _number(info, f"attention.key_length{suffix}") or info.key_length
    value_length = _number(info, f"attention.value_length{suffix}") or info.value_length
    if _number(info, "attention.key_length_mla") and _number(info, "attention.value_length_mla"):
        value_length = 0  # multi-head latent attention: V is computed from what K keeps
    return LayerKv(num_heads * key_length, num_heads * value_length, is_window, has_state)


def _is_window(info: ModelInfo, index: int) -> bool:
    if info.sliding_window is None:
        return False
    arch = info.architecture
    if (named := info.layer_values.get(f"{arch}.attention.sliding_window_pattern")) is not None:
        return bool(named[index])
    default = _FULL_EVERY_NTH.get(arch) or _FULL_FIRST_OF_N.get(arch)
    if default is None:
        return False
    period = _number(info, "attention.sliding_window_pattern") or default
    return index % period != (0 if arch in _FULL_FIRST_OF_N else period - 1)


def _has_state(info: ModelInfo, index: int) -> bool:
    arch = info.architecture
    if arch in _RECURRENT or arch in _BOTH:
        return True
    named = info.layer_values.get(f"{arch}.attention.recurrent_layers")
    if named is not None:
        return bool(named[index])
    if arch in _EVERY_NTH:
        return (index + 1) % (_number(info, "full_attention_interval") or _EVERY_NTH[arch]) != 0
    has_heads = info.n_head_kv[index] if isinstance(info.n_head_kv, tuple) else info.n_head_kv
    if arch == "nemotron_h":
        widths = info.layer_values.get(f"{arch}.feed_forward_length")
        return not has_heads and not (widths[index] if widths else _number(info, "feed_forward_length"))
    return arch in _WHERE_NO_HEADS and not has_heads


def _state_values(info: ModelInfo) -> int:
    """Values of one recurrent layer's state: ``llama_hparams::n_embd_r`` and ``n_embd_s``."""
    if head := _number(info, "wkv.head_size"):
        return (_number(info, "token_shift_count") or 2) * info.n_embd + info.n_embd * head
    if length := _number(info, "shortconv.l_cache"):
        return info.n_embd * (length - 1)
    convolution = _number(info, "ssm.conv_kernel")
    if head := _number(info, "kda.head_dim"):
        num_heads = info.n_head if isinstance(info.n_head, int) else info.n_head[0]
        return 3 * ((convolution or _CONVOLUTION) - 1) * num_heads * head + head * head * num_heads
    inner, state, groups = (_number(info, f"ssm.{name}") for name in ("inner_size", "state_size", "group_count"))
    return max(convolution - 1, 0) * (inner + 2 * groups * state) + state * inner


def _number(info: ModelInfo, name: str) -> int:
    value = info.metadata.get(f"{info.architecture}.{name}", 0)
    return int(value) if isinstance(value, int) else 0
