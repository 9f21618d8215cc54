# Rows as benchmarks write them, with made-up figures.
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ingle.cli.bench.result import Row


def engine_row(*, test: str = "tg128", speeds: Sequence[float] = (100.0, 101.0, 99.0), **changes: Any) -> Row:
    reads = test.startswith("pp")
    values: Row = {
        "kind": "engine", "test": test, "model": "m", "build_commit": "abc", "cpu_info": "cpu", "gpu_info": "",
        "backends": "CPU", "model_filename": "/m.gguf", "model_type": "llama 1B Q4_1", "model_size": 96_000_000,
        "model_n_params": 134_515_008, "n_batch": 512, "n_ubatch": 512, "n_threads": 2, "type_k": "f16",
        "type_v": "f16", "n_gpu_layers": 0, "flash_attn": -1, "n_prompt": 512 if reads else 0,
        "n_gen": 0 if reads else 128, "n_depth": 0, "test_time": "2026-01-01T00:00:00Z", "avg_ns": 10**9,
        "stddev_ns": 10, "avg_ts": sum(speeds) / len(speeds), "stddev_ts": 1.0, "samples_ns": [10**9] * len(speeds),
        "samples_ts": list(speeds), "median_ts": sorted(speeds)[len(speeds) // 2],
        "ci95_ts": [min(speeds), max(speeds)],
        "outliers": [], "num_warm_runs": 3, "is_steady": True, "bytes_per_token": None if reads else 10**8,
        "roofline_share": None if reads else 0.8, "joules_per_token": None,
    }  # fmt: skip
    return values | changes


def serving_row(
    *, concurrency: int = 1, rate: float | None = None, ttft: Sequence[float] = (80.0, 90.0, 100.0), **changes: Any
) -> Row:
    values: Row = {
        "kind": "serving", "model": "m", "target": "engine", "concurrency": None if rate else concurrency,
        "request_rate": rate, "num_requests": 32, "num_rounds": 3, "completed": 32, "failed": 0, "failures": {},
        "duration_s": 10.0, "total_input_tokens": 3200, "total_output_tokens": 320, "request_throughput": 3.2,
        "output_throughput": 32.0 * concurrency**0.7, "total_token_throughput": 352.0, "request_goodput": None,
        "num_cached_tokens": 0, "prefix_cache_hit_rate": 0.0, "num_preemptions": 0, "peak_kv_cache_usage": 0.5,
        "mean_kv_cache_usage": 0.25, "output_throughput_samples": [31.0, 32.0, 33.0],
        "kv_timeline": [
            {"time_s": step / 5, "num_used": 10 * concurrency + step % 7, "num_cached": 3, "num_total": 100,
             "num_running": concurrency, "num_waiting": 0} for step in range(40)
        ],
        "samples": {"ttft": list(ttft), "tpot": [10.0, 11.0, 12.0], "itl": [9.0, 10.0, 11.0, 12.0, 40.0],
                    "e2el": [900.0, 1000.0, 1100.0], "queue": [0.1, 0.2, 0.3]},
    }  # fmt: skip
    for name, samples in values["samples"].items():
        middle = sorted(samples)[len(samples) // 2]
        for statistic in ("mean", "median", "p50"):
            values[f"{statistic}_{name}_ms"] = middle
        values |= {f"std_{name}_ms": 1.0, f"p95_{name}_ms": max(samples), f"p99_{name}_ms": max(samples)}
    return values | changes


def resume_row() -> Row:
    return {
        "kind": "resume", "test": "resume2048", "model": "m", "model_filename": "/m.gguf", "n_prompt": 2048,
        "n_threads": 2, "type_k": "f16", "type_v": "f16", "num_restored_tokens": 2048, "median_cold_ttft_ms": 4000.0,
        "median_restored_ttft_ms": 200.0, "median_speedup": 20.0, "ci95_speedup": [19.0, 21.0], "outliers": [],
        "samples": {"cold_ttft": [3900.0, 4000.0, 4100.0], "restored_ttft": [190.0, 200.0, 210.0]},
    }  # fmt: skip
