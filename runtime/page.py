"""A page: one block's KV as bytes, and the file format it is kept in. Knows no tiers and no llama.cpp."""

from __future__ import annotations

import hashlib
import os
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ingle.runtime.blocks import HASH_BYTES, ChainHash

Payload = npt.NDArray[np.uint8]

FORMAT_VERSION = 1
SUFFIX = ".kv"
_MAGIC = b"INGLEKV\n"
# magic, version, tokens, payload bytes, fingerprint, parent, hash, SHA-256 of all of these and of what follows
_HEADER = struct.Struct(f"<8sIIQ{HASH_BYTES}s{HASH_BYTES}s{HASH_BYTES}s32s")


class BadPage(Exception):
    """A file that is not the page it should be: torn, flipped, foreign, or of another version."""


@dataclass(frozen=True, slots=True, eq=False)
class Page:
    """`payload` is what `LlamaContext.save` gave for the cells of `tokens`, which follow the chain named `parent`."""

    parent: ChainHash
    hash: ChainHash
    tokens: tuple[int, ...]
    payload: Payload

    @property
    def num_bytes(self) -> int:
        return len(self.payload)


def write_page(page: Page, path: Path, fingerprint: bytes) -> int:
    """Write `page` to the new file `path`, readable by its owner alone; its size. Raises OSError.

    Not synced: after a power cut a torn page fails its checksum, which costs less than waiting for the disk each time.
    """
    tokens = np.asarray(page.tokens, dtype="<i4").tobytes()
    digest = _digest(fingerprint, page.parent, page.hash, tokens, page.payload)
    header = _HEADER.pack(
        _MAGIC, FORMAT_VERSION, len(page.tokens), page.num_bytes, fingerprint, page.parent, page.hash, digest
    )
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "wb", buffering=0) as file:
        for part in (header, tokens, page.payload.data):
            view = memoryview(part)
            while view:
                view = view[file.write(view) :]
    return _HEADER.size + len(tokens) + page.num_bytes


def read_page(path: Path, fingerprint: bytes, parent: ChainHash | None = None, hash: ChainHash | None = None) -> Page:
    """Read and check the page in `path`. Raises `BadPage` where anything is not as it was written or not the page that
    was asked for, OSError where it cannot be read."""
    with open(path, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if size < _HEADER.size:
            raise BadPage("shorter than its header")
        data = np.empty(size, dtype=np.uint8)
        if file.readinto(data.data) != size:
            raise BadPage("it changed while being read")
    magic, version, num_tokens, num_payload, found_fingerprint, found_parent, found_hash, digest = _HEADER.unpack(
        data[: _HEADER.size].tobytes()
    )
    if magic != _MAGIC or version != FORMAT_VERSION:
        raise BadPage("not a page of this format version")
    if size != _HEADER.size + 4 * num_tokens + num_payload:
        raise BadPage("its size is not what its header says")
    asked = ((parent, found_parent), (hash, found_hash), (fingerprint, found_fingerprint))
    if any(wanted is not None and wanted != found for wanted, found in asked):
        raise BadPage("another page than its name says")
    start = _HEADER.size + 4 * num_tokens
    tokens = data[_HEADER.size : start].tobytes()
    payload = data[start:]
    if digest != _digest(found_fingerprint, found_parent, found_hash, tokens, payload):
        raise BadPage("checksum mismatch")
    ids = tuple(np.frombuffer(tokens, dtype="<i4").tolist())
    return Page(ChainHash(found_parent), ChainHash(found_hash), ids, payload)


def read_tokens(path: Path) -> tuple[int, ...]:
    """Only the token ids in the page at `path`, unchecked. Raises `BadPage` where they cannot be there, OSError."""
    with open(path, "rb") as file:
        header = file.read(_HEADER.size)
        if len(header) < _HEADER.size:
            raise BadPage("shorter than its header")
        magic, version, num_tokens, *_ = _HEADER.unpack(header)
        if magic != _MAGIC or version != FORMAT_VERSION or 4 * num_tokens > os.fstat(file.fileno()).st_size:
            raise BadPage("not a page of this format version")
        return tuple(np.frombuffer(file.read(4 * num_tokens), dtype="<i4").tolist())


def _digest(fingerprint: bytes, parent: bytes, hash: bytes, tokens: bytes, payload: Payload) -> bytes:
    digest = hashlib.sha256(struct.pack("<IQ", len(tokens), len(payload)))
    for part in (fingerprint, parent, hash, tokens):
        digest.update(part)
    digest.update(payload.data)
    return digest.digest()
