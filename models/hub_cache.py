# What lies where inside the hub cache: refs, snapshots, blobs. Read without huggingface_hub, and without a network.
# This file may not know the hub's protocol, quantizations, or how a download goes.
"""The layout that huggingface_hub documents::

models--user--repo/
    refs/main                     the commit that `main` was when it was last asked for
    snapshots/COMMIT/NAME         → ../../blobs/ETAG (a file of its own where links cannot be made)
    blobs/ETAG                    SHA-256 of a large file, git's blob id of a small one
    blobs/ETAG.incomplete         a download of ours that was broken off
.locks/models--user--repo/ETAG.lock
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from ingle.models.hub_places import hub_cache_dir

MAIN: Final = "main"
FOLDER_PREFIX: Final = "models--"

_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_REPO_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One commit of a repo, as far as it is on this machine. `names` are of files that are whole, with ``/``."""

    repo_id: str
    commit: str
    folder: Path
    names: tuple[str, ...]


def is_repo_id(text: str) -> bool:
    """Whether `text` has the form ``user/repo`` that the hub allows."""
    return bool(_REPO_ID.fullmatch(text)) and "--" not in text and ".." not in text and len(text) <= 96


def is_plain_name(name: str) -> bool:
    """Whether `name`, a file's name as the hub says it, stays inside the folder it is put in."""
    parts = PurePosixPath(name).parts
    return bool(parts) and not name.startswith("/") and ".." not in parts and not set(name) & set("\\\0:")


def repo_folder(repo_id: str) -> Path:
    """Where the repo's refs, snapshots and blobs are, created or not."""
    return hub_cache_dir() / f"{FOLDER_PREFIX}{repo_id.replace('/', '--')}"


def repo_id_of(folder: str) -> str:
    """The id of the repo that a folder of that name is for; an id of this time holds no ``--``."""
    return folder.removeprefix(FOLDER_PREFIX).replace("--", "/", 1)


def lock_path(repo_id: str, etag: str) -> Path:
    """The file that huggingface_hub locks while it writes the blob `etag`."""
    return hub_cache_dir() / ".locks" / repo_folder(repo_id).name / f"{etag}.lock"


def commit_of(repo_id: str, revision: str | None = None) -> str | None:
    """The commit that `revision` (a branch, tag or whole commit; None: main) was when it was last asked for."""
    wanted = revision or MAIN
    if _COMMIT.fullmatch(wanted):
        return wanted
    if not is_plain_name(wanted):
        return None
    try:
        said = (repo_folder(repo_id) / "refs" / wanted).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return said if _COMMIT.fullmatch(said) else None


def snapshots(repo_id: str, revision: str | None = None) -> list[Snapshot]:
    """What is here of `revision`; without one of `main`, then of every other commit, the latest on this disk first.

    A link whose blob is gone does not count.
    """
    folder = repo_folder(repo_id) / "snapshots"
    first = commit_of(repo_id, revision)
    commits = [first] if first is not None else []
    if revision is None:
        try:
            others = [path for path in folder.iterdir() if _COMMIT.fullmatch(path.name) and path.name != first]
            commits += [path.name for path in sorted(others, key=lambda path: path.stat().st_mtime_ns, reverse=True)]
        except OSError:
            return []
    return [found for commit in commits if (found := _read(repo_id, commit, folder / commit)).names]


def _read(repo_id: str, commit: str, folder: Path) -> Snapshot:
    names = sorted(
        Path(at, name).relative_to(folder).as_posix()
        for at, _, files in os.walk(folder)
        for name in files
        if Path(at, name).is_file()
    )
    return Snapshot(repo_id, commit, folder, tuple(names))


def repos_with_gguf() -> list[str]:
    """Ids of the repos of which a GGUF is here, in the order of their names."""
    try:
        folders = sorted(p for p in hub_cache_dir().iterdir() if p.name.startswith(FOLDER_PREFIX))
    except OSError:
        return []
    return [
        repo_id_of(folder.name)
        for folder in folders
        if any(path.is_file() for path in (folder / "snapshots").glob("*/**/*.gguf"))
    ]
