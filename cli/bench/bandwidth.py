# How fast this machine reads memory, measured: the roof under which decoding stays. And what a token has to read.
# This file may not know engines.
"""``measure``: bytes a second, by all threads reading a buffer larger than the last cache."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ingle.models.gguf_info import ModelInfo
from ingle.models.memory import available_memory_bytes

CPU_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")

MIN_BUFFER_BYTES = 256 * 2**20
MAX_BUFFER_BYTES = 2 * 2**30
NUM_PASSES = 5

_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}


def measure(num_threads: int) -> float:
    """Bytes a second, the best of a few passes: nothing makes a read quicker than the memory is.

    numpy's maximum over float32 is vectorized and lets go of the interpreter's lock, so that threads read at once.
    """
    num_bytes = buffer_bytes(largest_cache_bytes(), available_memory_bytes())
    buffer = np.ones(num_bytes // 4, dtype=np.float32)  # ones, so that every page is a page of its own
    parts = np.array_split(buffer, num_threads)
    return max(buffer.nbytes / _pass_s(parts) for _ in range(NUM_PASSES))


def buffer_bytes(cache_bytes: int, free_bytes: int) -> int:
    """Twice the last cache, within reason and within a quarter of the free memory."""
    return min(max(2 * cache_bytes, MIN_BUFFER_BYTES), MAX_BUFFER_BYTES, max(free_bytes // 4, 2**20))


def largest_cache_bytes(folder: Path = CPU_CACHES) -> int:
    """Of the caches that Linux tells of; 0 where it tells of none."""
    sizes = [0]
    for path in folder.glob("index*/size"):
        try:
            text = path.read_text().strip()
            sizes.append(int(text[:-1]) * _UNITS[text[-1]] if text[-1:] in _UNITS else int(text))
        except (OSError, ValueError):
            continue
    return max(sizes)


def _pass_s(parts: list[npt.NDArray[np.float32]]) -> float:
    """Seconds in which each of `parts` is read once, by a thread of its own."""
    start = threading.Barrier(len(parts) + 1)

    def read(part: npt.NDArray[np.float32]) -> None:
        start.wait()
        part.max()

    threads = [threading.Thread(target=read, args=(part,), daemon=True) for part in parts]
    for thread in threads:
        thread.start()
    start.wait()
    began = time.perf_counter()
    for thread in threads:
        thread.join()
    return time.perf_counter() - began


def weight_bytes_per_token(info: ModelInfo) -> float:
    """Bytes of weights one token reads.

    Of a table of token embeddings that is not the output matrix too, only a row; of experts, those that are used.
    """
    names = {tensor.name for tensor in info.tensors}
    total = 0.0
    num_experts = _number(info, "expert_count")
    share = _number(info, "expert_used_count") / num_experts if num_experts else 1.0
    for tensor in info.tensors:
        if tensor.name == "token_embd.weight" and "output.weight" in names:
            continue
        total += tensor.num_bytes * (share if "_exps." in tensor.name else 1.0)
    return total


def _number(info: ModelInfo, key: str) -> int:
    value = info.metadata.get(f"{info.architecture}.{key}", 0)
    return value if isinstance(value, int) else 0
