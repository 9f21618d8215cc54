# A line's worth of a GGUF header for lists, and the memory of headers that were read before.
# This file may not know where files lie or how lists look.
"""``Summaries``: path → Summary, without decoding the vocabulary, and from a small cache where the file is unchanged.

Walking over a vocabulary of 150,000 tokens takes 30 ms a file, which a list of a hundred files would show. So what was
found is kept in one JSON file, by path, size and time; a damaged one is made anew.
"""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final

from ingle.models import gguf_parser, gguf_rules
from ingle.models.errors import ModelError, one_line
from ingle.models.ggml_types import FILE_TYPES
from ingle.models.gguf_header import Header, HeaderError
from ingle.models.mapped_file import MappedFile

_VERSION: Final = 1
_MAX_CACHE_BYTES: Final = 1 << 24
_SHARD: Final = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Summary:
    """One file's header in short. `problem`: why the file cannot be used, in words; the rest is then unknown."""

    architecture: str | None = None
    name: str | None = None
    size_label: str | None = None
    licence: str | None = None
    file_type: str | None = None
    num_params: int | None = None  # in this file: of a split model, in this shard
    n_ctx_train: int | None = None  # tokens
    not_generative: str | None = None
    problem: str | None = None


def summarise(path: Path) -> Summary:
    """Read the header at `path`. Never raises for what is wrong with the file: `problem` says it.

    Only the container is checked; whether a model can be run `read_model_info` says.
    """
    try:
        with MappedFile(path) as buf:
            return _describe(gguf_parser.parse_header(buf), is_first=_is_first(path))
    except HeaderError as error:
        return Summary(problem=one_line(error.reason))
    except ModelError as error:
        return Summary(problem=error.message.removeprefix(f"{path} ").removeprefix("is "))


def _is_first(path: Path) -> bool:
    match = _SHARD.search(path.name)
    return match is None or int(match[1]) == 1


def _describe(header: Header, *, is_first: bool) -> Summary:
    num_params = sum(tensor.num_values for tensor in header.tensors)
    if not is_first:  # later shards hold tensors and hardly any keys
        return Summary(num_params=num_params)
    arch = gguf_rules.architecture(header)
    file_type = header.scalars.get("general.file_type")
    context = header.scalars.get(f"{arch}.context_length")

    def text(key: str) -> str | None:
        value = header.scalars.get(key)
        return one_line(value, 200) if isinstance(value, str) and value else None

    return Summary(
        architecture=one_line(arch, 60),
        name=text("general.name"),
        size_label=text("general.size_label"),
        licence=text("general.license"),
        file_type=FILE_TYPES.get(file_type) if isinstance(file_type, int) else None,
        num_params=num_params,
        n_ctx_train=context if isinstance(context, int) and not isinstance(context, bool) else None,
        not_generative=gguf_rules.why_not_generative(header, arch),
    )


class Summaries:
    """Summaries, remembered in the file `cache` between processes."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self._known = _load(cache)
        self._seen: dict[str, list[Any]] = {}

    def of(self, path: Path) -> Summary:
        """The summary of `path`."""
        real = os.path.realpath(path)
        try:
            status = Path(real).stat()
        except OSError:
            return summarise(path)
        # A shard's summary depends on the name it is called by, which in the hub's cache is not its own.
        key, stamp = f"{real}\n{path.name}", [status.st_size, status.st_mtime_ns]
        known = self._known.get(key)
        if known is not None and known[:2] == stamp and (summary := _from_json(known[2])) is not None:
            self._seen[key] = known
            return summary
        summary = summarise(path)
        self._seen[key] = [*stamp, {k: v for k, v in asdict(summary).items() if v is not None}]
        return summary

    def save(self) -> None:
        """Remember what was asked for since the start, and forget files that were not. A disk that refuses is let."""
        if self._seen == self._known:
            return
        temporary = self._cache.with_name(f".{self._cache.name}.{os.getpid()}")
        with suppress(OSError, ModelError):
            from ingle.models.places import ensure_private_dir

            ensure_private_dir(self._cache.parent)
            try:
                descriptor = os.open(temporary, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
                with os.fdopen(descriptor, "w", encoding="utf-8", errors="surrogateescape") as file:
                    json.dump({"version": _VERSION, "files": self._seen}, file)
                temporary.replace(self._cache)
            except OSError:
                temporary.unlink(missing_ok=True)


def _load(cache: Path) -> dict[str, list[Any]]:
    try:
        if cache.stat().st_size > _MAX_CACHE_BYTES:
            return {}
        found = json.loads(cache.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(found, dict) or found.get("version") != _VERSION or not isinstance(found.get("files"), dict):
        return {}
    return {key: row for key, row in found["files"].items() if isinstance(row, list) and len(row) == 3}


_KINDS: Final = {f.name: int if f.name in ("num_params", "n_ctx_train") else str for f in fields(Summary)}


def _from_json(row: Any) -> Summary | None:
    if not isinstance(row, dict) or any(not isinstance(v, _KINDS.get(k, ())) for k, v in row.items()):
        return None
    return Summary(**row)
