"""The page store's files as a whole: what is there, whether it is sound, and forgetting it. For `ingle cache`.

Other processes may be writing and evicting meanwhile; what has gone by the time it is looked at is not counted.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ingle.runtime.page import SUFFIX, BadPage, read_page

ABOUT = "model.json"


@dataclass(frozen=True, slots=True)
class Folder:
    """The pages of one fingerprint: one model, run in one way. `about` says which; empty where that was lost."""

    path: Path
    about: dict[str, str]
    num_pages: int
    num_bytes: int
    last_used: float  # seconds since the epoch


@dataclass(frozen=True, slots=True)
class Verified:
    """What reading every page gave: bad ones have been removed."""

    num_good: int
    num_removed: int
    num_bytes: int  # of the good ones


def folders(directory: Path) -> list[Folder]:
    """What is stored, most recently used first."""
    found = []
    for path in _subfolders(directory):
        stats = [stat for page in _pages(path) if (stat := _stat(page)) is not None]
        found.append(
            Folder(
                path,
                about(path),
                len(stats),
                sum(size for size, _ in stats),
                max((used for _, used in stats), default=0.0),
            )
        )
    return sorted(found, key=lambda folder: -folder.last_used)


def verify(directory: Path, on_progress: Callable[[int, int], None] | None = None) -> Verified:
    """Read every page and delete those that are not what they should be. `on_progress`: (pages done, pages in all)."""
    pages = [(folder, page) for folder in _subfolders(directory) for page in _pages(folder)]
    num_good = num_removed = num_bytes = 0
    for number, (folder, path) in enumerate(pages):
        try:
            page = read_page(path, bytes.fromhex(folder.name))
            if path.name != f"{page.parent.hex()}-{page.hash.hex()}{SUFFIX}":
                raise BadPage("another page than its name says")
            num_good += 1
            num_bytes += page.num_bytes
        except (BadPage, ValueError):
            with suppress(OSError):
                path.unlink()
                num_removed += 1
        except OSError:
            continue  # gone meanwhile, or not ours to read
        finally:
            if on_progress is not None:
                on_progress(number + 1, len(pages))
    return Verified(num_good, num_removed, num_bytes)


def clear(directory: Path, model: str | None = None, unused_for_s: float | None = None) -> tuple[int, int]:
    """Delete pages: all, those of the models whose name has `model` in it, those unused for so long. (pages, bytes)."""
    num_pages = num_bytes = 0
    for folder in _subfolders(directory):
        if model is not None and model.lower() not in about(folder).get("model", "").lower():
            continue
        for page in list(_pages(folder)):
            stat = _stat(page)
            if stat is None or (unused_for_s is not None and time.time() - stat[1] < unused_for_s):
                continue
            with suppress(OSError):
                page.unlink()
                num_pages += 1
                num_bytes += stat[0]
        _remove_if_empty(folder)
    return num_pages, num_bytes


def _subfolders(directory: Path) -> list[Path]:
    with suppress(OSError):
        return sorted(path for path in directory.iterdir() if path.is_dir() and not path.is_symlink())
    return []


def _pages(folder: Path) -> Iterator[Path]:
    return folder.glob(f"*/*{SUFFIX}")


def _stat(path: Path) -> tuple[int, float] | None:
    """(bytes, time of last use); None where the file has gone."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_size, stat.st_mtime


def about(folder: Path) -> dict[str, str]:
    """What the folder says of itself; empty where that was lost."""
    with suppress(OSError, ValueError):
        found = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        if isinstance(found, dict):
            return {str(key): str(value) for key, value in found.items()}
    return {}


def _remove_if_empty(folder: Path) -> None:
    """Take away a fingerprint's folder that holds nothing but its description."""
    with suppress(OSError):
        for sub in [path for path in folder.iterdir() if path.is_dir()]:
            with suppress(OSError):
                sub.rmdir()
        if {path.name for path in folder.iterdir()} <= {ABOUT}:
            (folder / ABOUT).unlink(missing_ok=True)
            folder.rmdir()
