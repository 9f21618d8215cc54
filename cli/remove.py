# `ingle rm`: ask, delete, say how much that freed. What may be deleted models.removal decides.
"""Take models off this machine."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

from ingle.cli import settings, source
from ingle.cli.errors import FAILURE, UsageProblem
from ingle.cli.listing import open_shelf
from ingle.cli.output import Output
from ingle.cli.show import locate
from ingle.cli.stats import number, size
from ingle.models import last_used, removal
from ingle.models.removal import Removal
from ingle.models.store import Shelf, StoredModel

JSON_VERSION = 1


def remove(output: Output, names: list[str], *, yes: bool, as_json: bool) -> int:
    """Returns 0, or 1 when one of them stays. Nothing is deleted before all names are known to be good.

    Raises ModelNotFound, UsageProblem, StoreError.
    """
    found = open_shelf(output)
    models = list(dict.fromkeys(_removable(found, name) for name in names))
    if not yes:
        if not source.stdin_is_terminal():
            raise UsageProblem("this deletes models, and nobody is there to be asked", "--yes deletes without asking")
        if not _confirmed(output, found, models):
            output.note("nothing was deleted")
            return FAILURE
    done: list[tuple[StoredModel, Removal]] = []
    gone: set[str] = set()
    for model in models:
        # Looked at again for each: the one before may have been what kept these bytes.
        steps = removal.steps(model, found)
        real = os.path.realpath(model.path)
        removal.remove(model, steps)
        if steps.paths:
            last_used.forget(settings.used_path(os.environ), Path(real))
            gone |= {str(model.path), real}
        done.append((model, steps))
        if not as_json:
            _tell(output, model, steps)
    if as_json:
        rows = [
            {"name": m.name, "removed": bool(s.paths), "freed_bytes": s.freed_bytes, "kept": list(s.kept)}
            for m, s in done
        ]
        freed = sum(steps.freed_bytes for _, steps in done)
        output.json({"version": JSON_VERSION, "freed_bytes": freed, "models": rows})
    _mention_pages(output, gone)
    return 0 if all(steps.paths for _, steps in done) else FAILURE


def _removable(found: Shelf, name: str) -> StoredModel:
    path, model = locate(found, name)
    if model is None or not removal.is_ours_to_remove(model):
        paths = " ".join(shlex.quote(str(file)) for file in (model.files if model is not None else (path,)))
        raise UsageProblem(
            f"{path} is a file of yours, which `ingle rm` does not touch", f"delete it yourself: rm {paths}"
        )
    return model


def _confirmed(output: Output, found: Shelf, models: list[StoredModel]) -> bool:
    plans = [removal.steps(model, found) for model in models]
    for kept in dict.fromkeys(kept for plan in plans for kept in plan.kept):
        output.note(kept)
    freed = size(sum(plan.freed_bytes for plan in plans))
    output.ask(f"Delete {', '.join(model.name for model in models)} (frees {freed})? [y/N] ")
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _tell(output: Output, model: StoredModel, steps: Removal) -> None:
    if steps.paths:
        output.line(f"{model.name} deleted, {size(steps.freed_bytes)} freed")
    else:
        output.line(f"{model.name} stays")
    for kept in steps.kept:
        output.note(kept)


def _mention_pages(output: Output, files: set[str]) -> None:
    """The KV pages of a model that is gone are of no use unless it comes back: say so where there are any."""
    if not files:
        return
    from ingle.runtime import page_files

    folders = [f for f in page_files.folders(settings.pages_path(os.environ)) if f.about.get("file") in files]
    if num_pages := sum(folder.num_pages for folder in folders):
        pages = f"{number(num_pages, 'stored page')} of it ({size(sum(folder.num_bytes for folder in folders))})"
        label = shlex.quote(folders[0].about.get("model", ""))
        stay = "stays" if num_pages == 1 else "stay"
        output.note(f"{pages} {stay}: `ingle cache clear --model {label}` deletes them")
