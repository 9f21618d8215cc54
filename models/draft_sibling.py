# Which small model drafts for which, and whether it is on this machine.
# This file may not know how drafts are made.
"""``find_draft``: the small model of the same family that `--draft auto` takes along."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ingle.models import catalog

if TYPE_CHECKING:
    from ingle.models.resolve import ModelRef


def find_draft(target: ModelRef) -> Path | None:
    """The file that drafts for `target`; None where the catalog names none, or it has not been downloaded.

    The catalog only says who is related: that both have the same tokens is for the caller to check.
    """
    from ingle.models import hub_model, pypi
    from ingle.models.resolve import wheel_source

    entry = _entry(target)
    draft = catalog.find(entry.draft) if entry is not None and entry.draft is not None else None
    if draft is None:
        return None
    if isinstance(draft.source, catalog.InWheel):
        return pypi.stored(wheel_source(draft))
    return hub_model.cached(hub_model.HubName(draft.source.repo_id, draft.source.quant))


def _entry(target: ModelRef) -> catalog.CatalogEntry | None:
    """The catalog's row of a model that was named by its alias or by its repository."""
    if target.origin == "alias":
        return catalog.find(target.name)
    if target.origin == "hub":
        for entry in catalog.entries():
            repo_id = entry.source.repo_id.lower() if isinstance(entry.source, catalog.OnHub) else None
            if repo_id is not None and target.name.lower().partition(":")[0] == repo_id:
                return entry
    return None
