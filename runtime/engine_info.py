"""What an engine is opened as: the context it may grow to, where the layers go, what the user should know."""

from __future__ import annotations

from dataclasses import dataclass

from ingle.models.gguf_info import ModelInfo
from ingle.models.needs import Needs, Setting
from ingle.runtime.config import DraftConfig, EngineConfig
from ingle.runtime.errors import InvalidRequest
from ingle.runtime.llama import LlamaModel, supports_gpu_offload
from ingle.runtime.loading import gpu_layers_to_ask
from ingle.runtime.planning import context_limit, draft_needs, setting_of


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
    setting: Setting  # as far as memory is concerned
    draft: DraftConfig | None = None  # what guesses ahead
    draft_needs: Needs | None = None  # of a draft model, with the context it begins with


def describe(
    model: LlamaModel, model_info: ModelInfo, config: EngineConfig, draft_info: ModelInfo | None = None
) -> EngineInfo:
    """What opening `model` this way gives. `draft_info`: the header of the draft model, where `config` names one.
    Raises `OutOfMemory` where the context asked for can never fit."""
    shares = not (model.is_recurrent or model.is_hybrid)
    draft = None
    if shares and draft_info is not None:
        draft = draft_needs(draft_info, config)
    limit = context_limit(model_info, config, model.n_ctx_train, None if draft is None else draft.full)
    notes = list(limit.notes)
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
        n_ctx=limit.n_ctx,
        n_ctx_train=model.n_ctx_train,
        n_vocab=model.num_vocab,
        num_layers=model.num_layers,
        num_gpu_layers=num_gpu_layers,
        num_threads=config.threads(),
        shares_prefixes=shares,
        notes=tuple(notes),
        setting=setting_of(model_info, config),
        draft=config.draft if shares else None,
        draft_needs=None if draft is None else draft.start,
    )
