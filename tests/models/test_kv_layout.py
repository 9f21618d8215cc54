# What each layer keeps of a token, worked out by hand for models of every kind.
from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from ingle.models.gguf_info import ModelInfo, read_model_info
from ingle.models.kv_layout import LayerKv, kv_layout
from tests.tiny_models import write_gemma3, write_lfm2, write_llama, write_mamba


@pytest.fixture
def llama(tmp_path: Path) -> ModelInfo:
    """Two layers, two KV heads of 32."""
    return read_model_info(write_llama(tmp_path / "llama.gguf"))


def changed(
    info: ModelInfo, arch: str, values: dict[str, Any], layers: dict[str, Any] | None = None, **more: Any
) -> Any:
    """`info` as a model of `arch` whose header says `values`, and `layers` for each layer."""
    return replace(
        info,
        architecture=arch,
        metadata=MappingProxyType({f"{arch}.{name}": value for name, value in values.items()}),
        layer_values=MappingProxyType({f"{arch}.{name}": value for name, value in (layers or {}).items()}),
        **more,
    )


def test_grouped_heads(llama: ModelInfo) -> None:
    layout = kv_layout(llama)
    assert layout.layers == (LayerKv(64, 64), LayerKv(64, 64))
    assert layout.bytes_per_token("f16", "f16") == 2 * (64 * 2 + 64 * 2) == 512
    assert layout.bytes_per_token("q8_0", "q4_0") == 2 * (2 * 34 + 2 * 18)  # rows of two blocks
    assert layout.bytes_per_token("f32", "bf16") == 2 * (64 * 4 + 64 * 2)
    assert layout.state_bytes(9) == 0
    assert layout.num_kinds == 1


def test_windows_alternate(tmp_path: Path) -> None:
    layout = kv_layout(read_model_info(write_gemma3(tmp_path / "gemma3.gguf")))
    assert [layer.is_window for layer in layout.layers] == [True, False, True, False]
    assert layout.bytes_per_token("f16", "f16") == 4 * 256
    assert layout.num_kinds == 2


def test_a_recurrent_model_has_states_and_no_cache(tmp_path: Path) -> None:
    layout = kv_layout(read_model_info(write_mamba(tmp_path / "mamba.gguf")))
    assert layout.bytes_per_token("f16", "f16") == 0
    assert layout.state_values == 3 * 128 + 16 * 128  # convolution of 4, inner size 128, state 16
    assert layout.state_bytes(5) == 2 * 5 * 4 * (3 * 128 + 16 * 128)


def test_a_hybrid_has_both(tmp_path: Path) -> None:
    layout = kv_layout(read_model_info(write_lfm2(tmp_path / "lfm2.gguf")))
    assert [layer.has_state for layer in layout.layers] == [True, False, True]
    assert layout.bytes_per_token("f16", "f16") == 2 * 16 * 2 + 2 * 16 * 2  # one layer, two heads of 16
    assert layout.state_bytes(1) == 2 * 4 * 64 * 2  # convolution of 3


def test_latent_attention_keeps_no_v(llama: ModelInfo) -> None:
    values = {"attention.key_length_mla": 48, "attention.value_length_mla": 32, "attention.kv_lora_rank": 64}
    info = changed(llama, "deepseek2", values, n_head_kv=1, key_length=80, value_length=64)
    assert kv_layout(info).layers[0] == LayerKv(80, 0)
    assert kv_layout(info).bytes_per_token("f16", "f16") == 2 * 80 * 2


def test_every_nth_layer_has_attention(llama: ModelInfo) -> None:
    values = {"full_attention_interval": 2, "ssm.conv_kernel": 4, "ssm.inner_size": 64, "ssm.state_size": 16}
    info = changed(llama, "qwen3next", values | {"ssm.group_count": 2}, num_layers=4)
    layout = kv_layout(info)
    assert [layer.k_values for layer in layout.layers] == [0, 64, 0, 64]
    assert layout.state_values == 3 * (64 + 2 * 2 * 16) + 16 * 64


def test_layers_that_share_a_cache_and_heads_of_another_length_in_windows(llama: ModelInfo) -> None:
    values = {"attention.shared_kv_layers": 1, "attention.key_length_swa": 16, "attention.value_length_swa": 8}
    layers = {"attention.sliding_window_pattern": (1, 0, 1)}
    info = changed(llama, "gemma4", values, layers, num_layers=3, sliding_window=8)
    assert kv_layout(info).layers == (LayerKv(32, 16, True), LayerKv(64, 64, False), LayerKv(0, 0, True))


def test_the_first_of_every_four_sees_all(llama: ModelInfo) -> None:
    info = changed(llama, "smallthinker", {}, num_layers=5, sliding_window=8)
    assert [layer.is_window for layer in kv_layout(info).layers] == [False, True, True, True, False]


def test_a_window_that_the_architecture_ignores(llama: ModelInfo) -> None:
    assert kv_layout(replace(llama, sliding_window=8)).num_kinds == 1


def test_v_is_padded_to_the_widest_where_it_is_transposed(llama: ModelInfo) -> None:
    layout = kv_layout(replace(llama, n_head_kv=(2, 1)))
    assert layout.bytes_per_token("f16", "f16") == 2 * (64 + 64 + 32 + 32)
    assert layout.bytes_per_token("f16", "f16", widest_v=64) == 2 * (64 + 64 + 32 + 64)
