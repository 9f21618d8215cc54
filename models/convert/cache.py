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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

from ingle.models.convert.plan import FILES_TO_CHECK
from ingle.models.convert.tensor_files import INDEX, weight_files
from ingle.models.errors import StoreError, store_error
from ingle.models.places import cache_dir, ensure_private_dir
from ingle.models.progress import Progress, Silent

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
    folder = converted_dir() / _key(directory, outtype)
    path = _whole(folder)
    if path is not None:
        return path
    report = progress or Silent()
    ensure_private_dir(folder)
    with _locked(folder, report):
        return _whole(folder) or _convert(directory, folder, outtype, name, report)


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
        (folder / "source").write_text(source, encoding="utf-8")
        (folder / "source").chmod(0o600)
    except OSError as error:
        raise store_error(error, f"write to {folder}") from None
    _remove_former(folder, source)
    return path


def _key(directory: Path, outtype: str) -> str:
    """Hash over the files that make up the model. Raises ModelNotFound when weights are missing."""
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
    for other in converted_dir().glob("*/source"):
        try:
            if other.parent != folder and other.read_text(encoding="utf-8") == source:
                shutil.rmtree(other.parent, ignore_errors=True)
                other.parent.with_name(other.parent.name + ".lock").unlink(missing_ok=True)
        except (OSError, UnicodeDecodeError):
            continue  # another process is removing it


@contextmanager
def _locked(folder: Path, progress: Progress) -> Iterator[None]:
    """Hold the lock of `folder` between processes; says so when it has to wait. The lock dies with its process."""
    from filelock import FileLock, Timeout

    lock = FileLock(folder.with_name(folder.name + ".lock"), mode=0o600)
    try:
        try:
            lock.acquire(timeout=0)
        except Timeout:
            progress.note("another process is converting this model: waiting for it")
            lock.acquire()
    except OSError as error:
        raise store_error(error, f"lock {folder}") from None
    except NotImplementedError:
        raise StoreError(f"{folder} is on a file system without locks", "Point XDG_CACHE_HOME at another.") from None
    try:
        yield
    finally:
        lock.release()
