# The container: bytes of a GGUF file → keys, arrays (by reference) and tensor table, every number checked.
# This file may not know what any key means (gguf_rules does), nor paths, nor the package's user-facing errors.
"""Parser of the GGUF container, versions 2 and 3, little endian.

Follows ``gguf_init_from_reader`` in llama.cpp's ggml/src/gguf.cpp check by check, so that a file accepted here is never
refused, or worse, by the native reader; stricter where the native code would go on with nonsense (empty dimensions,
names that are not text). Nothing is allocated in proportion to a number read from the file before that number has been
compared with the bytes that are left.
"""

from __future__ import annotations

import struct
from typing import Final

from ingle.models import ggml_types
from ingle.models.gguf_header import ArrayRef, Header, HeaderError, Scalar, TensorInfo
from ingle.models.gguf_reader import (
    ARRAY,
    FIXED,
    FORMATS,
    MAX_STRING_BYTES,
    STRING,
    U32,
    U64,
    Buffer,
    Reader,
    split_strings,
)

_TENSOR_TAIL: Final = struct.Struct("<IQ")  # type, offset

_MAGIC: Final = b"GGUF"
NAME_A_GGUF: Final = "Name a .gguf file."
_DEFAULT_ALIGNMENT: Final = 32
_MAX_ITEMS: Final = 1 << 30  # GGUF_MAX_ARRAY_ELEMENTS
_MAX_STRINGS: Final = 1 << 24  # of one array; the native reader would allow _MAX_ITEMS
_MAX_KEYS: Final = 1 << 16
_MAX_TENSORS: Final = 1 << 18
_MAX_KEY_BYTES: Final = 1 << 16
_MAX_NAME: Final = 64  # GGML_MAX_NAME, its terminating zero included
_MAX_DIMS: Final = 4
_MAX_INT64: Final = (1 << 63) - 1
_MIN_KV_BYTES: Final = 8 + 1 + 4 + 1  # key length, key, type, value
_MIN_TENSOR_BYTES: Final = 8 + 4 + 8 + 4 + 8  # name length, rank, one dimension, type, offset
_MIN_ALIGNMENT: Final = 8  # the GGUF specification: a multiple of 8


def parse_header(buf: Buffer, *, keep: str | None = None, size_bytes: int | None = None) -> Header:
    """Parse and check the container in `buf`. Raises HeaderError.

    `buf` is the whole file, mapped or read, or the beginning of one of `size_bytes`; then Incomplete is raised when the
    header goes on behind it. The items of the string array named `keep` are read in the same pass into ``Header.kept``.
    """
    end = len(buf) if size_bytes is None else size_bytes
    if end < 4:
        raise HeaderError(f"not a GGUF file: only {end} bytes long", hint=NAME_A_GGUF)
    if buf[:4] != _MAGIC:
        raise HeaderError(f"not a GGUF file: it begins with {_quote(buf[:4])} instead of 'GGUF'", hint=NAME_A_GGUF)
    reader = Reader(buf, end)
    reader.pos = 4
    header = Header(version=_read_version(reader), size_bytes=end)
    num_tensors = reader.number(U64, "the header")
    num_kv = reader.number(U64, "the header")
    left = end - reader.pos
    if num_kv > _MAX_KEYS:
        raise HeaderError(f"absurd number of metadata keys: {num_kv} in a file of {end} bytes")
    if num_tensors > _MAX_TENSORS:
        raise HeaderError(f"absurd number of tensors: {num_tensors} in a file of {end} bytes")
    for what, count, least in (("metadata keys", num_kv, _MIN_KV_BYTES), ("tensors", num_tensors, _MIN_TENSOR_BYTES)):
        if count * least > left:
            raise HeaderError(f"truncated: the file ends after {end} bytes and should hold {count} {what}")
    for index in range(num_kv):
        _read_kv(reader, header, index, keep)
    alignment = _alignment(header)
    rows = _read_tensor_rows(reader, num_tensors)
    if num_tensors:
        header.tensors = _place_tensors(rows, _pad(reader.pos, alignment), alignment, end)
    return header


def read_array(buf: Buffer, ref: ArrayRef) -> list[Scalar]:
    """Decode an array. Strings are UTF-8 with undecodable bytes replaced. Raises HeaderError if the bytes changed."""
    if ref.type == "str":
        found = split_strings(bytes(buf[ref.offset : ref.offset + ref.num_bytes]), ref.count)
        if found is None:
            raise HeaderError("a string array runs past its end")
        return [raw.decode("utf-8", "replace") for raw in found[0]]
    if ref.offset + ref.num_bytes > len(buf):
        raise HeaderError("an array runs past the end of the file")
    return list(struct.unpack_from(f"<{ref.count}{FORMATS[ref.type].format[1:]}", buf, ref.offset))


def _read_version(reader: Reader) -> int:
    version = reader.number(U32, "the header")
    if version in (2, 3):
        return version
    if version and version & 0xFFFF == 0:
        raise HeaderError("a big-endian GGUF, which this machine cannot run", unsupported=True)
    if version == 1:
        raise HeaderError("GGUF version 1 is no longer supported (2 and 3 are)", unsupported=True)
    raise HeaderError(f"GGUF version {version} is not supported (2 and 3 are)", unsupported=True)


def _read_kv(reader: Reader, header: Header, index: int, keep: str | None) -> None:
    what = f"the name of metadata key {index}"
    key = _text(reader.string(what, _MAX_KEY_BYTES), what)
    if key in header.types or key in header.arrays:
        raise HeaderError(f"duplicate metadata key {key!r}")
    kind = reader.number(U32, f"metadata key {key!r}")
    if kind == ARRAY:
        header.arrays[key] = _read_array_ref(reader, key, header.kept if key == keep else None)
    elif kind == STRING:
        raw = reader.string(f"the value of {key!r}", MAX_STRING_BYTES)
        header.types[key], header.scalars[key] = "str", raw.decode("utf-8", "replace")
    elif kind in FIXED:
        header.types[key], fmt = FIXED[kind]
        header.scalars[key] = reader.unpack(fmt, f"the value of {key!r}")[0]
    else:
        raise HeaderError(f"metadata key {key!r} has unknown value type {kind}")


def _read_array_ref(reader: Reader, key: str, kept: list[bytes] | None) -> ArrayRef:
    kind = reader.number(U32, f"array {key!r}")
    count = reader.number(U64, f"array {key!r}")
    left = reader.end - reader.pos
    if kind == ARRAY:
        raise HeaderError(f"array {key!r} is an array of arrays, which GGUF readers do not accept")
    if kind != STRING and kind not in FIXED:
        raise HeaderError(f"array {key!r} has unknown value type {kind}")
    item_bytes = 8 if kind == STRING else FIXED[kind][1].size
    if count > (_MAX_STRINGS if kind == STRING else _MAX_ITEMS) or count * item_bytes > left:
        raise HeaderError(f"array {key!r} claims {count} items where {left} bytes are left (truncated or corrupt)")
    start = reader.pos
    if kind == STRING:
        if kept is None:
            reader.skip_strings(count, key)
        else:
            kept.extend(reader.keep_strings(count, key))
        return ArrayRef("str", count, start, reader.pos - start)
    reader.pos += count * item_bytes
    return ArrayRef(FIXED[kind][0], count, start, count * item_bytes)


def _alignment(header: Header) -> int:
    if "general.alignment" in header.arrays:
        raise HeaderError("general.alignment is an array")
    value = header.scalars.get("general.alignment", _DEFAULT_ALIGNMENT)
    if header.types.get("general.alignment", "u32") != "u32" or not isinstance(value, int):
        raise HeaderError(f"general.alignment has type {header.types['general.alignment']}, not u32")
    if value < _MIN_ALIGNMENT or value & (value - 1):
        raise HeaderError(f"general.alignment is {value}, not a power of two of at least {_MIN_ALIGNMENT}")
    return value


def _read_tensor_rows(reader: Reader, count: int) -> list[TensorInfo]:
    """The tensor table; `offset` is still relative to the data section."""
    rows: list[TensorInfo] = []
    seen: set[str] = set()
    for index in range(count):
        what = f"the name of tensor {index}"
        raw = reader.string(what, _MAX_KEY_BYTES)
        name = _text(raw, what)
        if len(raw) >= _MAX_NAME:
            raise HeaderError(f"the name of tensor {index} is {len(raw)} bytes long; {_MAX_NAME - 1} are allowed")
        if name in seen:
            raise HeaderError(f"duplicate tensor {name!r}")
        seen.add(name)
        where = f"the table entry of tensor {name!r}"
        rank = reader.number(U32, where)
        if not 1 <= rank <= _MAX_DIMS:
            raise HeaderError(f"tensor {name!r} has {rank} dimensions; 1 to {_MAX_DIMS} are allowed")
        shape = tuple(reader.number(U64, where) for _ in range(rank))
        type_id, offset = (int(v) for v in reader.unpack(_TENSOR_TAIL, where))
        rows.append(_sized(name, shape, type_id, offset))
    return rows


def _sized(name: str, shape: tuple[int, ...], type_id: int, offset: int) -> TensorInfo:
    total = 1
    for n in shape:
        if not 0 < n <= _MAX_INT64:
            raise HeaderError(f"tensor {name!r} has a dimension of {n if n <= _MAX_INT64 else n - (1 << 64)}")
        total *= n
    if total > _MAX_INT64:
        raise HeaderError(f"tensor {name!r} has a shape of {'×'.join(map(str, shape))}, which overflows")
    kind = ggml_types.BY_ID.get(type_id)
    if kind is None:
        if type_id in ggml_types.REMOVED:
            old = ggml_types.REMOVED[type_id]
            raise HeaderError(f"tensor {name!r} has type {type_id} ({old}), withdrawn from GGUF", unsupported=True)
        raise HeaderError(f"tensor {name!r} has unknown ggml type {type_id}")
    if shape[0] % kind.block_size:
        raise HeaderError(f"tensor {name!r}: rows of {shape[0]} are not whole {kind.name} blocks of {kind.block_size}")
    return TensorInfo(name, shape, kind.name, total // kind.block_size * kind.type_size, offset)


def _place_tensors(rows: list[TensorInfo], data_start: int, alignment: int, end: int) -> list[TensorInfo]:
    """Check that the tensors follow one another without gap or overlap and end inside the file."""
    placed: list[TensorInfo] = []
    expected = 0
    for row in rows:
        if row.offset % alignment:
            raise HeaderError(f"tensor {row.name!r} has offset {row.offset}, not a multiple of {alignment}")
        if row.offset != expected:
            raise HeaderError(f"tensor {row.name!r} has offset {row.offset} where {expected} was expected")
        start = data_start + row.offset
        if start + row.num_bytes > end:
            raise HeaderError(f"truncated: tensor {row.name!r} ends at byte {start + row.num_bytes} of a file of {end}")
        placed.append(TensorInfo(row.name, row.shape, row.type, row.num_bytes, start))
        expected += _pad(row.num_bytes, alignment)
    return placed


def _pad(value: int, alignment: int) -> int:
    return (value + alignment - 1) & -alignment


def _text(raw: bytes, what: str) -> str:
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise HeaderError(f"{what} is not UTF-8 text") from None
    if not text or "\0" in text:
        raise HeaderError(f"{what} is empty or holds a zero byte")
    return text


def _quote(raw: bytes) -> str:
    return repr("".join(chr(b) if 32 <= b < 127 else f"\\x{b:02x}" for b in raw)).replace("\\\\", "\\")
