"""Whose KV it is: a hash of everything that decides the bytes besides the tokens. Equal fingerprints may share
pages.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from ingle.models.gguf_info import ModelInfo
from ingle.models.gguf_shards import shard_path
from ingle.runtime.blocks import HASH_BYTES
from ingle.runtime.config import EngineConfig
from ingle.runtime.llama import version

NUM_SAMPLES = 64
SAMPLE_BYTES = 4096


def fingerprint(model_info: ModelInfo, config: EngineConfig, num_gpu_layers: int) -> bytes:
    """[HASH_BYTES]: the weights, the build of llama.cpp, the cache's types, the kernels.

    The weights are known by size, time of change, tensors and samples spread over each file, not by name: files may be
    moved, and others may take their place. RoPE settings come from the file, adapters and images are not supported.
    """
    files = [shard_path(model_info.path, index, model_info.split_count) for index in range(model_info.split_count)]
    stats = [file.stat() for file in files]
    changed = [(stat.st_size, stat.st_mtime_ns) for stat in stats]
    kernels = (config.type_k, config.type_v, config.flash_attn, num_gpu_layers > 0)
    parts = (version(), model_info.architecture, model_info.size_bytes, changed, kernels)
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=HASH_BYTES)
    for tensor in model_info.tensors:
        digest.update(f"{tensor.name} {tensor.shape} {tensor.type} {tensor.offset}\n".encode())
    for path, stat in zip(files, stats, strict=True):
        _sample(path, stat.st_size, digest)
    return digest.digest()


def _sample(path: Path, size: int, digest: hashlib.blake2b) -> None:
    with open(path, "rb", buffering=0) as file:
        for number in range(NUM_SAMPLES):
            file.seek((size - SAMPLE_BYTES) * number // (NUM_SAMPLES - 1) if size > SAMPLE_BYTES else 0)
            digest.update(file.read(SAMPLE_BYTES))
