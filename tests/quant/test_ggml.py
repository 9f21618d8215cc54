# The bindings against gguf's independent NumPy implementations, bit for bit.
from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf import quants

from ingle.models.ggml_types import BY_NAME, row_bytes
from ingle.quant import ggml
from ingle.quant.errors import BadImatrix, BadWeights

# Types for which the gguf package quantizes; for all in _READ it dequantizes.
_WRITTEN = ("BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "TQ1_0", "TQ2_0", "F16", "F32", "MXFP4")
_BLOCKS = tuple(name for name in ggml.WEIGHT_TYPES if BY_NAME[name].block_size > 1)
# ggml takes seconds to make the tables of these (and passed the tests below when it was given them).
_SLOW = ("IQ1_S", "IQ1_M", "IQ2_XS", "IQ2_S")
_QUICK = tuple(name for name in _BLOCKS if name not in _SLOW)
_HARD = ("IQ2_XXS", "IQ2_XS", "IQ1_S")  # no quantizer without importances


def weights(num_rows: int = 6, num_cols: int = 512, seed: int = 1) -> ggml.Floats:
    generator = np.random.default_rng(seed)
    values = generator.standard_normal((num_rows, num_cols)) * np.exp(generator.standard_normal((num_rows, 1)))
    values[0, :256] = 0  # a block of nothing
    return values.astype(np.float32)


def importances(num_cols: int = 512) -> ggml.Floats:
    return np.exp(np.random.default_rng(2).standard_normal(num_cols)).astype(np.float32)


@pytest.mark.parametrize("name", _WRITTEN)
def test_quantizes_as_the_reference(name: str) -> None:
    values = weights()
    expected = quants.quantize(values, gguf.GGMLQuantizationType[name])
    assert ggml.quantize(values, name).tobytes() == expected.tobytes()


@pytest.mark.parametrize("name", [name for name in _BLOCKS if name not in ("Q1_0", "Q2_0")])
def test_dequantizes_as_the_reference(name: str) -> None:
    """Any bytes are blocks; only that some scales are NaN or infinite then."""
    data = np.random.default_rng(5).integers(0, 256, (6, row_bytes(name, 2048)), np.uint8)
    with np.errstate(all="ignore"):
        expected = quants.dequantize(data, gguf.GGMLQuantizationType[name])
    assert np.isfinite(expected).mean() > 0.7
    np.testing.assert_array_equal(ggml.dequantize(data, name, (6, 2048)), expected)


@pytest.mark.parametrize("name", ["Q4_0", "Q4_K", "IQ4_XS", "Q6_K"])
def test_threads_and_chunks_do_not_show(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    values, importance = weights(num_rows=37), importances()
    whole = ggml.quantize(values, name, importance, num_threads=1)
    monkeypatch.setattr(ggml, "_CHUNK_VALUES", 5 * 512)
    assert ggml.quantize(values, name, importance, num_threads=3).tobytes() == whole.tobytes()
    back = ggml.dequantize(whole, name, (37, 512), num_threads=3)
    assert back.tobytes() == ggml.dequantize(whole, name, (37, 512), num_threads=1).tobytes()


@pytest.mark.parametrize("name", _QUICK)
def test_importance_lowers_the_weighted_error(name: str) -> None:
    values, importance = weights(seed=3), importances()
    importance[::7] *= 100

    def error(data: ggml.Bytes) -> float:
        difference = ggml.dequantize(data, name, values.shape) - values
        return float((difference**2 * importance).sum())

    weighted = ggml.quantize(values, name, importance)
    assert weighted.shape == (6, row_bytes(name, 512))
    if name not in _HARD:
        assert error(weighted) <= error(ggml.quantize(values, name))


def test_what_needs_importances_says_so() -> None:
    assert tuple(name for name in ggml.WEIGHT_TYPES if ggml.requires_imatrix(name)) == _HARD
    for name in _HARD:
        with pytest.raises(BadImatrix, match="needs an importance matrix"):
            ggml.quantize(weights(), name)


@pytest.mark.parametrize(
    ("value", "what"), [(np.nan, "NaN"), (np.inf, "infinite"), (-np.inf, "infinite"), (7e4, "F16")]
)
def test_a_value_no_block_can_hold_is_named(value: float, what: str) -> None:
    values = weights()
    values[4, 77] = value
    with pytest.raises(BadWeights, match=rf"row 4, column 77 is .*{what}"):
        ggml.quantize(values, "Q4_0")


def test_large_values_go_where_there_is_room() -> None:
    values = np.full((1, 32), 7e4, np.float32)
    assert ggml.dequantize(ggml.quantize(values, "BF16"), "BF16", (1, 32)).max() == pytest.approx(7e4, rel=0.01)
    with pytest.raises(BadWeights, match="too large"):
        ggml.quantize(values, "F16")


def test_rows_of_broken_blocks_are_refused() -> None:
    with pytest.raises(BadWeights, match="80 values are not whole Q4_K blocks of 256"):
        ggml.quantize(np.zeros((2, 80), np.float32), "Q4_K")


@pytest.mark.parametrize("value", [np.nan, np.inf, -1.0])
def test_importances_must_be_sane(value: float) -> None:
    importance = importances()
    importance[9] = value
    with pytest.raises(BadImatrix, match="column 9"):
        ggml.quantize(weights(), "Q4_K", importance)
    with pytest.raises(BadImatrix, match="256 importances for 512 columns"):
        ggml.quantize(weights(), "Q4_K", importance[:256])


@pytest.mark.parametrize("name", _QUICK)
def test_extremes_do_not_end_the_process(name: str) -> None:
    """What ggml asserts about must never reach it: zeros, importances of zero, the largest and the smallest values."""
    tops = np.tile(np.float32([ggml.MAX_MAGNITUDE, -ggml.MAX_MAGNITUDE]), (2, 128))
    tiny = np.full((1, 256), 1e-42, np.float32)
    for values in (np.zeros((1, 256), np.float32), tops, tiny, np.ones((1, 256), np.float32)):
        for importance in (np.zeros(256, np.float32), np.full(256, 1e12, np.float32), np.full(256, 1e-30, np.float32)):
            back = ggml.dequantize(ggml.quantize(values, name, importance), name, values.shape)
            assert np.isfinite(back).all()
