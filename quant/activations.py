# What the linear layers of a model see: sums for importance matrices, channel sizes and samples of rows, in one pass.
# This file may not know what the figures are used for. Weights are told by name, their inputs by llama.cpp's graph.
"""``capture``: calibration tokens through the model, and what arrived at each weight.

For every product of a weight the inputs' squares are summed by channel, and tokens counted: exactly what llama-imatrix
collects (``collect_imatrix`` in tools/imatrix/imatrix.cpp). Beside that each distinct input, shared by q, k and v say,
gets its channels' mean absolute value and a sample of its rows. The first tokens of a chunk are left out of these two:
they carry activations hundreds of times larger than the rest, whatever the text.

Memory: the model, one chunk of activations, and at most `sample_bytes` of sampled rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from ingle.models.gguf_info import ModelInfo
from ingle.quant.errors import BadActivations
from ingle.runtime.config import EngineConfig
from ingle.runtime.errors import EngineError
from ingle.runtime.graph_watch import Node, Watch
from ingle.runtime.llama import LlamaModel
from ingle.runtime.llama_context import LlamaContext
from ingle.runtime.loading import gpu_layers_to_ask

Floats = npt.NDArray[np.float32]
Tokens = npt.NDArray[np.int32]

NUM_SKIPPED: Final = 8
"""Tokens at the start of a chunk that no sample contains."""
MAX_SAMPLE_ROWS: Final = 1024
MIN_SAMPLE_ROWS: Final = 64
_F32: Final = 0


class Rows:
    """A sample of rows [n, cols]: float16 with a float32 size each, so that no outlier overflows."""

    def __init__(self) -> None:
        self._parts: list[npt.NDArray[np.float16]] = []
        self._sizes: list[Floats] = []

    def add(self, rows: Floats) -> None:
        sizes = np.maximum(np.abs(rows).max(axis=1, keepdims=True, initial=0), np.float32(1e-30))
        self._parts.append((rows / sizes).astype(np.float16))
        self._sizes.append(sizes)

    def packed(self) -> tuple[npt.NDArray[np.float16], Floats]:
        """As they are kept: [n, cols] between -1 and 1, and sizes [n, 1]."""
        if not self._parts:
            return np.zeros((0, 0), np.float16), np.zeros((0, 1), np.float32)
        return np.concatenate(self._parts), np.concatenate(self._sizes)

    @classmethod
    def unpacked(cls, parts: npt.NDArray[np.float16], sizes: Floats) -> Rows:
        """What `packed` gave, as it was."""
        rows = cls()
        if len(sizes):
            rows._parts, rows._sizes = [parts], [sizes]
        return rows

    def all(self) -> Floats:
        """float32 [n, cols]."""
        if not self._parts:
            return np.zeros((0, 0), np.float32)
        return np.concatenate(self._parts).astype(np.float32) * np.concatenate(self._sizes)


@dataclass(slots=True)
class InputStats:
    """One input of one or more weights. `node`: llama.cpp's name of it, None where that is not its alone."""

    node: str | None
    num_cols: int
    abs_sum: npt.NDArray[np.float64]
    num_rows: int = 0
    rows: Rows = field(default_factory=Rows)

    @property
    def mean_abs(self) -> Floats:
        """[cols]"""
        return (self.abs_sum / max(self.num_rows, 1)).astype(np.float32)


@dataclass(slots=True)
class SquareSums:
    """Of one weight: sums of squared inputs [experts, cols] and how many rows each expert saw [experts]."""

    sums: npt.NDArray[np.float64]
    counts: npt.NDArray[np.int64]

    @property
    def unseen(self) -> int:
        """Experts that no token was sent to."""
        return int((self.counts == 0).sum())

    def mean(self) -> Floats:
        """Mean squares, float32 [experts, cols]; 1, which weighs all columns alike, for an expert that saw nothing."""
        means = self.sums / np.maximum(self.counts, 1)[:, None]
        return np.where(self.counts[:, None] > 0, means, 1.0).astype(np.float32)


@dataclass(slots=True)
class Activations:
    """What `capture` found, by weight name."""

    num_chunks: int
    chunk_tokens: int
    squares: dict[str, SquareSums] = field(default_factory=dict)
    inputs: dict[str, InputStats] = field(default_factory=dict)  # one object for all weights that share an input

    def coverage(self) -> tuple[int, int]:
        """Experts that saw at least one token, and all experts, over all weights that have several."""
        several = [stats for stats in self.squares.values() if len(stats.counts) > 1]
        total = sum(len(stats.counts) for stats in several)
        return total - sum(stats.unseen for stats in several), total


class _Collector:
    """The watcher: accumulates into an `Activations`."""

    def __init__(self, found: Activations, weights: Collection[str], rows_per_chunk: int) -> None:
        self._found = found
        self._weights = frozenset(weights)
        self._rows_per_chunk = rows_per_chunk
        self._left: set[str] = set()
        self._names: Counter[str] = Counter()  # of all nodes of the first graph
        self._shared: dict[str, str] = {}  # weight → the first weight with the same input
        self._is_first = True
        self._inputs_now: dict[int, str] = {}  # address of an input → first weight, in this graph

    def begin(self) -> None:
        self._left = set(self._weights) if self._is_first else set(self._found.squares)
        self._inputs_now.clear()

    def end(self) -> None:
        if self._is_first:
            self._is_first = False
            for stats in self._found.inputs.values():
                if stats.node is not None and self._names[stats.node] != 1:
                    stats.node = None

    def wants(self, node: Node) -> bool:
        if self._is_first:
            self._names[node.output.name] += 1
        if not node.is_product:
            return False
        name = node.weight.name
        if name not in self._weights or node.inputs.type_id != _F32:
            return False
        if (owner := self._shared.get(name)) is not None:
            self._share(name, owner)
            return False
        return True

    def computed(self, node: Node) -> bool:
        name, inputs, ids = node.weight.name, node.inputs, node.ids
        self._left.discard(name)
        owner = self._inputs_now.setdefault(inputs.address, name)
        if owner != name and ids is None and len(self._found.squares[owner].counts) == 1:
            self._shared[name] = owner
            self._share(name, owner)
            return self._goes_on()
        values = inputs.read()
        if not np.isfinite(values).all():
            raise BadActivations(f"what arrives at {name} is not finite", "the model overflows on the calibration text")
        if ids is None:
            rows = values.reshape(-1, values.shape[-1])
            self._sum(name, 1, np.einsum("ij,ij->j", rows, rows)[None], np.array([len(rows)]))
        else:
            # values [1, tokens, 1 or used, cols], chosen [tokens, used]: a column of 1 is seen by all experts used
            chosen = ids.read()[0, 0]
            every = np.broadcast_to(values[0], (*chosen.shape, values.shape[-1]))
            self._sum_experts(name, node.weight.shape[2], every, chosen)
            rows = values.reshape(-1, values.shape[-1])
        if owner == name:
            self._sample(name, inputs.name, rows)
        else:
            self._found.inputs[name] = self._found.inputs[owner]
        return self._goes_on()

    def _goes_on(self) -> bool:
        """Past the last product that this model has, only the output layer remains, and nobody asked for it."""
        return self._is_first or bool(self._left)

    def _share(self, name: str, owner: str) -> None:
        self._left.discard(name)
        self._found.squares[name] = self._found.squares[owner]
        self._found.inputs[name] = self._found.inputs[owner]

    def _sum_experts(self, name: str, num_experts: int, rows: Floats, chosen: npt.NDArray[np.int32]) -> None:
        sums = np.zeros((num_experts, rows.shape[-1]))
        for expert in np.unique(chosen):
            seen = rows[chosen == expert]
            sums[expert] = np.einsum("ij,ij->j", seen, seen)
        self._sum(name, num_experts, sums, np.bincount(chosen.reshape(-1), minlength=num_experts))

    def _sum(self, name: str, num_experts: int, sums: npt.NDArray[np.floating], counts: npt.NDArray[np.int64]) -> None:
        stats = self._found.squares.get(name)
        if stats is None:
            shape = (num_experts, sums.shape[1])
            stats = self._found.squares[name] = SquareSums(np.zeros(shape), np.zeros(num_experts, np.int64))
        stats.sums += sums
        stats.counts += counts

    def _sample(self, name: str, node: str, rows: Floats) -> None:
        stats = self._found.inputs.get(name)
        if stats is None:
            stats = self._found.inputs[name] = InputStats(node, rows.shape[1], np.zeros(rows.shape[1]))
        rows = rows[NUM_SKIPPED * len(rows) // self._found.chunk_tokens :]
        stats.abs_sum += np.abs(rows).sum(axis=0)
        stats.num_rows += len(rows)
        picked = np.linspace(0, len(rows) - 1, min(self._rows_per_chunk, len(rows)), dtype=np.int64)
        stats.rows.add(rows[picked])


def cut(tokens: Sequence[int], chunk_tokens: int) -> list[Tokens]:
    """Chunks of exactly `chunk_tokens`; what is left over at the end is dropped, a text too short for one is one."""
    array = np.asarray(tokens, np.int32)
    whole = len(array) // chunk_tokens
    return list(array[: whole * chunk_tokens].reshape(whole, chunk_tokens)) if whole else [array]


def begin_with_bos(chunks: list[Tokens], info: ModelInfo) -> list[Tokens]:
    """`chunks` with BOS in place of each first token, where the model adds one: none was ever without it."""
    bos = info.metadata.get("tokenizer.ggml.bos_token_id")
    if not info.add_bos or not isinstance(bos, int):
        return chunks
    return [np.concatenate([np.array([bos], np.int32), chunk[1:]]) for chunk in chunks]


def capture(
    path: Path,
    chunks: Sequence[Tokens],
    weights: Collection[str],
    *,
    config: EngineConfig | None = None,
    sample_bytes: int = 512 << 20,
    sample_cols: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Activations:
    """Run `chunks`, all of one length, through the model at `path`; what arrived at each of `weights`.

    `sample_cols`: columns of all distinct inputs together, which with `sample_bytes` decides how many rows are kept
    (None: as many as ever). A weight that the model does not multiply by (embeddings, norms) is not in the result.
    Raises BadActivations for NaN or infinite activations, EngineError.
    """
    num_tokens = len(chunks[0])
    assert all(len(chunk) == num_tokens for chunk in chunks)
    rows = MAX_SAMPLE_ROWS
    if sample_cols:
        rows = max(MIN_SAMPLE_ROWS, min(rows, sample_bytes // (2 * sample_cols)))
    found = Activations(len(chunks), num_tokens)
    collector = _Collector(found, weights, -(-rows // len(chunks)))
    watch = Watch(collector)
    config = context_config(config, num_tokens)
    with ExitStack() as stack:
        model = LlamaModel(path, gpu_layers_to_ask(config), plain=True)
        stack.callback(model.close)
        context = LlamaContext(model, num_tokens, config, num_outputs=num_tokens, watch=watch.callback)
        stack.callback(context.close)
        for number, chunk in enumerate(chunks):
            progress(number, len(chunks))
            collector.begin()
            context.clear()
            context.tokens[:num_tokens] = chunk
            context.positions[:num_tokens] = np.arange(num_tokens)
            context.wanted[:num_tokens] = 1  # all rows go through the last layer only where their logits are wanted
            code = context.decode(num_tokens, interruptible=False)
            watch.check()
            if code:
                raise EngineError(f"llama.cpp gave {code} for a calibration chunk")
            collector.end()
        progress(len(chunks), len(chunks))
    return found


def context_config(config: EngineConfig | None, num_rows: int, num_seqs: int = 1) -> EngineConfig:
    """A configuration for a bare context that computes `num_rows` rows at once: `num_seqs` sequences, no cache."""
    given = config or EngineConfig()
    return EngineConfig(
        n_batch=max(num_rows, num_seqs + 1),  # llama.cpp wants room for a row of every slot
        max_num_seqs=num_seqs,
        max_cached_chains=0,
        num_threads=given.num_threads,
        gpu_layers=given.gpu_layers,
        flash_attn=given.flash_attn,
    )
