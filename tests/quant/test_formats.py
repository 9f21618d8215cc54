# Block formats taken apart and put together, bit for bit against ggml.
from __future__ import annotations

import numpy as np
import pytest

from ingle.quant import ggml
from ingle.quant.formats import BY_TYPE, Unpacked

COLS = 512


def random_weights(rows: int = 6) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    values = (np.random.default_rng(3).standard_normal((rows, COLS)) * 0.05).astype(np.float32)
    values[0, :40] = 0  # blocks without a step
    values[1, 300] = 4  # an outlier
    return values


@pytest.mark.parametrize("name", sorted(BY_TYPE))
def test_unpacked_parts_are_what_ggml_dequantizes(name: str) -> None:
    kind, values = BY_TYPE[name], random_weights()
    data = ggml.quantize(values, name, np.linspace(0.1, 2, COLS, dtype=np.float32))
    parts = kind.unpack(data)
    assert parts.codes.shape == values.shape
    assert parts.codes.max() == len(kind.levels) - 1
    np.testing.assert_array_equal(kind.values(parts), ggml.dequantize(data, name, values.shape))


@pytest.mark.parametrize("name", sorted(BY_TYPE))
def test_packing_other_codes_keeps_the_steps(name: str) -> None:
    kind, values = BY_TYPE[name], random_weights()
    data = ggml.quantize(values, name, np.ones(COLS, np.float32))
    parts = kind.unpack(data)
    assert np.array_equal(kind.pack(data, parts.codes), data)
    other = np.random.default_rng(4).integers(0, len(kind.levels), values.shape).astype(np.uint8)
    packed = kind.pack(data, other)
    expected = kind.values(Unpacked(other, parts.steps, parts.offsets))
    np.testing.assert_array_equal(ggml.dequantize(packed, name, values.shape), expected)
    assert np.array_equal(kind.unpack(packed).steps, parts.steps)


@pytest.mark.parametrize("name", sorted(BY_TYPE))
def test_the_nearest_code_is_the_nearest(name: str) -> None:
    kind, values = BY_TYPE[name], random_weights()
    parts = kind.unpack(ggml.quantize(values, name, np.ones(COLS, np.float32)))
    steps = np.repeat(parts.steps, kind.group, axis=1)
    offsets = np.repeat(parts.offsets, kind.group, axis=1)
    wanted = np.divide(values - offsets, steps, out=np.zeros_like(values), where=steps != 0)
    codes = np.empty(values.shape, np.uint8)
    kind.snap(wanted, codes)
    np.testing.assert_array_equal(wanted, kind.levels[codes])
    every = kind.levels[:, None, None] * steps + offsets
    best = np.abs(every - values).min(axis=0)
    chosen = np.abs(np.take_along_axis(every, codes[None].astype(np.intp), axis=0)[0] - values)
    np.testing.assert_allclose(chosen, best, rtol=1e-5, atol=1e-7)
