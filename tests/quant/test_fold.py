# Scales fold away exactly: a scaled model is the same function, for every architecture in the table.
from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from ingle.models.gguf_info import read_model_info
from ingle.quant.activations import context_config
from ingle.quant.fold import NO_SCALE, TensorScale, tensor_scales
from ingle.quant.groups import ARCHITECTURES, groups_of
from ingle.runtime.llama import LlamaModel
from ingle.runtime.llama_context import LlamaContext
from tests.quant.architectures import ALL, rewrite, write_model
from tests.tiny_models import write_lfm2

NUM_TOKENS = 32


def logits_of(path: Path, num_texts: int = 1) -> npt.NDArray[np.float32]:
    """[tokens, vocab] for fixed texts of random tokens."""
    model = LlamaModel(path, 0)
    context = LlamaContext(model, 256, context_config(None, NUM_TOKENS), num_outputs=NUM_TOKENS)
    rng, found = np.random.default_rng(1), []
    for _ in range(num_texts):
        context.clear()
        context.tokens[:NUM_TOKENS] = rng.integers(3, 300, NUM_TOKENS)
        context.positions[:NUM_TOKENS] = np.arange(NUM_TOKENS)
        context.wanted[:NUM_TOKENS] = 1
        assert context.decode(NUM_TOKENS, interruptible=False) == 0
        found.append(context.logits(NUM_TOKENS).copy())
    context.close()
    model.close()
    return np.concatenate(found)


def mean_kl(reference: npt.NDArray[np.float32], other: npt.NDArray[np.float32]) -> float:
    logs = [x - x.max(axis=1, keepdims=True) for x in (reference.astype(np.float64), other.astype(np.float64))]
    p, q = (x - np.log(np.exp(x).sum(axis=1, keepdims=True)) for x in logs)
    return float((np.exp(p) * (p - q)).sum(axis=1).mean())


@pytest.mark.parametrize("name", ALL)
def test_a_scaled_model_is_the_same_function(name: str, tmp_path: Path) -> None:
    source = write_model(tmp_path / "model.gguf", name)
    info = read_model_info(source)
    groups = groups_of(info)
    assert groups is not None
    assert len(groups) == (6 if name in ("mixtral", "qwen3moe") else 8)
    rng = np.random.default_rng(2)
    chosen = {group.name: np.exp(rng.normal(0, 1, group.num_scales)).astype(np.float32) for group in groups}
    scales = tensor_scales(groups, chosen, {tensor.name: tensor.shape for tensor in info.tensors})
    scaled = rewrite(source, tmp_path / "scaled.gguf", lambda n, values: scales.get(n, NO_SCALE).apply(values))
    reference = logits_of(source)
    assert reference.std() > 0.5
    assert mean_kl(reference, logits_of(scaled)) < 1e-5


@pytest.mark.parametrize("name", ["qwen2", "phi3", "mixtral"])
def test_the_comparison_notices_what_is_left_out(name: str, tmp_path: Path) -> None:
    source = write_model(tmp_path / "model.gguf", name)
    info = read_model_info(source)
    groups = groups_of(info)
    assert groups is not None
    chosen = {group.name: np.linspace(0.5, 2, group.num_scales, dtype=np.float32) for group in groups}
    scales = tensor_scales(groups, chosen, {tensor.name: tensor.shape for tensor in info.tensors})
    reference = logits_of(source)
    for left_out in scales:
        if not left_out.startswith("blk.0."):
            continue
        part = {n: scale for n, scale in scales.items() if n != left_out}
        wrong = rewrite(source, tmp_path / "wrong.gguf", lambda n, v, part=part: part.get(n, NO_SCALE).apply(v))
        assert mean_kl(reference, logits_of(wrong)) > 1e-5, left_out


def test_the_table_is_what_is_tested() -> None:
    assert set(ARCHITECTURES) == {"llama" if name == "mixtral" else name for name in ALL}


def test_an_architecture_without_a_row_has_no_groups(tmp_path: Path) -> None:
    assert groups_of(read_model_info(write_lfm2(tmp_path / "model.gguf"))) is None


def test_heads_that_share_a_v_share_its_scales(tmp_path: Path) -> None:
    info = read_model_info(write_model(tmp_path / "model.gguf", "qwen3"))
    groups = groups_of(info)
    assert groups is not None
    group = next(group for group in groups if group.name == "blk.1.attn_output")
    # 4 heads of 32 read 2 heads of v: heads 0 and 1 the first, 2 and 3 the second.
    assert group.num_scales == 64
    assert group.column_of[[0, 31, 32, 63, 64, 96, 127]].tolist() == [0, 31, 0, 31, 32, 32, 63]
    assert [(fold.tensor, fold.start, fold.count) for fold in group.folds] == [("blk.1.attn_v.weight", 0, 64)]


def test_fused_tensors_end_with_what_is_divided(tmp_path: Path) -> None:
    info = read_model_info(write_model(tmp_path / "model.gguf", "phi3"))
    groups = {group.name: group for group in groups_of(info) or ()}
    assert groups["blk.0.attn_output"].folds[0].start == 64 + 32  # q and k come before v
    assert groups["blk.0.ffn_down"].folds[0].start == 96  # gate comes before up


def test_factors_multiply_rows_and_columns() -> None:
    scale = TensorScale(np.array([2, 3], np.float32), np.array([10, 100, 1000], np.float32))
    assert scale.apply(np.ones((2, 3), np.float32)).tolist() == [[20, 200, 2000], [30, 300, 3000]]
    assert scale.importances(np.full(3, 100, np.float32)).tolist() == pytest.approx([1, 0.01, 0.0001])
    assert TensorScale(np.array([2, 4], np.float32)).apply(np.ones(2, np.float32)).tolist() == [2, 4]
