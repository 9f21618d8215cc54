# Types chosen tensor by tensor so that the whole stays within a number of bytes. Arrays in, choices out; pure.
# This file may not know tensors, types or where errors were measured.
"""``choose``: the multiple-choice knapsack, by marginal gain.

For every tensor the candidates on the lower convex hull of (bytes, error) are steps, each with a gain in error per
byte. Steps are taken from the best on, over all tensors, until one does not fit; the relaxation in which that step
could be taken in part is optimal (Sinha and Zoltners 1979), so what is lost to the true optimum is less than that one
step's gain. What room is left is then filled with whatever single change helps most.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from ingle.quant.errors import BadRecipe

Sizes = npt.NDArray[np.int64]
Errors = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Choice:
    """`picks`: the candidate of each tensor. No choice within the target has an error below `lower_bound`."""

    picks: tuple[int, ...]
    num_bytes: int
    error: float
    lower_bound: float


def choose(sizes: Sizes, errors: Errors, target_bytes: int) -> Choice:
    """The candidates with the least total error whose total size is at most `target_bytes`.

    `sizes` and `errors` are [tensors, candidates]; an error of infinity means that a candidate cannot be had. Raises
    BadRecipe when even the smallest ones are too large.
    """
    assert sizes.shape == errors.shape
    assert not np.isnan(errors).any()
    assert (sizes >= 0).all()
    hulls = [_hull(row_sizes, row_errors) for row_sizes, row_errors in zip(sizes, errors, strict=True)]
    picks = [hull[0] for hull in hulls]
    used = sum(int(sizes[t, pick]) for t, pick in enumerate(picks))
    if used > target_bytes:
        raise BadRecipe(
            f"the target of {target_bytes / 1e6:.1f} MB cannot be met: the smallest types take {used / 1e6:.1f} MB",
            "raise the target",
        )
    error = sum(float(errors[t, pick]) for t, pick in enumerate(picks))
    bound = error
    steps = sorted(
        (
            ((errors[t, low] - errors[t, high]) / (sizes[t, high] - sizes[t, low]), t, low, high)
            for t, hull in enumerate(hulls)
            for low, high in pairwise(hull)
        ),
        key=lambda step: (-step[0], step[1], int(sizes[step[1], step[2]])),
    )
    for rate, tensor, low, high in steps:
        cost = int(sizes[tensor, high] - sizes[tensor, low])
        if used + cost > target_bytes:
            bound = error - float(rate) * (target_bytes - used)
            break
        picks[tensor] = high
        used += cost
        error -= float(errors[tensor, low] - errors[tensor, high])
        bound = error
    picks, used = _fill(sizes, errors, picks, used, target_bytes)
    total = float(sum(errors[t, pick] for t, pick in enumerate(picks)))
    return Choice(tuple(picks), used, total, min(bound, total))


def _fill(sizes: Sizes, errors: Errors, picks: list[int], used: int, target_bytes: int) -> tuple[list[int], int]:
    """Single changes that fit and lower the error most, until there is none."""
    rows = np.arange(len(picks))
    picked = np.array(picks)
    while True:
        gain = errors[rows, picked][:, None] - errors
        fits = used + sizes - sizes[rows, picked][:, None] <= target_bytes
        gain = np.where(fits, gain, -1.0)
        tensor, candidate = (int(i) for i in np.unravel_index(int(np.argmax(gain)), gain.shape))
        if gain[tensor, candidate] <= 0:
            return [int(pick) for pick in picked], used
        used += int(sizes[tensor, candidate] - sizes[tensor, picked[tensor]])
        picked[tensor] = candidate


def _hull(sizes: Sizes, errors: Errors) -> list[int]:
    """Candidates on the lower convex hull, the smallest first: each larger, better, and at a falling rate."""
    order = sorted((i for i in range(len(sizes)) if np.isfinite(errors[i])), key=lambda i: (sizes[i], errors[i]))
    assert order, "a tensor without candidates"
    hull: list[int] = []
    for i in order:
        if hull and errors[i] >= errors[hull[-1]]:
            continue
        while len(hull) > 1 and _rate(sizes, errors, hull[-2], hull[-1]) <= _rate(sizes, errors, hull[-1], i):
            hull.pop()
        hull.append(i)
    return hull


def _rate(sizes: Sizes, errors: Errors, low: int, high: int) -> float:
    return float((errors[low] - errors[high]) / (sizes[high] - sizes[low]))
