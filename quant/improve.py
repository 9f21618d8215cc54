# From activations to better weights: scales for groups, then blocks with error feedback. Ties the searches to a model.
# This file may not know how files are written; it reads weights through a function, by name.
"""What can be done for a quantized model beside rounding it, each part of its own and each to be kept or left:

    find_scales   one search for each group (awq.py), from the sample that `capture` took
    importances   the importance matrix, as it is once the scales are folded
    feed_back     every matrix quantized with error feedback (gptq.py), on inputs that come from quantized layers

The caller judges by held-out KL which of them a file is written with.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ingle.models.gguf_info import ModelInfo
from ingle.quant import awq, ggml, gptq
from ingle.quant.activations import Activations, Tokens
from ingle.quant.fold import NO_SCALE, TensorScale, tensor_scales
from ingle.quant.groups import Group, groups_of
from ingle.quant.recipe import FLOAT_TYPES
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
    info: ModelInfo,
    activations: Activations,
    read: Read,
    types: Mapping[str, str],
    means: Mapping[str, Floats],
    *,
    progress: Progress = _silent,
) -> Scaling | None:
    """Scales for every group that any token reached; None for an architecture without a row in the table.

    `types`: by tensor, what it will be stored as. `means`: by tensor, the importance matrix that it will be rounded
    with, unscaled; one that is missing is rounded without. Groups of which no linear is quantized stay as they are.
    All cores work, each on a group; `read` is called by one of them at a time.
    """
    groups = groups_of(info)
    if groups is None:
        return None
    lock = threading.Lock()

    def search(group: Group) -> awq.Choice | None:
        stats = activations.inputs.get(group.linears[0])
        names = [name for name in group.linears if types[name] not in FLOAT_TYPES and name in activations.squares]
        if stats is None or not names:
            return None
        with lock:
            values = {name: read(name) for name in names}
        linears = [linear for name in names for linear in _linears(values[name], types[name], means.get(name))]
        return awq.search(linears, stats.mean_abs, stats.rows.all(), group.column_of)

    choices: dict[str, awq.Choice] = {}
    pool = ThreadPoolExecutor(ggml.num_cores(), thread_name_prefix="ingle-awq")
    try:
        for number, (group, choice) in enumerate(zip(groups, pool.map(search, groups), strict=True), 1):
            if choice is not None:
                choices[group.name] = choice
            progress(number, len(groups))
    finally:
        pool.shutdown(cancel_futures=True)
    shapes = {tensor.name: tensor.shape for tensor in info.tensors}
    chosen = {name: choice.scales for name, choice in choices.items() if choice.alpha}
    return Scaling(tensor_scales(groups, chosen, shapes), choices)


def _linears(values: Floats, type_name: str, means: Floats | None) -> list[awq.Linear]:
    """One for a matrix, one an expert for a stack of them."""
    stack = values.reshape(-1, *values.shape[-2:])
    each = [None] * len(stack) if means is None else list(means)
    return [awq.Linear(matrix, type_name, mean) for matrix, mean in zip(stack, each, strict=True)]


def importances(means: Mapping[str, Floats], scales: Mapping[str, TensorScale]) -> dict[str, Floats]:
    """Mean squares by tensor, float32 [experts, cols], of inputs divided by the scales."""
    return {name: scales.get(name, NO_SCALE).importances(mean) for name, mean in means.items()}


def feed_back(
    path: Path,
    chunks: Sequence[Tokens],
    activations: Activations,
    read: Read,
    types: Mapping[str, str],
    scales: Mapping[str, TensorScale],
    means: Mapping[str, Floats],
    *,
    config: EngineConfig | None = None,
    progress: Progress = _silent,
) -> dict[str, Bytes]:
    """Blocks of every matrix that a layer multiplies by, scaled and quantized, each fitted to inputs that come from
    those before it.

    Stacks of experts, and types that gptq.py does not know, are rounded by ggml with `means`, the importance matrix of
    the unscaled model, so that what comes after them sees that too. Memory beside the model: the blocks, and what
    `walk` says.
    """
    readers = {
        node: matched
        for node, names in by_node(activations).items()
        if (matched := tuple(name for name in names if types[name] not in FLOAT_TYPES))
    }
    weighed = importances(means, scales)
    blocks: dict[str, Bytes] = {}

    def replace(names: tuple[str, ...], rows: Floats, counts: Floats) -> dict[str, Floats]:
        became: dict[str, Floats] = {}
        alike: dict[tuple[str, bytes], list[str]] = {}  # matrices of one type and one scaling, which are one taller one
        for name in names:
            if _is_stack(name) or types[name] not in gptq.TYPES:
                scaled = scales.get(name, NO_SCALE).apply(read(name))
                blocks[name] = _rounded(scaled, types[name], weighed.get(name))
                became[name] = ggml.dequantize(blocks[name], types[name], scaled.shape)
            else:
                columns = scales.get(name, NO_SCALE).columns
                alike.setdefault((types[name], b"" if columns is None else columns.tobytes()), []).append(name)
        factors = _factors(rows, counts, {key for _, key in alike})
        for (type_name, key), members in alike.items():
            parts = [scales.get(name, NO_SCALE).apply(read(name)) for name in members]
            steps_by = None if means else np.ones(rows.shape[1], np.float32)  # no importances were wanted
            data = gptq.quantize(np.concatenate(parts), type_name, factors[key], steps_by)
            ends = np.cumsum([len(part) for part in parts])
            for name, part in zip(members, np.split(data, ends[:-1]), strict=True):
                blocks[name] = np.ascontiguousarray(part)
                became[name] = ggml.dequantize(blocks[name], type_name, (len(part), rows.shape[1]))
        return {name: _unscaled(values, scales.get(name, NO_SCALE)) for name, values in became.items()}

    walk(path, chunks, readers, replace, config=config, progress=progress)
    return blocks


def _factors(rows: Floats, counts: Floats, scalings: Collection[bytes]) -> dict[bytes, Floats]:
    """By scaling of the columns (float32 as bytes; none: no scaling), what error feedback goes by. Uses `rows` up."""
    if not scalings:
        return {}
    gram = gptq.gram_of(rows, counts)
    factors = {}
    for key in scalings:
        matrix = gram.copy() if len(scalings) > 1 else gram
        if key:
            columns = np.frombuffer(key, np.float32)
            matrix /= columns
            matrix /= columns[:, None]
        factors[key] = gptq.factor(matrix)
    return factors


def _is_stack(name: str) -> bool:
    """Whether the tensor holds a matrix for each expert, told by the name that GGUF gives those."""
    return name.endswith("_exps.weight")


def _rounded(values: Floats, type_name: str, means: Floats | None) -> Bytes:
    """A matrix, or a stack of experts, each with its own importances: uint8 [all rows, bytes of a row]."""
    stack = values.reshape(-1, *values.shape[-2:])
    each = [None] * len(stack) if means is None else list(means)
    return np.concatenate([ggml.quantize(m, type_name, mean) for m, mean in zip(stack, each, strict=True)])


def _unscaled(values: Floats, scale: TensorScale) -> Floats:
    """What scaled values stand for in the model as it was."""
    inverse = TensorScale(
        None if scale.rows is None else np.asarray(1 / scale.rows, np.float32),
        None if scale.columns is None else np.asarray(1 / scale.columns, np.float32),
    )
    return inverse.apply(values)
