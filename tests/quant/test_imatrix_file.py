# Importance matrices: both of llama.cpp's forms, and what may be wrong with one.
from __future__ import annotations

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest

from ingle.models.gguf_info import ModelInfo, read_model_info
from ingle.quant.errors import BadImatrix
from ingle.quant.imatrix_file import ImatrixData, ImatrixEntry, fit, read_imatrix, write_imatrix
from tests.quant.layouts import Layout

LAYOUT = Layout(num_layers=1, width=64, num_heads=2, num_heads_kv=2, ffn=96, num_experts=3)
Q, UP = "blk.0.attn_q.weight", "blk.0.ffn_up_exps.weight"


@pytest.fixture
def info(tmp_path: Path) -> ModelInfo:
    return read_model_info(LAYOUT.write_hollow(tmp_path / "model.gguf"))


def sums(num_matrices: int, seed: int = 0) -> np.ndarray:  # type: ignore[type-arg]
    return np.exp(np.random.default_rng(seed).standard_normal((num_matrices, 64))).astype(np.float32)


def example() -> ImatrixData:
    """64 tokens in two chunks; the second expert saw none of them."""
    entries = {
        UP: ImatrixEntry(sums(3), np.array([40, 0, 24], np.float32)),
        Q: ImatrixEntry(sums(1), np.array([64], np.float32)),
    }
    return ImatrixData(entries, ("some.txt", "more.txt"), num_chunks=2, chunk_tokens=32)


def write_dat(path: Path, entries: dict[str, tuple[int, np.ndarray]], tail: bytes = b"") -> Path:  # type: ignore[type-arg]
    parts = [struct.pack("<i", len(entries))]
    for name, (num_calls, values) in entries.items():
        parts += [struct.pack("<i", len(name)), name.encode(), struct.pack("<ii", num_calls, values.size)]
        parts.append(values.astype("<f4").tobytes())
    path.write_bytes(b"".join(parts) + tail)
    return path


def test_writes_what_gguf_reads_and_reads_it_again(tmp_path: Path) -> None:
    path, data = tmp_path / "model.imatrix.gguf", example()
    write_imatrix(path, data)
    reader = gguf.GGUFReader(path)
    fields = {key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    assert fields == {
        "general.type": "imatrix",
        "imatrix.datasets": ["some.txt", "more.txt"],
        "imatrix.chunk_count": 2,
        "imatrix.chunk_size": 32,
    }
    arrays = {tensor.name: tensor.data for tensor in reader.tensors}
    np.testing.assert_array_equal(arrays[UP + ".in_sum2"], data.entries[UP].sums)
    np.testing.assert_array_equal(arrays[UP + ".counts"], data.entries[UP].counts[:, None])
    again = read_imatrix(path)
    assert (again.datasets, again.num_chunks, again.chunk_tokens) == (data.datasets, 2, 32)
    for name, entry in data.entries.items():
        np.testing.assert_array_equal(again.entries[name].sums, entry.sums)
        np.testing.assert_array_equal(again.entries[name].counts, entry.counts)


def test_means_and_unseen_experts(info: ModelInfo) -> None:
    data = example()
    fitted = fit(data, info, Path("it"))
    np.testing.assert_array_equal(fitted.means[Q], data.entries[Q].sums / np.float32(64))
    np.testing.assert_array_equal(fitted.means[UP][0], data.entries[UP].sums[0] / np.float32(40))
    assert (fitted.means[UP][1] == 1).all()
    assert (fitted.num_unseen_experts, fitted.num_experts) == (1, 3)
    matrices = [name for name, shape in LAYOUT.tensors().items() if len(shape) > 1]
    assert fitted.num_missing == len(matrices) - 2


def test_the_older_form(tmp_path: Path, info: ModelInfo) -> None:
    """Values stand there multiplied by the number of calls, experts in one row."""
    tail = struct.pack("<ii", 7, 8) + b"wiki.txt"
    path = write_dat(tmp_path / "imatrix.dat", {Q: (7, 7 * sums(1)), UP: (7, 7 * sums(3))}, tail)
    data = read_imatrix(path)
    assert (data.datasets, data.num_chunks) == (("wiki.txt",), 7)
    fitted = fit(data, info, path)
    np.testing.assert_allclose(fitted.means[UP], sums(3), rtol=1e-6)
    np.testing.assert_allclose(fitted.means[Q], sums(1), rtol=1e-6)
    write_imatrix(tmp_path / "as.gguf", data)
    again = fit(read_imatrix(tmp_path / "as.gguf"), info, path)
    np.testing.assert_array_equal(again.means[UP], fitted.means[UP])
    assert read_imatrix(write_dat(tmp_path / "short.dat", {Q: (1, sums(1))})).num_chunks == 0


@pytest.mark.parametrize("value", [np.nan, np.inf, -1.0])
def test_numbers_that_cannot_be(value: float, tmp_path: Path) -> None:
    bad = sums(1)
    bad[0, 3] = value
    with pytest.raises(BadImatrix, match=f"a sum of {Q} is"):
        read_imatrix(write_dat(tmp_path / "bad.dat", {Q: (1, bad)}))
    write_imatrix(tmp_path / "bad.gguf", ImatrixData({Q: ImatrixEntry(bad, np.ones(1, np.float32))}))
    with pytest.raises(BadImatrix, match=f"a sum of {Q} is"):
        read_imatrix(tmp_path / "bad.gguf")


def test_of_another_model(info: ModelInfo, tmp_path: Path) -> None:
    other = ImatrixData({"blk.7.attn_q.weight": ImatrixEntry(sums(1), np.ones(1, np.float32))})
    with pytest.raises(BadImatrix, match="another model"):
        fit(other, info, Path("it"))
    short = ImatrixData({Q: ImatrixEntry(sums(1)[:, :32], np.ones(1, np.float32))})
    with pytest.raises(BadImatrix, match=f"32 importances for {Q}, which takes 64"):
        fit(short, info, Path("it"))
    both = ImatrixData({**other.entries, **example().entries, "token_embd.weight": short.entries[Q]})
    fitted = fit(both, info, Path("it"))
    assert fitted.ignored == ("blk.7.attn_q.weight",)
    assert set(fitted.means) == {Q, UP}


@pytest.mark.parametrize(
    "data",
    [b"", b"GGUF", b"nonsense", struct.pack("<i", 0), struct.pack("<ii", 1, -5), struct.pack("<ii", 1, 2**30)],
    ids=["empty", "header", "text", "no entries", "negative", "beyond the end"],
)
def test_files_that_are_none(data: bytes, tmp_path: Path) -> None:
    from ingle.models.errors import BadModelFile

    path = tmp_path / "imatrix.dat"
    path.write_bytes(data)
    with pytest.raises((BadImatrix, BadModelFile)):
        read_imatrix(path)


def test_every_torn_file_is_refused(tmp_path: Path) -> None:
    """Cut anywhere, a file is refused, or holds the same numbers: only its last words may be missing."""
    whole = write_dat(tmp_path / "whole.dat", {Q: (1, sums(1))}).read_bytes()
    for size in range(len(whole)):
        (tmp_path / "torn.dat").write_bytes(whole[:size])
        with pytest.raises(Exception, match=r"damaged|empty|no values|no importances"):
            read_imatrix(tmp_path / "torn.dat")


def test_a_model_is_no_importance_matrix(info: ModelInfo) -> None:
    with pytest.raises(BadImatrix, match="a GGUF, but no importance matrix"):
        read_imatrix(info.path)
