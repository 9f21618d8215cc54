# MODEL as typed → its header, wherever it is: on this machine, or on the hub without a download.
# This file may not know memory, plans or terminals.
"""``find_header``: for commands that ask about a model before they have it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from ingle.models import hub, hub_model, quants
from ingle.models.errors import ModelNotFound, UnsupportedModel
from ingle.models.gguf_info import ModelInfo, read_model_info
from ingle.models.hub_places import is_offline
from ingle.models.progress import Progress
from ingle.models.remote_header import RemoteFile, read_remote_model_info
from ingle.models.resolve import look_up, resolve, understand


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


def find_header(text: str | None, *, offline: bool = False, progress: Progress | None = None) -> FoundHeader:
    """The header of what `text` means. Of a model on the hub that is not here, some megabytes are read, and no more.

    Raises as ``resolve`` does, and BadModelFile, UnsupportedModel.
    """
    target = understand(text)
    if not isinstance(target.where, hub_model.HubName):
        return _here(text, progress)
    if offline or is_offline() or hub_model.cached(target.where) is not None:
        return _here(text, progress)
    selection = look_up(target, progress=progress)
    listing, choice = selection.listing, selection.choice
    if choice is None:
        raise UnsupportedModel(
            f"{listing.repo_id} holds safetensors, whose needs are those of the GGUF made from them",
            "Plan for that file, or for the same model with GGUF in its name.",
        )
    files = [
        RemoteFile(file.name, file.size_bytes, partial(hub.read_range, listing, file.name)) for file in selection.files
    ]
    info = read_remote_model_info(files, origin=listing.repo_id)
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


def _here(text: str | None, progress: Progress | None) -> FoundHeader:
    ref = resolve(text, offline=True, progress=progress)
    info = read_model_info(ref.path)
    return FoundHeader(ref.name, info, True, info.file_type)
