# Does it fit, and what does: the largest context, the layers on the GPU. Decides by `needs`, measures nothing.
# This file may not know where free memory is read, nor how a plan is shown.
"""Plans: what a model needs against what is free.

The KV pool is elastic: it starts small and moves to a larger context when it is full, and for that moment both are
there. So a plan knows three figures: at the start, while the pool moves to its last size, and when that is full.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from ingle.models.needs import CELL_STEP, Needs, Setting, needs

if TYPE_CHECKING:
    from ingle.models.gguf_info import ModelInfo

FREE_SHARE: Final = 0.9
"""Of the memory that is free now, the part that a plan may use: other programs go on living."""


@dataclass(frozen=True, slots=True)
class Free:
    """Bytes that are free now. `gpu_bytes` is None where no GPU can be used."""

    host_bytes: int
    gpu_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What running a model takes. `moving`: the old context that is there while the last and largest one is made."""

    setting: Setting
    num_cells: int  # tokens of KV when the pool is full
    start: Needs
    full: Needs
    moving: Needs
    draft: Needs | None  # of a draft model at its largest; counted in `start` and `full` too

    @property
    def peak_host_bytes(self) -> int:
        return self.full.host_bytes + self.moving.host_bytes

    @property
    def peak_gpu_bytes(self) -> int:
        return self.full.gpu_bytes + self.moving.gpu_bytes

    def fits(self, free: Free) -> bool:
        """Whether the pool can grow to its full size within the share of `free` that plans may use."""
        return _fits(self.peak_host_bytes, self.peak_gpu_bytes, free)


@dataclass(frozen=True, slots=True)
class DraftNeeds:
    """What a draft model takes: with the context it begins with, and with the largest one."""

    start: Needs
    full: Needs


def make_plan(
    info: ModelInfo,
    setting: Setting,
    num_tokens: int,
    *,
    initial_tokens: int = 1024,
    draft: DraftNeeds | None = None,
) -> Plan:
    """The plan for a pool of `num_tokens`, with a draft model beside it.

    Raises ValueError where a cache type does not fit a model's heads.
    """
    num_cells = _round_up(num_tokens)
    first = min(_round_up(initial_tokens), num_cells)
    moving = Needs()
    if num_cells > first:
        before = first
        while 2 * before < num_cells:
            before *= 2
        moving = context_only(needs(info, setting, before))
    start, full = needs(info, setting, first), needs(info, setting, num_cells)
    if draft is not None:
        start, full = start + draft.start, full + draft.full
    return Plan(setting, num_cells, start, full, moving, None if draft is None else draft.full)


def context_only(whole: Needs) -> Needs:
    """Of `whole`, what belongs to the context: it comes and goes while the weights stay."""
    return replace(whole, program_bytes=0, vocabulary_bytes=0, weights_bytes=0, repacked_bytes=0, gpu_weights_bytes=0)


def largest_context(
    info: ModelInfo,
    setting: Setting,
    free: Free,
    *,
    at_most: int | None = None,
    initial_tokens: int = 1024,
    draft: DraftNeeds | None = None,
) -> int | None:
    """Tokens of the largest context that fits, up to `at_most` (None: what the model was trained for).

    None where not even the smallest fits. Raises ValueError as `make_plan` does.
    """
    limit = at_most or info.n_ctx_train

    def fits(steps: int) -> bool:
        tokens = min(steps * CELL_STEP, limit)
        return make_plan(info, setting, tokens, initial_tokens=initial_tokens, draft=draft).fits(free)

    low, high = 0, -(-limit // CELL_STEP)
    if fits(high):
        return limit
    while high - low > 1:  # the peak rises with the size, but for the steps where the pool would move once more
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low * CELL_STEP or None


def most_gpu_layers(
    info: ModelInfo, setting: Setting, free: Free, num_tokens: int, draft: DraftNeeds | None = None
) -> int:
    """The most layers (llama.cpp's -ngl, the output counted as one) with which a pool of `num_tokens` fits the GPU."""
    if free.gpu_bytes is None:
        return 0
    for layers in range(info.num_layers + 1, 0, -1):
        found = make_plan(info, replace(setting, gpu_layers=layers), num_tokens, draft=draft)
        if found.peak_gpu_bytes <= _usable(free.gpu_bytes):
            return layers
    return 0


def scaled(plan: Plan, weights_bytes: int, size_bytes: int) -> tuple[int, int]:
    """(RAM, GPU) at the peak, were the weights of `weights_bytes` another quantization of `size_bytes`."""
    ratio = size_bytes / weights_bytes if weights_bytes else 1.0
    host = plan.full.weights_bytes + plan.full.repacked_bytes
    return (
        plan.peak_host_bytes + round(host * (ratio - 1)),
        plan.peak_gpu_bytes + round(plan.full.gpu_weights_bytes * (ratio - 1)),
    )


def fits_scaled(plan: Plan, weights_bytes: int, size_bytes: int, free: Free) -> bool:
    return _fits(*scaled(plan, weights_bytes, size_bytes), free)


def _fits(host_bytes: int, gpu_bytes: int, free: Free) -> bool:
    return host_bytes <= _usable(free.host_bytes) and gpu_bytes <= _usable(free.gpu_bytes or 0)


def _usable(free_bytes: int) -> int:
    return int(free_bytes * FREE_SHARE)


def _round_up(num_tokens: int) -> int:
    return -(-num_tokens // CELL_STEP) * CELL_STEP
