"""docs/benchmarks.md: saved results as tables, each with the command that makes it again, and the machine.

usage: scripts/make-benchmarks NAME… [--compared FILE] [--output docs/benchmarks.md]

NAME: results of `ingle bench --save NAME`. FILE: what `scripts/compare-bench --json FILE` found beside llama-bench.
Nothing is measured here, and results that are incomplete are refused.
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


def section(name: str, result: Result) -> list[str]:
    """A heading, the command, the table, and what to doubt."""
    lines = [f"## {name}", "", f"`{command(result)}`", "", columns.write_md(result.rows), ""]
    files = [
        f"{model.get('name')}: sha256 `{str(model['sha256'])[:16]}…`" for model in result.models if "sha256" in model
    ]
    lines += [f"{result.date[:10]}. " + "; ".join(files), ""]
    lines += [f"- {warning}" for warning in result.warnings]
    return lines + [""] * bool(result.warnings)


def beside(compared: dict[str, Any]) -> list[str]:
    """What compare-bench found."""
    words = ["scripts/compare-bench", "--pairs", str(compared["pairs"])]
    words += ["--depth", ",".join(map(str, compared["depth"]))]
    words += ["--model", compared["model"]] if "model" in compared else []
    lines = ["## beside llama-bench", "", f"`{shlex.join(words)}`", ""]
    lines += [
        "| test | ingle bench t/s | llama-bench t/s | median ratio | 95 % |",
        "|---|---:|---:|---:|---|",
    ]
    for row in compared["tests"]:
        speeds = f"{row['ingle_ts']:.2f} | {row['llama_bench_ts']:.2f} | {row['ratio']:.3f}"
        lines.append(f"| {row['test']} | {speeds} | {row['ci95'][0]:.3f} – {row['ci95'][1]:.3f} |")
    return [*lines, "", f"llama-bench of llama.cpp {compared['llama_bench_commit']}.", ""]


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
    parser.add_argument("--compared", type=Path, metavar="FILE", help="what compare-bench --json wrote")
    parser.add_argument("--output", type=Path, default=Path("docs/benchmarks.md"))
    options = parser.parse_args()
    try:
        results = [(name, saved.load(name)) for name in options.names]
        compared = beside(json.loads(options.compared.read_text())) if options.compared else []
    except (CliError, OSError, ValueError, KeyError) as error:
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
        lines += section(name, result)
    lines += compared
    temporary = options.output.with_name(f".{options.output.name}.{os.getpid()}.tmp")
    temporary.write_text("\n".join(lines).rstrip("\n") + "\n")
    temporary.replace(options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
