# A result: what was measured, where, how and when. The words that measuring, telling, saving and comparing share.
# This file may not know how anything is measured or shown.
"""``Result`` is what `--json` prints and `--save` keeps: one object, of format ``VERSION``.

``rows`` are dicts with a ``kind``: ``engine`` (llama-bench's keys and some more), ``serving`` (vLLM's), ``resume``,
``drafts``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ingle.cli.errors import InputProblem

VERSION = 1

Row = dict[str, Any]


@dataclass(slots=True)
class Result:
    """Filled while measuring goes on. `is_complete` is set at the very end: what is saved before says so."""

    settings: dict[str, Any]
    machine: dict[str, Any] = field(default_factory=dict)
    models: list[dict[str, Any]] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    conditions: dict[str, Any] = field(default_factory=dict)
    read_bandwidth: dict[str, float] = field(default_factory=dict)  # threads (JSON keys are texts) → bytes a second
    date: str = field(default_factory=lambda: datetime.now().astimezone().isoformat(timespec="seconds"))
    is_complete: bool = False
    stopped_by: str | None = None  # why it is not complete

    def as_json(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "date": self.date,
            "is_complete": self.is_complete,
            "stopped_by": self.stopped_by,
            "settings": self.settings,
            "machine": self.machine,
            "models": self.models,
            "conditions": self.conditions,
            "read_bandwidth_bytes_per_s": self.read_bandwidth,
            "warnings": self.warnings,
            "rows": self.rows,
        }


def from_json(value: Any, name: str) -> Result:
    """Raises InputProblem, about the file `name`, for what no version of ours has written."""
    hint = "it wants a file that --save or --json has written"
    if not isinstance(value, dict) or not isinstance(value.get("rows"), list):
        raise InputProblem(f"{name} is not a benchmark's result", hint)
    if value.get("version") != VERSION:
        raise InputProblem(f"{name} is of version {value.get('version')}, and this is version {VERSION}", hint)
    rows = value["rows"]
    if not all(isinstance(row, dict) and isinstance(row.get("kind"), str) for row in rows):
        raise InputProblem(f"{name} is not a benchmark's result: its rows are of no kind", hint)
    return Result(
        settings=_dict(value, "settings"),
        machine=_dict(value, "machine"),
        models=[model for model in _list(value, "models") if isinstance(model, dict)],
        rows=rows,
        warnings=[str(text) for text in _list(value, "warnings")],
        conditions=_dict(value, "conditions"),
        read_bandwidth=_dict(value, "read_bandwidth_bytes_per_s"),
        date=str(value.get("date", "")),
        is_complete=value.get("is_complete") is True,
        stopped_by=value["stopped_by"] if isinstance(value.get("stopped_by"), str) else None,
    )


def _dict(value: dict[str, Any], key: str) -> dict[str, Any]:
    found = value.get(key)
    return found if isinstance(found, dict) else {}


def _list(value: dict[str, Any], key: str) -> list[Any]:
    found = value.get(key)
    return found if isinstance(found, list) else []
