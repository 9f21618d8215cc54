"""What an engine is opened as: the context it may grow to, where the layers go, what the user should know."""

from __future__ import annotations

from dataclasses import dataclass

from ingle.models.gguf_info import ModelInfo
from ingle.models.memory import available_memory_bytes
from ingle.runtime.config import DraftConfig, EngineConfig
from ingle.runtime.errors import InvalidRequest, OutOfMemory
from ingle.runtime.llama import LlamaModel, supports_gpu_offload
from ingle.runtime.loading import gpu_layers_to_ask

CELL_STEP = 256
"""llama.cpp makes contexts of a multiple of so many cells."""

AUTO_MEMORY_SHARE = 0.5
"""Of the free memory, the part that the KV cache may grow into where no context size is given."""


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What was opened, and how. `notes` are for the user: what is different from what they may expect."""

    description: str
    architecture: str
    n_ctx: int  # the longest one request may grow, tokens
    n_ctx_train: int
    n_vocab: int
    num_layers: int
    num_gpu_layers: int
    num_threads: int
    shares_prefixes: bool
    notes: tuple[str, ...]
    draft: DraftConfig | None = None  # what guesses ahead


def describe(model: LlamaModel, model_info: ModelInfo, config: EngineConfig) -> EngineInfo:
    """What opening `model` this way gives. Raises `OutOfMemory` where the context asked for can never fit."""
    shares = not (model.is_recurrent or model.is_hybrid)
    n_ctx, notes = _context_limit(model, model_info, config)
    if not shares:
        kind = "recurrent" if model.is_recurrent else "hybrid"
        notes.append(
            f"{model_info.architecture} is a {kind} model: only a whole conversation is reused, not a part of one"
        )
    if config.draft is not None and not shares:
        why = f"{model_info.architecture} is a {kind} model: no drafts, because their state could not be taken back"
        if config.draft.is_required:
            raise InvalidRequest(why, "leave out --draft, or choose another model")
        notes.append(why)
    num_gpu_layers = min(gpu_layers_to_ask(config), model.num_layers + 1) if supports_gpu_offload() else 0
    if config.gpu_layers not in ("auto", 0) and not supports_gpu_offload():
        notes.append("llama.cpp was compiled without a GPU backend: all layers run on the CPU")
    return EngineInfo(
        description=model.description,
        architecture=model_info.architecture,
        n_ctx=n_ctx,
        n_ctx_train=model.n_ctx_train,
        n_vocab=model.num_vocab,
        num_layers=model.num_layers,
        num_gpu_layers=num_gpu_layers,
        num_threads=config.threads(),
        shares_prefixes=shares,
        notes=tuple(notes),
        draft=config.draft if shares else None,
    )


def _context_limit(model: LlamaModel, model_info: ModelInfo, config: EngineConfig) -> tuple[int, list[str]]:
    """The longest a request may grow, and what to say about it. Raises `OutOfMemory` where that can never fit."""
    try:
        bytes_per_token = model_info.kv_bytes_per_token(config.type_k, config.type_v)
    except ValueError as error:
        types = f"-ctk {config.type_k} -ctv {config.type_v}"
        raise InvalidRequest(f"{types} does not fit this model's heads: {error}", "use f16 for both") from None
    available = available_memory_bytes()
    if config.n_ctx is None:
        fitting = int(available * AUTO_MEMORY_SHARE) // bytes_per_token if bytes_per_token else model.n_ctx_train
        n_ctx = min(model.n_ctx_train, max(CELL_STEP, fitting), config.kv_tokens or model.n_ctx_train)
        notes = []
        if n_ctx < model.n_ctx_train:
            notes.append(f"context limited to {n_ctx} of {model.n_ctx_train} tokens by free memory")
        return n_ctx, notes
    wanted = config.n_ctx * bytes_per_token
    if wanted > available or config.n_ctx >= 2**31:
        sizes = f"needs {wanted / 1e9:.1f} GB of KV cache and {available / 1e9:.1f} GB are free"
        raise OutOfMemory(f"a context of {config.n_ctx} tokens {sizes}", "choose a smaller -c/--ctx-size, or -c auto")
    if config.n_ctx > model.n_ctx_train:
        return config.n_ctx, [f"the model was trained for {model.n_ctx_train} tokens of context, not {config.n_ctx}"]
    return config.n_ctx, []
