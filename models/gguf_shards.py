# A split model: the tensors of its other shards, added to the header of the first.
# This file may not know how a shard's bytes are read: the caller parses them.
"""Key names and file names as in ``llama_model_loader`` and ``llama_split_path``."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

from ingle.models import gguf_rules
from ingle.models.errors import BadModelFile, UnsupportedModel
from ingle.models.gguf_header import Header, HeaderError, TensorInfo
from ingle.models.mapped_file import DAMAGED_HINT

UNSUPPORTED_HINT: Final = "Choose a text-generating model in GGUF version 2 or 3; `smollm2` always works."
_SHARD_NAME: Final = re.compile(r"^(?P<prefix>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf$")

ParseShard = Callable[[Path], Header | None]
"""The header of the shard at a path; None where there is no such file. Raises HeaderError, BadModelFile."""


def add_shards(path: Path, header: Header, parse: ParseShard) -> int:
    """Add the tensors and sizes of the other shards of the model at `path` to `header`; the number of shards."""
    count = int(gguf_rules.scalar(header, "split.count", "u16") or 1)
    if count <= 1:
        return 1
    number = int(gguf_rules.scalar(header, "split.no", "u16", required=True) or 0)
    if number != 0:
        first = f"…-00001-of-{count:05d}.gguf"
        raise BadModelFile(f"{path} is shard {number + 1} of {count}", f"Give the first shard ({first}) instead.")
    match = _SHARD_NAME.match(path.name)
    if match is None or (int(match["number"]), int(match["count"])) != (1, count):
        name = f"NAME-00001-of-{count:05d}.gguf"
        raise BadModelFile(f"{path} is the first of {count} shards but is not named so", f"Name it {name}.")
    names = {t.name for t in header.tensors}
    for index in range(1, count):
        shard = shard_path(path, index, count)
        try:
            other = parse(shard)
            if other is None:
                raise BadModelFile(f"shard {index + 1} of {count} is missing: {shard}", "Put all shards in one folder.")
            if gguf_rules.scalar(other, "split.no", "u16", required=True) != index:
                raise HeaderError(f"it is not shard {index + 1} of {count}")
            for tensor in other.tensors:
                if tensor.name in names:
                    raise HeaderError(f"duplicate tensor {tensor.name!r}")
                names.add(tensor.name)
                header.tensors.append(TensorInfo(*_fields(tensor), shard=index))
        except HeaderError as error:
            raise user_error(shard, error) from None
        header.size_bytes += other.size_bytes
    total = gguf_rules.scalar(header, "split.tensors.count", "i32", required=True)
    if total != len(header.tensors):
        raise HeaderError(f"split.tensors.count is {total} where the shards hold {len(header.tensors)} tensors")
    return count


def shard_path(first: Path, index: int, count: int) -> Path:
    """Shard number `index`, from 0, of the model whose first of `count` shards is `first`."""
    if count <= 1:
        return first
    match = _SHARD_NAME.match(first.name)
    assert match is not None, "a split model that was read has the name of one"
    return first.with_name(f"{match['prefix']}-{index + 1:05d}-of-{count:05d}.gguf")


def user_error(path: Path, error: HeaderError) -> BadModelFile:
    """`error` as something that a user can act on."""
    if error.unsupported:
        return UnsupportedModel(f"{path}: {error.reason}", UNSUPPORTED_HINT)
    return BadModelFile(f"{path}: {error.reason}", error.hint or DAMAGED_HINT)


def _fields(t: TensorInfo) -> tuple[str, tuple[int, ...], str, int, int]:
    return t.name, t.shape, t.type, t.num_bytes, t.offset
