# Scales for the input channels of a group of linears: searched with ggml's own quantizer in the loop. No files.
# This file may not know architectures, models or where activations are from.
"""Activation-aware scaling (Lin et al., AWQ, 2023), with the real quantizer and its importance matrix.

s = mean|x|^α, normalised; the error is that of the layers' outputs over a sample of input rows; α = 0, no scaling, is
always in the running, so that the result is never worse than plain rounding on the sample.

AWQ's other search, clipping the largest weights, is left out: ggml's quantizers search each block's step themselves.
Clamping blocks to 0.95 … 0.8 of their largest weight, the best of them taken matrix by matrix, lowered the outputs'
error of 16 matrices of a 135M model by 0.3 % for Q4_0, 0.02 % for Q3_K and nothing for Q4_K, Q5_0 and Q8_0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from ingle.quant import ggml

Floats = npt.NDArray[np.float32]

COARSE: Final = (0.0, 0.15, 0.3, 0.45, 0.6, 0.75, 0.9)
FINE_STEP: Final = 0.075
MAX_RATIO: Final = 1e4
"""Between the largest and the smallest scale: beyond it float16 steps of blocks lose their digits."""
MAX_ROWS: Final = 192
"""Rows of each weight that are tried; rows are alike in what they ask of the columns."""
_PATIENCE: Final = 2  # exponents in a row that are worse than the best before the search ends


@dataclass(frozen=True, slots=True)
class Linear:
    """A weight [rows, cols], the type it will have, and the mean squares of its inputs [cols], unscaled; None: it will
    be rounded without importances."""

    weight: Floats
    type: str
    mean_squares: Floats | None


@dataclass(frozen=True, slots=True)
class Choice:
    """The best scales [cols] and what they gave: squared error of the outputs, and of plain rounding."""

    alpha: float
    scales: Floats
    error: float
    plain_error: float


class OutputError:
    """Squared error of outputs over a sample of input rows [n, cols]: ‖E·Xᵀ‖² for an error of weights E [rows, cols].

    Through the Gram matrix where that is the smaller of the two.
    """

    def __init__(self, rows: Floats) -> None:
        self._is_gram = len(rows) > rows.shape[1]
        self._matrix = rows.T @ rows if self._is_gram else np.ascontiguousarray(rows.T)

    def __call__(self, error: Floats) -> float:
        product = error @ self._matrix
        return float(np.vdot(product, error) if self._is_gram else np.vdot(product, product))


def scales_for(mean_abs: Floats, alpha: float) -> Floats:
    """mean|x|^α with a geometric middle of 1, within MAX_RATIO; channels that are never used count as the smallest."""
    used = mean_abs[mean_abs > 0]
    if not used.size or alpha == 0.0:
        return np.ones_like(mean_abs)
    scales = np.maximum(mean_abs, used.min()).astype(np.float64) ** alpha
    scales = np.maximum(scales, scales.max() / MAX_RATIO)
    return np.asarray(scales / np.sqrt(scales.max() * scales.min()), np.float32)


def search(
    linears: Sequence[Linear], mean_abs: Floats, rows: Floats, column_of: npt.NDArray[np.int64] | None = None
) -> Choice:
    """The best scales for linears that share an input, of which `rows` [n, cols] is a sample.

    mean_abs [cols]. `column_of` [cols]: columns with the same number share a scale, their means averaged; the scales
    returned are one for each number. Without it each column has its own.
    """
    num_cols = len(mean_abs)
    column_of = np.arange(num_cols) if column_of is None else column_of
    sizes = (np.bincount(column_of, mean_abs) / np.bincount(column_of)).astype(np.float32)
    tried = [_thinned(linear) for linear in linears]
    output_error = OutputError(rows)

    def error_of(alpha: float) -> float:
        scales = scales_for(sizes, alpha)[column_of]
        return sum(_error(linear, scales, output_error) for linear in tried)

    errors: dict[float, float] = {}
    best, num_worse = 0.0, 0
    for alpha in COARSE:
        errors[alpha] = error_of(alpha)
        best, num_worse = (alpha, 0) if errors[alpha] <= errors[best] else (best, num_worse + 1)
        if num_worse == _PATIENCE:
            break
    for alpha in (best - FINE_STEP, best + FINE_STEP):
        if alpha > 0:
            errors[alpha] = error_of(alpha)
    best = min(errors, key=errors.__getitem__)
    return Choice(best, scales_for(sizes, best), errors[best], errors[0.0])


def _thinned(linear: Linear) -> Linear:
    num_rows = len(linear.weight)
    if num_rows <= MAX_ROWS:
        return linear
    picked = np.linspace(0, num_rows - 1, MAX_ROWS, dtype=np.int64)
    return Linear(linear.weight[picked], linear.type, linear.mean_squares)


def _error(linear: Linear, scales: Floats, output_error: OutputError) -> float:
    scaled = np.asarray(linear.weight * scales, np.float32)
    means = linear.mean_squares
    importances = None if means is None else np.asarray(means / np.square(scales), np.float32)
    data = ggml.quantize(scaled, linear.type, importances, num_threads=1)
    rounded = ggml.dequantize(data, linear.type, scaled.shape, num_threads=1)
    return output_error(np.asarray((rounded - scaled) / scales, np.float32))
