# `ingle list`: the models on this machine, one a line.
# This file may not know how files are found or headers read: models.store and models.header_summary do.
"""The shelf, for people and as JSON."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ingle.cli import settings
from ingle.cli.output import Output
from ingle.cli.stats import age, size
from ingle.models import last_used
from ingle.models.errors import one_line
from ingle.models.gguf_rules import DRAFT_FILE
from ingle.models.header_summary import Summaries, Summary
from ingle.models.places import cache_dir
from ingle.models.store import Shelf, StoredModel, card_licence, shelf

JSON_VERSION = 1

_HEAD = ("NAME", "SIZE", "QUANT", "PARAMETERS", "CONTEXT", "ARCHITECTURE", "LICENCE", "LAST USED")
_NUMERIC = {1, 3, 4}  # columns that stand to the right
_LEFT_OUT = (6, 5, 3, 7, 4, 2)  # columns that a narrow terminal does without, the first first


@dataclass(frozen=True, slots=True)
class Row:
    """A model and what its header says in short. `last_used`: seconds since 1970."""

    model: StoredModel
    summary: Summary
    last_used: float | None

    @property
    def problem(self) -> str | None:
        return self.model.problem or self.summary.problem

    @property
    def quant(self) -> str | None:
        return self.model.quant or self.summary.file_type


def listing(output: Output, *, as_json: bool) -> int:
    """Prints the list; returns 0."""
    found = open_shelf(output)
    rows = read_rows(found)
    if as_json:
        num_bytes = sum(row.model.size_bytes for row in rows)
        output.json({"version": JSON_VERSION, "num_bytes": num_bytes, "models": [row_as_json(row) for row in rows]})
        return 0
    if not rows:
        output.note("no models on this machine yet: `ingle pull smollm2` fetches a small one")
        return 0
    for line in table(rows, shutil.get_terminal_size().columns if output.is_terminal else None):
        output.line(line)
    return 0


def open_shelf(output: Output) -> Shelf:
    """What is on this machine; a folder of the user's that cannot be looked at is told. Raises UsageProblem."""
    found = shelf(settings.load().values.get("model_dirs", ()))
    for note in found.notes:
        output.warn(note)
    return found


def read_rows(found: Shelf) -> list[Row]:
    """A row for each model; those that cannot be used come last."""
    summaries = Summaries(cache_dir() / "headers.json")
    used = settings.used_path(os.environ)
    rows = [_row(model, summaries, used) for model in found.models]
    summaries.save()
    return sorted(rows, key=lambda row: row.problem is not None)


def _row(model: StoredModel, summaries: Summaries, used: Path) -> Row:
    parts = [] if model.problem else [summaries.of(path) for path in model.files]
    summary = parts[0] if parts else Summary()
    if len(parts) > 1:
        problem = next((part.problem for part in parts if part.problem), None)
        summary = replace(summary, num_params=sum(part.num_params or 0 for part in parts), problem=problem)
    if summary.licence is None and (licence := card_licence(model)):
        summary = replace(summary, licence=licence)
    return Row(model, summary, last_used.when(used, model.path))


def row_as_json(row: Row) -> dict[str, Any]:
    """The object about a model in a list."""
    model, summary = row.model, row.summary
    return {
        "name": model.name,
        "place": str(model.place),
        "path": str(model.path),
        "files": [str(path) for path in model.files],
        "size_bytes": model.size_bytes,
        "repo": model.repo,
        "revision": model.commit,
        "quant": row.quant,
        "num_params": summary.num_params,
        "n_ctx_train": summary.n_ctx_train,
        "architecture": summary.architecture,
        "licence": summary.licence,
        "not_generative": summary.not_generative,
        "last_used": row.last_used,
        "problem": row.problem,
    }


def parameters(num: int | None) -> str:
    """`134515008` → "135M"."""
    if not num:
        return "-"
    for unit, factor in (("B", 1e9), ("M", 1e6), ("K", 1e3)):
        if num >= 0.9995 * factor:
            amount = num / factor
            return f"{amount:.1f}{unit}" if amount < 10 and unit == "B" else f"{amount:.0f}{unit}"
    return str(num)


def table(rows: list[Row], max_width: int | None) -> list[str]:
    """The lines of the list, with as many columns as `max_width` cells have room for (None: all).

    What is wrong with a model runs over the columns; names of such models, often whole paths, make none wider.
    """
    usable = [_HEAD, *(_cells(row) for row in rows if row.problem is None)]
    widths = [max(len(texts[column]) for texts in usable) for column in range(len(_HEAD))]
    columns = list(range(len(_HEAD)))
    for column in _LEFT_OUT:
        if max_width is None or sum(widths[c] for c in columns) + 2 * (len(columns) - 1) < max_width:
            break
        columns.remove(column)
    lines = ["  ".join(_padded(texts[c], widths[c], c) for c in columns).rstrip() for texts in usable]
    for row in rows:
        if row.problem is not None:
            name, taken, problem = one_line(row.model.name), size(row.model.size_bytes), one_line(row.problem)
            lines.append(f"{_padded(name, widths[0], 0)}  {_padded(taken, widths[1], 1)}  unusable: {problem}")
    return lines


def _padded(text: str, width: int, column: int) -> str:
    return text.rjust(width) if column in _NUMERIC else text.ljust(width)


def _cells(row: Row) -> tuple[str, ...]:
    model, summary = row.model, row.summary
    used = "-" if row.last_used is None else age(max(time.time() - row.last_used, 0.0))
    architecture = summary.architecture or "-"
    if summary.not_generative is not None:
        architecture += " (draft)" if summary.not_generative == DRAFT_FILE else " (no text)"
    context = "-" if summary.n_ctx_train is None else str(summary.n_ctx_train)
    return (
        one_line(model.name),
        size(model.size_bytes),
        row.quant or "-",
        parameters(summary.num_params),
        context,
        architecture,
        summary.licence or "-",
        used,
    )
