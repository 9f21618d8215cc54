# A second reader of GGUF for tests: straight through the bytes, as the specification reads, trusting everything.
"""``read(raw)`` shares no code with the reader it is compared with. Only for files that were accepted."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_NAMES = {0: "u8", 1: "i8", 2: "u16", 3: "i16", 4: "u32", 5: "i32", 6: "f32", 7: "bool", 8: "str"}
_NAMES |= {10: "u64", 11: "i64", 12: "f64"}


class Naive(NamedTuple):
    version: int
    scalars: dict[str, tuple[str, Any]]  # key → type, value
    arrays: dict[str, tuple[str, list[Any]]]
    tensors: list[tuple[str, tuple[int, ...], int, int]]  # name, shape, type id, offset in the data
    end: int  # of the tensor table


def read(raw: bytes) -> Naive:
    at = 0

    def take(fmt: str) -> Any:
        nonlocal at
        (value,) = struct.unpack_from("<" + fmt, raw, at)
        at += struct.calcsize("<" + fmt)
        return value

    def text() -> str:
        nonlocal at
        length = take("Q")
        at += length
        return raw[at - length : at].decode("utf-8", "replace")

    def item(kind: int) -> Any:
        return text() if kind == 8 else take(_NUMBERS[kind])

    assert raw[:4] == b"GGUF"
    at = 4
    version, num_tensors, num_kv = take("I"), take("Q"), take("Q")
    scalars: dict[str, tuple[str, Any]] = {}
    arrays: dict[str, tuple[str, list[Any]]] = {}
    for _ in range(num_kv):
        key, kind = text(), take("I")
        if kind == 9:
            kind, count = take("I"), take("Q")
            arrays[key] = (_NAMES[kind], [item(kind) for _ in range(count)])
        else:
            scalars[key] = (_NAMES[kind], item(kind))
    tensors = []
    for _ in range(num_tensors):
        name = text()
        shape = tuple(take("Q") for _ in range(take("I")))
        tensors.append((name, shape, take("I"), take("Q")))
    return Naive(version, scalars, arrays, tensors, at)
