# Where a directory of safetensors came from, as its path tells. Names only: nothing is opened.
"""The name of a model that lies in a directory, and of its repository where that is a snapshot in the hub's cache."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

_SNAPSHOT: Final = re.compile(r"/models--(?P<repo>[^/]+)/snapshots/[0-9a-f]{8,}$")


def repository_of(directory: Path) -> str | None:
    """``user/repo`` for a snapshot in the hub's cache; None for any other directory."""
    match = _SNAPSHOT.search(directory.absolute().as_posix())
    return match["repo"].replace("--", "/", 1) if match else None


def model_name(directory: Path) -> str:
    """A name for people: the repository's, else the directory's."""
    repository = repository_of(directory)
    return repository.split("/")[-1] if repository else directory.resolve().name or "model"
