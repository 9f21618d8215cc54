# A repo whose weights are safetensors → a folder in the hub cache with all that a conversion reads.
# This file may not know HTTP, aliases or terminals, nor how a conversion works.
"""Config and tokenizer are fetched and checked before the weights: what cannot be converted is not downloaded."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ingle.models import hub_cache
from ingle.models.convert import FILES_TO_CHECK, check, is_safetensors_dir
from ingle.models.convert.tensor_files import INDEX, SINGLE, weight_files, weight_names
from ingle.models.errors import BadModelFile, ModelError, ModelNotFound, store_error
from ingle.models.progress import Progress

if TYPE_CHECKING:
    from ingle.models.hub import RepoListing

_MAX_DESCRIPTION_BYTES: Final = 1 << 27  # the largest tokenizers of 2026 take some 40 MB
_SHARD: Final = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")


def fetch(listing: RepoListing, *, progress: Progress | None = None, force: bool = False) -> Path:
    """The snapshot's folder, after all that the conversion needs has been fetched and verified.

    Raises UnsupportedModel (before any weight is fetched) and as ``hub.download`` does.
    """
    from ingle.models import hub

    paths = hub.download(listing, _described(listing), progress=progress, force=force)
    folder = paths[0].parent
    check(folder)
    hub.download(listing, weight_names(folder), progress=progress, force=force)
    return folder


@contextmanager
def described(listing: RepoListing) -> Iterator[Path]:
    """A folder with config and tokenizer for as long as the ``with`` lasts: enough to check a conversion or to plan for
    it. Nothing is kept. Raises ModelNotFound, BadModelFile (absurdly large), StoreError, and as ``hub.read_range``."""
    from ingle.models import hub

    names = _described(listing)
    try:
        with tempfile.TemporaryDirectory(prefix="ingle-") as root:
            folder = Path(root, hub_cache.repo_folder(listing.repo_id).name, "snapshots", listing.commit)
            folder.mkdir(parents=True)
            for name in names:
                size_bytes = listing.file(name).size_bytes
                if size_bytes > _MAX_DESCRIPTION_BYTES:
                    raise BadModelFile(f"{listing.repo_id}/{name} is absurdly large", "Look for another repository.")
                (folder / name).write_bytes(hub.read_range(listing, name, 0, size_bytes))
            yield folder
    except OSError as error:
        raise store_error(error, f"write to {tempfile.gettempdir()}", "TMPDIR") from None


def files(listing: RepoListing) -> list[str]:
    """The names of what `fetch` would fetch, as far as names tell."""
    names = [file.name for file in listing.files]
    shards = [name for name in names if _SHARD.fullmatch(name)]
    return [*_described(listing), *(shards or [name for name in names if name == SINGLE])]


def cached(repo_id: str, revision: str | None = None) -> Path | None:
    """The folder of a snapshot that is here with all that the conversion needs. Asks nobody."""
    for snapshot in hub_cache.snapshots(repo_id, revision):
        if not is_safetensors_dir(snapshot.folder):
            continue
        if not {"tokenizer.json", "tokenizer.model"}.intersection(snapshot.names):
            continue
        try:
            weight_files(snapshot.folder)
        except ModelError:
            continue
        return snapshot.folder
    return None


def _described(listing: RepoListing) -> Sequence[str]:
    names = {file.name for file in listing.files}
    if "config.json" not in names:
        raise ModelNotFound(
            f"{listing.repo_id} holds safetensors but no config.json",
            "It is no language model by itself; look for one with GGUF in its name.",
        )
    return [name for name in (*FILES_TO_CHECK, INDEX) if name in names]
