# `ingle bench compare BASE NEW`: is it quicker or slower, by how much, and is that more than chance?
# This file may not know how results are kept or shown.
"""Two results → a ratio, with its interval, for each figure that both have."""

from __future__ import annotations

import statistics as exact
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ingle.cli.bench import statistics
from ingle.cli.bench.result import Result, Row
from ingle.cli.bench.statistics import Interval

_SWEPT = {"model": "", "n_threads": "t", "n_batch": "b", "type_k": "k ", "type_v": "v ", "flash_attn": "fa"}
"""What rows of one result may differ in beside the test, and how a label calls it."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One of a row's figures: the samples behind it, and which way is better."""

    name: str
    samples: tuple[float, ...]
    more_is_better: bool


@dataclass(frozen=True, slots=True)
class Change:
    """``ratio``: median of the new over median of the base. A regression is worse by more than was tolerated, and the
    interval says that it is no chance: all of it lies on the worse side of 1."""

    test: str
    figure: str
    base: float
    new: float
    ratio: float
    interval: Interval
    is_regression: bool


@dataclass(frozen=True, slots=True)
class Comparison:
    """`only_base`, `only_new`: tests that the other has not. `notes`: what else is different."""

    changes: tuple[Change, ...]
    only_base: tuple[str, ...]
    only_new: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def has_regression(self) -> bool:
        return any(change.is_regression for change in self.changes)


def compare(base: Result, new: Result, tolerance: float) -> Comparison:
    """`tolerance`: as a share, 0.05 for five per cent."""
    varying = [key for key in _SWEPT if _varies(base, key) or _varies(new, key)]
    base_rows = {_label(row, varying): row for row in base.rows}
    new_rows = {_label(row, varying): row for row in new.rows}
    changes: list[Change] = []
    for label, row in new_rows.items():
        if label in base_rows:
            changes += _changes(label, base_rows[label], row, tolerance)
    return Comparison(
        tuple(changes),
        tuple(label for label in base_rows if label not in new_rows),
        tuple(label for label in new_rows if label not in base_rows),
        tuple(_notes(base, new)),
    )


def figures(row: Row) -> list[Figure]:
    """What of a row can be compared."""
    samples = row.get("samples") if isinstance(row.get("samples"), dict) else {}
    assert isinstance(samples, dict)
    if row["kind"] == "engine":
        found = [Figure("t/s", _floats(row.get("samples_ts")), True)]
    elif row["kind"] == "serving":
        found = [Figure("output tok/s", _floats(row.get("output_throughput_samples")), True)]
        found += [Figure(f"{name} ms", _floats(samples.get(name)), False) for name in ("ttft", "tpot", "e2el")]
    elif row["kind"] == "drafts":
        found = [Figure("t/s", _floats(samples.get("draft_ts")), True)]
    else:
        found = [Figure("restored ttft ms", _floats(samples.get("restored_ttft")), False)]
    return [figure for figure in found if figure.samples]


def _changes(label: str, base: Row, new: Row, tolerance: float) -> list[Change]:
    ours = {figure.name: figure for figure in figures(base)}
    both = [figure for figure in figures(new) if figure.name in ours]
    found = [_change(label, ours[figure.name], figure, tolerance) for figure in both]
    failures = _failure_shares(base, new)
    if failures is not None and failures[1] > failures[0]:
        before, after = failures
        ratio = after / before if before else float("inf")
        is_regression = after - before > tolerance
        found.append(Change(label, "failed", before, after, ratio, Interval(ratio, ratio), is_regression))
    return found


def _change(label: str, base: Figure, new: Figure, tolerance: float) -> Change:
    before, after = exact.median(base.samples), exact.median(new.samples)
    ratio = after / before
    interval = statistics.ratio_interval(new.samples, base.samples)
    if new.more_is_better:
        is_regression = ratio < 1 - tolerance and interval.high < 1
    else:
        is_regression = ratio > 1 + tolerance and interval.low > 1
    return Change(label, new.name, before, after, ratio, interval, is_regression)


def _label(row: Row, varying: Sequence[str]) -> str:
    """What was tested: equal labels mean equal tests. What is one and the same all through a result is a setting, and
    may be the very thing that is compared."""
    if row["kind"] == "serving":
        rate, concurrency = row.get("request_rate"), row.get("concurrency")
        test = f"{rate:g} requests/s" if isinstance(rate, int | float) else f"{concurrency} at once"
    else:
        test = str(row.get("test", "?"))
    return " ".join([test, *(f"{_SWEPT[key]}{row[key]}" for key in varying if key in row)])


def _notes(base: Result, new: Result) -> list[str]:
    notes = []
    for name, result in (("the base", base), ("the new one", new)):
        if not result.is_complete:
            notes.append(f"{name} is incomplete ({result.stopped_by or 'cut short'})")
        notes += [f"{name}: {warning}" for warning in result.warnings]
    for key in ("cpu", "system", "llama_cpp_commit", "cpu_features", "governor"):
        if base.machine.get(key) != new.machine.get(key):
            notes.append(f"{key} differs: {base.machine.get(key)} and {new.machine.get(key)}")
    if base.machine.get("versions") != new.machine.get("versions"):
        notes.append(f"versions differ: {_versions(base)} and {_versions(new)}")
    if [m.get("sha256") for m in base.models] != [m.get("sha256") for m in new.models]:
        notes.append("the model files differ")
    different = sorted(key for key in base.settings.keys() | new.settings.keys() if _setting(base, new, key))
    if different:
        notes.append(f"settings differ: {', '.join(different)}")
    return notes


def _setting(base: Result, new: Result, key: str) -> bool:
    return key not in ("save", "plot") and base.settings.get(key) != new.settings.get(key)


def _versions(result: Result) -> str:
    versions = result.machine.get("versions")
    return ", ".join(f"{name} {number}" for name, number in versions.items()) if isinstance(versions, dict) else "?"


def _varies(result: Result, key: str) -> bool:
    return len({str(row[key]) for row in result.rows if key in row}) > 1


def _failure_shares(base: Row, new: Row) -> tuple[float, float] | None:
    shares = []
    for row in (base, new):
        failed, total = row.get("failed"), row.get("num_requests")
        if not isinstance(failed, int) or not isinstance(total, int) or not total:
            return None
        shares.append(failed / total)
    return shares[0], shares[1]


def _floats(value: Any) -> tuple[float, ...]:
    """The positive numbers of a list; none where it is no list."""
    items: Sequence[Any] = value if isinstance(value, list) else ()
    return tuple(float(x) for x in items if isinstance(x, int | float) and not isinstance(x, bool) and x > 0)
