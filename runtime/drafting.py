"""Opening what drafts for a model: the drafters that `DraftConfig` asks for, and what a draft model has to be like."""

from __future__ import annotations

from contextlib import ExitStack

from ingle.models.gguf_info import ModelInfo, read_model_info
from ingle.models.vocabulary import find_difference
from ingle.runtime.config import EngineConfig
from ingle.runtime.draft import Drafter
from ingle.runtime.draft_model import ModelDrafter
from ingle.runtime.draft_ngram import NgramDrafter
from ingle.runtime.draft_vocabulary import DraftVocabulary
from ingle.runtime.errors import InvalidRequest
from ingle.runtime.llama import LlamaModel
from ingle.runtime.llama_context import Interrupt
from ingle.runtime.loading import load_model
from ingle.runtime.speculation import Speculation


def check_draft(target: ModelInfo, draft: ModelInfo) -> None:
    """Raise `InvalidRequest` where the tokens of `draft` are not those of `target`. Reads headers only."""
    difference = find_difference(target, draft)
    if difference is not None:
        raise InvalidRequest(
            f"{draft.path.name} cannot draft for {target.path.name}: {difference}",
            "choose a smaller model of the same family, or --draft ngram, which needs none",
        )


def read_draft_info(config: EngineConfig, target: ModelInfo | None = None) -> ModelInfo | None:
    """The header of the draft model, its vocabulary checked against that of `target` where one is given; ``None``:
    there is no draft model. Raises `ModelError` and `InvalidRequest`."""
    if config.draft is None or config.draft.model is None:
        return None
    draft = read_model_info(config.draft.model, to_draft=True)
    if target is not None:
        check_draft(target, draft)
    return draft


def open_drafting(
    config: EngineConfig, target: LlamaModel, draft_info: ModelInfo | None, interrupt: Interrupt, stack: ExitStack
) -> Speculation | None:
    """What `config` asks for, for a `target` that `interrupt` cuts short; `stack` closes what it owns. `draft_info`:
    the header of the draft model, where there is one."""
    if config.draft is None:
        return None
    drafters: list[Drafter] = []
    if config.draft.ngram:
        drafters.append(NgramDrafter())
    if config.draft.model is not None:
        assert draft_info is not None
        vocabulary = DraftVocabulary.of(draft_info, target.num_vocab)
        model = load_model(config.draft.model, config)
        stack.callback(model.close)
        _refuse_stateful(model, config.draft.model.name)
        drafter = ModelDrafter(model, vocabulary, target.is_eog, config, config.draft, interrupt)
        stack.callback(drafter.close)
        drafters.append(drafter)
    return Speculation(config.draft, drafters)


def _refuse_stateful(model: LlamaModel, name: str) -> None:
    if model.is_stateful:
        kind = "recurrent" if model.is_recurrent else "hybrid"
        raise InvalidRequest(
            f"{name} is a {kind} model: what it has drafted in vain cannot be taken back", "choose another draft model"
        )
