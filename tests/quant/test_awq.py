# The search for scales: never worse than plain rounding, better where channels tower over the rest.
from __future__ import annotations

import numpy as np
import pytest

from ingle.quant import awq, ggml


def inputs(outliers: float) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[type-arg]
    """Rows [n, 128] of which every sixteenth channel is `outliers` times as large, and weights [64, 128]."""
    rng = np.random.default_rng(13)
    rows = rng.standard_normal((400, 128)).astype(np.float32)
    rows[:, ::16] *= outliers
    return rows, rng.standard_normal((64, 128)).astype(np.float32)


@pytest.mark.parametrize("name", ["Q4_0", "Q8_0", "Q5_1", "IQ4_NL"])
def test_outliers_are_worth_scaling(name: str) -> None:
    rows, weight = inputs(100)
    squares = np.square(rows).mean(axis=0)
    choice = awq.search([awq.Linear(weight, name, squares)], np.abs(rows).mean(axis=0), rows)
    assert choice.alpha > 0
    assert choice.error < choice.plain_error
    # What it says is what ggml does.
    scaled = weight * choice.scales
    data = ggml.quantize(scaled, name, squares / np.square(choice.scales))
    wrong = ggml.dequantize(data, name, scaled.shape) / choice.scales - weight
    assert choice.error == pytest.approx(float(np.square(wrong @ rows.T).sum()), rel=1e-3)


def test_it_is_never_worse_than_plain() -> None:
    rows, weight = inputs(1)
    linear = awq.Linear(weight, "Q4_0", np.square(rows).mean(axis=0))
    choice = awq.search([linear], np.random.default_rng(14).exponential(1, 128).astype(np.float32), rows)
    assert choice.error <= choice.plain_error
    if choice.alpha == 0:
        assert (choice.scales == 1).all()


def test_columns_that_share_a_scale_get_one() -> None:
    rows, weight = inputs(30)
    column_of = np.tile(np.arange(64), 2)
    choice = awq.search(
        [awq.Linear(weight, "Q4_0", np.square(rows).mean(axis=0))], np.abs(rows).mean(axis=0), rows, column_of
    )
    assert choice.scales.shape == (64,)
    assert choice.error <= choice.plain_error


def test_both_forms_of_the_error_agree() -> None:
    rows, error = inputs(3)
    assert awq.OutputError(rows)(error) == pytest.approx(
        awq.OutputError(rows[:100])(error) + awq.OutputError(rows[100:])(error), rel=1e-4
    )


def test_scales_have_a_middle_of_one_and_a_bounded_ratio() -> None:
    sizes = np.array([0, 1e-20, 1, 100, 1e9], np.float32)
    scales = awq.scales_for(sizes, 0.5)
    assert np.isfinite(scales).all()
    assert scales.max() * scales.min() == pytest.approx(1, rel=1e-3)
    assert scales.max() / scales.min() == pytest.approx(awq.MAX_RATIO, rel=1e-3)
    assert scales[3] / scales[2] < scales[4] / scales[3]
    assert (awq.scales_for(np.zeros(4, np.float32), 0.5) == 1).all()
    assert (awq.scales_for(sizes, 0.0) == 1).all()
