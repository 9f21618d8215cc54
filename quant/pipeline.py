# The story of a quantization, top to bottom: a source, a recipe, importances → a file. Streams; keeps no tensor.
# This file may not know how importances, transforms or codes are found, nor terminals.
"""``quantize``: one tensor after the other, a few rows at a time, on all cores.

Whoever knows better how a tensor should be treated says so by its name: a *transform* changes its numbers before they
are rounded (folded scales); *blocks* that somebody has made already (error feedback) are written as they are. All other
tensors are read, rounded and written in slabs of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ingle.models.gguf_info import read_model_info
from ingle.models.progress import Progress, Silent
from ingle.quant import ggml, gguf_values
from ingle.quant.errors import BadImatrix, BadRecipe, BadWeights
from ingle.quant.ggml import Bytes, Floats
from ingle.quant.gguf_values import EncodedValue
from ingle.quant.recipe import Recipe, TensorPlan
from ingle.quant.source import Source, slabs
from ingle.quant.writer import GgufWriter, TensorSpec

Transform = Callable[[Floats], Floats]
"""A tensor, columns last, → one of the same shape."""

_OURS: Final = ("ingle.quantize.", "quantize.imatrix.")  # beginnings of keys


@dataclass(frozen=True, slots=True, kw_only=True)
class Treatment:
    """What is done to the weights beyond rounding them."""

    imatrix: Mapping[str, Floats] = field(default_factory=dict)  # mean squares, float32 [experts, cols]
    transforms: Mapping[str, Transform] = field(default_factory=dict)
    blocks: Mapping[str, Bytes] = field(default_factory=dict)  # uint8, in order, of the recipe's types
    metadata: Mapping[str, EncodedValue] = field(default_factory=dict)  # keys to add


@dataclass(frozen=True, slots=True)
class Written:
    """The file that was made. Sizes are of the whole file."""

    path: Path
    size_bytes: int
    source_bytes: int
    bits_per_weight: float


def check_place(source: Source, out: Path) -> None:
    """Raise BadRecipe where writing `out` would overwrite what is read."""
    if source.is_same_file(out):
        raise BadRecipe(f"{out} is the model that is read", "name another file with -o")


def check_importances(recipe: Recipe, known: Collection[str]) -> None:
    """Raise BadRecipe where a type needs importances, and the tensor is not among those that are `known`."""
    for plan in recipe.tensors:
        if plan.needs_imatrix and plan.name not in known:
            which = "an importance matrix" if not known else f"importances of {plan.name}"
            raise BadRecipe(
                f"{recipe.mix.name} needs {which}: without it the result would be noise", "give one with --imatrix FILE"
            )


def quantize(
    source: Source, out: Path, recipe: Recipe, treatment: Treatment | None = None, *, progress: Progress | None = None
) -> Written:
    """Write `source` as `recipe` says to `out`, which appears when it is whole.

    Takes memory for the largest slab, or for the largest tensor that is transformed (float32, and what its transform
    makes of it). Raises BadRecipe, BadImatrix, BadWeights with the tensor's name, BadModelFile, StoreError.
    """
    treatment = treatment or Treatment()
    progress = progress or Silent()
    check_place(source, out)
    check_importances(recipe, treatment.imatrix.keys() | treatment.blocks.keys())
    metadata = _metadata(source, recipe, treatment)
    specs = [TensorSpec(plan.name, plan.shape, plan.type) for plan in recipe.tensors]
    with GgufWriter(out, metadata, specs) as writer:
        progress.start(
            sum(tensor.num_bytes for tensor in source.tensors.values()),
            f"quantizing {source.path.name} to {recipe.mix.name}",
        )
        try:
            done = 0
            for plan in recipe.tensors:
                size = source.tensors[plan.name].num_bytes
                for share, data in _blocks(source, plan, treatment):
                    writer.write(data)
                    progress.update(done + int(share * size))
                done += size
        finally:
            progress.finish()
        writer.finish(check=read_model_info)
        return Written(out, writer.size_bytes, source.info.size_bytes, recipe.bits_per_weight)


def _blocks(source: Source, plan: TensorPlan, treatment: Treatment) -> Iterator[tuple[float, Bytes]]:
    """The tensor's bytes in order, each piece with the share of the tensor that is then done."""
    transform, blocks = treatment.transforms.get(plan.name), treatment.blocks.get(plan.name)
    importances = treatment.imatrix.get(plan.name)
    if blocks is not None:
        assert blocks.nbytes == plan.num_bytes, f"{plan.name}: {blocks.nbytes} bytes of blocks for {plan.num_bytes}"
        yield 1.0, blocks
        return
    if transform is None:
        yield from _streamed(source, plan, importances)
        return
    values = source.read(plan.name)
    shape, values = values.shape, transform(values)
    assert values.shape == shape, f"the transform of {plan.name} changed its shape"
    rows = values.reshape(-1, plan.shape[0])
    for first, last in slabs(plan.shape):
        yield last / len(rows), _round(plan, rows[first:last], first, importances)


def _streamed(source: Source, plan: TensorPlan, importances: Floats | None) -> Iterator[tuple[float, Bytes]]:
    num_rows = source.num_rows(plan.name)
    for first, last in slabs(plan.shape):
        if plan.is_copied:
            data = source.raw_rows(plan.name, first, last)
            if plan.type in ggml.WEIGHT_TYPES:
                source.floats(plan.name, data, first)  # for what it raises: copies are to be sound too
            yield last / num_rows, data
        else:
            yield last / num_rows, _round(plan, source.rows(plan.name, first, last), first, importances)


def _round(plan: TensorPlan, values: Floats, first_row: int, importances: Floats | None) -> Bytes:
    per_matrix = plan.shape[1] if len(plan.shape) > 1 else 1
    importance = None if importances is None else importances[first_row // per_matrix]
    try:
        return ggml.quantize(values, plan.type, importance)
    except BadWeights as error:
        raise BadWeights(f"{plan.name} (from row {first_row}): {error.message}", error.hint) from None
    except BadImatrix as error:
        raise BadImatrix(f"{plan.name}: {error.message}", error.hint) from None


def _metadata(source: Source, recipe: Recipe, treatment: Treatment) -> dict[str, EncodedValue]:
    # What earlier quantizations said of themselves is not true of this one.
    metadata = {key: value for key, value in source.metadata().items() if not key.startswith(_OURS)}
    metadata.pop("general.alignment", None)
    metadata["general.quantization_version"] = gguf_values.number("u32", ggml.QUANTIZATION_VERSION)
    metadata["general.file_type"] = gguf_values.number("u32", recipe.mix.file_type)
    metadata["ingle.quantize.type"] = gguf_values.string(recipe.mix.name)
    overrides = [f"{override.pattern.pattern}={override.type_name}" for override in recipe.overrides]
    if overrides:
        metadata["ingle.quantize.overrides"] = gguf_values.strings(overrides)
    return metadata | dict(treatment.metadata)
