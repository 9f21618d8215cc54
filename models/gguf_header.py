# What the container of a GGUF file says, as records: keys, arrays by reference, the tensor table.
# This file may not know how the bytes are read (gguf_parser) nor what a key means (gguf_rules).
"""Records of a parsed GGUF header, and the error of everything that parses or checks one."""

from __future__ import annotations

from dataclasses import dataclass, field

Scalar = bool | int | float | str


class HeaderError(Exception):
    """What is wrong with the bytes, without the path. `unsupported`: sound, but a version or type we do not read."""

    def __init__(self, reason: str, *, unsupported: bool = False, hint: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.unsupported = unsupported
        self.hint = hint


@dataclass(frozen=True, slots=True)
class ArrayRef:
    """Where an array lies in the file: `count` items of `type` ("str", "f32", …) from byte `offset` on."""

    type: str
    count: int
    offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor. `shape` in ggml's order: ne0, the contiguous one, first. `offset` is from the start of its file."""

    name: str
    shape: tuple[int, ...]
    type: str
    num_bytes: int
    offset: int
    shard: int = 0

    @property
    def num_values(self) -> int:
        total = 1
        for n in self.shape:
            total *= n
        return total


@dataclass(slots=True)
class Header:
    """Everything the container says. `types` holds the GGUF type name of every scalar."""

    version: int
    size_bytes: int
    scalars: dict[str, Scalar] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)
    arrays: dict[str, ArrayRef] = field(default_factory=dict)
    tensors: list[TensorInfo] = field(default_factory=list)
    kept: list[bytes] = field(default_factory=list)  # items of the one array the caller asked for
