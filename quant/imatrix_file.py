# llama.cpp's importance matrices: its GGUF form, read and written, and the older .dat form, read.
# This file may not know how importances are measured or used.
"""``read_imatrix`` and ``write_imatrix``.

For each matrix of a model: the sum of the squares of its inputs, column by column, and how many inputs there were; one
row of sums an expert. Formats as in common/imatrix-loader.cpp and tools/imatrix/imatrix.cpp of llama.cpp.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from ingle.models.gguf_header import HeaderError, TensorInfo
from ingle.models.gguf_info import ModelInfo
from ingle.models.gguf_parser import parse_header, read_array
from ingle.models.gguf_reader import Buffer
from ingle.models.mapped_file import MappedFile
from ingle.quant import gguf_values
from ingle.quant.errors import BadImatrix
from ingle.quant.ggml import Floats
from ingle.quant.writer import GgufWriter, TensorSpec

_SUMS, _COUNTS = ".in_sum2", ".counts"
_MAX_NAME_BYTES: Final = 256
_OTHER_HINT: Final = "make one for this very model, or leave --imatrix out"


@dataclass(frozen=True, slots=True)
class ImatrixEntry:
    """What one tensor saw. `sums`: float32 [matrices, cols]; `counts`: float32 [matrices], inputs an expert got.

    The .dat form does not say how many experts there are: `sums` is then one long row, and `for_tensor` cuts it.
    """

    sums: Floats
    counts: Floats

    def means(self) -> Floats:
        """Mean squares, float32 [matrices, cols]; 1 for an expert that saw nothing, which favours no column."""
        counts = self.counts[:, None]
        seen = counts > 0
        return np.where(seen, self.sums / np.where(seen, counts, np.float32(1)), np.float32(1))

    @property
    def num_unseen(self) -> int:
        """Experts without a single input."""
        return int((self.counts == 0).sum())


@dataclass(frozen=True, slots=True)
class ImatrixData:
    """A whole file. `chunk_tokens` is 0 where the file does not say."""

    entries: Mapping[str, ImatrixEntry]
    datasets: tuple[str, ...] = ()
    num_chunks: int = 0
    chunk_tokens: int = 0


@dataclass(frozen=True, slots=True)
class FittedImatrix:
    """Importances for one model: `means` float32 [experts, cols] by tensor, and what was odd about it."""

    means: Mapping[str, Floats]
    num_missing: int = 0  # matrices of the model without an entry
    num_unseen_experts: int = 0
    num_experts: int = 0
    ignored: tuple[str, ...] = field(default=())  # entries of tensors that the model does not have


def read_imatrix(path: Path) -> ImatrixData:
    """Read either form. Raises ModelNotFound or BadModelFile for what is no file, BadImatrix for what is damaged."""
    with MappedFile(path) as buf:
        data = _read_gguf(path, buf) if buf[:4] == b"GGUF" else _read_dat(path, buf)
    if not data.entries:
        raise BadImatrix(f"{path} holds no importances")
    for name, entry in data.entries.items():
        _check(path, name, entry)
    return data


def fit(data: ImatrixData, info: ModelInfo, path: Path) -> FittedImatrix:
    """`data`, cut to the shapes of the tensors of `info`. `path` is for messages.

    Raises BadImatrix when an entry has another size than its tensor, or none belongs to this model.
    """
    tensors = {tensor.name: tensor for tensor in info.tensors}
    means: dict[str, Floats] = {}
    num_unseen = num_experts = 0
    for name, entry in data.entries.items():
        tensor = tensors.get(name)
        if tensor is None:
            continue
        fitted = _for_tensor(entry, tensor)
        if fitted is None:
            if name == "token_embd.weight":  # looked up, not multiplied: some tools count it in another way
                continue
            raise BadImatrix(
                f"{path}: {entry.sums.size} importances for {name}, which takes {_num_importances(tensor)}", _OTHER_HINT
            )
        means[name] = fitted
        if entry.counts.size > 1:
            num_unseen, num_experts = num_unseen + entry.num_unseen, num_experts + entry.counts.size
    if not means:
        raise BadImatrix(f"{path} is of another model: it knows none of this one's tensors", _OTHER_HINT)
    matrices = [t.name for t in info.tensors if len(t.shape) > 1 and t.name.endswith(".weight")]
    return FittedImatrix(
        means,
        num_missing=sum(name not in means for name in matrices),
        num_unseen_experts=num_unseen,
        num_experts=num_experts,
        ignored=tuple(name for name in data.entries if name not in tensors),
    )


def write_imatrix(path: Path, data: ImatrixData) -> None:
    """Write llama.cpp's GGUF form, whole or not at all. Raises StoreError."""
    metadata = {
        "general.type": gguf_values.string("imatrix"),
        "imatrix.datasets": gguf_values.strings(data.datasets),
        "imatrix.chunk_count": gguf_values.number("u32", data.num_chunks),
        "imatrix.chunk_size": gguf_values.number("u32", data.chunk_tokens),
    }
    arrays: list[tuple[TensorSpec, Floats]] = []
    for name in sorted(data.entries):
        entry = data.entries[name]
        num_matrices, num_cols = entry.sums.shape
        arrays.append((TensorSpec(name + _SUMS, (num_cols, num_matrices), "F32"), entry.sums))
        arrays.append((TensorSpec(name + _COUNTS, (1, num_matrices), "F32"), entry.counts))
    with GgufWriter(path, metadata, [spec for spec, _ in arrays]) as writer:
        for _, values in arrays:
            writer.write(values.astype(np.float32))
        writer.finish()


def _num_importances(tensor: TensorInfo) -> int:
    return tensor.shape[0] * (tensor.shape[2] if len(tensor.shape) > 2 else 1)


def _for_tensor(entry: ImatrixEntry, tensor: TensorInfo) -> Floats | None:
    """Mean squares [experts, cols] for `tensor`, or None where their number is not the tensor's."""
    if entry.sums.size != _num_importances(tensor):
        return None
    return entry.means().reshape(-1, tensor.shape[0])


def _check(path: Path, name: str, entry: ImatrixEntry) -> None:
    for what, values in (("sum", entry.sums), ("count", entry.counts)):
        good = np.isfinite(values) & (values >= 0)
        if not good.all():
            worst = float(values.ravel()[int(np.argmin(good.ravel()))])
            raise BadImatrix(f"{path}: a {what} of {name} is {worst:g}", "the file is damaged: make it again")


def _read_gguf(path: Path, buf: Buffer) -> ImatrixData:
    try:
        header = parse_header(buf)
        datasets = header.arrays.get("imatrix.datasets")
        names = read_array(buf, datasets) if datasets is not None and datasets.type == "str" else []
    except HeaderError as error:
        raise BadImatrix(f"{path}: {error.reason}") from None
    tensors = {tensor.name: tensor for tensor in header.tensors}
    entries: dict[str, ImatrixEntry] = {}
    for tensor in header.tensors:
        if not tensor.name.endswith((_SUMS, _COUNTS)):
            continue
        name = tensor.name.removesuffix(_SUMS).removesuffix(_COUNTS)
        sums, counts = tensors.get(name + _SUMS), tensors.get(name + _COUNTS)
        if sums is None or counts is None:
            raise BadImatrix(f"{path}: {name} has sums or counts, but not both")
        if sums.type != "F32" or counts.type != "F32" or sums.num_values % counts.num_values:
            raise BadImatrix(f"{path}: sums and counts of {name} do not go together")
        how_many = np.rint(_floats(buf, counts))
        entries[name] = ImatrixEntry(_floats(buf, sums).reshape(how_many.size, -1), how_many)
    if not entries:
        raise BadImatrix(f"{path} is a GGUF, but no importance matrix")
    return ImatrixData(
        entries,
        tuple(str(text) for text in names),
        num_chunks=_whole(header.scalars.get("imatrix.chunk_count")),
        chunk_tokens=_whole(header.scalars.get("imatrix.chunk_size")),
    )


def _floats(buf: Buffer, tensor: TensorInfo) -> Floats:
    return np.frombuffer(buf[tensor.offset : tensor.offset + tensor.num_bytes], np.float32)


def _whole(value: object) -> int:
    return value if isinstance(value, int) and value >= 0 else 0


def _read_dat(path: Path, buf: Buffer) -> ImatrixData:
    """Entries of (name, number of calls, values · calls), then the number of chunks and the text's name."""
    position = 0

    def take(size: int) -> bytes:
        nonlocal position
        if not 0 <= size <= len(buf) - position:
            raise BadImatrix(f"{path} is no importance matrix, or a damaged one (byte {position})")
        position += size
        return bytes(buf[position - size : position])

    def number() -> int:
        return int(struct.unpack("<i", take(4))[0])

    entries: dict[str, ImatrixEntry] = {}
    for _ in range(number()):
        length = number()
        name = take(length if length <= _MAX_NAME_BYTES else -1).decode("utf-8", "replace")
        num_calls = number()
        values = np.frombuffer(take(4 * number()), np.float32)
        if not values.size:
            raise BadImatrix(f"{path}: {name} has no values")
        entries[name] = ImatrixEntry(values[None, :], np.array([max(num_calls, 1)], np.float32))
    num_chunks = 0
    datasets: tuple[str, ...] = ()
    if position < len(buf):
        num_chunks = max(number(), 0)
        if position < len(buf):
            datasets = (take(number()).decode("utf-8", "replace"),)
    return ImatrixData(entries, datasets, num_chunks)
