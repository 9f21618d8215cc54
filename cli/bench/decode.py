# Bare decoding, as llama-bench does it: chunks of a prompt, or one token after the other, and no sampling.
# This file may not know statistics or tables.
"""``DecodeLoop``: a context of its own on weights that may be shared."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ingle.cli.bench.case import Case
from ingle.cli.bench.energy import EnergyCounters
from ingle.models.gguf_info import ModelInfo
from ingle.models.memory import available_memory_bytes
from ingle.runtime.config import EngineConfig
from ingle.runtime.errors import EngineError, InvalidRequest, OutOfMemory
from ingle.runtime.llama import LlamaModel
from ingle.runtime.llama_context import Interrupt, LlamaContext

SLOT = 0

_INTERRUPTED = 2  # llama_decode


class Stopped(Exception):
    """Somebody has set the flag: what was being measured does not count."""


@dataclass(frozen=True, slots=True)
class Timing:
    """One run. `joules`: None where the machine does not count them."""

    nanoseconds: int
    joules: float | None


class DecodeLoop:
    """Times reading and generating, after any depth. The tokens are random, from a seed."""

    def __init__(
        self,
        model: LlamaModel,
        info: ModelInfo,
        config: EngineConfig,
        num_cells: int,
        interrupt: Interrupt,
        seed: int,
        counters: EnergyCounters | None,
    ) -> None:
        """Raises OutOfMemory, InvalidRequest or EngineError where there can be no such context."""
        _check_fits(info, config, num_cells)
        self._interrupt = interrupt
        self._counters = counters
        self._context = LlamaContext(model, num_cells, config, interrupt, is_bare=True)
        self._n_batch = config.n_batch
        self._num_vocab = model.num_vocab
        self._generator = np.random.default_rng(seed)
        self._saved: tuple[int, npt.NDArray[np.uint8]] | None = None  # of the last depth

    def close(self) -> None:
        self._context.close()

    def measure(self, case: Case) -> Timing:
        """What `case` takes, without what lies before its depth. Raises Stopped, EngineError."""
        self._go_to(case.depth)
        tokens = self._random(case.num_tokens)
        counters = self._counters
        energy = counters.read() if counters else None
        started = time.perf_counter_ns()
        if case.num_prompt:
            self._read(tokens)
        else:
            self._generate(tokens)
        nanoseconds = time.perf_counter_ns() - started
        return Timing(nanoseconds, counters.joules_between(energy, counters.read()) if counters else None)

    def _go_to(self, depth: int) -> None:
        """Empty the context, then fill it up to `depth`; from memory where that has just been computed."""
        self._context.clear()
        if depth == 0:
            return
        if self._saved is not None and self._saved[0] == depth:
            self._context.restore(SLOT, self._saved[1])
            return
        self._read(self._random(depth))
        self._saved = depth, self._context.save(SLOT)

    def _read(self, tokens: npt.NDArray[np.int32]) -> None:
        context = self._context
        position = context.num_positions(SLOT)
        for start in range(0, len(tokens), self._n_batch):
            chunk = tokens[start : start + self._n_batch]
            count = len(chunk)
            context.tokens[:count] = chunk
            context.positions[:count] = np.arange(position, position + count)
            context.slots[:count] = SLOT
            context.wanted[:count] = 0
            context.wanted[count - 1] = 1
            self._decode(count)
            position += count

    def _generate(self, tokens: npt.NDArray[np.int32]) -> None:
        context = self._context
        position = context.num_positions(SLOT)
        context.slots[0] = SLOT
        context.wanted[0] = 1
        for token in tokens:
            context.tokens[0] = token
            context.positions[0] = position
            self._decode(1)
            position += 1

    def _decode(self, num_rows: int) -> None:
        """Compute and wait. The abort callback costs too much for single rows, and they are over soon."""
        if self._interrupt.is_set:
            raise Stopped
        code = self._context.decode(num_rows, interruptible=num_rows > 1)
        if code == _INTERRUPTED:
            raise Stopped
        if code != 0:
            raise EngineError(f"llama.cpp could not decode {num_rows} tokens (code {code})")
        self._context.logits(1)

    def _random(self, count: int) -> npt.NDArray[np.int32]:
        return self._generator.integers(0, self._num_vocab, size=count, dtype=np.int32)


def _check_fits(info: ModelInfo, config: EngineConfig, num_cells: int) -> None:
    """Said before llama.cpp allocates, which some systems answer by killing the process."""
    try:
        wanted = num_cells * info.kv_bytes_per_token(config.type_k, config.type_v)
    except ValueError as error:
        types = f"-ctk {config.type_k} -ctv {config.type_v}"
        raise InvalidRequest(f"{types} does not fit this model's heads: {error}", "use f16 for both") from None
    available = available_memory_bytes()
    if wanted > available or num_cells >= 2**31:
        sizes = f"needs {wanted / 1e9:.1f} GB of KV cache and {available / 1e9:.1f} GB are free"
        raise OutOfMemory(f"a context of {num_cells} tokens {sizes}", "choose a smaller depth (-d)")
