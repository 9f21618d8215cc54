# Converted models that are kept: found again by what they were made from, made when they are missing.
# This file may not know how a conversion works, nor hubs.
"""``converted``: directory of safetensors → GGUF under ``cache/converted/KEY/``, once for all processes.

::

    converted/KEY/NAME-SIZE-TYPE.gguf   whole, or not there
    converted/KEY/source                the type asked for and the directory it was made from, as text
    converted/KEY.lock                  one process converts, the others wait

KEY is a hash over the source files' names, sizes and times: a changed source is converted anew, and what was made
of its former state is removed.
"""

from __future__ import annotations

import hashlib
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

from ingle.models.errors import store_error
from ingle.models.locks import locked
from ingle.models.places import cache_dir, ensure_private_dir
from ingle.models.progress import Progress, Silent

_SOURCE: Final = "source"
_VERSION: Final = 1  # of the conversion: raise it when its results change


def converted_dir() -> Path:
    """Where converted models lie. Not created here."""
    return cache_dir() / "converted"


def converted(
    directory: Path,
    outtype: Literal["auto", "f32", "f16", "bf16"] = "auto",
    *,
    name: str | None = None,
    progress: Progress | None = None,
) -> Path:
    """The GGUF of the model in `directory`, converted first when it is not there. `name` is for people and for the
    file's name. Raises UnsupportedModel, BadModelFile, ModelNotFound, StoreError."""
    path = kept(directory, outtype)
    if path is not None:
        return path
    folder = converted_dir() / _key(directory, outtype)
    report = progress or Silent()
    ensure_private_dir(folder)
    with locked(_lock(folder), report, doing="converting"):
        try:
            return _whole(folder) or _convert(directory, folder, outtype, name, report)
        finally:
            with suppress(OSError):
                folder.rmdir()  # which it refuses unless nothing came of it


def kept(directory: Path, outtype: Literal["auto", "f32", "f16", "bf16"] = "auto") -> Path | None:
    """What `converted` would return at once; None: it would have to convert first. Raises as `converted` does."""
    return _whole(converted_dir() / _key(directory, outtype))


def source_of(path: Path) -> tuple[str, Path] | None:
    """The type asked for and the directory that the converted model at `path` was made from; None for any other."""
    if path.parent.parent != converted_dir():
        return None
    with suppress(OSError, UnicodeDecodeError):
        outtype, _, directory = (path.parent / _SOURCE).read_text(encoding="utf-8").partition(" ")
        return outtype, Path(directory)
    return None


def companions(path: Path) -> list[Path]:
    """What is kept beside the converted model at `path` and means nothing without it."""
    if path.parent.parent != converted_dir():
        return []
    return [path.parent / _SOURCE, *path.parent.glob(".*.part"), _lock(path.parent)]


def _convert(
    directory: Path,
    folder: Path,
    outtype: Literal["auto", "f32", "f16", "bf16"],
    name: str | None,
    progress: Progress,
) -> Path:
    from ingle.models.convert.writer import convert

    for leftover in folder.glob(".*.part"):  # of a killed process; the lock is held
        leftover.unlink(missing_ok=True)
    path = convert(directory, folder, outtype, name=name, progress=progress)
    source = f"{outtype} {directory.resolve()}"
    try:
        (folder / _SOURCE).write_text(source, encoding="utf-8")
        (folder / _SOURCE).chmod(0o600)
    except OSError as error:
        raise store_error(error, f"write to {folder}") from None
    _remove_former(folder, source)
    return path


def _key(directory: Path, outtype: str) -> str:
    """Hash over the files that make up the model. Raises ModelNotFound when weights are missing."""
    from ingle.models.convert.plan import FILES_TO_CHECK  # here: lists ask `source_of`, and this takes 50 ms
    from ingle.models.convert.tensor_files import INDEX, weight_files

    files = [directory / name for name in (*FILES_TO_CHECK, INDEX)] + weight_files(directory)
    digest = hashlib.sha256(f"{_VERSION}\n{outtype}\n{directory.resolve()}\n".encode())
    for path in files:
        try:
            status = path.stat()
        except OSError:
            continue
        digest.update(f"{path.name}\n{path.resolve().name}\n{status.st_size}\n{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:32]


def _whole(folder: Path) -> Path | None:
    """The model in `folder`. A file that bears its name is whole: it got it only then."""
    found = sorted(path for path in folder.glob("*.gguf") if not path.name.startswith("."))
    return found[0] if found else None


def _remove_former(folder: Path, source: str) -> None:
    """Remove conversions of `source` as it was before it changed."""
    for other in converted_dir().glob(f"*/{_SOURCE}"):
        try:
            if other.parent != folder and other.read_text(encoding="utf-8") == source:
                shutil.rmtree(other.parent, ignore_errors=True)
                _lock(other.parent).unlink(missing_ok=True)
        except (OSError, UnicodeDecodeError):
            continue  # another process is removing it


def _lock(folder: Path) -> Path:
    return folder.with_name(folder.name + ".lock")
