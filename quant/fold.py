# Scales become factors of tensors, so that a writer can apply them one tensor at a time. Pure algebra.
# This file may not know files, formats or how scales were found.
"""Folding: chosen scales of groups → what each tensor is multiplied with.

In exact arithmetic the model stays the same function; in float32 it differs by rounding alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ingle.quant.groups import Group

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class TensorScale:
    """Factors of one tensor: `rows` [rows] (of a vector: its own values), `columns` [cols]; None: all 1."""

    rows: Floats | None = None
    columns: Floats | None = None

    def apply(self, values: Floats) -> Floats:
        """values [..., rows, cols], or [n] for a vector → the same, scaled."""
        if self.columns is not None:
            values = np.multiply(values, self.columns, dtype=np.float32)
        if self.rows is not None:
            factors = self.rows if values.ndim == 1 else self.rows[:, None]
            values = np.multiply(values, factors, dtype=np.float32)
        return values

    def importances(self, mean_squares: Floats) -> Floats:
        """Mean squares of the inputs [..., cols] as they are once these columns have been scaled: an importance
        matrix for the scaled weights."""
        if self.columns is None:
            return mean_squares
        return np.asarray(mean_squares / np.square(self.columns), np.float32)


NO_SCALE = TensorScale()


def tensor_scales(
    groups: Sequence[Group], chosen: Mapping[str, Floats], shapes: Mapping[str, Sequence[int]]
) -> dict[str, TensorScale]:
    """By tensor name: factors for every tensor that `chosen` (group name → scales [num_scales]) touches.

    `shapes` are ggml's, row length first.
    """
    rows: dict[str, npt.NDArray[Any]] = {}
    columns: dict[str, npt.NDArray[Any]] = {}
    for group in groups:
        scales = chosen.get(group.name)
        if scales is None:
            continue
        assert scales.shape == (group.num_scales,)
        assert (scales > 0).all()
        for name in group.linears:
            columns[name] = np.asarray(scales[group.column_of], np.float32)
        for fold in group.folds:
            factor = rows.setdefault(fold.tensor, np.ones(shapes[fold.tensor][-1]))
            factor[fold.start : fold.start + fold.count] /= scales
    names = rows.keys() | columns.keys()
    return {
        name: TensorScale(rows[name].astype(np.float32) if name in rows else None, columns.get(name))
        for name in sorted(names)
    }
