"""Loading weights, with as little imported as that needs: a program can import the rest of itself meanwhile."""

from __future__ import annotations

from pathlib import Path

from ingle.runtime.config import EngineConfig
from ingle.runtime.errors import InvalidRequest
from ingle.runtime.llama import LlamaModel, supports_gpu_offload

ALL_LAYERS = 10_000


def load_model(path: Path, config: EngineConfig, *, is_mapped: bool = True) -> LlamaModel:
    """The weights of `path`, whose header has been checked. `is_mapped` False: read into memory, which takes less of it
    where llama.cpp repacks them. Raises `EngineError`."""
    model = LlamaModel(path, gpu_layers_to_ask(config), is_mapped=is_mapped)
    if model.has_encoder or not model.has_decoder:
        model.close()
        raise InvalidRequest(f"{path.name} is not a decoder-only model", "choose a text-generation model")
    return model


def gpu_layers_to_ask(config: EngineConfig) -> int:
    """Layers to ask llama.cpp to put on the GPU: all there are, unless a number was given."""
    if isinstance(config.gpu_layers, int):
        return config.gpu_layers
    return ALL_LAYERS if supports_gpu_offload() else 0
