"""docs/benchmarks.md: saved results as tables, each with the command that makes it again, and the machine.

usage: scripts/make-benchmarks NAME… [--llama-bench FILE] [--output docs/benchmarks.md]

NAME: results of `ingle bench --save NAME`. FILE: what `llama-bench -o json` printed on the same machine and files; its
rows stand beside ours. Nothing is measured here, and results that are incomplete are refused.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

from ingle.cli.bench import columns, saved
from ingle.cli.bench.result import Result
from ingle.cli.errors import CliError

_FLAGS = {
    "depth": "-d",
    "repetitions": "-r",
    "generate": "-n",
    "prompt": "-p",
    "threads": "-t",
    "batch_size": "-b",
    "cache_type_k": "-ctk",
    "cache_type_v": "-ctv",
    "flash_attn": "-fa",
    "gpu_layers": "-ngl",
    "ctx_size": "-c",
    "timeout_s": "--timeout",
}
_LEFT_OUT = {"mode", "model", "save", "plot", "max_num_seqs", "slo"}  # not flags, or of no weight for the figures


def command(result: Result) -> str:
    """The command line that measures the same again. Models go by the names of their files."""
    words = ["ingle", "bench"]
    names = [Path(str(model.get("file", model.get("name")))).name for model in result.models]
    words += names[:1] if "quants" not in result.settings else []
    for key, value in result.settings.items():
        if key in _LEFT_OUT or key.startswith("_"):
            continue
        flag = _FLAGS.get(key, f"--{key.replace('_', '-')}")
        if value is True:
            words.append(flag)
        elif key == "quants":
            words += [flag, ",".join(names)]
        else:
            words += [flag, ",".join(map(text, value)) if isinstance(value, list) else text(value)]
    if limits := result.settings.get("slo"):
        words += ["--slo", ",".join(f"{name.removesuffix('_s')}={limit:g}s" for name, limit in limits.items())]
    return shlex.join(words)


def text(value: Any) -> str:
    if value is None:
        return "auto"
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)


def section(name: str, result: Result, theirs: list[dict[str, Any]]) -> list[str]:
    """A heading, the command, the table, and what to doubt."""
    lines = [f"## {name}", "", f"`{command(result)}`", "", columns.write_md(result.rows), ""]
    if result.rows and result.rows[0]["kind"] == "engine" and theirs:
        lines += beside(result.rows, theirs)
    files = [
        f"{model.get('name')}: sha256 `{str(model['sha256'])[:16]}…`" for model in result.models if "sha256" in model
    ]
    lines += [f"{result.date[:10]}. " + "; ".join(files), ""]
    lines += [f"- {warning}" for warning in result.warnings]
    return lines + [""] * bool(result.warnings)


def beside(rows: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> list[str]:
    """llama-bench's figures next to ours, where file name and test are the same."""
    known = {key(row): row for row in theirs}
    lines = ["| test | ingle bench t/s | llama-bench t/s | ratio |", "|---|---:|---:|---:|"]
    for row in rows:
        if (other := known.get(key(row))) is not None:
            ratio = row["avg_ts"] / other["avg_ts"]
            lines.append(f"| {row['test']} | {row['avg_ts']:.2f} | {other['avg_ts']:.2f} | {ratio:.3f} |")
    return [*lines, ""] if len(lines) > 2 else []


def key(row: dict[str, Any]) -> tuple[Any, ...]:
    names = ("n_prompt", "n_gen", "n_depth", "n_threads", "type_k", "type_v")
    return (Path(row["model_filename"]).name, *(row[name] for name in names))


def machine(result: Result) -> list[str]:
    about = result.machine
    versions = ", ".join(f"{name} {number}" for name, number in (about.get("versions") or {}).items())
    speeds = ", ".join(f"{speed / 1e9:.1f} GB/s with {n} threads" for n, speed in result.read_bandwidth.items())
    lines = [
        f"- {about.get('cpu')}, {about.get('num_cpus')} CPUs, {about.get('memory_bytes', 0) / 1e9:.0f} GB of memory",
        f"- {about.get('system')}, {versions}, llama.cpp {about.get('llama_cpp_commit')}",
    ]
    return [*lines, f"- memory reads {speeds}"] if speeds else lines


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="+", metavar="NAME", help="saved results, in the order of the page")
    parser.add_argument("--llama-bench", type=Path, metavar="FILE", help="JSON of llama-bench on the same files")
    parser.add_argument("--output", type=Path, default=Path("docs/benchmarks.md"))
    options = parser.parse_args()
    try:
        results = [(name, saved.load(name)) for name in options.names]
        theirs = json.loads(options.llama_bench.read_text()) if options.llama_bench else []
    except (CliError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for name, result in results:
        if not result.is_complete or not result.rows:
            print(f"error: {name} is incomplete ({result.stopped_by}): measure it again", file=sys.stderr)
            return 1
    names = shlex.join(options.names)
    lines = ["# Benchmarks", "", f"Made by `scripts/make-benchmarks {names}` from saved results.", ""]
    lines += [*machine(results[0][1]), ""]
    for name, result in results:
        lines += section(name, result, theirs)
    temporary = options.output.with_name(f".{options.output.name}.{os.getpid()}.tmp")
    temporary.write_text("\n".join(lines).rstrip("\n") + "\n")
    temporary.replace(options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
