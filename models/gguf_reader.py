# Numbers and strings from the bytes of a GGUF file, never beyond their end, never more than is sane.
# This file may not know the order of things in the file (gguf_parser does) nor what they mean.
"""The primitive reads of the GGUF parser."""

from __future__ import annotations

import struct
from mmap import mmap
from typing import Final

from ingle.models.gguf_header import HeaderError

Buffer = bytes | mmap

MAX_STRING_BYTES: Final = 1 << 26  # of one value, and of one array that is read whole
_GUESSED_STRING_BYTES: Final = 48  # length prefix included; tokens average less
_MAX_GUESS_BYTES: Final = 1 << 24

U32 = struct.Struct("<I")
U64 = struct.Struct("<Q")
# GGUF value type → (name, struct format); strings (8) and arrays (9) have no fixed size.
FIXED: Final[dict[int, tuple[str, struct.Struct]]] = {
    0: ("u8", struct.Struct("<B")),
    1: ("i8", struct.Struct("<b")),
    2: ("u16", struct.Struct("<H")),
    3: ("i16", struct.Struct("<h")),
    4: ("u32", U32),
    5: ("i32", struct.Struct("<i")),
    6: ("f32", struct.Struct("<f")),
    7: ("bool", struct.Struct("<?")),
    10: ("u64", U64),
    11: ("i64", struct.Struct("<q")),
    12: ("f64", struct.Struct("<d")),
}
STRING: Final = 8
ARRAY: Final = 9
FORMATS: Final = dict(FIXED.values())


class Incomplete(Exception):
    """The header goes on behind the bytes that are here, though not behind the end of the file."""


class Reader:
    """A position in the buffer and reads that cannot leave it.

    `end`: the size of the file, of which the buffer may be only the beginning. Reads behind that raise Incomplete.
    """

    __slots__ = ("buf", "end", "pos")

    def __init__(self, buf: Buffer, end: int) -> None:
        self.buf = buf
        self.end = end
        self.pos = 0

    def unpack(self, fmt: struct.Struct, what: str) -> tuple[int | float | bool, ...]:
        if fmt.size > self.end - self.pos:
            raise self.truncated(what)
        if self.pos + fmt.size > len(self.buf):
            raise Incomplete
        values = fmt.unpack_from(self.buf, self.pos)
        self.pos += fmt.size
        return values

    def number(self, fmt: struct.Struct, what: str) -> int:
        return int(self.unpack(fmt, what)[0])

    def string(self, what: str, limit: int) -> bytes:
        length, left = self.number(U64, what), self.end - self.pos
        if length > left:
            raise HeaderError(f"{what} claims {length} bytes where {left} are left (truncated or corrupt)")
        if length > limit:
            raise HeaderError(f"{what} claims {length} bytes; at most {limit} are accepted")
        if self.pos + length > len(self.buf):
            raise Incomplete
        raw = self.buf[self.pos : self.pos + length]
        self.pos += length
        return raw

    def skip_strings(self, count: int, key: str) -> None:
        """Walk over `count` length-prefixed strings without looking at them. The hot loop of a start."""
        unpack, buf, pos = U64.unpack_from, self.buf, self.pos
        try:
            for _ in range(count):
                pos += 8 + unpack(buf, pos)[0]
        except (struct.error, OverflowError):
            pos = max(pos, len(buf) + 1)  # a length lies behind the last byte
        if pos > len(buf) and pos <= self.end:
            raise Incomplete
        if pos > self.end:
            raise HeaderError(f"array {key!r} runs past the end of the file (truncated or corrupt)")
        self.pos = pos

    def keep_strings(self, count: int, key: str) -> list[bytes]:
        """Read `count` length-prefixed strings, from a copy: slicing bytes is cheaper than slicing a mapping."""
        start = self.pos
        guess = min(_GUESSED_STRING_BYTES * count, _MAX_GUESS_BYTES)
        found = split_strings(bytes(self.buf[start : start + guess]), count)
        if found is None:  # long strings, or a corrupt array: find out where it ends first
            self.skip_strings(count, key)
            if self.pos - start > MAX_STRING_BYTES:
                raise HeaderError(f"array {key!r} takes {self.pos - start} bytes, which is absurd")
            found = split_strings(bytes(self.buf[start : self.pos]), count)
            assert found is not None, "skip_strings walked the same bytes"
        self.pos = start + found[1]
        return found[0]

    def truncated(self, what: str) -> HeaderError:
        return HeaderError(f"truncated: the file ends at byte {self.end}, inside {what}")


def split_strings(chunk: bytes, count: int) -> tuple[list[bytes], int] | None:
    """The first `count` length-prefixed strings of `chunk` and the bytes they take; None when it is too short."""
    unpack, pos = U64.unpack_from, 0
    out: list[bytes] = []
    add = out.append
    try:
        for _ in range(count):
            start = pos + 8
            pos = start + unpack(chunk, pos)[0]
            add(chunk[start:pos])
    except (struct.error, OverflowError):
        return None
    return (out, pos) if pos <= len(chunk) else None
