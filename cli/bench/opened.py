# The files to be measured: resolved, checked, hashed, their weights loaded.
"""``open_models``: names → weights, closed at the end of the ``with``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from ingle.cli.bench.model_hash import model_hash
from ingle.cli.output import Output
from ingle.cli.progress import DownloadProgress
from ingle.models.gguf_info import ModelInfo, read_model_info
from ingle.models.memory import total_memory_bytes
from ingle.models.resolve import ModelRef, resolve
from ingle.runtime.config import EngineConfig
from ingle.runtime.errors import OutOfMemory
from ingle.runtime.llama import LlamaModel, supports_gpu_offload
from ingle.runtime.loading import gpu_layers_to_ask, load_model


@dataclass(frozen=True, slots=True)
class OpenedModel:
    """A file and its weights."""

    ref: ModelRef
    info: ModelInfo
    weights: LlamaModel
    num_gpu_layers: int


@contextmanager
def open_models(
    names: Sequence[str | None], config: EngineConfig, output: Output, *, offline: bool
) -> Iterator[list[OpenedModel]]:
    """All headers are checked before any weights are loaded. Raises ModelError and EngineError as they come.

    They take turns, so all have to be in memory at once.
    """
    refs = [resolve(name, offline=offline, progress=DownloadProgress(output)) for name in names]
    infos = [read_model_info(ref.path) for ref in refs]
    wanted, there = sum(info.size_bytes for info in infos), total_memory_bytes()
    if len(infos) > 1 and wanted > there:
        sizes = f"are {wanted / 1e9:.1f} GB, and there are {there / 1e9:.1f} GB of memory"
        raise OutOfMemory(f"all models together {sizes}", "measure each with --save, then ingle bench compare")
    with ExitStack() as stack:
        opened = []
        for ref, info in zip(refs, infos, strict=True):
            weights = load_model(ref.path, config)
            stack.callback(weights.close)
            asked = gpu_layers_to_ask(config) if supports_gpu_offload() else 0
            opened.append(OpenedModel(ref, info, weights, min(asked, weights.num_layers + 1)))
        yield opened


def as_json(ref: ModelRef, info: ModelInfo) -> dict[str, Any]:
    """What stands in a result about a file. Of a split model the hash is its first part's."""
    return {
        "name": ref.name,
        "file": str(ref.path),
        "sha256": model_hash(ref.path),
        "size_bytes": info.size_bytes,
        "num_params": info.num_params,
        "architecture": info.architecture,
        "file_type": info.file_type,
    }
