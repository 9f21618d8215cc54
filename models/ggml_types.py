# The element types of ggml: how many values make a block and how many bytes a block takes. Data only.
# This file may not know about files, models or errors of this package.
"""Sizes of ggml's tensor types.

Sources: ``enum ggml_type`` and ``enum llama_ftype`` (ggml.h, llama.h) for the numbers, the ``block_*`` structs and
their ``static_assert`` lines (ggml-common.h) for the sizes.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class GgmlType(NamedTuple):
    """One row: `block_size` values are stored in `type_size` bytes."""

    name: str
    id: int
    block_size: int
    type_size: int


_ROWS: Final = (
    GgmlType("F32", 0, 1, 4),
    GgmlType("F16", 1, 1, 2),
    GgmlType("Q4_0", 2, 32, 2 + 16),
    GgmlType("Q4_1", 3, 32, 4 + 16),
    GgmlType("Q5_0", 6, 32, 2 + 4 + 16),
    GgmlType("Q5_1", 7, 32, 4 + 4 + 16),
    GgmlType("Q8_0", 8, 32, 2 + 32),
    GgmlType("Q8_1", 9, 32, 4 + 32),
    GgmlType("Q2_K", 10, 256, 4 + 16 + 64),
    GgmlType("Q3_K", 11, 256, 2 + 64 + 32 + 12),
    GgmlType("Q4_K", 12, 256, 4 + 12 + 128),
    GgmlType("Q5_K", 13, 256, 4 + 12 + 128 + 32),
    GgmlType("Q6_K", 14, 256, 2 + 16 + 192),
    GgmlType("Q8_K", 15, 256, 4 + 256 + 32),
    GgmlType("IQ2_XXS", 16, 256, 2 + 64),
    GgmlType("IQ2_XS", 17, 256, 2 + 64 + 8),
    GgmlType("IQ3_XXS", 18, 256, 2 + 96),
    GgmlType("IQ1_S", 19, 256, 2 + 32 + 16),
    GgmlType("IQ4_NL", 20, 32, 2 + 16),
    GgmlType("IQ3_S", 21, 256, 2 + 13 * 8 + 4),
    GgmlType("IQ2_S", 22, 256, 2 + 64 + 16),
    GgmlType("IQ4_XS", 23, 256, 2 + 2 + 4 + 128),
    GgmlType("I8", 24, 1, 1),
    GgmlType("I16", 25, 1, 2),
    GgmlType("I32", 26, 1, 4),
    GgmlType("I64", 27, 1, 8),
    GgmlType("F64", 28, 1, 8),
    GgmlType("IQ1_M", 29, 256, 32 + 16 + 8),
    GgmlType("BF16", 30, 1, 2),
    GgmlType("TQ1_0", 34, 256, 2 + 4 + 48),
    GgmlType("TQ2_0", 35, 256, 2 + 64),
    GgmlType("MXFP4", 39, 32, 1 + 16),
    GgmlType("NVFP4", 40, 64, 4 + 32),
    GgmlType("Q1_0", 41, 128, 2 + 16),
    GgmlType("Q2_0", 42, 64, 2 + 16),
)

BY_ID: Final[dict[int, GgmlType]] = {row.id: row for row in _ROWS}
BY_NAME: Final[dict[str, GgmlType]] = {row.name: row for row in _ROWS}

# Numbers once used in files and since withdrawn upstream.
REMOVED: Final[dict[int, str]] = {
    4: "Q4_2",
    5: "Q4_3",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
}

# Integer, double and activation-only types: no kernel multiplies a weight matrix stored in them.
NOT_FOR_WEIGHTS: Final = frozenset({"Q8_1", "Q8_K", "I8", "I16", "I32", "I64", "F64"})

# general.file_type → the name used in file names.
FILE_TYPES: Final[dict[int, str]] = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    7: "Q8_0",
    8: "Q5_0",
    9: "Q5_1",
    10: "Q2_K",
    11: "Q3_K_S",
    12: "Q3_K_M",
    13: "Q3_K_L",
    14: "Q4_K_S",
    15: "Q4_K_M",
    16: "Q5_K_S",
    17: "Q5_K_M",
    18: "Q6_K",
    19: "IQ2_XXS",
    20: "IQ2_XS",
    21: "Q2_K_S",
    22: "IQ3_XS",
    23: "IQ3_XXS",
    24: "IQ1_S",
    25: "IQ4_NL",
    26: "IQ3_S",
    27: "IQ3_M",
    28: "IQ2_S",
    29: "IQ2_M",
    30: "IQ4_XS",
    31: "IQ1_M",
    32: "BF16",
    36: "TQ1_0",
    37: "TQ2_0",
    38: "MXFP4_MOE",
    39: "NVFP4",
    40: "Q1_0",
    41: "Q2_0",
}


def row_bytes(type_name: str, num_values: int) -> int:
    """Bytes of one row of `num_values` values; `type_name` in any case ("q8_0").

    Raises ValueError for an unknown type and for a row that is not whole blocks (``ggml_row_size``).
    """
    row = BY_NAME.get(type_name.upper())
    if row is None:
        raise ValueError(f"unknown ggml type {type_name!r}")
    if num_values % row.block_size:
        raise ValueError(f"{num_values} values are not whole {row.name} blocks of {row.block_size}")
    return num_values // row.block_size * row.type_size
