# "No more than 300 MB", "4.5 bits a weight": a recipe that keeps to it, once sensitivities are measured.
# This file may not know how errors are measured.
"""``Target``, ``parse_size`` and ``recipe_within``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ingle.models.gguf_info import ModelInfo
from ingle.quant import budget
from ingle.quant.errors import BadRecipe
from ingle.quant.mixes import MIXES, Mix
from ingle.quant.recipe import Override, Recipe, TensorPlan, is_quantizable
from ingle.quant.sensitivity import CANDIDATES, Sensitivities
from ingle.quant.source import Source
from ingle.quant.writer import ALIGNMENT, TensorSpec, header_bytes

_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(B|KB|MB|GB|KIB|MIB|GIB)?", re.IGNORECASE)
_OWN_KEYS_BYTES: Final = 4096  # of what we say about the file, more than it is
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
    num_bytes = int(float(match[1]) * _UNITS[(match[2] or "B").upper()]) if match else 0
    if num_bytes < 1:
        raise BadRecipe(f"{text!r} is no size of a file", "such as 300MB, 1.2GB or 700MiB")
    return Target(text.strip().replace(" ", ""), file_bytes=num_bytes)


def parse_bits(value: float) -> Target:
    """Raises BadRecipe."""
    if not 0 < value <= 16:
        raise BadRecipe(f"{value:g} bits a weight cannot be had", "such as 4.5")
    return Target(f"{value:g}bpw", bits_per_weight=value)


def recipe_within(
    info: ModelInfo,
    target: Target,
    found: Sensitivities,
    overrides: Sequence[Override],
    *,
    num_header_bytes: int,
) -> Recipe:
    """The types with the least expected loss whose file keeps to `target`. `num_header_bytes`: all that is before the
    tensors, at most. Raises BadRecipe where even the smallest types are too large."""
    rows = {name: number for number, name in enumerate(found.names)}
    sizes, errors = found.sizes.copy(), found.errors.copy()
    fixed: dict[str, str] = {}
    for tensor in info.tensors:
        if tensor.name in rows and not np.isfinite(errors[rows[tensor.name]]).any():
            override = next(one for one in overrides if one.pattern.search(tensor.name))
            fixed[tensor.name] = override.type_name
    chosen = [name for name in found.names if name not in fixed]
    kept = [
        TensorPlan(t.name, t.shape, t.type, fixed.get(t.name, t.type))
        for t in info.tensors
        if t.name not in set(chosen)
    ]
    room = _room(info, target, num_header_bytes) - sum(plan.num_bytes for plan in kept)
    index = [rows[name] for name in chosen]
    choice = budget.choose(sizes[index], errors[index], room)
    types = {name: CANDIDATES[pick] for name, pick in zip(chosen, choice.picks, strict=True)} | fixed
    plans = tuple(TensorPlan(t.name, t.shape, t.type, types.get(t.name, t.type)) for t in info.tensors)
    for override in overrides:
        if not any(is_quantizable(t, info.architecture) and override.pattern.search(t.name) for t in info.tensors):
            raise BadRecipe(f"no tensor that can be quantized matches {override.pattern.pattern!r}")
    return Recipe(_named(target.name, plans), plans, tuple(overrides))


def header_size(source: Source, overrides: Sequence[Override]) -> int:
    """Bytes before the tensors, at most."""
    metadata = {key: value for key, value in source.metadata().items() if key != "general.alignment"}
    specs = [TensorSpec(tensor.name, tensor.shape, "F32") for tensor in source.info.tensors]
    told = sum(len(override.pattern.pattern) + 32 for override in overrides)
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
