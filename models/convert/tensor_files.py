# The safetensors files of a directory: where each tensor lies, and its bytes. Nothing is ever unpickled.
# This file may not know architectures, GGUF or what a tensor means.
"""``TensorFiles``: single or sharded safetensors, headers checked before any tensor is read.

The format is read here and not through the safetensors library: NumPy has no bfloat16, and the library's NumPy face
refuses it. A file is 8 bytes of header length, JSON of ``name: {dtype, shape, data_offsets}``, and the tensors.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ingle.models.convert.config import read_json
from ingle.models.convert.refusal import nowhere
from ingle.models.errors import BadModelFile, ModelNotFound, UnsupportedModel

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

INDEX: Final = "model.safetensors.index.json"
SINGLE: Final = "model.safetensors"
_MAX_HEADER_BYTES: Final = 100_000_000  # the limit of the safetensors library
_HINT: Final = "The file is damaged or incomplete: fetch it again."
# Bits 16 of BF16 are read as what they are; the writer knows how to widen them.
_NUMPY: Final[dict[str, tuple[str, int]]] = {"F32": ("<f4", 4), "F16": ("<f2", 2), "BF16": ("<u2", 2)}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a file: its dtype as safetensors names it, its shape (rows first), its bytes from `offset` on."""

    name: str
    path: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int
    num_bytes: int

    def read(self) -> npt.NDArray[np.generic]:
        """The whole tensor, in memory of its own; BF16 as uint16. Raises BadModelFile."""
        import numpy as np

        kind, _ = _NUMPY[self.dtype]
        try:
            with self.path.open("rb") as file:
                values = np.fromfile(file, dtype=kind, count=math.prod(self.shape), offset=self.offset)
        except OSError as error:
            raise BadModelFile(f"cannot read {self.path}: {error.strerror}", "Check the disk.") from None
        if values.size != math.prod(self.shape):
            raise BadModelFile(f"{self.path} ends within the tensor {self.name!r}", _HINT)
        return values.reshape(self.shape)


def weight_names(directory: Path) -> list[str]:
    """The names of the safetensors files that hold the model, here or not: those of the index, or the only one.
    Raises BadModelFile."""
    if (directory / INDEX).is_file():
        table = read_json(directory / INDEX).get("weight_map")
        if not isinstance(table, dict) or not table or not all(isinstance(name, str) for name in table.values()):
            raise BadModelFile(f"{directory / INDEX} has no weight_map", _HINT)
        names = sorted(set(table.values()))
        if any(Path(name).name != name or not name.endswith(".safetensors") for name in names):
            raise BadModelFile(f"{directory / INDEX} names files outside its directory", _HINT)
        return names
    return [SINGLE]


def weight_files(directory: Path) -> list[Path]:
    """The files of `weight_names`. Raises ModelNotFound when one is missing, UnsupportedModel for weights in other
    formats, BadModelFile."""
    names = weight_names(directory)
    missing = [name for name in names if not (directory / name).is_file()]
    if not missing:
        return [directory / name for name in names]
    if len(names) > 1:
        raise ModelNotFound(f"{len(missing)} of {len(names)} weight files are missing: {missing[0]}", _HINT)
    if any(directory.glob("pytorch_model*.bin")) or any(directory.glob("*.pth")):
        raise UnsupportedModel(
            "its weights are pickled (.bin); such files can run code when they are opened, so none is read",
            "Look for the same model as safetensors or GGUF.",
        )
    raise ModelNotFound(f"there is no {missing[0]} in {directory}", "Name a directory of safetensors, or a .gguf file.")


def read_tensors(files: list[Path]) -> dict[str, StoredTensor]:
    """All tensors of `files` by name. Raises BadModelFile, UnsupportedModel for dtypes that are not floats."""
    tensors: dict[str, StoredTensor] = {}
    for path in files:
        for tensor in _read_header(path):
            if tensor.name in tensors:
                raise BadModelFile(f"{path} and {tensors[tensor.name].path.name} both hold {tensor.name!r}", _HINT)
            tensors[tensor.name] = tensor
    return tensors


def _read_header(path: Path) -> Iterator[StoredTensor]:
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(8)
            length = int.from_bytes(start, "little")
            if len(start) < 8 or not 2 <= length <= min(_MAX_HEADER_BYTES, size - 8):
                raise BadModelFile(f"{path} is not a safetensors file", _HINT)
            header = json.loads(file.read(length))
    except OSError as error:
        raise BadModelFile(f"cannot read {path}: {os.strerror(error.errno or 0)}", "Check its permissions.") from None
    except (ValueError, RecursionError):
        raise BadModelFile(f"the header of {path} is not JSON", _HINT) from None
    if not isinstance(header, dict):
        raise BadModelFile(f"the header of {path} is not an object", _HINT)
    header.pop("__metadata__", None)
    end = 0
    for tensor in sorted((_entry(path, name, said) for name, said in header.items()), key=lambda t: t.offset):
        if tensor.offset != end:
            raise BadModelFile(f"{path}: the bytes of {tensor.name!r} do not follow those before them", _HINT)
        end += tensor.num_bytes
        if end > size - 8 - length:
            raise BadModelFile(f"{path} ends within the tensor {tensor.name!r}", _HINT)
        yield StoredTensor(tensor.name, path, tensor.dtype, tensor.shape, 8 + length + tensor.offset, tensor.num_bytes)
    if end != size - 8 - length:
        raise BadModelFile(f"{path} has {size - 8 - length - end} bytes that belong to no tensor", _HINT)


def _entry(path: Path, name: str, said: Any) -> StoredTensor:
    try:
        dtype, shape, (begin, end) = said["dtype"], tuple(said["shape"]), said["data_offsets"]
        sound = all(type(n) is int and n >= 0 for n in (*shape, begin, end)) and begin <= end
    except (TypeError, KeyError, ValueError):
        sound = False
    if not sound:
        raise BadModelFile(f"{path}: the entry of {name!r} is malformed", _HINT)
    if dtype not in _NUMPY:
        raise nowhere(f"the tensor {name!r} has type {dtype}; only F32, F16 and BF16 can be converted")
    if end - begin != math.prod(shape) * _NUMPY[dtype][1]:
        raise BadModelFile(f"{path}: {name!r} has {end - begin} bytes for shape {list(shape)} of {dtype}", _HINT)
    return StoredTensor(name, path, dtype, shape, begin, end - begin)


def most_common_dtype(tensors: Mapping[str, StoredTensor]) -> str:
    """The dtype that holds most of the values."""
    totals: dict[str, int] = {}
    for tensor in tensors.values():
        totals[tensor.dtype] = totals.get(tensor.dtype, 0) + math.prod(tensor.shape)
    return max(totals, key=lambda dtype: totals[dtype])
