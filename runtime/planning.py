"""Memory, before and while a model runs: what llama.cpp says of this machine, put into `ingle.models.plan`'s words.

Also the first context: where memory refuses one, the next smaller one is tried.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ingle.models import plan
from ingle.models.ggml_types import row_bytes
from ingle.models.gguf_info import ModelInfo
from ingle.models.kv_layout import kv_layout
from ingle.models.memory import available_memory_bytes
from ingle.models.needs import CELL_STEP, Needs, Setting, needs
from ingle.runtime.config import EngineConfig
from ingle.runtime.draft_model import draft_cells, draft_config
from ingle.runtime.errors import InvalidRequest, OutOfMemory
from ingle.runtime.executor import Executor
from ingle.runtime.llama import LlamaModel, compute_devices, cpu_features, supports_gpu_offload
from ingle.runtime.loading import gpu_layers_to_ask

MAX_CACHED_STATES = 2
"""Finished conversations kept resident where each costs a whole recurrent state."""

MIN_BATCH = 64
"""Tokens a step below which a smaller batch would save no memory worth having."""


@dataclass(frozen=True, slots=True)
class Limit:
    """The longest a request may grow, in tokens, and what the user should know of that."""

    n_ctx: int
    notes: tuple[str, ...]


def for_states(config: EngineConfig) -> EngineConfig:
    """`config` for a model with recurrent states: every slot has one of its own, used or not."""
    return replace(config, max_cached_chains=min(config.max_cached_chains, MAX_CACHED_STATES))


def setting_of(info: ModelInfo, config: EngineConfig) -> Setting:
    """How an engine with `config` opens the model, as far as memory is concerned.

    Raises InvalidRequest where the cache types do not fit the model's heads.
    """
    layout = kv_layout(info)
    try:
        for kind, length in ((config.type_k, info.key_length), (config.type_v, info.value_length)):
            row_bytes(kind, length)  # llama.cpp wants whole blocks in every head
        layout.bytes_per_token(config.type_k, config.type_v)
    except ValueError as error:
        types = f"-ctk {config.type_k} -ctv {config.type_v}"
        raise InvalidRequest(f"{types} does not fit this model's heads: {error}", "use f16 for both") from None
    if layout.state_bytes(1):
        config = for_states(config)
    return Setting(
        type_k=config.type_k,
        type_v=config.type_v,
        flash_attn=config.flash_attn is not False,  # left to llama.cpp it is on, wherever its kernels can
        n_batch=config.n_batch,
        num_slots=config.num_slots,
        num_outputs=config.num_outputs,
        gpu_layers=min(gpu_layers_to_ask(config), info.num_layers + 1) if supports_gpu_offload() else 0,
        cpu_features=cpu_features(),
    )


def free_memory() -> plan.Free:
    """What is free now, in RAM and on all GPUs that llama.cpp can use."""
    gpus = [device.free_bytes for device in compute_devices() if device.is_gpu] if supports_gpu_offload() else []
    return plan.Free(available_memory_bytes(), sum(gpus) if gpus else None)


def draft_needs(draft: ModelInfo, config: EngineConfig) -> plan.DraftNeeds:
    """Of the draft model that `config`, the target's, names. Raises InvalidRequest as `setting_of` does."""
    assert config.draft is not None
    setting = setting_of(draft, draft_config(config))
    start, full = (needs(draft, setting, cells, program_bytes=0) for cells in draft_cells(config, config.draft.window))
    return plan.DraftNeeds(start, full)


def context_limit(info: ModelInfo, config: EngineConfig, n_ctx_train: int, beside: Needs | None = None) -> Limit:
    """The longest a request may grow, once the weights of `info` are loaded. `beside`: of a draft model, which is not
    loaded yet.

    Raises OutOfMemory where the context that `config` asks for can never fit, or the draft model leaves no room for
    any, and InvalidRequest for unfit cache types.
    """
    setting = setting_of(info, config)
    smallest = needs(info, setting, CELL_STEP)
    free = _free_before_loading(smallest)
    if beside is not None:
        free = _without(free, beside, smallest)
    initial = config.initial_kv_tokens
    if config.n_ctx is None:
        most = min(n_ctx_train, config.kv_tokens or n_ctx_train)
        n_ctx = plan.largest_context(info, setting, free, at_most=most, initial_tokens=initial) or min(CELL_STEP, most)
        notes = [] if n_ctx == most else [f"context limited to {n_ctx} of {n_ctx_train} tokens by free memory"]
        return Limit(n_ctx, tuple(notes))
    if config.n_ctx >= 2**31:
        raise OutOfMemory(f"a context of {config.n_ctx} tokens is more than llama.cpp can have", "choose a smaller -c")
    whole = needs(info, setting, config.n_ctx)
    if whole.host_bytes > free.host_bytes or whole.gpu_bytes > (free.gpu_bytes or 0):
        context = plan.context_only(whole)
        wanted, where = context.host_bytes, free.host_bytes - whole.loaded_bytes
        if whole.host_bytes <= free.host_bytes:
            wanted, where = context.gpu_bytes, (free.gpu_bytes or 0) - whole.gpu_weights_bytes
        sizes = f"takes {wanted / 1e9:.1f} GB of memory and {max(where, 0) / 1e9:.1f} GB are free"
        raise OutOfMemory(f"a context of {config.n_ctx} tokens {sizes}", "choose a smaller -c/--ctx-size, or -c auto")
    if config.n_ctx > n_ctx_train:
        note = f"the model was trained for {n_ctx_train} tokens of context, not {config.n_ctx}"
        return Limit(config.n_ctx, (note,))
    return Limit(config.n_ctx, ())


def check_fit(info: ModelInfo, draft: ModelInfo, config: EngineConfig) -> None:
    """Raise OutOfMemory where there is no room for `draft` beside the smallest context of `info`, neither of them
    loaded, and InvalidRequest where the cache types do not fit one of them."""
    _without(free_memory(), draft_needs(draft, config).full, needs(info, setting_of(info, config), CELL_STEP))


def _without(free: plan.Free, draft: Needs, target: Needs) -> plan.Free:
    """What of `free` a draft model leaves. Raises OutOfMemory where that is too little for the target."""
    host_bytes, gpu_bytes = free.host_bytes - draft.host_bytes, (free.gpu_bytes or 0) - draft.gpu_bytes
    if target.host_bytes > host_bytes or target.gpu_bytes > gpu_bytes:
        wanted, left = draft.host_bytes, free.host_bytes - target.host_bytes
        if target.host_bytes <= host_bytes:
            wanted, left = draft.gpu_bytes, (free.gpu_bytes or 0) - target.gpu_bytes
        raise OutOfMemory(
            f"the draft model takes {wanted / 1e9:.1f} GB of memory, and {max(left, 0) / 1e9:.1f} GB are free beside "
            "the model",
            "choose a smaller one, or --draft ngram, which needs none",
        )
    return plan.Free(host_bytes, None if free.gpu_bytes is None else gpu_bytes)


def _free_before_loading(loaded: Needs) -> plan.Free:
    """What was free before the weights were loaded. Pages of the mapped file count as free after that too."""
    free = free_memory()
    gpu_bytes = None if free.gpu_bytes is None else free.gpu_bytes + loaded.gpu_weights_bytes
    return plan.Free(free.host_bytes + loaded.loaded_bytes - loaded.weights_bytes, gpu_bytes)


def first_context(model: LlamaModel, config: EngineConfig, num_cells: int) -> tuple[Executor, EngineConfig, list[str]]:
    """An executor whose context has `num_cells` cells, or as many as memory allows: then fewer cells are tried, then
    smaller steps, each half of the one before. With it the config that it has, and what to tell the user.

    Raises OutOfMemory when the smallest is refused too.
    """
    cells = num_cells
    notes: list[str] = []
    while True:
        try:
            return Executor(model, config, cells), config, notes
        except OutOfMemory:
            if cells > CELL_STEP:
                cells = max(CELL_STEP, cells // 2 // CELL_STEP * CELL_STEP)
                notes = [f"not enough memory for {num_cells} tokens of KV cache: beginning with {cells}"]
            elif config.n_batch > MIN_BATCH:
                config = replace(config, n_batch=max(MIN_BATCH, config.n_batch // 2))
                notes = [f"not enough memory: beginning with {cells} tokens of KV cache, {config.n_batch} a step"]
            else:
                raise
