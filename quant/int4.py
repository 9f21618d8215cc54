# `int4` on this machine: the four-bit formats written, measured, and one of them taken.
# This file may not know how speed is measured.
"""``choose_int4``: which of `INT4_CANDIDATES` suits this model and this machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ingle.models.gguf_info import ModelInfo
from ingle.quant.four_bits import INT4_CANDIDATES, choose_among
from ingle.quant.recipe import Override, Recipe, choose_types, find_mix
from ingle.quant.verdict import Measure, figures_of, judge
from ingle.quant.workshop import Stages, Workshop
from ingle.quant.writer import candidate_path, remove_leftovers
from ingle.runtime.config import EngineConfig


def recipes(info: ModelInfo, *, has_imatrix: bool, overrides: Sequence[Override]) -> list[Recipe]:
    """One for each candidate."""
    mixes = [find_mix(name) for name in INT4_CANDIDATES]
    return [choose_types(info, mix, has_imatrix=has_imatrix, overrides=overrides) for mix in mixes]


def choose_int4(
    workshop: Workshop,
    among: Sequence[Recipe],
    out: Path,
    measure: Measure,
    *,
    config: EngineConfig,
    stages: Stages,
) -> tuple[Recipe, str]:
    """The recipe, and why. Files are written beside `out` and removed. Raises what writing and loading raise."""
    assert workshop.split is not None
    remove_leftovers(out)
    written = {recipe.mix.name: candidate_path(out, recipe.mix.name.lower()) for recipe in among}
    try:
        for recipe in among:
            workshop.write(recipe, written[recipe.mix.name], ())
        rows = judge(
            workshop.source.path,
            list(written.items()),
            workshop.split.held_out,
            measure,
            config=config,
            progress=stages("int4: comparing on held-out text"),
        )
    finally:
        for path in written.values():
            path.unlink(missing_ok=True)
    name, reason = choose_among(figures_of(rows))
    return next(recipe for recipe in among if recipe.mix.name == name), reason
