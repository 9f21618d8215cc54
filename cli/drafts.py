# `--draft`: what was asked for → what the engine is told, with everything that can be refused refused before loading.
# Imported before the first token: nothing heavy at the top. This file may not know how drafts are made.
"""``DraftChoice`` and ``with_drafts``.

Without `--draft` there are no drafts. They cost next to nothing where they do not help, but with K-quants the logits
move a little with the number of rows computed together, and how many those are then depends on measured times: two runs
with one seed could differ where two tokens are almost equally likely. Whoever asks for drafts accepts that.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ingle.cli.output import Output
from ingle.cli.progress import DownloadProgress

if TYPE_CHECKING:
    from pathlib import Path

    from ingle.models.gguf_info import ModelInfo
    from ingle.models.resolve import ModelRef
    from ingle.runtime.config import DraftConfig, EngineConfig


@dataclass(frozen=True, slots=True)
class DraftChoice:
    """`name`: ngram, auto, or a model as MODEL may be written. `num_tokens` None: what is worth its cost."""

    name: str
    num_tokens: int | None = None


def with_drafts(
    config: EngineConfig, choice: DraftChoice, target: ModelRef, info: ModelInfo, output: Output, *, offline: bool
) -> EngineConfig:
    """`config` with the drafts that were chosen for `target`. Downloads a draft model that was named.

    Raises ModelError, and InvalidRequest where the draft model has another vocabulary. Reads no weights.
    """
    from ingle.runtime.config import DraftConfig

    name = choice.name.lower()
    if name == "ngram":
        return replace(config, draft=DraftConfig(num_tokens=choice.num_tokens))
    if name == "auto":
        alone = DraftConfig(num_tokens=choice.num_tokens, is_required=False)
        model = _sibling(target, info, replace(config, draft=alone), output)
        return replace(config, draft=replace(alone, model=model))
    from ingle.models.gguf_info import read_model_info
    from ingle.models.resolve import resolve
    from ingle.runtime.drafting import check_draft

    draft = resolve(choice.name, offline=offline, progress=DownloadProgress(output))
    check_draft(info, read_model_info(draft.path, to_draft=True))
    return replace(config, draft=DraftConfig(model=draft.path, num_tokens=choice.num_tokens))


def describe_draft(draft: DraftConfig) -> str:
    """In words, for `--verbose`."""
    sources = (["the text"] if draft.ngram else []) + ([draft.model.name] if draft.model is not None else [])
    length = "as many as pay" if draft.num_tokens is None else f"{draft.num_tokens} a step"
    return f"from {' and '.join(sources)}, {length}"


def _sibling(target: ModelRef, info: ModelInfo, config: EngineConfig, output: Output) -> Path | None:
    """The catalog's draft model for `target`, if it is here, has the same tokens, and fits into memory beside it."""
    from ingle.models.draft_sibling import find_draft

    path = find_draft(target)
    if path is None:
        return None
    from ingle.models.errors import ModelError
    from ingle.models.gguf_info import read_model_info
    from ingle.models.vocabulary import find_difference
    from ingle.runtime.errors import InvalidRequest, OutOfMemory
    from ingle.runtime.planning import check_fit

    try:
        draft = read_model_info(path, to_draft=True)
        difference = find_difference(info, draft)
    except ModelError as error:
        output.note(f"note: no draft model: {error}")
        return None
    if difference is not None:
        output.note(f"note: no draft model: {path.name} has another vocabulary ({difference})")
        return None
    try:
        check_fit(info, draft, config)
    except (OutOfMemory, InvalidRequest) as error:
        output.note(f"note: no draft model: {path.name}: {error}")
        return None
    return path
