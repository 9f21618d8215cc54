# What `ingle plan` says: lines for people, an object for programs; and the line about memory in `--stats`.
# This file may not decide whether something fits.
"""A plan in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ingle.cli.listing import parameters
from ingle.cli.stats import size

if TYPE_CHECKING:
    from ingle.models.needs import Needs
    from ingle.models.plan import Free, Plan
    from ingle.models.plan_source import FoundHeader

JSON_VERSION = 1

SLOW_CACHE = "a quantized KV cache saves memory and costs time: on a CPU, prompts at depth are computed more slowly"
_NOT_TAKEN = ("F32", "FP32", "F16", "FP16", "BF16")  # quants that only a machine without a choice should run


@dataclass(frozen=True, slots=True)
class QuantRow:
    """Another quantization of the same repo: its files, and its memory at the peak of the same plan."""

    quant: str
    size_bytes: int
    host_bytes: int
    gpu_bytes: int
    fits: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """All that was worked out. Contexts are tokens a sequence."""

    found: FoundHeader
    draft: FoundHeader | None
    plan: Plan
    free: Free
    n_ctx: int
    parallel: int
    fits: bool
    largest_context: int | None  # None: nothing fits
    largest_context_q8_0: int | None  # None: not needed, or not possible
    is_auto: bool
    quants: tuple[QuantRow, ...]

    @property
    def take(self) -> str | None:
        """The quantization to take: the largest that fits, a whole-precision one only if there is nothing else."""
        fitting = [row.quant for row in self.quants if row.fits]
        return next((quant for quant in fitting if quant not in _NOT_TAKEN), fitting[-1] if fitting else None)

    @property
    def has_quantized_cache(self) -> bool:
        return any(kind not in ("f32", "f16", "bf16") for kind in (self.plan.setting.type_k, self.plan.setting.type_v))


def lines(answer: Answer) -> list[str]:
    """For people."""
    plan, info = answer.plan, answer.found.info
    start, full, setting = plan.start, plan.full, plan.setting
    where = "on this machine" if answer.found.is_here else "not downloaded"
    quant = f", {answer.found.quant}" if answer.found.quant else ""
    cache = f"{setting.type_k}/{setting.type_v}"
    sequences = "" if answer.parallel == 1 else f" × {answer.parallel} sequences"
    said = [
        _row(
            "model",
            f"{answer.found.name} ({info.architecture}{quant}), {parameters(info.num_params)} parameters, {where}",
        ),
        _row("weights", _weights(full)),
        _row("vocabulary", size(full.vocabulary_bytes)),
        _row("KV cache", f"{_kv(full)} for {answer.n_ctx} tokens{sequences} ({cache}), {_kv(start)} at the start"),
        _row("compute", f"{size(full.compute_bytes + full.gpu_compute_bytes)} for {setting.n_batch} tokens a step"),
        _row("logits", size(full.output_bytes)),
        _row("program", size(full.program_bytes)),
    ]
    if plan.draft is not None:
        assert answer.draft is not None
        said.append(_row("draft model", f"{answer.draft.name}, {size(_all(plan.draft))} of the above"))
    moving = "" if not _all(plan.moving) else f", {size(plan.peak_host_bytes)} while it grows to that"
    said.append(_row("in RAM", f"{size(start.host_bytes)} at the start, {size(full.host_bytes)} when full{moving}"))
    said.append(_row("free RAM", size(answer.free.host_bytes)))
    if answer.free.gpu_bytes is None:
        said.append(_row("GPU", "none that llama.cpp can use: all layers on the CPU"))
    else:
        total = info.num_layers + 1
        said.append(_row("on the GPU", f"-ngl {setting.gpu_layers} of {total}, {size(plan.peak_gpu_bytes)} at most"))
        said.append(_row("free there", size(answer.free.gpu_bytes)))
    said += _quants(answer)
    said.append(_row("fits", _verdict(answer)))
    return said + [_row("note", SLOW_CACHE)] * answer.has_quantized_cache


def as_json(answer: Answer) -> dict[str, Any]:
    """For programs. Sizes are bytes, contexts tokens a sequence."""
    plan, info = answer.plan, answer.found.info
    return {
        "version": JSON_VERSION,
        "model": answer.found.name,
        "architecture": info.architecture,
        "quant": answer.found.quant,
        "is_on_disk": answer.found.is_here,
        "draft": None if answer.draft is None else answer.draft.name,
        "n_ctx": answer.n_ctx,
        "n_ctx_train": info.n_ctx_train,
        "parallel": answer.parallel,
        "cache_type_k": plan.setting.type_k,
        "cache_type_v": plan.setting.type_v,
        "gpu_layers": plan.setting.gpu_layers,
        "num_layers": info.num_layers,
        "start": dict(plan.start.items()),
        "full": dict(plan.full.items()),
        "peak_host_bytes": plan.peak_host_bytes,
        "peak_gpu_bytes": plan.peak_gpu_bytes,
        "free_host_bytes": answer.free.host_bytes,
        "free_gpu_bytes": answer.free.gpu_bytes,
        "fits": answer.fits,
        "largest_context": answer.largest_context,
        "largest_context_q8_0": answer.largest_context_q8_0,
        "take": answer.take,
        "quants": [
            {"quant": q.quant, "size_bytes": q.size_bytes, "peak_host_bytes": q.host_bytes, "fits": q.fits}
            for q in answer.quants
        ],
        "notes": [SLOW_CACHE] * answer.has_quantized_cache,
    }


def predicted_and_taken(predicted: Needs, taken_bytes: int) -> str:
    """The line of `--stats`: what the plan says of the context as it is now, and what the process has."""
    off = predicted.host_bytes / taken_bytes - 1
    parts = f"weights {size(predicted.weights_bytes + predicted.repacked_bytes)}, KV {size(predicted.kv_bytes)}"
    return f"memory {size(taken_bytes)}; the plan says {size(predicted.host_bytes)} ({off:+.1%}): {parts}"


def _weights(full: Needs) -> str:
    text = f"{size(full.weights_bytes)} mapped from the file"
    if full.repacked_bytes:
        text += f", {size(full.repacked_bytes)} of them once more, repacked for this CPU"
    return text + (f", {size(full.gpu_weights_bytes)} on the GPU" if full.gpu_weights_bytes else "")


def _quants(answer: Answer) -> list[str]:
    if not answer.quants:
        return []
    rows = [
        f"{row.quant:<12} {size(row.size_bytes):>8} to download, {size(row.host_bytes):>8} in RAM"
        f"{', ' + size(row.gpu_bytes) + ' on the GPU' if row.gpu_bytes else ''}  {'fits' if row.fits else 'too large'}"
        f"{'  ← take this' if row.quant == answer.take else ''}"
        for row in answer.quants
    ]
    return [_row("quants" if index == 0 else "", row) for index, row in enumerate(rows)]


def _verdict(answer: Answer) -> str:
    info, largest = answer.found.info, answer.largest_context
    if answer.fits:
        if largest is not None and largest < info.n_ctx_train:
            return f"yes; the largest context that does is {largest} of {info.n_ctx_train} tokens"
        return f"yes, up to all {info.n_ctx_train} tokens it was trained for"
    if largest is not None:
        text = f"no; the largest context that does is {largest} tokens (-c {largest})"
    else:
        text = "no, not even with the smallest context"
    better = answer.largest_context_q8_0
    if better is not None and better > (largest or 0):
        text += f", with -ctk q8_0 -ctv q8_0 {better}"
    return text


def _kv(part: Needs) -> str:
    return size(part.kv_bytes + part.gpu_kv_bytes)


def _all(part: Needs) -> int:
    return part.host_bytes + part.gpu_bytes


def _row(name: str, text: str) -> str:
    return f"{name:<13}{text}"
