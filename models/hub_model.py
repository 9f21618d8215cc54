# A hub name → the files it means, on this machine or on the hub.
# This file may not know aliases, paths outside the cache, HTTP or terminals. The network's code is imported when asked.
"""``user/repo``, ``user/repo:QUANT``, ``user/repo/file.gguf``: `cached` asks the disk, `look_up` the hub."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from ingle.models import hub_cache, quants
from ingle.models.errors import ModelNotFound, NoNetwork, NoSuchQuant
from ingle.models.progress import Progress, Silent
from ingle.models.quants import DEFAULT_QUANT, Choice

if TYPE_CHECKING:
    from ingle.models.hub import HubFile, RepoListing

_NAME: Final = re.compile(
    r"(?P<repo>[^/:\s]+/[^/:\s]+?)(?::(?P<quant>[\w.-]+)|/(?P<file>[^:\\]+\.gguf))?", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class HubName:
    """What was typed. At most one of `quant` and `file`."""

    repo_id: str
    quant: str | None = None
    file: str | None = None

    def __str__(self) -> str:
        return self.repo_id + (f":{self.quant}" if self.quant else f"/{self.file}" if self.file else "")


@dataclass(frozen=True, slots=True)
class Selection:
    """What the hub has for a name. `choice` None: no GGUF, but weights as safetensors."""

    name: HubName
    listing: RepoListing
    choice: Choice | None

    @property
    def files(self) -> tuple[HubFile, ...]:
        return tuple(self.listing.file(name) for name in self.choice.names) if self.choice else ()

    @property
    def total_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


def parse(text: str) -> HubName | None:
    """`text` as a hub name; None when it does not have the form of one."""
    match = _NAME.fullmatch(text)
    if match is None or not hub_cache.is_repo_id(match["repo"]) or match["repo"].lower().endswith(".gguf"):
        return None
    if match["file"] is not None and not hub_cache.is_plain_name(match["file"]):
        return None
    return HubName(match["repo"], match["quant"], match["file"])


def cached(name: HubName, revision: str | None = None, *, progress: Progress | None = None) -> Path | None:
    """The model's file (its first shard) when all of it is here; None when it is not. Asks nobody.

    Without a `revision` what `main` was comes first, then whatever else of the repo is here, the latest first. A bare
    ``user/repo`` means what is here of it, and says so when that is not the default quantization.
    """
    for snapshot in hub_cache.snapshots(name.repo_id, revision):
        try:
            choice = quants.choose(snapshot.names, name.repo_id, quant=name.quant, file=name.file)
        except ModelNotFound:
            continue
        if choice.note is not None:
            (progress or Silent()).note(
                f"using {choice.quant} of {name.repo_id}, which is here; `ingle pull {name.repo_id}` fetches"
                f" {DEFAULT_QUANT}, or what is nearest to it"
            )
        return snapshot.folder / choice.names[0]
    return None


def look_up(name: HubName, revision: str | None = None, *, progress: Progress | None = None) -> Selection:
    """What the hub has now. Raises as ``hub.list_repo`` does, and NoSuchQuant."""
    from ingle.models import hub

    try:
        listing = hub.list_repo(name.repo_id, revision, progress=progress)
    except NoNetwork as error:
        raise NoNetwork(error.message, f"{error.hint} {on_disk()}") from None
    names = [file.name for file in listing.files]
    is_converted = name.file is None and not any(n.lower().endswith(".gguf") for n in names)
    if is_converted and any(n.endswith(".safetensors") for n in names):
        return Selection(name, listing, None)
    return Selection(name, listing, quants.choose(names, name.repo_id, quant=name.quant, file=name.file))


def converted_type(name: HubName) -> Literal["f16", "bf16", "f32"] | None:
    """What a repo of safetensors is converted to: the type that was asked for; None: what its weights are.

    Raises NoSuchQuant for a quantization: that takes a GGUF of it.
    """
    if name.quant is None:
        return None
    for outtype in ("f16", "bf16", "f32"):
        if name.quant.lower() == outtype:
            return outtype
    raise NoSuchQuant(
        f"{name.repo_id} holds safetensors, which are not converted to {name.quant}",
        f"There is {name.repo_id}, or :F16, :BF16 and :F32 of it.",
    )


def fetch(selection: Selection, *, progress: Progress | None = None, force: bool = False) -> Path:
    """The path of the model's file (its first shard), after all of it has been fetched and verified.

    Raises as ``hub.download`` does.
    """
    from ingle.models import hub

    assert selection.choice is not None, "a repo without a GGUF is converted, not fetched"
    return hub.download(selection.listing, selection.choice.names, progress=progress, force=force)[0]


def not_here(name: HubName) -> ModelNotFound:
    """The error for a model that is not on this machine and must not be downloaded."""
    off = "downloading is switched off (--offline or HF_HUB_OFFLINE)"
    return ModelNotFound(f"{name} is not on this machine, and {off}", on_disk())


def on_disk() -> str:
    """A sentence for a hint: which of the hub's models are here."""
    here = hub_cache.repos_with_gguf()
    if not here:
        return "No model of the hub is on this machine."
    listed = ", ".join(here[:5]) + (f" and {len(here) - 5} more" if len(here) > 5 else "")
    return f"On this machine: {listed}."
