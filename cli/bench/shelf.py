# `ingle bench list` and `ingle bench compare`: saved results, for people and for scripts.
"""What is shown of saved results."""

from __future__ import annotations

import dataclasses
import math
import time

from ingle.cli.bench import saved
from ingle.cli.bench.compare import Change, Comparison, compare
from ingle.cli.errors import FAILURE, InputProblem
from ingle.cli.output import Output
from ingle.cli.stats import age, number

JSON_VERSION = 1


def show_list(output: Output, *, as_json: bool) -> int:
    found = saved.entries()
    if as_json:
        results = [
            {
                "name": entry.name,
                "path": str(saved.path_of(entry.name)),
                "date": entry.result.date if entry.result else None,
                "models": [str(model.get("name")) for model in entry.result.models] if entry.result else [],
                "num_rows": len(entry.result.rows) if entry.result else 0,
                "is_complete": entry.result is not None and entry.result.is_complete,
                "problem": entry.problem,
            }
            for entry in found
        ]
        output.json({"version": JSON_VERSION, "directory": str(saved.folder()), "results": results})
        return 0
    for entry in found:
        used = age(max(time.time() - entry.modified_s, 0.0))
        if entry.result is None:
            output.line(f"{entry.name:<24} {used:<16} {entry.problem}")
            continue
        models = ", ".join(str(model.get("name")) for model in entry.result.models)
        state = "" if entry.result.is_complete else ", incomplete"
        output.line(f"{entry.name:<24} {used:<16} {models}, {number(len(entry.result.rows), 'row')}{state}")
    output.note(f"{number(len(found), 'result')} in {saved.folder()}")
    return 0


def show_comparison(base: str, new: str, tolerance: float, output: Output, *, as_json: bool) -> int:
    """Returns 1 when there is a regression. Raises InputProblem where the two have no test in common."""
    found = compare(saved.load(base), saved.load(new), tolerance)
    if not found.changes:
        raise InputProblem(f"{base} and {new} have no test in common", _missing(found))
    if as_json:
        output.json(_as_json(base, new, tolerance, found))
    else:
        width = max(len(change.test) for change in found.changes)
        output.line(f"{'':<{width}}  {'':<16} {'base':>10} {'new':>10}  {'ratio':>6}  95 %")
        for change in found.changes:
            output.line(_line(change, width))
        for note in found.notes:
            output.warn(note)
        if missing := _missing(found):
            output.warn(missing)
    num_regressions = sum(change.is_regression for change in found.changes)
    if num_regressions and not as_json:
        output.note(f"{number(num_regressions, 'regression')} beyond {tolerance:.0%}")
    return FAILURE if found.has_regression else 0


def _line(change: Change, width: int) -> str:
    low, high = change.interval.low, change.interval.high
    verdict = "  REGRESSION" if change.is_regression else "" if change.interval.includes(1.0) else "  differs"
    values = f"{change.base:>10.2f} {change.new:>10.2f}  {change.ratio:>6.3f}  {low:.3f} – {high:.3f}"
    return f"{change.test:<{width}}  {change.figure:<16} {values}{verdict}"


def _missing(found: Comparison) -> str:
    sides = (("base", found.only_base), ("new one", found.only_new))
    return "; ".join(f"only the {name} has {', '.join(tests)}" for name, tests in sides if tests)


def _as_json(base: str, new: str, tolerance: float, found: Comparison) -> dict[str, object]:
    changes = []
    for change in found.changes:
        values = dataclasses.asdict(change)
        values["interval"] = [change.interval.low, change.interval.high]
        if not math.isfinite(change.ratio):  # from no failure to some: JSON has no infinity
            values |= {"ratio": None, "interval": None}
        changes.append(values)
    return {
        "version": JSON_VERSION,
        "base": base,
        "new": new,
        "tolerance": tolerance,
        "has_regression": found.has_regression,
        "changes": changes,
        "only_base": list(found.only_base),
        "only_new": list(found.only_new),
        "notes": list(found.notes),
    }
