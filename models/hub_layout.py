# The Hugging Face cache as files: which repositories, revisions and blobs there are, and taking one file out again.
# This file may not know the hub's protocol, its library, or what is inside a model. What one model needs of the cache
# (its folder, its commit, its names) is hub_cache's; here is everything that lies there, wanted or not.
"""The documented layout::

models--user--repo/
    blobs/HASH                      the bytes; HASH.incomplete and HASH.XXXX.incomplete while they arrive
    refs/main                       a commit's name
    snapshots/COMMIT/dir/file.gguf  a link to a blob; the file itself where links cannot be made
    .no_exist/COMMIT/file           what a revision is known not to have
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ingle.models.hub_cache import FOLDER_PREFIX, MAIN, repo_id_of

_INCOMPLETE: Final = ".incomplete"
_MAGIC: Final = b"GGUF"
_MAX_FILES: Final = 100_000  # a repository has some dozens


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of one revision. `path` is what to open, `blob` where its bytes are (the same without links)."""

    path: Path
    blob: Path
    name: str  # inside the repository, with slashes
    commit: str
    is_main: bool  # of the revision that `main` means, or of the only one


@dataclass(frozen=True, slots=True)
class Repo:
    """A model repository in the cache. `loose`: GGUF bytes no revision refers to: unfinished or left over."""

    folder: Path
    name: str  # user/repo
    files: tuple[HubFile, ...] = field(repr=False)
    loose: tuple[Path, ...]


def repos(cache: Path) -> Iterator[Repo]:
    """Every model repository in the cache folder, by name. What cannot be read is left out."""
    try:
        names = sorted(
            entry.name for entry in os.scandir(cache) if entry.name.startswith(FOLDER_PREFIX) and entry.is_dir()
        )
    except OSError:
        return
    for name in names:
        yield read_repo(cache / name)


def read_repo(folder: Path) -> Repo:
    """Look at one ``models--…`` folder."""
    commits = _folders(folder / "snapshots")
    main = _main_commit(folder, commits)
    files = [
        HubFile(path, _target(path), path.relative_to(root).as_posix(), commit, commit == main)
        for commit in commits
        for root in [folder / "snapshots" / commit]
        for path in _walk(root)
    ]
    files.sort(key=lambda file: (not file.is_main, file.commit, file.name))
    used = {file.blob for file in files}
    loose = [path for path in _walk(folder / "blobs") if path not in used and _is_gguf(path)]
    return Repo(folder, repo_id_of(folder.name), tuple(files), tuple(sorted(loose)))


def is_unfinished(path: Path) -> bool:
    """Whether a loose file is a download that was not finished."""
    return path.name.endswith(_INCOMPLETE)


def leftovers(blob: Path) -> list[Path]:
    """Unfinished downloads of the bytes that `blob` is for."""
    return [path for path in _walk(blob.parent) if path.name.startswith(f"{blob.name}.") and is_unfinished(path)]


def prune(folder: Path) -> None:
    """Remove what says nothing any more: empty snapshots, refs to them, and the repository when nothing is in it.

    Each step leaves a cache that the hub's library reads; a step that fails is left for the next time.
    """
    for commit in _folders(folder / "snapshots"):
        _remove_empty(folder / "snapshots" / commit)
    left = set(_folders(folder / "snapshots"))
    blobs = _walk(folder / "blobs")
    if any(is_unfinished(path) for path in blobs):
        return  # a download writes its ref before its snapshot: one may be under way
    for ref in _walk(folder / "refs"):
        with suppress(OSError, UnicodeDecodeError):
            if ref.read_text().strip() not in left:
                ref.unlink()
    if left or blobs:
        return
    for known_absent in _walk(folder / ".no_exist"):
        with suppress(OSError):
            known_absent.unlink()
    _remove_empty(folder)


def _remove_empty(folder: Path) -> None:
    """Remove `folder` and the folders in it as far as no file is left in them. rmdir refuses where one is."""
    for root, _, _ in os.walk(folder, topdown=False):
        with suppress(OSError):
            Path(root).rmdir()


def _main_commit(folder: Path, commits: list[str]) -> str | None:
    with suppress(OSError, UnicodeDecodeError):
        main = (folder / "refs" / MAIN).read_text().strip()
        if main in commits:
            return main
    return commits[0] if len(commits) == 1 else None


def _folders(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False))
    except OSError:
        return []


def _walk(folder: Path) -> list[Path]:
    """All files below, links to files too; folders that are links are not entered."""
    found: list[Path] = []
    for root, _, names in os.walk(folder):
        found += [Path(root, name) for name in names]
        if len(found) > _MAX_FILES:
            break
    return found


def _target(path: Path) -> Path:
    """Where one link of the cache leads, followed once and by name: a dangling one still names its blob."""
    try:
        return Path(os.path.normpath(path.parent / path.readlink()))
    except OSError:
        return path


def _is_gguf(path: Path) -> bool:
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(4) == _MAGIC
    except OSError:
        return False
