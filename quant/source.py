# The model that is to become smaller: its tensors as floats, a few rows at a time or whole, and its metadata.
# This file may not know recipes or what is written.
"""``Source``: a GGUF, single or split, opened for reading weights.

Reads with positioned reads, not through a mapping: a file that shrinks under us is an error and not a SIGBUS, and pages
that were read once do not count as ours.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Final

import numpy as np

from ingle.models.errors import BadModelFile
from ingle.models.ggml_types import NOT_FOR_WEIGHTS, row_bytes
from ingle.models.gguf_info import ModelInfo, TensorInfo, read_model_info
from ingle.models.mapped_file import DAMAGED_HINT
from ingle.quant import ggml
from ingle.quant.errors import BadRecipe, BadWeights
from ingle.quant.ggml import Bytes, Floats
from ingle.quant.gguf_values import EncodedValue, read_metadata

GOOD_SOURCES: Final = frozenset({"F32", "F16", "BF16", "Q8_0"})
"""What is precise enough to begin from."""

_SHARD: Final = re.compile(r"-00001-of-\d{5}\.gguf$")
_HASH_BYTES: Final = 1 << 22
SLAB_VALUES: Final = 1 << 22  # 16 MB as float32


class Source:
    """An open model. Used in a ``with``; one thread at a time."""

    def __init__(self, path: Path) -> None:
        """Raises ModelNotFound, BadModelFile, UnsupportedModel."""
        self.path = path
        self.info: ModelInfo = read_model_info(path)
        self._tensors = {tensor.name: tensor for tensor in self.info.tensors}
        self._stack = ExitStack()
        self._files: list[FileIO] = []

    def __enter__(self) -> Source:
        with ExitStack() as stack:  # should one of them not open, those before it are closed
            self._files = [stack.enter_context(path.open("rb", buffering=0)) for path in self.paths]
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()

    @property
    def paths(self) -> tuple[Path, ...]:
        """All files, the first shard first."""
        count = self.info.split_count
        if count == 1:
            return (self.path,)
        stem = _SHARD.sub("", self.path.name)
        return tuple(self.path.with_name(f"{stem}-{i + 1:05d}-of-{count:05d}.gguf") for i in range(count))

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """By name, in the file's order. Shapes are ggml's: columns first."""
        return self._tensors

    def metadata(self) -> dict[str, EncodedValue]:
        """All keys of the first file, encoded, in order, without those that say how it was split."""
        found = read_metadata(self.path)
        return {key: value for key, value in found.items() if not key.startswith("split.")}

    @property
    def coarse_types(self) -> tuple[str, ...]:
        """Types with fewer bits than are good to begin from, of which the model has some."""
        return tuple(sorted({t.type for t in self.info.tensors} - GOOD_SOURCES - NOT_FOR_WEIGHTS))

    def refuse_if_coarse(self) -> None:
        """Raise BadRecipe when some of the weights have been rounded to a few bits already."""
        if self.coarse_types:
            raise BadRecipe(
                f"{self.path.name} is quantized already ({', '.join(self.coarse_types)}): rounding twice costs quality",
                "begin from an F16, BF16, F32 or Q8_0 file, or insist with --allow-requantize",
            )

    def num_rows(self, name: str) -> int:
        """Rows of all the matrices in the tensor together."""
        tensor = self._tensors[name]
        return tensor.num_values // tensor.shape[0]

    def raw_rows(self, name: str, first: int, last: int) -> Bytes:
        """Rows [first, last) as they are stored: uint8 [rows, bytes of a row]. Raises BadModelFile."""
        tensor = self._tensors[name]
        size = row_bytes(tensor.type, tensor.shape[0])
        out = np.empty((last - first, size), np.uint8)
        file = self._files[tensor.shard]
        view, offset = out.data.cast("B"), tensor.offset + first * size
        file.seek(offset)
        done = 0
        while done < len(view):
            count = file.readinto(view[done:])
            if not count:
                raise BadModelFile(f"{self.path} has become shorter while it was read", DAMAGED_HINT)
            done += count
        return out

    def rows(self, name: str, first: int, last: int) -> Floats:
        """Rows [first, last) as float32 [rows, cols]. Raises BadModelFile, and BadWeights for NaN and infinity."""
        return self.floats(name, self.raw_rows(name, first, last), first)

    def floats(self, name: str, data: Bytes, first: int) -> Floats:
        """What `raw_rows` gave, from row `first` on, as float32 [rows, cols]. Raises BadWeights."""
        tensor = self._tensors[name]
        values = ggml.dequantize(data, tensor.type, (len(data), tensor.shape[0]))
        try:
            ggml.check_finite(values, None, first)
        except BadWeights as error:
            raise BadWeights(f"{name}: {error.message}", "the model's file is damaged, or its training was") from None
        return values

    def read(self, name: str) -> Floats:
        """A whole tensor as float32, columns last: [cols], [rows, cols] or [experts, rows, cols]. Raises as `rows`."""
        shape = self._tensors[name].shape[::-1]
        return self.rows(name, 0, self.num_rows(name)).reshape(shape)

    def sha256(self, progress: Callable[[int], None] | None = None) -> str:
        """Of the bytes of all files, one after the other. `progress` gets the number of bytes read so far."""
        digest, done = hashlib.sha256(), 0
        buffer = bytearray(_HASH_BYTES)
        for file in self._files:
            file.seek(0)
            while count := file.readinto(buffer):
                digest.update(memoryview(buffer)[:count])
                done += count
                if progress is not None:
                    progress(done)
        return digest.hexdigest()

    def is_same_file(self, path: Path) -> bool:
        """Whether `path` is one of our files, by whatever name."""
        return path.exists() and any(path.samefile(ours) for ours in self.paths)


def slabs(shape: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Ranges of rows of a tensor of that shape (ggml's order), each small enough to work on. None crosses from one
    expert into the next: each has importances of its own."""
    per_matrix = shape[1] if len(shape) > 1 else 1
    step = max(1, min(SLAB_VALUES // shape[0], per_matrix))
    for start in range(0, math.prod(shape[1:]), per_matrix):
        for first in range(start, start + per_matrix, step):
            yield first, min(first + step, start + per_matrix)
