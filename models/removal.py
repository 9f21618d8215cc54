# Taking a model off the disk: what goes, what stays because something else needs it, and how much that frees.
# This file may not ask anybody or print anything.
"""``steps`` looks, ``remove`` does. Only what is ours or the hub cache's is ever touched.

A link goes before the bytes it leads to, so that a process killed in between leaves bytes that `ingle list` shows as
left over, and never a name that leads nowhere.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ingle.models import convert, hub_layout
from ingle.models.errors import store_error
from ingle.models.hub_cache import FOLDER_PREFIX
from ingle.models.store import Place, Shelf, StoredModel, own_folders, shown


@dataclass(frozen=True, slots=True)
class Removal:
    """What removing a model means: `paths` go, in this order. `kept`: a sentence for everything that stays."""

    paths: tuple[Path, ...]
    freed_bytes: int
    kept: tuple[str, ...]


def is_ours_to_remove(model: StoredModel) -> bool:
    """Whether the file is where we may delete: not in a folder that the user named."""
    return model.place is not Place.USER


def steps(model: StoredModel, shelf: Shelf) -> Removal:
    """What `remove` would do. Does not modify anything."""
    assert is_ours_to_remove(model)
    links_of_user: dict[str, Path] = {}
    for path in shelf.user_files:
        links_of_user.setdefault(os.path.realpath(path), path)
    repo = hub_layout.read_repo(_repo_folder(model.path)) if model.place is Place.HUB else None
    paths: list[Path] = []
    kept: list[str] = []
    freed = 0
    for path in model.files:
        blob, blob_is_ours, others = _bytes_of(path, model, repo)
        if theirs := links_of_user.get(os.path.realpath(path)):
            kept.append(f"{shown(path)} stays: {shown(theirs)} of yours leads to it")
            continue
        if blob != path:
            paths.append(path)
        if others:
            where = ", ".join(sorted({f"revision {other.commit[:8]}" for other in others}))
            kept.append(f"its bytes stay: {where} has them too ({shown(others[0].path)})")
        elif not blob_is_ours:
            kept.append(f"its bytes stay: they lie outside the cache, at {shown(blob)}")
        else:
            paths += [blob] if os.path.lexists(blob) else []
            freed_here, reason = _freed(blob)
            freed += freed_here
            kept += [reason] if reason else []
        for leftover in hub_layout.leftovers(blob) if repo is not None else convert.companions(path):
            if leftover != path:
                paths.append(leftover)
                freed += _freed(leftover)[0]
        kept += _source_stays(path)
    return Removal(tuple(dict.fromkeys(paths)), freed, tuple(dict.fromkeys(kept)))


def remove(model: StoredModel, removal: Removal) -> None:
    """Delete what `steps` found, and folders that are empty then. Raises StoreError where the disk refuses."""
    for path in removal.paths:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise store_error(error, f"delete {path}") from None
    if model.place is Place.HUB:
        hub_layout.prune(_repo_folder(model.path))
        return
    roots = own_folders()
    for folder in model.path.parents:
        if folder in roots or not any(root in folder.parents for root in roots):
            return
        with suppress(OSError):
            folder.rmdir()


def _bytes_of(
    path: Path, model: StoredModel, repo: hub_layout.Repo | None
) -> tuple[Path, bool, list[hub_layout.HubFile]]:
    """Where the bytes of `path` lie, whether we may delete them, and the files of other names that have them too."""
    if repo is None:
        return path, True, []
    file = next((file for file in repo.files if file.path == path), None)
    if file is None:  # loose bytes
        return path, True, []
    others = [other for other in repo.files if other.blob == file.blob and other.path not in model.files]
    return file.blob, file.blob == path or file.blob.parent == repo.folder / "blobs", others


def _source_stays(path: Path) -> list[str]:
    """Where the safetensors lie that a converted model was made from: they may take more than it did."""
    made_from = convert.source_of(path)
    if made_from is None or not made_from[1].is_dir():
        return []
    repo_id = convert.repository_of(made_from[1])
    where = f"; `hf cache rm model/{repo_id}` deletes them" if repo_id else ""
    return [f"the safetensors it was made from stay, in {shown(made_from[1])}{where}"]


def _freed(path: Path) -> tuple[int, str | None]:
    """Bytes that deleting `path` gives back, and why not all of them."""
    try:
        status = path.lstat()
    except OSError:
        return 0, None
    if status.st_nlink > 1:
        return 0, f"its bytes stay: {status.st_nlink - 1} other hard link(s) lead to {shown(path)}"
    return status.st_size, None


def _repo_folder(path: Path) -> Path:
    """The ``models--…`` folder that a file of the hub's cache lies in."""
    return next(parent for parent in path.parents if parent.name.startswith(FOLDER_PREFIX))
