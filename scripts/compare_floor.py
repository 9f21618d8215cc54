"""How much Ingle costs on top of llama.cpp: its engine against bare llama_decode loops, its start against a minimal
script.

usage: scripts/compare-floor [--pairs N] [--model PATH]

Same file, threads, context settings and machine; each pair runs both sides one after the other, and the median of the
pairs' ratios is what counts. Nothing else should run meanwhile. Exit status 1 when a floor is missed.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from ingle.models.resolve import resolve
from ingle.runtime.config import EngineConfig
from ingle.runtime.engine import Engine
from ingle.runtime.llama import lib
from ingle.runtime.request import Request, SamplingParams

NUM_GENERATED = 128
PROMPT = "Why is the sky blue?"
RENDERED = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    f"<|im_start|>user\n{PROMPT}<|im_end|>\n<|im_start|>assistant\n"
)
GREEDY = SamplingParams(temperature=0, ignore_eos=True)

BARE_SCRIPT = """
import sys, llama_cpp, numpy
silent = llama_cpp.llama_log_callback(lambda level, text, data: None)
llama_cpp.llama_log_set(silent, None)
model = llama_cpp.llama_model_load_from_file(sys.argv[1].encode(), llama_cpp.llama_model_default_params())
params = llama_cpp.llama_context_default_params()
params.n_ctx, params.n_batch, params.n_ubatch = 1024, 512, 512
params.n_threads = params.n_threads_batch = int(sys.argv[2])
context = llama_cpp.llama_init_from_model(model, params)
vocab = llama_cpp.llama_model_get_vocab(model)
text = sys.argv[3].encode()
tokens = (llama_cpp.llama_token * 512)()
count = llama_cpp.llama_tokenize(vocab, text, len(text), tokens, 512, False, True)
llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(tokens, count))
logits = llama_cpp.llama_get_logits_ith(context, -1)
best = int(numpy.ctypeslib.as_array(logits, (llama_cpp.llama_vocab_n_tokens(vocab),)).argmax())
piece = llama_cpp.ctypes.create_string_buffer(64)
size = llama_cpp.llama_token_to_piece(vocab, best, piece, 64, 0, False)
sys.stdout.buffer.write(piece.raw[:size])
sys.stdout.flush()
"""


class Bare:
    """A llama.cpp context and nothing else: one batch of numpy arrays, llama_decode, arg-max."""

    def __init__(self, engine: Engine, config: EngineConfig) -> None:
        params = lib.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = 4096, config.n_batch, config.n_batch
        params.n_seq_max = params.n_outputs_max = config.num_slots
        params.n_threads = params.n_threads_batch = config.threads()
        params.kv_unified = params.swa_full = params.no_perf = True
        self.context = lib.llama_init_from_model(engine._model.handle, params)
        self.num_vocab = engine.info.n_vocab
        capacity = config.n_batch
        self.arrays = [np.zeros(capacity, dtype) for dtype in (np.int32, np.int32, np.int32, np.int8)]
        self.counts = np.ones(capacity, np.int32)
        tokens, positions, slots, wanted = self.arrays
        self.slot_pointers = slots.ctypes.data + 4 * np.arange(capacity, dtype=np.uintp)
        as_pointer = lambda array, to: ctypes.cast(array.ctypes.data, ctypes.POINTER(to))  # noqa: E731
        self.batch = lib.llama_batch(
            0,
            as_pointer(tokens, ctypes.c_int32),
            None,
            as_pointer(positions, ctypes.c_int32),
            as_pointer(self.counts, ctypes.c_int32),
            as_pointer(self.slot_pointers, ctypes.POINTER(ctypes.c_int32)),
            as_pointer(wanted, ctypes.c_int8),
        )

    def decode(self, num_rows: int, num_wanted: int) -> np.ndarray:
        self.batch.n_tokens = num_rows
        assert lib.llama_decode(self.context, self.batch) == 0
        pointer = lib.llama_get_logits(self.context)
        return np.ctypeslib.as_array(pointer, (num_wanted, self.num_vocab))

    def clear(self) -> None:
        lib.llama_memory_clear(lib.llama_get_memory(self.context), False)

    def prefill(self, slot: int, prompt: list[int]) -> int:
        tokens, positions, slots, wanted = self.arrays
        tokens[: len(prompt)], positions[: len(prompt)], slots[: len(prompt)] = prompt, range(len(prompt)), slot
        wanted[: len(prompt)] = 0
        wanted[len(prompt) - 1] = 1
        return int(self.decode(len(prompt), 1)[0].argmax())

    def timed_prefill(self, prompt: list[int]) -> float:
        self.clear()
        started = time.perf_counter()
        self.prefill(0, prompt)
        return time.perf_counter() - started

    def generate(self, prompts: list[list[int]]) -> float:
        """Seconds a step of generating NUM_GENERATED tokens for all `prompts` together."""
        self.clear()
        tokens, positions, slots, wanted = self.arrays
        last = [self.prefill(slot, prompt) for slot, prompt in enumerate(prompts)]
        n = len(prompts)
        started = time.perf_counter()
        for step in range(NUM_GENERATED - 1):
            tokens[:n], slots[:n], wanted[:n] = last, range(n), 1
            positions[:n] = [len(prompt) + step for prompt in prompts]
            last = self.decode(n, n).argmax(axis=1)
        return (time.perf_counter() - started) / (NUM_GENERATED - 1)


def engine_generate(engine: Engine, prompts: list[list[int]]) -> float:
    """Seconds a step, from the moment every request has its first token to the end."""
    engine.clear_cache()
    for prompt in prompts:
        engine.add(Request(prompt, GREEDY, max_output_tokens=NUM_GENERATED))
    waiting = {output.request_id for output in engine.step()}
    while len(waiting) < len(prompts):
        waiting |= {output.request_id for output in engine.step()}
    started, steps = time.perf_counter(), 0
    while engine.has_work:
        engine.step()
        steps += 1
    return (time.perf_counter() - started) / steps


def engine_prefill(engine: Engine, prompt: list[int]) -> float:
    engine.clear_cache()
    rid = engine.add(Request(prompt, GREEDY, max_output_tokens=1))
    started = time.perf_counter()
    for _ in engine.stream(rid):
        pass
    return time.perf_counter() - started


def first_byte(command: list[str]) -> tuple[float, float]:
    """(seconds from process start to its first byte of output, peak memory in MB)."""
    # As in anybody's shell: compiled Python is cached.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    started = time.perf_counter()
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
    )
    assert process.stdout is not None
    assert process.stdout.read(1), f"no output from {command[:3]}"
    seconds = time.perf_counter() - started
    process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0, f"{command[:3]} ended with {status}"
    process.returncode = status
    return seconds, usage.ru_maxrss / 1024


def report(name: str, pairs: list[tuple[float, float]], floor: str, ok: bool, figure: str) -> bool:
    """Print one line; `pairs` are (ours, bare)."""
    ours, bare = (statistics.median(side) for side in zip(*pairs, strict=True))
    print(f"{name:34} {ours:9.2f} {bare:9.2f}  {figure:>9}  {floor:14} {'ok' if ok else 'MISSED'}", flush=True)
    return ok


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, default=9, help="pairs of runs behind each median")
    parser.add_argument("--model", type=Path, help="a GGUF (default: smollm2)")
    options = parser.parse_args()
    path = options.model or resolve(None).path
    config = EngineConfig(max_num_seqs=8, initial_kv_tokens=4096, n_ctx=4096)
    ok = True
    print(f"{path.name}, {config.threads()} threads, medians of {options.pairs} pairs\n")
    print(f"{'':34} {'ingle':>9} {'bare':>9}      {'ratio':>9}  floor")
    with Engine.open(path, config) as engine:
        bare = Bare(engine, config)
        song = " ".join(f"{i} bottles of beer on the wall," for i in range(200))
        text = engine.tokenize(song, add_special=True, parse_special=False)
        one, eight, long = [text[:32]], [text[i * 40 : i * 40 + 32] for i in range(8)], text[:512]
        cases: list[tuple[str, Callable[[], float], Callable[[], float], float]] = [
            ("decode, 1 request (ms/token)", partial(engine_generate, engine, one), partial(bare.generate, one), 0.97),
            (
                "decode, 8 requests (ms/step)",
                partial(engine_generate, engine, eight),
                partial(bare.generate, eight),
                0.95,
            ),
            (
                "prefill, 512 tokens (ms)",
                partial(engine_prefill, engine, long),
                partial(bare.timed_prefill, long),
                0.97,
            ),
        ]
        for name, ours, theirs, floor in cases:
            ours(), theirs()
            pairs = []
            for number in range(options.pairs):  # who goes first takes turns: the machine's speed drifts
                first, second = (ours, theirs) if number % 2 else (theirs, ours)
                a, b = first() * 1e3, second() * 1e3
                pairs.append((a, b) if number % 2 else (b, a))
            ratio = statistics.median(b / a for a, b in pairs)
            ok &= report(name, pairs, f"≥ {floor}", ratio >= floor, f"{ratio:.3f}")
        lib.llama_free(bare.context)
    ingle = [
        str(Path(sys.executable).with_name("ingle")),
        "run",
        "--no-kv-store",
        "-m",
        str(path),
        "-n",
        "1",
        "--temp",
        "0",
        PROMPT,
    ]
    script = [sys.executable, "-c", BARE_SCRIPT, str(path), str(config.threads()), RENDERED]
    runs = [(first_byte(ingle), first_byte(script)) for _ in range(options.pairs + 1)][1:]
    times = [(a[0] * 1e3, b[0] * 1e3) for a, b in runs]
    extra = statistics.median(a - b for a, b in times)
    ok &= report("process start to first token (ms)", times, "≤ +120 ms", extra <= 120, f"{extra:+.0f} ms")
    memory = [(a[1], b[1]) for a, b in runs]
    extra = statistics.median(a - b for a, b in memory)
    ok &= report("peak memory (MB)", memory, "≤ +40 MB", extra <= 40, f"{extra:+.1f} MB")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
