# Which catalog model drafts for which, as data, and whether it is on this machine.
# This file may not know how drafts are made.
"""``find_draft``: the small model of the same family that `--draft auto` takes along."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ingle.models.resolve import ModelRef

DRAFTS_FOR: Final[Mapping[str, str]] = MappingProxyType({})
"""Alias → alias of the model that drafts for it. Both must have the same tokens."""


def find_draft(target: ModelRef) -> Path | None:
    """The file that drafts for `target`; None where the catalog names none, or it has not been downloaded."""
    from ingle.models import catalog, pypi
    from ingle.models.resolve import wheel_source

    alias = DRAFTS_FOR.get(target.name) if target.origin == "alias" else None
    entry = catalog.find(alias) if alias is not None else None
    return None if entry is None else pypi.stored(wheel_source(entry))
