"""What the page store saves and costs: a long document read by one process and asked about by the next.

usage: scripts/compare-resume [--pairs N] [--model PATH]

Each pair is two processes on an empty store: the first reads a document of 4,000 tokens and answers, the second asks
something else about it. Then, in one process each: how much of the reading time saving took, whether a busy writer
slows steps, what memory a large limit costs, how long growing pauses. Medians. Exit status 1 when a floor is missed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from ingle.models.resolve import resolve
from ingle.runtime.blocks import ChainHash
from ingle.runtime.config import EngineConfig
from ingle.runtime.disk_tier import DiskTier
from ingle.runtime.engine import Engine
from ingle.runtime.host_tier import HostTier
from ingle.runtime.page import Page
from ingle.runtime.page_store import PageStore
from ingle.runtime.request import Request, SamplingParams

DOCUMENT_TOKENS = 4000
WRITER_TOKENS, WRITER_PAGES = 32, 14  # about the pages that so many tokens of a large model fill, all at once
GREEDY = SamplingParams(temperature=0, ignore_eos=True)


def document(engine: Engine) -> list[int]:
    """Text of no repetition, the same every time."""
    words = np.random.default_rng(0).permutation(20_000).tolist()
    text = " ".join(f"Item {word} weighs {word * 7 % 1000} grams and costs {word * 3 % 100} crowns." for word in words)
    return engine.tokenize(text[:40_000], add_special=True, parse_special=False)[:DOCUMENT_TOKENS]


def read(model: Path, directory: Path, question: str) -> dict[str, Any]:
    """Ask `question` about the document; the times of the request, in seconds."""
    with Engine.open(model, EngineConfig(n_ctx=8192, page_dir=directory)) as engine:
        tokens = document(engine) + engine.tokenize(question, add_special=False, parse_special=False)
        outputs = list(engine.stream(engine.add(Request(tokens, GREEDY, max_output_tokens=4))))
        metrics = outputs[-1].metrics
        saving_s = engine._pager.saving_s if engine._pager is not None else 0.0
        return {
            "ttft_s": metrics.ttft_s,
            "restore_s": metrics.restore_s,
            "disk_tokens": metrics.num_disk_tokens,
            "saving_share": saving_s / (metrics.prefill_s or 1.0),
        }


def generate(engine: Engine, prompt: list[int], num_tokens: int) -> float:
    """Seconds a token."""
    outputs = list(engine.stream(engine.add(Request(prompt, GREEDY, max_output_tokens=num_tokens))))
    return outputs[-1].metrics.tpot_s or 0.0


def writer(model: Path, directory: Path, pairs: str) -> dict[str, Any]:
    """Generating beside a writer that always has pages to write, and beside an idle one: who is first takes turns."""
    store = PageStore(HostTier(0), DiskTier(directory, b"w" * 16, 2**30, {}))
    payload = np.zeros(750_000, np.uint8)
    with Engine.open(model, EngineConfig(n_ctx=4096, page_dir=directory / "own")) as engine:
        prompt = document(engine)[:64]

        def token_s(number: int, num_pages: int) -> float:
            engine.clear_cache()
            for page in range(num_pages):
                store.put(Page(ChainHash(bytes(16)), ChainHash(f"{number:8}{page:8}".encode()), (1,), payload))
            seconds = generate(engine, prompt, WRITER_TOKENS)
            store.flush()
            return seconds

        ratios = []
        for number in range(int(pairs)):
            order = (0, WRITER_PAGES) if number % 2 == 0 else (WRITER_PAGES, 0)
            times = {num_pages: token_s(number, num_pages) for num_pages in order}
            ratios.append(times[WRITER_PAGES] / times[0])
    store.close()
    return {"ratio": statistics.median(ratios)}


def memory(model: Path, directory: Path, n_ctx: str) -> dict[str, Any]:
    """Resident memory after 500 tokens with a context limit of `n_ctx`, in MB."""
    with Engine.open(model, EngineConfig(n_ctx=int(n_ctx))) as engine:
        generate(engine, document(engine)[:450], 50)
        lines = Path("/proc/self/status").read_text().splitlines()
        return {"rss_mb": next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024}


def growth(model: Path, directory: Path, _: str) -> dict[str, Any]:
    """The pause when a full pool of 1,024 tokens doubles, and when that doubles again, in milliseconds."""
    with Engine.open(model, EngineConfig(n_ctx=8192)) as engine:
        pauses = []
        for length in (1000, 2000):
            generate(engine, document(engine)[:length], 2)
            started = time.perf_counter()
            engine._pool.grow(1)
            pauses.append((time.perf_counter() - started) * 1e3)
        return {"pauses_ms": pauses}


MODES = {function.__name__: function for function in (read, writer, memory, growth)}


def child(mode: str, model: Path, directory: Path, argument: str) -> dict[str, Any]:
    """Run one mode in a process of its own."""
    command = [sys.executable, __file__, "--child", mode, str(model), str(directory), argument]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def report(name: str, figure: str, floor: str, ok: bool) -> bool:
    print(f"{name:58} {figure:>12}  {floor:10} {'ok' if ok else 'MISSED'}", flush=True)
    return ok


def main() -> int:
    if sys.argv[1:2] == ["--child"]:
        mode, model, directory, argument = sys.argv[2:]
        print(json.dumps(MODES[mode](Path(model), Path(directory), argument)))
        return 0
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, default=3, help="pairs of processes behind each median")
    parser.add_argument("--model", type=Path, help="a GGUF (default: smollm2)")
    options = parser.parse_args()
    model = options.model or resolve(None).path
    is_default = options.model is None
    faster = 20 if is_default else 50  # what was asked of a small model, and of one that reads at a tenth of its speed
    print(f"{model.name}, a document of {DOCUMENT_TOKENS} tokens, medians of {options.pairs} pairs\n")
    directory = Path(tempfile.mkdtemp(prefix="ingle-resume-"))
    try:
        pairs = []
        for _ in range(options.pairs):
            shutil.rmtree(directory)
            first = child("read", model, directory, "\nWhat does item 7 weigh?")
            pairs.append((first, child("read", model, directory, "\nWhich item is the cheapest?")))
        ratio = statistics.median(a["ttft_s"] / b["ttft_s"] for a, b in pairs)
        cold, warm = (statistics.median(side[i]["ttft_s"] for side in pairs) for i in (0, 1))
        saving = statistics.median(a["saving_share"] for a, _ in pairs)
        tokens = min(b["disk_tokens"] for _, b in pairs)
        ok = report(
            f"time to first token, first process: {cold:.2f} s, second",
            f"{warm:.3f} s",
            "≤ 0.3 s" if is_default else "-",
            warm <= 0.3 or not is_default,
        )
        ok &= report("the second's, times faster", f"{ratio:.0f} x", f"≥ {faster} x", ratio >= faster)
        ok &= report("tokens from files", f"{tokens}", f"≥ {DOCUMENT_TOKENS - 32}", tokens >= DOCUMENT_TOKENS - 32)
        ok &= report("saving, share of the first's reading time", f"{saving:.2%}", "< 3 %", saving < 0.03)
        busy = child("writer", model, directory, str(32 * options.pairs))["ratio"]
        ok &= report("time a token, writer busy against idle", f"{busy:.3f}", "≤ 1.03", busy <= 1.03)
        large, small = (child("memory", model, directory, n_ctx)["rss_mb"] for n_ctx in ("32768", "1024"))
        share = large / small
        ok &= report(
            f"memory after 500 tokens, -c 32768 against {small:.0f} MB", f"{share:.3f}", "≤ 1.05", share <= 1.05
        )
        pauses = child("growth", model, directory, "")["pauses_ms"]
        text = " ".join(f"{pause:.0f}" for pause in pauses)
        ok &= report(
            "pause when 1,024 and 2,048 tokens double (ms)",
            text,
            "≤ 150" if is_default else "-",
            max(pauses) <= 150 or not is_default,
        )
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
