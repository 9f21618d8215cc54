# What the columns of a table are, by kind of row: header, how its cells are written. Pure: rows in, texts out.
# This file may not know terminals.
"""``columns`` chooses for a result's rows; of the engine's, `write_md` makes llama-bench's table, cell for cell."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ingle.cli.bench.result import Row


@dataclass(frozen=True, slots=True)
class Column:
    """`is_number`: to be aligned to the right."""

    name: str
    cell: Callable[[Row], str]
    is_number: bool = True


def columns(rows: Sequence[Row], *, like_llama_bench: bool = False) -> list[Column]:
    """For rows of one kind; none for no rows. `like_llama_bench`: the engine's have what llama-bench says, no more."""
    kind = rows[0]["kind"] if rows else None
    if kind == "engine":
        return _engine(rows, like_llama_bench=like_llama_bench)
    if kind == "serving":
        return _serving(rows)
    if kind == "drafts":
        return _drafts()
    return _resume() if kind == "resume" else []


def common(rows: Sequence[Row]) -> str:
    """What the engine's rows have in common and no column says: file, size, parameters, backend, threads."""
    if not rows or rows[0]["kind"] != "engine":
        return ""
    shown = {column.name for column in columns(rows)}
    row = rows[0]
    parts = {
        "model": str(row["model"]),
        "size": _binary(row["model_size"]),
        "params": f"{_decimal(row['model_n_params'])} parameters",
        "backend": str(row["backends"]),
        "threads": f"-t {row['n_threads']}",
    }
    return " · ".join(text for name, text in parts.items() if name not in shown)


def write_md(rows: Sequence[Row]) -> str:
    """A Markdown table."""
    chosen = columns(rows, like_llama_bench=True)
    if not chosen:
        return ""
    cells = [[column.cell(row) for column in chosen] for row in rows]
    widths = [max(len(column.name), *(len(row[i]) for row in cells)) for i, column in enumerate(chosen)]

    def line(texts: Sequence[str]) -> str:
        padded = [
            text.rjust(width) if column.is_number else text.ljust(width)
            for text, width, column in zip(texts, widths, chosen, strict=True)
        ]
        return "| " + " | ".join(padded) + " |"

    rule = [
        "-" * (width - 1) + ":" if column.is_number else "-" * width
        for width, column in zip(widths, chosen, strict=True)
    ]
    return "\n".join([line([column.name for column in chosen]), "| " + " | ".join(rule) + " |", *map(line, cells)])


def write_csv(rows: Sequence[Row]) -> str:
    """Every single value of every row; lists (samples) are in the JSON."""
    names = [name for name in dict.fromkeys(name for row in rows for name in row) if _is_single(rows, name)]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(["" if row.get(name) is None else row[name] for name in names] for row in rows)
    return text.getvalue().rstrip("\n")


def write_json(rows: Sequence[Row]) -> str:
    """An array of objects, as llama-bench's ``-o json``."""
    return json.dumps(list(rows), ensure_ascii=False, indent=2)


def write_jsonl(rows: Sequence[Row]) -> str:
    return "\n".join(json.dumps(row, ensure_ascii=False) for row in rows)


def _is_single(rows: Sequence[Row], name: str) -> bool:
    return not any(isinstance(row.get(name), list | dict) for row in rows)


# -- the engine --------------------------------------------------------------------------------------------------------


def _engine(rows: Sequence[Row], *, like_llama_bench: bool) -> list[Column]:
    chosen = [
        Column("model", lambda row: str(row["model_type"] if like_llama_bench else row["model"]), False),
        Column("size", lambda row: _binary(row["model_size"])),
        Column("params", lambda row: _decimal(row["model_n_params"])),
        Column("backend", lambda row: str(row["backends"]), False),
    ]
    if any(row["backends"] != "CPU" for row in rows):
        chosen.append(Column("ngl", lambda row: str(row["n_gpu_layers"])))
    chosen.append(Column("threads", lambda row: str(row["n_threads"])))
    if _varies(rows, "n_batch"):
        chosen.append(Column("n_batch", lambda row: str(row["n_batch"])))
    quantized = [name for name in ("type_k", "type_v") if any(row[name] != "f16" for row in rows)]
    chosen += [Column(name, _text(name)) for name in quantized]
    if _varies(rows, "flash_attn"):
        chosen.append(Column("fa", lambda row: str(row["flash_attn"])))
    chosen.append(Column("test", _text("test")))
    if like_llama_bench:
        return [*chosen, Column("t/s", lambda row: f"{row['avg_ts']:.2f} ± {row['stddev_ts']:.2f}")]
    chosen = [column for column in chosen if column.name == "test" or len(set(map(column.cell, rows))) > 1]
    chosen.append(Column("t/s", lambda row: f"{row['median_ts']:.2f}"))
    chosen.append(Column("95 %", lambda row: "{:.2f} – {:.2f}".format(*row["ci95_ts"])))
    if any(row["roofline_share"] is not None for row in rows):
        chosen.append(Column("of roofline", lambda row: _percent(row["roofline_share"])))
    if any(row["joules_per_token"] is not None for row in rows):
        chosen.append(Column("J/token", lambda row: _plain(row["joules_per_token"], 3)))
    if any(row["outliers"] for row in rows):
        chosen.append(Column("outliers", lambda row: str(len(row["outliers"]) or "")))
    return chosen


# -- serving, resuming, drafts -----------------------------------------------------------------------------------------


def _serving(rows: Sequence[Row]) -> list[Column]:
    if any(row["request_rate"] is not None for row in rows):
        chosen = [Column("rate/s", lambda row: _plain(row["request_rate"], 2))]
    else:
        chosen = [Column("at once", lambda row: str(row["concurrency"]))]
    chosen += [
        Column("done", lambda row: str(row["completed"])),
        Column("failed", lambda row: str(row["failed"])),
        Column("req/s", lambda row: _plain(row["request_throughput"], 2)),
        Column("out tok/s", lambda row: _plain(row["output_throughput"], 1)),
    ]
    if any(row["request_goodput"] is not None for row in rows):
        chosen.append(Column("goodput/s", lambda row: _plain(row["request_goodput"], 2)))
    chosen += [
        Column("TTFT ms 50/95/99", _percentiles("ttft", 0)),
        Column("TPOT ms 50/95/99", _percentiles("tpot", 1)),
        Column("ITL ms 50/95/99", _percentiles("itl", 1)),
        Column("E2E ms 50/95", lambda row: f"{_plain(row['p50_e2el_ms'], 0)}/{_plain(row['p95_e2el_ms'], 0)}"),
    ]
    if any(row["p50_queue_ms"] is not None for row in rows):
        chosen.append(Column("queued ms 50", lambda row: _plain(row["p50_queue_ms"], 1)))
    if any(row["peak_kv_cache_usage"] is not None for row in rows):
        chosen.append(Column("KV peak", lambda row: _percent(row["peak_kv_cache_usage"])))
    if any(row["prefix_cache_hit_rate"] is not None for row in rows):
        chosen.append(Column("prefix hits", lambda row: _percent(row["prefix_cache_hit_rate"])))
    if any(row["num_preemptions"] for row in rows):
        chosen.append(Column("preempted", lambda row: str(row["num_preemptions"])))
    return chosen


def _resume() -> list[Column]:
    return [
        Column("model", _text("model"), False),
        Column("threads", lambda row: str(row["n_threads"])),
        Column("test", _text("test")),
        Column("cold TTFT ms", lambda row: _plain(row["median_cold_ttft_ms"], 1)),
        Column("restored TTFT ms", lambda row: _plain(row["median_restored_ttft_ms"], 1)),
        Column("restored tokens", lambda row: str(row["num_restored_tokens"])),
        Column("times quicker", lambda row: _plain(row["median_speedup"], 2)),
        Column("95 %", lambda row: "{:.2f} – {:.2f}".format(*row["ci95_speedup"])),
    ]


def _drafts() -> list[Column]:
    return [
        Column("test", _text("test"), False),
        Column("plain t/s", lambda row: _plain(row["median_plain_ts"], 2)),
        Column("drafts t/s", lambda row: _plain(row["median_draft_ts"], 2)),
        Column("times as fast", lambda row: _plain(row["median_speedup"], 2)),
        Column("95 %", lambda row: "{:.2f} – {:.2f}".format(*row["ci95_speedup"])),
        Column("drafted", lambda row: str(row["num_draft_tokens"])),
        Column("right", lambda row: _percent(row["acceptance"])),
    ]


def _percentiles(name: str, digits: int) -> Callable[[Row], str]:
    return lambda row: "/".join(_plain(row[f"{p}_{name}_ms"], digits) for p in ("p50", "p95", "p99"))


def _text(name: str) -> Callable[[Row], str]:
    return lambda row: str(row[name])


def _varies(rows: Sequence[Row], name: str) -> bool:
    return len({row[name] for row in rows}) > 1


def _plain(value: Any, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _percent(value: Any) -> str:
    return "-" if value is None else f"{value:.0%}"


def _binary(num_bytes: int) -> str:
    """As llama-bench: MiB, and GiB from one on."""
    return f"{num_bytes / 2**20:.2f} MiB" if num_bytes < 2**30 else f"{num_bytes / 2**30:.2f} GiB"


def _decimal(count: int) -> str:
    return f"{count / 1e6:.2f} M" if count < 1e9 else f"{count / 1e9:.2f} B"
