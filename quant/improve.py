# From activations to better weights: scales for groups, then blocks with error feedback. Ties the searches to a model.
# This file may not know how files are written; it reads weights through a function, by name.
"""What can be done for a quantized model beside rounding it, each part of its own and each to be kept or left:

    find_scales   one search for each group (awq.py), from the sample that `capture` took
    importances   the importance matrix, as it is once the scales are folded
    feed_back     every matrix quantized with error feedback (gptq.py), on inputs that come from quantized layers

The caller judges by held-out KL which of them a file is written with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ingle.models.gguf_info import ModelInfo
from ingle.quant import awq, ggml, gptq
from ingle.quant.activations import Activations, Tokens
from ingle.quant.fold import NO_SCALE, TensorScale, tensor_scales
from ingle.quant.groups import groups_of
from ingle.quant.sequential import by_node, walk
from ingle.runtime.config import EngineConfig

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]
Read = Callable[[str], Floats]
"""The name of a tensor → its values, columns last."""
Progress = Callable[[int, int], None]


def _silent(_done: int, _total: int) -> None:
    """Nobody watches."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """Factors by tensor, and the search's own figures by group: what the sample's outputs lost, and would have lost."""

    tensors: Mapping[str, TensorScale]
    choices: Mapping[str, awq.Choice]


def find_scales(
    info: ModelInfo, activations: Activations, read: Read, types: Mapping[str, str], *, progress: Progress = _silent
) -> Scaling | None:
    """Scales for every group that any token reached; None for an architecture without a row in the table.

    `types`: by tensor, what it will be stored as. Groups of which no linear is quantized stay as they are.
    """
    groups = groups_of(info)
    if groups is None:
        return None
    choices: dict[str, awq.Choice] = {}
    for number, group in enumerate(groups):
        progress(number, len(groups))
        stats = activations.inputs.get(group.linears[0])
        linears = [
            linear
            for name in group.linears
            if types[name] not in ("F32", "F16", "BF16") and name in activations.squares
            for linear in _linears(read(name), types[name], activations.squares[name].mean())
        ]
        if stats is not None and linears:
            choices[group.name] = awq.search(linears, stats.mean_abs, stats.rows.all(), group.column_of)
    progress(len(groups), len(groups))
    shapes = {tensor.name: tensor.shape for tensor in info.tensors}
    chosen = {name: choice.scales for name, choice in choices.items() if choice.alpha}
    return Scaling(tensor_scales(groups, chosen, shapes), choices)


def _linears(values: Floats, type_name: str, means: Floats) -> list[awq.Linear]:
    """One for a matrix, one an expert for a stack of them."""
    stack = values.reshape(-1, *values.shape[-2:])
    return [awq.Linear(matrix, type_name, mean) for matrix, mean in zip(stack, means, strict=True)]


def importances(activations: Activations, scales: Mapping[str, TensorScale]) -> dict[str, Floats]:
    """Mean squares by tensor, float32 [experts, cols], of inputs divided by the scales."""
    return {name: scales.get(name, NO_SCALE).importances(stats.mean()) for name, stats in activations.squares.items()}


def feed_back(
    path: Path,
    chunks: Sequence[Tokens],
    activations: Activations,
    read: Read,
    types: Mapping[str, str],
    scales: Mapping[str, TensorScale],
    *,
    config: EngineConfig | None = None,
    progress: Progress = _silent,
) -> dict[str, Bytes]:
    """Blocks of every matrix that a layer multiplies by, scaled and quantized, each fitted to inputs that come from
    those before it.

    Stacks of experts, and types that gptq.py does not know, are rounded by ggml with the importance matrix, so that
    what comes after them sees that too. Memory beside the model: the blocks, and what `walk` says.
    """
    readers = {
        node: matched
        for node, names in by_node(activations).items()
        if (matched := tuple(name for name in names if types[name] not in ("F32", "F16", "BF16")))
    }
    means = importances(activations, scales)
    blocks: dict[str, Bytes] = {}

    def replace(names: tuple[str, ...], rows: Floats, counts: Floats) -> dict[str, Floats]:
        gram = None if all(_is_stack(name) for name in names) else gptq.gram_of(rows, counts)
        factors: dict[bytes, Floats] = {}  # q, k and v have the same scales, and so the same factor
        became = {}
        for name in names:
            values, scale = read(name), scales.get(name, NO_SCALE)
            scaled = scale.apply(values)
            if gram is not None and values.ndim == 2 and types[name] in gptq.TYPES:
                columns = scale.columns if scale.columns is not None else np.ones(len(gram), np.float32)
                key = columns.tobytes()
                if key not in factors:
                    factors[key] = gptq.factor(gram / np.outer(columns, columns))
                data = gptq.quantize(scaled, types[name], factors[key])
            else:
                data = _rounded(scaled, types[name], means[name])
            blocks[name] = data
            became[name] = _unscaled(ggml.dequantize(data, types[name], values.shape), scale)
        return became

    walk(path, chunks, readers, replace, config=config, progress=progress)
    return blocks


def _is_stack(name: str) -> bool:
    """Whether the tensor holds a matrix for each expert, told by the name that GGUF gives those."""
    return name.endswith("_exps.weight")


def _rounded(values: Floats, type_name: str, means: Floats) -> Bytes:
    """A matrix, or a stack of experts, each with its own importances: uint8 [all rows, bytes of a row]."""
    stack = values.reshape(-1, *values.shape[-2:])
    return np.concatenate([ggml.quantize(m, type_name, mean) for m, mean in zip(stack, means, strict=True)])


def _unscaled(values: Floats, scale: TensorScale) -> Floats:
    """What scaled values stand for in the model as it was."""
    inverse = TensorScale(
        None if scale.rows is None else np.asarray(1 / scale.rows, np.float32),
        None if scale.columns is None else np.asarray(1 / scale.columns, np.float32),
    )
    return inverse.apply(values)
