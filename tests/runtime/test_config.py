# What an engine may be opened with.
from __future__ import annotations

import dataclasses
import os

import pytest

from ingle.runtime.config import KV_TYPES, MAX_SLOTS, QUANTIZED_KV_TYPES, EngineConfig, default_num_threads
from ingle.runtime.errors import InvalidRequest
from ingle.runtime.llama_context import GGML_TYPES

OPTIONAL = ("n_ctx", "kv_tokens", "num_threads", "max_input_tokens", "max_output_tokens")
REQUIRED = ("n_batch", "prefill_chunk", "max_num_seqs", "block_size", "initial_kv_tokens", "max_queue")


@pytest.mark.parametrize("value", [0, -1])
@pytest.mark.parametrize("field", [*OPTIONAL, *REQUIRED])
def test_counts_below_one_are_refused_by_name_and_value(field: str, value: int) -> None:
    with pytest.raises(InvalidRequest, match=f"^{field} is {value}, which is not 1 or more$"):
        EngineConfig(**{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("field", [*OPTIONAL, *REQUIRED])
def test_one_is_enough_of_everything(field: str) -> None:
    assert getattr(EngineConfig(**{field: 1}), field) == 1  # type: ignore[arg-type]


@pytest.mark.parametrize("field", OPTIONAL)
def test_limits_may_be_left_open(field: str) -> None:
    assert getattr(EngineConfig(), field) is None


def test_a_negative_number_of_cached_chains_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="max_cached_chains is -1"):
        EngineConfig(max_cached_chains=-1)


@pytest.mark.parametrize(("max_num_seqs", "max_cached_chains"), [(256, 0), (1, 255), (200, 100)])
def test_more_slots_than_llama_cpp_has_are_refused(max_num_seqs: int, max_cached_chains: int) -> None:
    with pytest.raises(InvalidRequest, match=f"{max_num_seqs} requests at once .* {MAX_SLOTS} sequences"):
        EngineConfig(max_num_seqs=max_num_seqs, max_cached_chains=max_cached_chains)


@pytest.mark.parametrize(("max_num_seqs", "max_cached_chains"), [(255, 0), (1, 254), (4, 11)])
def test_slots_are_running_cached_and_one_to_move_through(max_num_seqs: int, max_cached_chains: int) -> None:
    config = EngineConfig(max_num_seqs=max_num_seqs, max_cached_chains=max_cached_chains)
    assert config.num_slots == max_num_seqs + max_cached_chains + 1 <= MAX_SLOTS == 256


def test_gpu_layers() -> None:
    with pytest.raises(InvalidRequest, match="gpu_layers is -1, which is not 0 or more"):
        EngineConfig(gpu_layers=-1)
    assert [EngineConfig(gpu_layers=layers).gpu_layers for layers in ("auto", "all", 0, 99)] == ["auto", "all", 0, 99]


@pytest.mark.parametrize("field", ["type_k", "type_v"])
@pytest.mark.parametrize("kv_type", ["q6_k", "F16", ""])
def test_an_unknown_cache_type_is_refused_with_the_known_ones(field: str, kv_type: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        EngineConfig(**{field: kv_type})  # type: ignore[arg-type]
    assert str(caught.value) == f"{field} is {kv_type!r}, which is not one of {', '.join(KV_TYPES)}"


@pytest.mark.parametrize("kv_type", KV_TYPES)
def test_every_cache_type_is_known_to_llama_cpp(kv_type: str) -> None:
    assert EngineConfig(type_k=kv_type, type_v=kv_type).type_v == kv_type
    assert kv_type in GGML_TYPES


@pytest.mark.parametrize("kv_type", KV_TYPES)
def test_a_quantized_v_cache_needs_flash_attention(kv_type: str) -> None:
    assert EngineConfig(type_k=kv_type, flash_attn=False).type_k == kv_type
    assert EngineConfig(type_v=kv_type, flash_attn=True).type_v == kv_type
    if kv_type not in ("f32", "f16", "bf16"):
        assert kv_type in QUANTIZED_KV_TYPES
        with pytest.raises(InvalidRequest, match=f"a {kv_type} V cache needs flash attention") as caught:
            EngineConfig(type_v=kv_type, flash_attn=False)
        assert caught.value.hint is not None
    else:
        assert EngineConfig(type_v=kv_type, flash_attn=False).type_v == kv_type


def test_threads_are_those_asked_for_or_the_cores_there_are() -> None:
    assert EngineConfig(num_threads=3).threads() == 3
    assert EngineConfig().threads() == default_num_threads()
    assert 1 <= default_num_threads() <= (os.cpu_count() or 1)


def test_a_config_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        EngineConfig().n_batch = 1  # type: ignore[misc]
