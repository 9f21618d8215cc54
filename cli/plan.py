# `ingle plan`: does a model fit this machine, and what of it does. Nothing is loaded, and nothing is downloaded.
# This file may not know what the parts of memory are made of (models.needs) nor how they are shown (plan_report).
"""Header, free memory, arithmetic; exit code 75 where the model as asked for does not fit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ingle.cli import plan_report
from ingle.cli import settings as settings_file
from ingle.cli.errors import TRY_AGAIN
from ingle.cli.options import ModelFlags
from ingle.cli.output import Output
from ingle.cli.progress import DownloadProgress
from ingle.cli.pull import require_hub

if TYPE_CHECKING:
    from ingle.models.gguf_info import ModelInfo
    from ingle.models.needs import Setting
    from ingle.models.plan import DraftNeeds, Free
    from ingle.models.plan_source import FoundHeader
    from ingle.runtime.config import EngineConfig

GPU_TOKENS = 4096
"""Where neither the context nor the layers are given, the layers on the GPU leave room there for so many tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFlags:
    """The command line of `ingle plan`."""

    revision: str | None = None
    draft: str | None
    parallel: int
    json: bool
    quiet: bool | None
    model: ModelFlags


def plan(flags: PlanFlags, output: Output) -> int:
    """Returns the exit code; raises what `errors.describe` turns into one."""
    from ingle.models.plan_source import find_header
    from ingle.runtime.planning import free_memory

    settings = settings_file.load()
    output.quiet = bool(settings.pick("quiet", flags.quiet))
    config = flags.model.engine_config(settings, max_num_seqs=flags.parallel)
    offline, progress = flags.model.is_offline(settings), DownloadProgress(output)
    name = flags.model.name(settings)
    require_hub(name, flags.revision)
    found = find_header(name, flags.revision, offline=offline, progress=progress)
    draft = None if flags.draft is None else find_header(flags.draft, offline=offline, progress=progress, to_draft=True)
    free = free_memory()
    answer = work_out(found, draft, config, free, parallel=flags.parallel)
    for note in (found.note, draft and draft.note):
        if note:
            output.note(f"note: {note}")
    if flags.json:
        output.json(plan_report.as_json(answer))
    else:
        for line in plan_report.lines(answer):
            output.line(line)
    return 0 if answer.fits else TRY_AGAIN


def work_out(
    found: FoundHeader, draft: FoundHeader | None, config: EngineConfig, free: Free, *, parallel: int
) -> plan_report.Answer:
    """Everything that is said about the model `found` with `free` memory."""
    from ingle.models.plan import fits_scaled, make_plan, scaled
    from ingle.runtime.config import DraftConfig
    from ingle.runtime.planning import setting_of

    info = found.info
    if draft is not None:
        config = replace(config, draft=DraftConfig(model=draft.info.path))
    helper = _draft_needs(draft, config)
    setting = _with_gpu_layers(info, setting_of(info, config), config, free, helper, parallel)
    initial = config.initial_kv_tokens
    most = max(info.n_ctx_train, config.n_ctx or 0)
    largest = _largest(info, setting, free, initial, helper, parallel, most)
    num_tokens = config.n_ctx or largest or min(info.n_ctx_train, initial)
    chosen = make_plan(info, setting, num_tokens * parallel, initial_tokens=initial, draft=helper)
    fits = chosen.fits(free)
    smaller = None
    if setting.type_k == setting.type_v == "f16" and (largest or 0) < (config.n_ctx or info.n_ctx_train):
        smaller = _with_q8_0(info, setting, free, draft, config, parallel, most)
    rows = []
    for quant in found.quants:
        host, gpu = scaled(chosen, info.size_bytes, quant.size_bytes)
        fits_too = fits_scaled(chosen, info.size_bytes, quant.size_bytes, free)
        rows.append(plan_report.QuantRow(quant.quant, quant.size_bytes, host, gpu, fits_too))
    return plan_report.Answer(
        found=found,
        draft=draft,
        plan=chosen,
        free=free,
        n_ctx=num_tokens,
        parallel=parallel,
        fits=fits,
        largest_context=largest,
        largest_context_q8_0=smaller,
        is_auto=config.n_ctx is None,
        quants=tuple(rows),
    )


def _largest(
    info: ModelInfo, setting: Setting, free: Free, initial: int, draft: DraftNeeds | None, parallel: int, most: int
) -> int | None:
    """Tokens, up to `most`, that each of `parallel` sequences may grow to together; None where nothing fits."""
    from ingle.models.plan import largest_context

    pool = largest_context(info, setting, free, at_most=most * parallel, initial_tokens=initial, draft=draft)
    return None if pool is None else pool // parallel or None


def _with_q8_0(
    info: ModelInfo,
    setting: Setting,
    free: Free,
    draft: FoundHeader | None,
    config: EngineConfig,
    parallel: int,
    most: int,
) -> int | None:
    """As `_largest`, with a q8_0 cache; None too where that type does not fit the heads of a model."""
    from ingle.runtime.errors import InvalidRequest

    if not setting.flash_attn:
        return None
    setting = replace(setting, type_k="q8_0", type_v="q8_0")
    config = replace(config, type_k="q8_0", type_v="q8_0")
    try:
        return _largest(info, setting, free, config.initial_kv_tokens, _draft_needs(draft, config), parallel, most)
    except (ValueError, InvalidRequest):
        return None


def _draft_needs(draft: FoundHeader | None, config: EngineConfig) -> DraftNeeds | None:
    from ingle.runtime.planning import draft_needs

    return None if draft is None else draft_needs(draft.info, config)


def _with_gpu_layers(
    info: ModelInfo, setting: Setting, config: EngineConfig, free: Free, draft: DraftNeeds | None, parallel: int
) -> Setting:
    """`auto`: as many layers on the GPU as fit there with the context asked for, beside a draft model."""
    from ingle.models.plan import most_gpu_layers

    if config.gpu_layers != "auto" or free.gpu_bytes is None:
        return setting
    num_tokens = (config.n_ctx or min(info.n_ctx_train, GPU_TOKENS)) * parallel
    return replace(setting, gpu_layers=most_gpu_layers(info, setting, free, num_tokens, draft))
