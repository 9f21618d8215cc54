# Metadata of a GGUF as the bytes it is: copied from one file into the next without being understood, and made anew.
# This file may not know tensors, nor what any key means.
"""A value of GGUF's metadata, encoded: its type's number and its bytes."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ingle.models.gguf_reader import ARRAY, FIXED, STRING, U32, U64, Reader
from ingle.models.mapped_file import MappedFile

EncodedValue = bytes

_NUMBER_OF: Final = {name: number for number, (name, _) in FIXED.items()}


def read_metadata(path: Path) -> dict[str, EncodedValue]:
    """All keys of a GGUF that has passed ``read_model_info``, in the file's order."""
    found: dict[str, EncodedValue] = {}
    with MappedFile(path) as buf:
        reader = Reader(buf, len(buf))
        reader.pos = 4 + 4 + 8  # magic, version, number of tensors
        for _ in range(reader.number(U64, "the header")):
            key = reader.string("a key", len(buf)).decode()
            start = reader.pos
            _skip_value(reader, reader.number(U32, key), key)
            found[key] = bytes(buf[start : reader.pos])
    return found


def _skip_value(reader: Reader, kind: int, key: str) -> None:
    if kind == STRING:
        reader.skip_strings(1, key)
    elif kind == ARRAY:
        item, count = reader.number(U32, key), reader.number(U64, key)
        if item == STRING:
            reader.skip_strings(count, key)
        else:
            reader.pos += count * FIXED[item][1].size
    else:
        reader.pos += FIXED[kind][1].size


def number(kind: str, value: float) -> EncodedValue:
    """`kind` as GGUF calls it: "u32", "f32", "bool", …"""
    code = _NUMBER_OF[kind]
    return U32.pack(code) + FIXED[code][1].pack(value)


def string(text: str) -> EncodedValue:
    return U32.pack(STRING) + raw_string(text)


def strings(texts: Sequence[str]) -> EncodedValue:
    """An array of strings."""
    return struct.pack("<IIQ", ARRAY, STRING, len(texts)) + b"".join(map(raw_string, texts))


def numbers(kind: str, values: Sequence[int]) -> EncodedValue:
    """An array of whole numbers of that `kind`."""
    code = _NUMBER_OF[kind]
    items = struct.pack(f"<{len(values)}{FIXED[code][1].format[1:]}", *values)
    return struct.pack("<IIQ", ARRAY, code, len(values)) + items


def raw_string(text: str) -> bytes:
    """Length and UTF-8 bytes, as keys and names stand in a file."""
    data = text.encode("utf-8", "replace")
    return U64.pack(len(data)) + data
