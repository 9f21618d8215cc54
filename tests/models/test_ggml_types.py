# The size table against the `gguf` package, which keeps its own.
import gguf
import pytest

from ingle.models.ggml_types import BY_ID, BY_NAME, FILE_TYPES, REMOVED, row_bytes


def test_sizes_agree_with_the_gguf_package() -> None:
    theirs = {kind.name: (kind.value, *gguf.GGML_QUANT_SIZES[kind]) for kind in gguf.GGMLQuantizationType}
    ours = {row.name: (row.id, row.block_size, row.type_size) for row in BY_ID.values()}
    common = theirs.keys() & ours.keys() - {"Q8_1"}
    assert {name: ours[name] for name in common} == {name: theirs[name] for name in common}
    assert len(common) >= 32
    # The package counts two floats where block_q8_1 has had two halfs since 2023 (ggml-common.h, its static_assert).
    assert ours["Q8_1"] == (9, 32, 2 * 2 + 32)
    assert not REMOVED.keys() & BY_ID.keys()


def test_file_types_agree_with_the_gguf_package() -> None:
    theirs = {kind.value: kind.name.removeprefix("MOSTLY_").removeprefix("ALL_") for kind in gguf.LlamaFileType}
    common = theirs.keys() & FILE_TYPES.keys()
    assert {i: FILE_TYPES[i] for i in common} == {i: theirs[i] for i in common}
    assert FILE_TYPES[15] == "Q4_K_M"


def test_row_bytes() -> None:
    assert row_bytes("f16", 64) == 128
    assert row_bytes("q8_0", 64) == 68  # two blocks of 34
    assert row_bytes("Q4_K", 512) == 288
    assert len(BY_NAME) == len(BY_ID)
    with pytest.raises(ValueError, match="whole Q8_0 blocks"):
        row_bytes("q8_0", 33)
    with pytest.raises(ValueError, match="unknown ggml type"):
        row_bytes("q9", 32)
