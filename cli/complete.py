# What a shell may complete MODEL to. Runs at every press of Tab: names only, no header is opened.
"""Aliases and the models on this machine."""

from __future__ import annotations

from ingle.cli.errors import CliError


def model_names(incomplete: str) -> list[str]:
    """Names that begin with `incomplete`, whatever their case."""
    from ingle.cli import settings
    from ingle.models import catalog
    from ingle.models.store import shelf

    try:
        folders = settings.load().values.get("model_dirs", ())
    except CliError:
        folders = ()
    names = [entry.alias for entry in catalog.entries()]
    names += [model.name for model in shelf(folders).models]
    return [name for name in dict.fromkeys(names) if name.lower().startswith(incomplete.lower())]
