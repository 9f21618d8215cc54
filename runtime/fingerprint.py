"""Whose KV it is: a hash of everything that decides the bytes besides the tokens. Equal fingerprints may share
pages.
"""

from __future__ import annotations

import hashlib

from ingle.models.gguf_info import ModelInfo
from ingle.runtime.blocks import HASH_BYTES
from ingle.runtime.config import EngineConfig
from ingle.runtime.llama import version

NUM_SAMPLES = 64
SAMPLE_BYTES = 4096


def fingerprint(model_info: ModelInfo, config: EngineConfig, num_gpu_layers: int) -> bytes:
    """[HASH_BYTES]: the weights, the build of llama.cpp, the cache's types, the kernels.

    The weights are known by size, time of change, tensors and samples spread over the file, not by name: a file may be
    moved, and another may take its place. RoPE settings come from the file, adapters and images are not supported.
    """
    stat = model_info.path.stat()
    kernels = (config.type_k, config.type_v, config.flash_attn, num_gpu_layers > 0)
    parts = (version(), model_info.architecture, model_info.size_bytes, stat.st_size, stat.st_mtime_ns, kernels)
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=HASH_BYTES)
    for tensor in model_info.tensors:
        digest.update(f"{tensor.name} {tensor.shape} {tensor.type} {tensor.offset}\n".encode())
    with open(model_info.path, "rb", buffering=0) as file:
        for number in range(NUM_SAMPLES):
            file.seek((stat.st_size - SAMPLE_BYTES) * number // (NUM_SAMPLES - 1) if stat.st_size > SAMPLE_BYTES else 0)
            digest.update(file.read(SAMPLE_BYTES))
    return digest.digest()
