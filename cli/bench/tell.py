# A result, told: the rows in the format that was asked for, then what is to be known about them.
"""``tell``: rows to stdout, everything else to stderr."""

from __future__ import annotations

import shutil

from ingle.cli.bench import columns
from ingle.cli.bench.flags import BenchFlags
from ingle.cli.bench.result import Result
from ingle.cli.output import Output
from ingle.cli.stats import number

PIPE_WIDTH = 240
"""Columns of a table that no terminal limits."""

_WRITERS = {
    "md": columns.write_md,
    "csv": columns.write_csv,
    "json": columns.write_json,
    "jsonl": columns.write_jsonl,
}


def tell(result: Result, flags: BenchFlags, output: Output) -> None:
    """Whatever there is, complete or not."""
    if flags.json:
        output.json(result.as_json())
    elif flags.format == "table":
        if result.rows:
            from ingle.cli.bench import tables

            width = shutil.get_terminal_size().columns if output.is_terminal else PIPE_WIDTH
            if about := columns.common(result.rows):
                output.line(f"{about}\n")
            output.line(tables.draw(result.rows, columns.columns(result.rows), width=width))
        _explain(result, output)
    elif result.rows or flags.format == "json":
        output.line(_WRITERS[flags.format](result.rows))
    for row in result.rows:
        if failures := row.get("failures"):
            label = f"{row['request_rate']:g} requests/s" if row["request_rate"] else f"{row['concurrency']} at once"
            reasons = ", ".join(f"{reason} ({count})" for reason, count in failures.items())
            output.warn(f"{label}: {row['failed']} of {row['num_requests']} requests failed: {reasons}")
    for text in result.warnings:
        output.warn(text)


def _explain(result: Result, output: Output) -> None:
    """Under the table: what its words mean here, and what was measured on."""
    if result.rows and result.rows[0]["kind"] == "engine":
        output.note("t/s: the median run; 95 %: where its median lies by a bootstrap. No sampling, as llama-bench.")
    for threads, speed in result.read_bandwidth.items():
        output.note(f"memory reads {speed / 1e9:.1f} GB/s with {number(int(threads), 'thread')}: the roofline")
    unsteady = [row["test"] for row in result.rows if row.get("is_steady") is False]
    if unsteady:
        output.warn(f"did not settle while warming up: {', '.join(unsteady)}")
    if result.rows and result.machine:
        commit = result.machine.get("llama_cpp_commit")
        output.note(f"{result.machine.get('cpu')}, llama.cpp {commit}, seed {result.settings.get('seed')}")
