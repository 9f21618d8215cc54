# The parts together on tiny models: every tensor's blocks are there, and outputs are nearer than with plain rounding.
from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from ingle.models.gguf_info import read_model_info
from ingle.quant import ggml
from ingle.quant.activations import capture, cut
from ingle.quant.fold import NO_SCALE
from ingle.quant.improve import feed_back, find_scales
from tests.quant.architectures import rewrite, write_model
from tests.quant.test_fold import logits_of, mean_kl
from tests.tiny_models import write_lfm2

CHUNKS = cut(np.random.default_rng(16).integers(3, 300, 16 * 64).tolist(), 64)


@pytest.mark.parametrize("name", ["qwen2", "gemma3", "qwen3moe"])
def test_a_better_file_of_the_same_size(name: str, tmp_path: Path) -> None:
    source = write_model(tmp_path / "model.gguf", name)
    info = read_model_info(source)
    tensors = {t.name: np.array(t.data) for t in gguf.GGUFReader(source).tensors}
    linears = [n for n, v in tensors.items() if v.ndim > 1 and n.startswith("blk.") and "gate_inp" not in n]
    types = {n: "Q4_0" if n in linears else "F32" for n in tensors}
    found = capture(source, CHUNKS, [*linears, *(n for n in tensors if "gate_inp" in n)])
    means = {n: stats.mean() for n, stats in found.squares.items()}
    scaling = find_scales(info, found, tensors.__getitem__, types, means)
    assert scaling is not None
    assert all(choice.error <= choice.plain_error for choice in scaling.choices.values())
    blocks = feed_back(source, CHUNKS, found, tensors.__getitem__, types, scaling.tensors, means)
    assert set(blocks) == set(linears)

    def improved(n: str, values: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
        scaled = scaling.tensors.get(n, NO_SCALE).apply(values)
        return ggml.dequantize(blocks[n], "Q4_0", values.shape) if n in blocks else scaled

    def plain(n: str, values: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
        if n not in blocks:
            return values
        stack = values.reshape(-1, *values.shape[-2:])
        data = [ggml.quantize(matrix, "Q4_0", mean) for matrix, mean in zip(stack, means[n], strict=True)]
        return ggml.dequantize(np.concatenate(data), "Q4_0", values.shape)

    reference = logits_of(source, 20)
    better = mean_kl(reference, logits_of(rewrite(source, tmp_path / "better.gguf", improved), 20))
    worse = mean_kl(reference, logits_of(rewrite(source, tmp_path / "plain.gguf", plain), 20))
    assert better < worse  # random weights on random tokens leave little to gain


def test_an_unknown_architecture_is_not_scaled(tmp_path: Path) -> None:
    source = write_lfm2(tmp_path / "model.gguf")
    info = read_model_info(source)
    names = [tensor.name for tensor in info.tensors if len(tensor.shape) > 1]
    found = capture(source, CHUNKS[:1], names)
    assert "blk.0.shortconv.in_proj.weight" in found.squares
    assert find_scales(info, found, lambda _: np.zeros(0, np.float32), {}, {}) is None
