# Needs and plans against values worked out by hand. What llama.cpp really takes: tests/runtime/test_planning.py.
from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest

from ingle.models.gguf_header import ArrayRef, TensorInfo
from ingle.models.gguf_info import ModelInfo, read_model_info
from ingle.models.needs import CELL_BYTES, MERGE_BYTES, PROGRAM_BYTES, TOKEN_BYTES, Needs, Setting, compute_bytes, needs
from ingle.models.plan import (
    FREE_SHARE,
    DraftNeeds,
    Free,
    fits_scaled,
    largest_context,
    make_plan,
    most_gpu_layers,
    scaled,
)
from ingle.models.repacking import repacked_bytes
from tests.tiny_models import NUM_VOCAB, write_gemma3, write_llama, write_mamba

GIB = 1 << 30


@pytest.fixture
def llama(tmp_path: Path) -> ModelInfo:
    """64 wide, two layers, four heads of 32, two KV heads, 96 hidden values; 512 bytes of f16 cache a token."""
    return read_model_info(write_llama(tmp_path / "llama.gguf", n_ctx_train=100_000))


def test_parts_of_a_small_model(llama: ModelInfo) -> None:
    setting = Setting(num_slots=4, num_outputs=4, n_batch=512)
    found = needs(llama, setting, 1024)
    assert found.program_bytes == PROGRAM_BYTES
    assert found.vocabulary_bytes == NUM_VOCAB * TOKEN_BYTES
    assert found.weights_bytes == llama.weights_bytes
    assert found.kv_bytes == 1024 * (512 + CELL_BYTES)
    assert found.output_bytes == 4 * NUM_VOCAB * 4
    assert found.gpu_bytes == 0
    assert found.host_bytes == sum(value for _, value in found.items())


def test_merges_count(llama: ModelInfo) -> None:
    arrays = MappingProxyType({"tokenizer.ggml.merges": ArrayRef("str", 1000, 0, 0)})
    more = needs(replace(llama, arrays=arrays), Setting(), 256).vocabulary_bytes
    assert more - needs(llama, Setting(), 256).vocabulary_bytes == 1000 * MERGE_BYTES


def test_the_compute_buffer_is_its_largest_stage(llama: ModelInfo) -> None:
    # 3 × 64 for what is carried along, 128 queries, 3 × 96 hidden values; a mask of 2 bytes a cell
    assert (
        compute_bytes(llama, Setting(num_slots=4, num_outputs=4), 1024)
        == 512 * 4 * (3 * 64 + 128 + 3 * 96) + 512 * 1024 * 2
    )
    # rows are a multiple of the slots: 520 for 13
    assert compute_bytes(llama, Setting(), 1024) == 520 * 4 * (3 * 64 + 128 + 3 * 96) + 520 * 1024 * 2
    # without flash attention: a score of every head for every cell, and a mask of 4 bytes
    plain = compute_bytes(llama, Setting(num_slots=4, num_outputs=4, flash_attn=False), 1024)
    assert plain == 512 * 4 * (2 * 64 + 3 * 128 + 128 + 1024 * 4) + 512 * 1024 * 4
    # a step of few rows and a large vocabulary: the logits
    wide = replace(llama, vocab_size=100_000)
    assert compute_bytes(wide, Setting(num_slots=4, num_outputs=4, n_batch=8), 256) == 4 * (4 * (100_000 + 64) + 8 * 64)


def test_a_quantized_cache_of_heads_of_64_rotates_them(llama: ModelInfo) -> None:
    heads = replace(llama, key_length=64, value_length=192)
    f16 = compute_bytes(heads, Setting(), 1024)
    assert compute_bytes(heads, Setting(type_k="q8_0"), 1024) - f16 == 64 * 64 * 4
    assert compute_bytes(heads, Setting(type_v="q8_0"), 1024) - f16 == 64 * 64 * 4  # 192 is three times 64


def test_windows_have_a_mask_of_their_own(tmp_path: Path, llama: ModelInfo) -> None:
    gemma = read_model_info(write_gemma3(tmp_path / "gemma3.gguf"))
    grown = [compute_bytes(info, Setting(num_slots=4, num_outputs=4), 9216) for info in (llama, gemma)]
    start = [compute_bytes(info, Setting(num_slots=4, num_outputs=4), 1024) for info in (llama, gemma)]
    assert [a - b for a, b in zip(grown, start, strict=True)] == [8192 * 512 * 2, 8192 * 512 * 2 * 2]


def test_a_recurrent_model_needs_no_more_for_a_longer_context(tmp_path: Path) -> None:
    info = read_model_info(write_mamba(tmp_path / "mamba.gguf"))
    assert needs(info, Setting(), 4096) == needs(info, Setting(), 65536)


def tensor(name: str, kind: str, *shape: int, num_bytes: int = 1) -> TensorInfo:
    return TensorInfo(name, shape, kind, num_bytes, 0)


@pytest.mark.parametrize(
    ("features", "expected"),
    [
        ({"AVX2"}, 1 + 4),
        ({"AVX2", "AVX512"}, 1 + 4 + 8),
        ({"NEON", "DOTPROD"}, 1 + 2 + 4),
        ({"NEON"}, 0),
        ({"AVX2", "AMX_INT8"}, 1 + 2 + 4),
        (set(), 0),
    ],
)
def test_what_a_cpu_repacks(features: set[str], expected: int) -> None:
    tensors = [
        tensor("blk.0.attn_q.weight", "Q4_0", 256, 64, num_bytes=1),
        tensor("blk.0.attn_k.weight", "Q8_0", 256, 64, num_bytes=2),
        tensor("blk.0.ffn_down_exps.weight", "Q4_K", 256, 64, 8, num_bytes=4),
        tensor("blk.0.ffn_up.weight", "Q2_K", 256, 64, num_bytes=8),
        tensor("blk.0.ffn_gate.weight", "Q4_K", 256, 63, num_bytes=16),  # rows that no kernel takes
        tensor("token_embd.weight", "Q4_0", 256, 64, num_bytes=32),
        tensor("blk.0.attn_norm.weight", "F32", 256, num_bytes=64),
    ]
    assert repacked_bytes(tensors, features, is_tied=False) == expected
    tied = 32 if expected else 0  # the embedding, for its use as the output
    assert repacked_bytes(tensors, features, is_tied=True) == expected + tied


def test_layers_move_to_the_gpu_from_the_end(llama: ModelInfo) -> None:
    sizes = {t.name: t.num_bytes for t in llama.tensors}
    layer = [sum(b for name, b in sizes.items() if name.startswith(f"blk.{i}.")) for i in range(2)]
    output = sizes["output.weight"] + sizes["output_norm.weight"]
    found = [needs(llama, Setting(gpu_layers=layers), 1024) for layers in range(5)]
    expected = [0, output, output + layer[1], output + sum(layer), output + sum(layer)]
    assert [n.gpu_weights_bytes for n in found] == expected
    assert [n.weights_bytes for n in found] == [llama.weights_bytes - on_gpu for on_gpu in expected]
    assert [n.gpu_kv_bytes for n in found] == [0, 0, 1024 * 256, 1024 * 512, 1024 * 512]
    assert [n.gpu_compute_bytes > 0 for n in found] == [False, True, True, True, True]


def test_a_tied_output_lies_in_both_memories(llama: ModelInfo) -> None:
    tied = replace(llama, tensors=tuple(t for t in llama.tensors if t.name != "output.weight"))
    embedding = next(t.num_bytes for t in tied.tensors if t.name == "token_embd.weight")
    found = needs(tied, Setting(gpu_layers=3), 1024)
    assert found.weights_bytes == embedding
    assert found.gpu_weights_bytes == tied.weights_bytes


def test_a_pool_that_grows_has_its_old_context_beside_it(llama: ModelInfo) -> None:
    plan = make_plan(llama, Setting(), 5000)
    assert plan.num_cells == 5120
    assert plan.start == needs(llama, Setting(), 1024)
    assert plan.full == needs(llama, Setting(), 5120)
    old = needs(llama, Setting(), 4096)
    assert plan.moving == Needs(kv_bytes=old.kv_bytes, compute_bytes=old.compute_bytes, output_bytes=old.output_bytes)
    assert plan.peak_host_bytes == plan.full.host_bytes + plan.moving.host_bytes
    assert make_plan(llama, Setting(), 900).moving == Needs()


def test_a_draft_model_is_added_to_both_ends(llama: ModelInfo) -> None:
    draft = DraftNeeds(needs(llama, Setting(), 512, program_bytes=0), needs(llama, Setting(), 2048, program_bytes=0))
    alone, both = make_plan(llama, Setting(), 4096), make_plan(llama, Setting(), 4096, draft=draft)
    assert both.start.host_bytes == alone.start.host_bytes + draft.start.host_bytes
    assert both.full.host_bytes == alone.full.host_bytes + draft.full.host_bytes
    assert both.draft == draft.full


@pytest.mark.parametrize("tokens", [256, 1024, 7000, 50_000])
def test_the_largest_context_fits_and_the_next_does_not(llama: ModelInfo, tokens: int) -> None:
    free = Free(int((make_plan(llama, Setting(), tokens).peak_host_bytes + 1) / FREE_SHARE) + 1)
    largest = largest_context(llama, Setting(), free)
    assert largest is not None
    assert largest >= tokens // 256 * 256
    assert make_plan(llama, Setting(), largest).fits(free)
    assert not make_plan(llama, Setting(), largest + 256).fits(free)


def test_the_largest_context_is_bounded(llama: ModelInfo) -> None:
    assert largest_context(llama, Setting(), Free(100 * GIB)) == 100_000
    assert largest_context(llama, Setting(), Free(100 * GIB), at_most=777) == 777
    assert largest_context(llama, Setting(), Free(PROGRAM_BYTES)) is None


def test_as_many_layers_as_the_gpu_holds(llama: ModelInfo) -> None:
    def room_for(layers: int) -> Free:
        peak = make_plan(llama, Setting(gpu_layers=layers), 4096).peak_gpu_bytes
        return Free(GIB, int((peak + 1) / FREE_SHARE) + 1)

    assert [most_gpu_layers(llama, Setting(), room_for(layers), 4096) for layers in (1, 2, 3)] == [1, 2, 3]
    assert most_gpu_layers(llama, Setting(), Free(GIB, 1000), 4096) == 0
    assert most_gpu_layers(llama, Setting(), Free(GIB), 4096) == 0
    assert not make_plan(llama, Setting(gpu_layers=1), 4096).fits(Free(GIB))


def test_another_quantization_changes_the_weights_alone(llama: ModelInfo) -> None:
    plan = make_plan(llama, Setting(), 4096)
    host, gpu = scaled(plan, llama.size_bytes, 2 * llama.size_bytes)
    assert (host, gpu) == (plan.peak_host_bytes + plan.full.weights_bytes, 0)
    free = Free(int(plan.peak_host_bytes / FREE_SHARE) + 2)
    assert [fits_scaled(plan, 100, size, free) for size in (50, 100, 200)] == [True, True, False]
