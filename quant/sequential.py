# Calibration that sees the layers already quantized: one pass, in which each layer's weights are replaced as it goes.
# This file may not know how weights are quantized: it shows inputs, and takes what the weights have become.
"""``walk``: all calibration chunks through the model at once, stopping at the inputs of its linear layers.

When an input has been computed, from weights that have all been replaced by their quantized selves, and before anything
reads it, `replace` is shown it and gives back the weights that read it, as they will be. They are written over the
model's own in memory, and the computation goes on. So every layer is calibrated on what it will really see, for the
price of a single pass. The file is not touched.

Memory: the model, and some rows × cols of float32 for the widest layer; `num_rows` says how many rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from ingle.models.ggml_types import BY_ID
from ingle.quant import ggml
from ingle.quant.activations import Activations, Tokens, context_config
from ingle.quant.errors import BadActivations
from ingle.runtime.config import EngineConfig
from ingle.runtime.errors import EngineError
from ingle.runtime.graph_watch import Node, TensorRef, Watch
from ingle.runtime.llama import LlamaModel
from ingle.runtime.llama_context import LlamaContext
from ingle.runtime.loading import gpu_layers_to_ask

Floats = npt.NDArray[np.float32]
Replace = Callable[[tuple[str, ...], Floats, Floats], Mapping[str, Floats]]
"""Names of the weights that read an input, its rows [n, cols], what each row counts [n] → values as they will be."""

FIRST_ROW_COUNTS: Final = 8.0
"""The first token of a text, as against any other: every later token attends to it, and it is like no other."""

MAX_LOGITS_BYTES: Final = 256 << 20
"""The last layer goes on only with rows whose logits are wanted, and those take memory."""


def by_node(activations: Activations) -> dict[str, tuple[str, ...]]:
    """llama.cpp's name of an input → the weights that read it; inputs whose name is not theirs alone are missing."""
    found: dict[str, list[str]] = {}
    for name, stats in activations.inputs.items():
        if stats.node is not None:
            found.setdefault(stats.node, []).append(name)
    return {node: tuple(names) for node, names in found.items()}


class _Finder:
    """Learns where the weights are."""

    def __init__(self) -> None:
        self.weights: dict[str, TensorRef] = {}

    def wants(self, node: Node) -> bool:
        if node.is_product:
            weight = node.weight
            self.weights[weight.name] = weight
        return False

    def computed(self, _node: Node) -> bool:
        return True


class _Walker:
    """Stops at inputs and has their readers replaced."""

    def __init__(
        self,
        readers: Mapping[str, tuple[str, ...]],
        weights: Mapping[str, TensorRef],
        replace: Replace,
        counts: tuple[Floats, Floats],
        progress: Callable[[int, int], None],
    ) -> None:
        self._readers = readers
        self._left = set(readers)
        self._weights = weights
        self._replace = replace
        self._counts = counts  # of all rows, and of those whose logits are wanted
        self._progress = progress

    def wants(self, node: Node) -> bool:
        return node.output.name in self._left

    def computed(self, node: Node) -> bool:
        name = node.output.name
        self._left.discard(name)
        rows = node.output.read()
        rows = rows.reshape(-1, rows.shape[-1])
        if not np.isfinite(rows).all():
            raise BadActivations(f"what arrives at {self._readers[name][0]} is not finite", None)
        counts = self._counts[0] if len(rows) == len(self._counts[0]) else self._counts[1]
        for weight, values in self._replace(self._readers[name], rows, counts).items():
            target = self._weights[weight]
            flat = np.ascontiguousarray(values.reshape(-1, values.shape[-1]), np.float32)
            target.write(ggml.quantize(flat, BY_ID[target.type_id].name))
        self._progress(len(self._readers) - len(self._left), len(self._readers))
        return bool(self._left)


def walk(
    path: Path,
    chunks: Sequence[Tokens],
    readers: Mapping[str, tuple[str, ...]],
    replace: Replace,
    *,
    config: EngineConfig | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Run `chunks`, all of one length, through the model at `path`, replacing weights as the module says.

    `readers`: see `by_node`. Raises what `replace` raises, BadActivations, EngineError.
    """
    length = len(chunks[0])
    num_rows = length * len(chunks)
    settings = context_config(config, num_rows, len(chunks))
    with ExitStack() as stack:
        model = LlamaModel(path, gpu_layers_to_ask(settings), plain=True)
        stack.callback(model.close)
        weights = find_weights(model, chunks[0][:1], config)
        num_outputs = max(1, min(num_rows, MAX_LOGITS_BYTES // (4 * model.num_vocab)))
        counts = np.where(np.arange(num_rows) % length == 0, np.float32(FIRST_ROW_COUNTS), np.float32(1))
        wanted = counts > 1
        wanted[np.linspace(0, num_rows - 1, num_outputs, dtype=np.int64)] = True
        walker = _Walker(readers, weights, replace, (counts, counts[wanted]), progress)
        _decode(model, np.concatenate(chunks), len(chunks), settings, Watch(walker), wanted)


def find_weights(model: LlamaModel, tokens: Tokens, config: EngineConfig | None) -> dict[str, TensorRef]:
    """By name, all weights that `model` multiplies by; good as long as the model is. `tokens`: one, to compute."""
    finder = _Finder()
    _decode(model, tokens, 1, context_config(config, 1), Watch(finder), np.ones(1, np.bool_))
    return finder.weights


def _decode(
    model: LlamaModel,
    tokens: Tokens,
    num_seqs: int,
    config: EngineConfig,
    watch: Watch,
    wanted: npt.NDArray[np.bool_],
) -> None:
    """All `tokens` in one batch, as `num_seqs` sequences of one length, each with cells of its own."""
    num_rows = len(tokens)
    length = num_rows // num_seqs
    num_cells = -(-length // 256) * 256 * config.num_slots
    context = LlamaContext(model, num_cells, config, num_outputs=int(wanted.sum()), unified=False, watch=watch.callback)
    try:
        context.tokens[:num_rows] = tokens
        context.positions[:num_rows] = np.arange(num_rows) % length
        context.slots[:num_rows] = np.arange(num_rows) // length
        context.wanted[:num_rows] = wanted
        code = context.decode(num_rows, interruptible=False)
        watch.check()
        if code:
            raise EngineError(f"llama.cpp gave {code} for {num_rows} calibration tokens")
    finally:
        context.close()
