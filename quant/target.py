# "No more than 300 MB", "4.5 bits a weight": a recipe that keeps to it, once sensitivities are measured.
# This file may not know how errors are measured.
"""``Target``, ``parse_size``, ``check_reachable`` and ``recipe_within``."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ingle.models.ggml_types import BY_NAME
from ingle.models.gguf_info import ModelInfo, TensorInfo
from ingle.quant import budget
from ingle.quant.errors import BadRecipe
from ingle.quant.gguf_values import EncodedValue
from ingle.quant.mixes import MIXES, Mix
from ingle.quant.recipe import Override, Recipe, TensorPlan, check_overrides, fitting, is_quantizable
from ingle.quant.sensitivity import CANDIDATES, Sensitivities
from ingle.quant.source import Source
from ingle.quant.writer import ALIGNMENT, TensorSpec, header_bytes

_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(B|KB|MB|GB|KIB|MIB|GIB)?", re.IGNORECASE)
_OWN_KEYS_BYTES: Final = 4096  # of what is said about any file: its type, methods, calibration; more than that is
_UNITS: Final = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


@dataclass(frozen=True, slots=True)
class Target:
    """What the file may have: bytes in all, or bits a weight. One of the two; `name` goes into the file's name."""

    name: str
    file_bytes: int | None = None
    bits_per_weight: float | None = None


def parse_size(text: str) -> Target:
    """``300MB``, ``1.2GB``, ``700MiB``, or a number of bytes. Raises BadRecipe."""
    match = _SIZE.fullmatch(text.strip())
    exact = float(match[1]) * _UNITS[(match[2] or "B").upper()] if match else 0.0
    if match is None or not 1 <= exact < 2**63:
        raise BadRecipe(f"{text!r} is no size of a file", "such as 300MB, 1.2GB or 700MiB")
    return Target(text.strip().replace(" ", ""), file_bytes=int(exact))


def parse_bits(value: float) -> Target:
    """Raises BadRecipe."""
    if not 0 < value <= 16:
        raise BadRecipe(f"{value:g} bits a weight cannot be had", "such as 4.5")
    return Target(f"{value:g}bpw", bits_per_weight=value)


def check_reachable(info: ModelInfo, target: Target, overrides: Sequence[Override], *, num_header_bytes: int) -> None:
    """Raise BadRecipe, before anything is measured, where even the smallest types are too large, or an override fits no
    tensor."""
    check_overrides(info, overrides)
    least = 0
    for tensor in info.tensors:
        if not is_quantizable(tensor, info.architecture):
            types = [tensor.type]
        elif (override := _override_of(tensor, overrides)) is not None:
            types = [fitting(tensor, override.type_name)]
        else:
            types = [name for name in CANDIDATES if tensor.shape[0] % BY_NAME[name].block_size == 0]
        least += min(TensorPlan(tensor.name, tensor.shape, tensor.type, name).num_bytes for name in types)
    room = _room(info, target, num_header_bytes)
    if least <= room:
        return
    if target.file_bytes is not None:
        missed, possible = f"{target.file_bytes / 1e6:.1f} MB", f"{_up((target.file_bytes + least - room) / 1e6, 1)} MB"
    else:
        num_values = sum(tensor.num_values for tensor in info.tensors)
        missed, possible = (
            f"{target.bits_per_weight:g} bits a weight",
            f"{_up(8 * least / num_values, 3)} bits a weight",
        )
    raise BadRecipe(
        f"{missed} cannot be met: with the smallest types it would be {possible}", "raise the target to that"
    )


def _up(value: float, digits: int) -> str:
    return f"{math.ceil(value * 10**digits) / 10**digits:.{digits}f}"


def recipe_within(
    info: ModelInfo,
    target: Target,
    found: Sensitivities,
    overrides: Sequence[Override],
    *,
    num_header_bytes: int,
) -> Recipe:
    """The types with the least expected loss whose file keeps to `target`. `num_header_bytes`: all that is before the
    tensors, at most. Raises BadRecipe as `check_reachable` does."""
    check_reachable(info, target, overrides, num_header_bytes=num_header_bytes)
    rows = {name: number for number, name in enumerate(found.names)}
    forced: dict[str, TensorPlan] = {}
    for tensor in info.tensors:
        override = _override_of(tensor, overrides) if tensor.name in rows else None
        if override is not None:
            forced[tensor.name] = _plan(tensor, fitting(tensor, override.type_name), wanted=override.type_name)
    chosen = [name for name in found.names if name not in forced]
    kept = [forced.get(t.name, _plan(t, t.type)) for t in info.tensors if t.name not in set(chosen)]
    room = _room(info, target, num_header_bytes) - sum(plan.num_bytes for plan in kept)
    index = [rows[name] for name in chosen]
    choice = budget.choose(found.sizes[index], found.errors[index], room)
    types = {name: CANDIDATES[pick] for name, pick in zip(chosen, choice.picks, strict=True)}
    plans = tuple(forced.get(t.name) or _plan(t, types.get(t.name, t.type)) for t in info.tensors)
    return Recipe(_named(target.name, plans), plans, tuple(overrides))


def _override_of(tensor: TensorInfo, overrides: Sequence[Override]) -> Override | None:
    return next((one for one in overrides if one.pattern.search(tensor.name)), None)


def _plan(tensor: TensorInfo, type_name: str, *, wanted: str | None = None) -> TensorPlan:
    fell_back_from = wanted if wanted not in (None, type_name) else None
    return TensorPlan(tensor.name, tensor.shape, tensor.type, type_name, fell_back_from=fell_back_from)


def header_size(source: Source, overrides: Sequence[Override], origin: Mapping[str, EncodedValue]) -> int:
    """Bytes before the tensors, at most. `origin`: keys that say what the file is made of."""
    metadata = {key: value for key, value in source.metadata().items() if key != "general.alignment"} | dict(origin)
    specs = [TensorSpec(tensor.name, tensor.shape, "F32") for tensor in source.info.tensors]
    told = sum(len(override.pattern.pattern.encode()) + 32 for override in overrides)
    return len(header_bytes(metadata, specs)) + told + _OWN_KEYS_BYTES


def _room(info: ModelInfo, target: Target, num_header_bytes: int) -> int:
    """Bytes for all tensors."""
    if target.bits_per_weight is not None:
        return int(target.bits_per_weight * sum(tensor.num_values for tensor in info.tensors) / 8)
    assert target.file_bytes is not None
    return target.file_bytes - num_header_bytes - ALIGNMENT * len(info.tensors)


def _named(name: str, plans: Sequence[TensorPlan]) -> Mix:
    """A mix of that name, with the number that llama.cpp has for files of its most frequent type."""
    num_bytes: dict[str, int] = {}
    for plan in plans:
        num_bytes[plan.type] = num_bytes.get(plan.type, 0) + plan.num_bytes
    most = max(num_bytes, key=num_bytes.__getitem__)
    return Mix(name, next(mix.file_type for mix in MIXES.values() if mix.default_type == most), most)
