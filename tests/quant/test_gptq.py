# Error feedback: the algebra of its factor, what it gains, and that what it packs is what it chose.
from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from ingle.quant import ggml, gptq
from ingle.quant.formats import BY_TYPE, Format

Floats = npt.NDArray[np.float32]


def correlated_rows(num_rows: int, num_cols: int) -> Floats:
    """Inputs as models have them: few directions carry most, some channels tower over the rest."""
    rng = np.random.default_rng(5)
    mixed = rng.standard_normal((num_rows, 48)) @ rng.standard_normal((48, num_cols))
    sizes = np.exp(rng.normal(0, 1, num_cols))
    return ((mixed + 0.5 * rng.standard_normal((num_rows, num_cols))) * sizes).astype(np.float32)


def output_error(weights: Floats, data: npt.NDArray[np.uint8], name: str, rows: Floats) -> float:
    return float(np.square((ggml.dequantize(data, name, weights.shape) - weights) @ rows.T).sum())


def nearest(kind: Format, values: Floats, steps: Floats, offsets: Floats) -> npt.NDArray[np.intp]:
    """The code whose value is nearest to each of `values`: all of them tried."""
    every = kind.levels.reshape(-1, *[1] * values.ndim) * steps + offsets
    return np.abs(every - values).argmin(axis=0)


@pytest.mark.parametrize("num_cols", [96, 320, 1100])
def test_the_factor_is_the_root_of_the_inverse(num_cols: int) -> None:
    rows = correlated_rows(3 * num_cols, num_cols)
    gram = rows.T @ rows
    factor = gptq.factor(gram.copy(), damping=0.01).astype(np.float64)
    assert np.array_equal(factor, np.triu(factor))
    assert (np.diag(factor) > 0).all()
    damped = gram.astype(np.float64) + 0.01 * np.trace(gram) / num_cols * np.eye(num_cols)
    np.testing.assert_allclose(factor.T @ factor @ damped, np.eye(num_cols), atol=2e-3)


def test_channels_that_were_never_used_do_no_harm() -> None:
    rows = correlated_rows(200, 64)
    rows[:, 10:20] = 0
    factor = gptq.factor(rows.T @ rows)
    assert np.isfinite(factor).all()
    data = gptq.quantize(np.ones((4, 64), np.float32), "Q8_0", factor)
    np.testing.assert_allclose(ggml.dequantize(data, "Q8_0", (4, 64)), 1, rtol=0.02)
    assert np.isfinite(gptq.factor(np.zeros((64, 64), np.float32))).all()


@pytest.mark.parametrize("name", sorted(gptq.TYPES))
def test_outputs_are_nearer_than_with_plain_rounding(name: str) -> None:
    weights = (np.random.default_rng(6).standard_normal((40, 512)) * 0.05).astype(np.float32)
    rows = correlated_rows(1500, 512)
    importances = np.square(rows).mean(axis=0)
    plain = ggml.quantize(weights, name, importances)
    data = gptq.quantize(weights, name, gptq.factor(rows.T @ rows))
    assert data.shape == plain.shape
    assert output_error(weights, data, name, rows) < 0.7 * output_error(weights, plain, name, rows)


def test_without_correlation_it_is_plain_rounding() -> None:
    """A diagonal Gram matrix leaves nothing to make good: the codes are the nearest to ggml's steps."""
    weights = (np.random.default_rng(7).standard_normal((8, 64)) * 0.05).astype(np.float32)
    sizes = np.linspace(1, 9, 64, dtype=np.float32)
    data = gptq.quantize(weights, "Q4_0", gptq.factor(np.diag(sizes), damping=1e-6), sizes)
    kind = BY_TYPE["Q4_0"]
    given = kind.unpack(ggml.quantize(weights, "Q4_0", sizes))
    steps, offsets = (np.repeat(x, 32, axis=1) for x in (given.steps, given.offsets))
    assert np.array_equal(kind.unpack(data).codes, nearest(kind, weights, steps, offsets))


def test_it_is_the_sequential_definition() -> None:
    """Against the algorithm written as a loop over single columns of a full inverse (Frantar et al., eq. 2 and 3)."""
    weights = (np.random.default_rng(8).standard_normal((3, 64)) * 0.05).astype(np.float32)
    rows = correlated_rows(300, 64)
    gram = rows.T @ rows
    kind = BY_TYPE["Q4_0"]
    importances = np.square(rows).mean(axis=0)
    left = weights.astype(np.float64)
    damped = gram.astype(np.float64) + gptq.DAMPING * np.trace(gram) / 64 * np.eye(64)
    expected = np.zeros_like(weights)
    for col in range(64):
        if col % 32 == 0:
            block = np.ascontiguousarray(left[:, col : col + 32], np.float32)
            given = kind.unpack(ggml.quantize(block, "Q4_0", importances[col : col + 32]))
        inverse = np.linalg.inv(damped[col:, col:])  # of the columns still to come
        code = nearest(kind, left[:, col].astype(np.float32), given.steps[:, 0], given.offsets[:, 0])
        expected[:, col] = kind.levels[code] * given.steps[:, 0]
        left[:, col:] -= np.outer((left[:, col] - expected[:, col]) / inverse[0, 0], inverse[0])
    data = gptq.quantize(weights, "Q4_0", gptq.factor(gram), importances)
    np.testing.assert_allclose(ggml.dequantize(data, "Q4_0", weights.shape), expected, atol=1e-6)
