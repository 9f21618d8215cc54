# The header of a GGUF that lies elsewhere, read in pieces: what the model is, without downloading it.
# This file may not know networks: it is given a function that reads a range of bytes.
"""``read_remote_model_info``: as ``read_model_info``, over files of which only ranges can be had.

A header's length stands nowhere, so the beginning of the file is read in a window that doubles until the parser is
content. Nothing is read twice, and nothing beyond MAX_HEADER_BYTES.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ingle.models import gguf_parser
from ingle.models.errors import BadModelFile
from ingle.models.gguf_header import Header, HeaderError
from ingle.models.gguf_info import TOKENS_KEY, ModelInfo, describe_header
from ingle.models.gguf_reader import Incomplete
from ingle.models.gguf_shards import user_error

FIRST_WINDOW_BYTES: Final = 1 << 20
MAX_HEADER_BYTES: Final = 1 << 27
"""The largest vocabularies of 2026 take some 20 MB with their merges."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file elsewhere. `read(start, length)` gives exactly those bytes of it, or raises its own error."""

    name: str
    size_bytes: int
    read: Callable[[int, int], bytes]


def read_remote_model_info(
    files: Sequence[RemoteFile], *, origin: str = "", require_generative: bool = True, to_draft: bool = False
) -> ModelInfo:
    """The model whose first or only file is `files[0]`; of a split model all shards must be among `files`.

    `origin` ("user/repo") stands in front of names in messages and in ``ModelInfo.path``, which leads nowhere.
    Raises BadModelFile, UnsupportedModel, and whatever `read` raises.
    """
    by_path = {Path(origin, file.name): file for file in files}
    path = next(iter(by_path))

    def parse(shard: Path) -> Header | None:
        file = by_path.get(shard)
        return None if file is None else _parse(file, shard, None)[0]

    try:
        header, data = _parse(files[0], path, TOKENS_KEY)
        return describe_header(path, data, header, parse, require_generative=require_generative, to_draft=to_draft)
    except HeaderError as error:
        raise user_error(path, error) from None


def _parse(file: RemoteFile, path: Path, keep: str | None) -> tuple[Header, bytes]:
    """The header and the bytes that were read for it. Raises HeaderError."""
    data = b""
    window = min(FIRST_WINDOW_BYTES, file.size_bytes)
    while True:
        piece = file.read(len(data), window - len(data))
        if len(piece) != window - len(data):
            raise BadModelFile(
                f"{path}: {len(piece)} bytes came where {window - len(data)} were asked for",
                "The file there is shorter than it is said to be: report it to its owner.",
            )
        data += piece
        try:
            return gguf_parser.parse_header(data, keep=keep, size_bytes=file.size_bytes), data
        except Incomplete:
            if window == file.size_bytes or window >= MAX_HEADER_BYTES:
                raise HeaderError(f"its header takes more than {window} bytes, which is absurd") from None
            window = min(2 * window, file.size_bytes, MAX_HEADER_BYTES)
