# Which file a figure is about: the SHA-256 of all of it, remembered so that it is worked out once.
"""``model_hash``: reading a file of gigabytes takes seconds; the second time its size and time of change are enough."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from ingle.models.errors import StoreError
from ingle.models.places import cache_dir, ensure_private_dir

MAX_REMEMBERED = 256


def model_hash(path: Path, remembered: Path | None = None) -> str:
    """Hex SHA-256 of the file `path`. `remembered`: the file of known hashes (by default one in the cache folder)."""
    path = path.resolve()
    remembered = cache_dir() / "hashes.json" if remembered is None else remembered
    status = path.stat()
    key = {"size": status.st_size, "mtime_ns": status.st_mtime_ns, "inode": status.st_ino}
    known = _load(remembered)
    entry = known.get(str(path))
    if isinstance(entry, dict) and isinstance(entry.get("sha256"), str) and key.items() <= entry.items():
        return str(entry["sha256"])
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    known.pop(str(path), None)
    known[str(path)] = {**key, "sha256": digest}
    for oldest in list(known)[:-MAX_REMEMBERED]:
        del known[oldest]
    with suppress(OSError, StoreError):  # a cache that cannot be written is done without
        _save(remembered, known)
    return digest


def _load(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _save(path: Path, known: dict[str, Any]) -> None:
    ensure_private_dir(path.parent)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(known, file)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
