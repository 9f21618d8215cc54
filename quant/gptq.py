# Codes chosen one column after another, each column's rounding error passed on to those still to come. No files.
# This file may not know models, layers or where the Gram matrix is from.
"""Error feedback inside GGUF's block formats (Frantar et al., GPTQ, 2022).

Steps and offsets of a block come from ggml's quantizer, run on the weights as they stand when the block's turn comes:
all errors so far already passed on. Then codes are chosen column by column, and what a column got wrong is spread over
the later columns so that the layer's outputs change least. Rows do not depend on one another: all are done at once.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Final

import numpy as np
import numpy.typing as npt

from ingle.quant import ggml
from ingle.quant.formats import BY_TYPE, Format, Unpacked

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

TYPES: Final = frozenset(BY_TYPE)
DAMPING: Final = 0.6
"""Of the mean diagonal of the Gram matrix, added to the diagonal. Much, for the calibration text is not the user's:
with 4,096 tokens of a 135M model's own writing, Q4_0's KL on other text was 0.127 at 0.05 and 0.118 at 0.3; with 8,192
tokens and 0.6 it was 0.116."""
MAX_ROW_SIZE: Final = 4.0
_TINY: Final = float(np.finfo(np.float32).tiny)  # a step of less has no reciprocal
_PANEL: Final = 16  # columns whose updates stay among themselves until the panel is done
_MIN_ROWS: Final = 2048  # for a thread of their own: with fewer, threads wait for the interpreter, and one is faster


def gram_of(rows: Floats, counts: Floats) -> Floats:
    """XᵀX of input rows [n, cols], each as often as `counts` [n] says, none larger than MAX_ROW_SIZE times the middle.
    `rows` are scaled in place: they are large.

    The first tokens of a text carry activations hundreds of times larger than the rest. Left as they are, they would be
    all that the weights are fitted to; left out, nothing would keep the weights from ruining them, and attention
    rests on them.
    """
    sizes = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    limit = MAX_ROW_SIZE * float(np.median(sizes))
    factors = np.sqrt(counts) * np.minimum(1, limit / np.maximum(sizes, limit)) if limit > 0 else np.sqrt(counts)
    rows *= factors[:, None].astype(np.float32)
    gram = np.empty((rows.shape[1], rows.shape[1]), np.float32)
    edges = np.linspace(0, len(gram), 2 * ggml.num_cores() + 1, dtype=np.int64).tolist()

    def fill(start: int, end: int) -> None:  # the columns from start on, down to the diagonal, and their mirror image
        np.matmul(rows[:, :end].T, rows[:, start:end], out=gram[:end, start:end])
        gram[start:end, :start] = gram[:start, start:end].T

    with ThreadPoolExecutor(ggml.num_cores(), thread_name_prefix="ingle-gram") as pool:
        list(pool.map(fill, reversed(edges[:-1]), reversed(edges[1:])))
    return gram


def factor(gram: Floats, damping: float = DAMPING) -> Floats:
    """gram [cols, cols] = XᵀX → U, upper triangular, with UᵀU the inverse of the damped Gram matrix.

    Row i of U says how an error in column i is made good by the columns behind it. Channels that were never used get
    a diagonal of their own, so that the matrix can be inverted. A large `gram` is used up.
    """
    matrix = gram.astype(np.float64) if len(gram) <= 1024 else gram
    diagonal = np.einsum("ii->i", matrix)
    mean = float(diagonal.mean()) or 1.0
    diagonal += damping * mean
    _to_inverse_root(matrix)
    return np.ascontiguousarray(matrix, np.float32)


def _to_inverse_root(matrix: npt.NDArray[np.floating]) -> None:
    """H, symmetric and positive, becomes the upper triangular U with UᵀU = H⁻¹: in place, for it may be large, and by
    halves, so that the work is in matrix products.

    With H = R Rᵀ, R upper triangular, and U = R⁻¹: R = [[R₁, S], [0, R₂]], where R₂R₂ᵀ is H's last quarter,
    S = H₁₂U₂ᵀ and R₁R₁ᵀ = H₁₁ − SSᵀ; then U = [[U₁, −U₁SU₂], [0, U₂]].
    """
    size = len(matrix)
    if size <= 128:
        root = np.linalg.cholesky(matrix[::-1, ::-1])[::-1, ::-1]  # the factor from the other end
        matrix[...] = np.triu(np.linalg.inv(root))
        return
    half = size // 2
    first, corner, last = matrix[:half, :half], matrix[:half, half:], matrix[half:, half:]
    _to_inverse_root(last)
    side = corner @ last.T
    first -= side @ side.T
    _to_inverse_root(first)
    np.matmul(first @ side, last, out=corner)
    np.negative(corner, out=corner)
    matrix[half:, :half] = 0


def quantize(
    weights: Floats,
    type_name: str,
    factor_u: Floats,
    importances: Floats | None = None,
    *,
    num_threads: int | None = None,
) -> Bytes:
    """weights [rows, cols] as blocks of `type_name`, uint8 [rows, bytes of a row]; `factor_u`: see `factor`.

    `importances` [cols]: what ggml's quantizer weighs columns by when it picks steps; without, 1 / U_jj².
    Raises BadWeights as ggml.quantize does.
    """
    weighed = np.asarray(1 / np.square(np.diag(factor_u)) if importances is None else importances, np.float32)
    parts = np.array_split(weights, min(num_threads or ggml.num_cores(), max(1, len(weights) // _MIN_ROWS)))
    if len(parts) == 1:
        return _quantize(weights, type_name, factor_u, weighed)
    with ThreadPoolExecutor(len(parts), thread_name_prefix="ingle-gptq") as pool:
        jobs = [pool.submit(_quantize, part, type_name, factor_u, weighed) for part in parts]
        return np.concatenate([job.result() for job in jobs])


def _quantize(weights: Floats, type_name: str, factor_u: Floats, weighed: Floats) -> Bytes:
    kind = BY_TYPE[type_name]
    num_cols = weights.shape[1]
    width = kind.block_size
    left = np.ascontiguousarray(weights.T)  # [cols, rows]: a column is contiguous
    parts = []
    for start in range(0, num_cols, width):
        end = start + width
        block = np.ascontiguousarray(left[start:end].T)
        data = ggml.quantize(block, type_name, weighed[start:end], num_threads=1)
        codes, errors = _choose(kind, left[start:end], kind.unpack(data), factor_u[start:end, start:end])
        parts.append(kind.pack(data, codes))
        if end < num_cols:
            left[end:] -= factor_u[start:end, end:].T @ errors
    return np.concatenate(parts, axis=1)


def _choose(kind: Format, left: Floats, given: Unpacked, factor_u: Floats) -> tuple[npt.NDArray[np.uint8], Floats]:
    """Codes [rows, width] for the columns of one block, and their errors over U_jj, [width, rows]. Changes `left`."""
    width, num_rows = left.shape
    codes = np.empty((width, num_rows), np.uint8)
    errors = np.empty((width, num_rows), np.float32)
    steps, offsets = np.ascontiguousarray(given.steps.T), np.ascontiguousarray(given.offsets.T)
    inverse = np.divide(1, steps, out=np.zeros_like(steps), where=np.abs(steps) > _TINY)
    reciprocals = 1 / np.diag(factor_u)
    for first in range(0, width, _PANEL):
        last = min(first + _PANEL, width)
        for col in range(first, last):
            group = col // kind.group
            value = errors[col]  # in steps, then what is stored for it, then its error
            np.subtract(left[col], offsets[group], out=value)
            value *= inverse[group]
            kind.snap(value, codes[col])
            value *= steps[group]
            value += offsets[group]
            np.subtract(left[col], value, out=value)
            value *= reciprocals[col]
            if col + 1 < last:
                left[col + 1 : last] -= factor_u[col, col + 1 : last, None] * value
        if last < width:
            left[last:] -= factor_u[first:last, last:].T @ errors[first:last]
    return np.ascontiguousarray(codes.T), errors
