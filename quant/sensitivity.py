# What each tensor's error costs, by the type it would have: the figures that a budget is spent by.
# This file may not know budgets. Weights are replaced in memory; no file is written.
"""``measure``: tensors × candidate types → bytes, and expected loss in KL.

The error of a type is the relative squared error of the tensor's values, weighed by its importance matrix, on some of
its rows. What such an error costs is measured: tensors of one kind in one third of the layers are rounded to four bits
together, in memory, and KL from the model as it was says what a unit of their error is worth. KL grows with the square
of a small change, as these errors do, so one probe serves for all types.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from ingle.models.ggml_types import BY_ID, BY_NAME, row_bytes
from ingle.models.gguf_info import TensorInfo
from ingle.quant import ggml
from ingle.quant.activations import Tokens, context_config
from ingle.quant.evaluate import chunk_logits, compare
from ingle.quant.recipe import is_quantizable
from ingle.quant.sequential import find_weights
from ingle.quant.source import Source, slabs
from ingle.runtime.config import EngineConfig
from ingle.runtime.graph_watch import TensorRef
from ingle.runtime.llama import LlamaModel
from ingle.runtime.llama_context import LlamaContext
from ingle.runtime.loading import gpu_layers_to_ask

Floats = npt.NDArray[np.float32]

CANDIDATES: Final = ("Q2_K", "Q3_K", "Q4_0", "IQ4_NL", "Q4_K", "Q5_0", "Q5_K", "Q6_K", "Q8_0", "F16")
"""Types that a budget chooses from; of those whose blocks divide a tensor's rows."""
PROBE_TYPE: Final = "Q4_0"
PROBE_TOKENS: Final = 256
NUM_PROBE_CHUNKS: Final = 8
CLIP_QUANTILE: Final = 0.95
"""Rows whose KL is larger count as if theirs were this one. The few at which a small change tips the whole model hold
most of a mean, and where they lie is chance. In a 135M model the logarithms of 22 groups' mean KL on its own text
strayed by 0.35 from those on other text with 3 chunks, by 0.24 with 8, and by 0.16 with these rows held down: budgets
by the first were worse than llama.cpp's mix of that size, those by the last better by a quarter."""
NUM_THIRDS: Final = 3
MAX_ROWS: Final = 128
_LAYER: Final = re.compile(r"blk\.(\d+)\.(.+)")

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Sensitivities:
    """`sizes` and `errors` are [tensors, CANDIDATES]; infinity for a type that a tensor cannot have."""

    names: tuple[str, ...]
    sizes: npt.NDArray[np.int64]
    errors: npt.NDArray[np.float64]


def measure(
    source: Source,
    chunks: Sequence[Tokens],
    means: Mapping[str, Floats],
    *,
    config: EngineConfig,
    progress: Progress,
) -> Sensitivities:
    """For every tensor that can be quantized. `chunks`: calibration text; `means`: the importance matrix.

    Raises EngineError, BadWeights.
    """
    tensors = [t for t in source.info.tensors if is_quantizable(t, source.info.architecture)]
    picked = [chunks[round(i)][:PROBE_TOKENS] for i in np.linspace(0, len(chunks) - 1, NUM_PROBE_CHUNKS)]
    groups: dict[str, list[TensorInfo]] = {}
    for tensor in tensors:
        groups.setdefault(_group_of(tensor.name, source.info.num_layers), []).append(tensor)
    sizes = np.zeros((len(tensors), len(CANDIDATES)), np.int64)
    relative = np.full((len(tensors), len(CANDIDATES)), np.inf)
    total = len(tensors) + len(groups)
    for row, tensor in enumerate(tensors):
        progress(row, total)
        sample, importances = _sample(source, tensor, means.get(tensor.name))
        for col, type_name in enumerate(CANDIDATES):
            if tensor.shape[0] % BY_NAME[type_name].block_size == 0:
                sizes[row, col] = tensor.num_values // tensor.shape[0] * row_bytes(type_name, tensor.shape[0])
                relative[row, col] = _relative_error(sample, importances, type_name)
    costs: dict[str, float] = {}
    with ExitStack() as stack:
        probe = _Probe(source.path, picked, config, stack)
        for number, (name, members) in enumerate(groups.items()):
            progress(len(tensors) + number, total)
            cost = probe.cost(source, members, means)
            if cost is not None:
                costs[name] = cost
    progress(total, total)
    usual = float(np.median(list(costs.values()))) if costs else 1.0
    weights = np.array([costs.get(_group_of(t.name, source.info.num_layers), usual) for t in tensors])
    return Sensitivities(tuple(t.name for t in tensors), sizes, relative * np.maximum(weights, 1e-3 * usual)[:, None])


def _group_of(name: str, num_layers: int) -> str:
    match = _LAYER.match(name)
    return name if match is None else f"{match[2]} {int(match[1]) * NUM_THIRDS // max(num_layers, 1)}"


def _sample(source: Source, tensor: TensorInfo, means: Floats | None) -> tuple[list[Floats], list[Floats | None]]:
    """Some rows of each matrix of the tensor, and the importances of its columns."""
    num_matrices = tensor.shape[2] if len(tensor.shape) > 2 else 1
    num_rows = source.num_rows(tensor.name) // num_matrices
    per_matrix = max(8, MAX_ROWS // num_matrices)
    step = max(1, num_rows // per_matrix)
    found: list[Floats] = []
    for matrix in range(num_matrices):
        first = matrix * num_rows
        rows = [source.rows(tensor.name, first + i, first + i + 1) for i in range(0, num_rows, step)][:per_matrix]
        found.append(np.concatenate(rows))
    return found, [None] * num_matrices if means is None else list(means)


def _relative_error(sample: Sequence[Floats], importances: Sequence[Floats | None], type_name: str) -> float:
    lost = there = 0.0
    for values, importance in zip(sample, importances, strict=True):
        data = ggml.quantize(values, type_name, importance)
        error = ggml.dequantize(data, type_name, values.shape) - values
        weight = np.ones(values.shape[1], np.float32) if importance is None else importance
        lost += float((np.square(error) @ weight).sum())
        there += float((np.square(values) @ weight).sum())
    return lost / there if there else 0.0


def clipped_mean(kl: npt.NDArray[np.float64]) -> float:
    """Of rows, none of which counts more than CLIP_QUANTILE of them do."""
    return float(np.minimum(kl, np.quantile(kl, CLIP_QUANTILE)).mean())


def _kept(logits: Floats) -> npt.NDArray[np.float16]:
    """In half the memory, below each row's largest: what is likely keeps four digits."""
    below = logits - logits.max(axis=1, keepdims=True)
    return np.asarray(np.maximum(below, -np.finfo(np.float16).max), np.float16)


class _Probe:
    """A model in memory whose weights can be replaced for a while."""

    def __init__(self, path: Path, chunks: Sequence[Tokens], config: EngineConfig, stack: ExitStack) -> None:
        self._chunks = chunks
        length = len(chunks[0])
        self._scored = slice(length // 2, length)
        config = context_config(config, length)
        model = LlamaModel(path, gpu_layers_to_ask(config), plain=True)
        stack.callback(model.close)
        self._weights = find_weights(model, chunks[0][:1], config)
        self._context = LlamaContext(model, length, config, num_outputs=length - length // 2)
        stack.callback(self._context.close)
        self._before = [_kept(self._logits(chunk)) for chunk in chunks]

    def cost(self, source: Source, tensors: Sequence[TensorInfo], means: Mapping[str, Floats]) -> float | None:
        """KL for a unit of relative error in each of `tensors`; None where none of them can be
        replaced: the model does not multiply by them, or they are stored in blocks that do not allow it."""
        error = 0.0
        replaced: list[TensorInfo] = []
        try:
            for tensor in tensors:
                target = self._weights.get(tensor.name)
                if target is None or tensor.shape[0] % BY_NAME[PROBE_TYPE].block_size:
                    continue
                assert BY_ID[target.type_id].name == tensor.type
                if ggml.requires_imatrix(tensor.type):
                    continue  # nothing can be written into it
                replaced.append(tensor)
                error += _replace(source, tensor, target, means.get(tensor.name))
            if not error:
                return None
            return self._kl() / error
        finally:
            for tensor in replaced:
                for first, last in slabs(tensor.shape):
                    data = source.raw_rows(tensor.name, first, last)
                    self._weights[tensor.name].write(data, first * data.shape[1])

    def _kl(self) -> float:
        """Over all scored rows, against the model as it was."""
        found = []
        for chunk, before in zip(self._chunks, self._before, strict=True):
            targets = np.zeros(len(before), np.int32)
            found.append(compare(before.astype(np.float32), self._logits(chunk), targets).kl)
        return clipped_mean(np.concatenate(found))

    def _logits(self, chunk: Tokens) -> Floats:
        (logits,) = chunk_logits(self._context, chunk, self._scored, len(chunk))
        return logits


def _replace(source: Source, tensor: TensorInfo, target: TensorRef, means: Floats | None) -> float:
    """Round `tensor` to PROBE_TYPE where it lies in memory; its relative error."""
    lost = whole = 0.0
    for first, last in slabs(tensor.shape):
        values = source.rows(tensor.name, first, last)
        importance = None if means is None else means[first // tensor.shape[1]]
        rounded = ggml.dequantize(ggml.quantize(values, PROBE_TYPE, importance), PROBE_TYPE, values.shape)
        data = ggml.quantize(rounded, tensor.type)
        target.write(data, first * data.shape[1])
        weight = np.ones(values.shape[1], np.float32) if importance is None else importance
        whole += float((np.square(values) @ weight).sum(dtype=np.float64))
        lost += float((np.square(rounded - values) @ weight).sum(dtype=np.float64))
    return lost / whole if whole else 0.0
