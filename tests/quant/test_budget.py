# The knapsack against every choice there is.
from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingle.quant.budget import choose
from ingle.quant.errors import BadRecipe
from ingle.quant.sensitivity import clipped_mean


def brute_force(sizes: np.ndarray, errors: np.ndarray, target: int) -> float:  # type: ignore[type-arg]
    rows = range(len(sizes))
    return min(
        sum(errors[t, pick] for t, pick in zip(rows, picks, strict=True))
        for picks in itertools.product(range(sizes.shape[1]), repeat=len(sizes))
        if sum(sizes[t, pick] for t, pick in zip(rows, picks, strict=True)) <= target
    )


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 5), st.integers(1, 4), st.floats(0, 1.1))
def test_within_target_and_within_the_bound(seed: int, num_tensors: int, num_candidates: int, share: float) -> None:
    generator = np.random.default_rng(seed)
    sizes = generator.integers(1, 40, (num_tensors, num_candidates))
    errors = generator.integers(0, 50, (num_tensors, num_candidates)).astype(float)
    least, most = int(sizes.min(axis=1).sum()), int(sizes.max(axis=1).sum())
    target = least + int(share * (most - least))
    found = choose(sizes, errors, target)
    rows = np.arange(num_tensors)
    assert found.num_bytes == sizes[rows, found.picks].sum() <= target
    assert found.error == errors[rows, found.picks].sum()
    best = brute_force(sizes, errors, target)
    assert found.lower_bound - 1e-9 <= best <= found.error
    # What is lost is less than one step's gain, and no step gains more than its tensor's whole range.
    assert found.error - best < np.ptp(errors, axis=1).max() + 1e-9


def test_a_worked_example() -> None:
    """Two tensors of 2, 3 and 4 bytes a value. The second is ten times as sensitive, so it is raised first."""
    sizes = np.array([[200, 300, 400], [200, 300, 400]])
    errors = np.array([[8.0, 4.0, 2.0], [80.0, 40.0, 20.0]])
    assert choose(sizes, errors, 400).picks == (0, 0)
    assert choose(sizes, errors, 500).picks == (0, 1)
    assert choose(sizes, errors, 699).picks == (0, 2)
    assert choose(sizes, errors, 700).picks == (1, 2)
    found = choose(sizes, errors, 10_000)
    assert (found.picks, found.num_bytes, found.error, found.lower_bound) == ((2, 2), 800, 22.0, 22.0)


def test_candidates_that_cannot_be_had_and_targets_that_cannot_be_met() -> None:
    sizes, errors = np.array([[1, 5], [2, 6]]), np.array([[np.inf, 1.0], [3.0, 2.0]])
    assert choose(sizes, errors, 7).picks == (1, 0)
    with pytest.raises(BadRecipe, match="cannot be met"):
        choose(sizes, errors, 6)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 40))
def test_a_few_rows_say_little_of_what_an_error_costs(seed: int, num_tipped: int) -> None:
    kl = np.random.default_rng(seed).exponential(0.01, 1000)
    tipped = kl.copy()
    tipped[:num_tipped] = 10.0
    assert kl.mean() * 0.7 < clipped_mean(kl) <= kl.mean()
    assert clipped_mean(tipped) < 2 * clipped_mean(kl)
    assert clipped_mean(3 * kl) == pytest.approx(3 * clipped_mean(kl))
