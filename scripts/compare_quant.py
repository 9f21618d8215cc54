"""Our quantizer against llama.cpp's own, at the same bytes, with an importance matrix from the same calibration text.

usage: scripts/compare-quant --reference FILE... --text FILE [--types q4_0,q4_k_m,q3_k_m,budget] [--tokens 16k]

Each reference writes its own calibration text, which is kept and not timed. Then every type is made twice: as `ingle
quantize` does, in a process of its own whose time and peak memory are measured, and by `llama_model_quantize` with the
importance matrix that was measured on the way. Both files are compared with the reference on --text, which nothing was
calibrated on; the interval of the ratio is a bootstrap over chunks, the same chunks for both. `budget` is a file of
Q4_K_M's bits a weight whose types are chosen by --target-bpw, against llama.cpp's Q4_K_M. Every file is held to as many
bytes, to a limit of memory, and to a KL that is not higher than plain's beyond the interval; the models that floors
were set for, told by the name in their metadata, to these too. Exit status 1 when anything is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

BUDGET = "budget"


@dataclass(frozen=True)
class Floors:
    """What one reference is held to. `gains`: type → how much lower our mean KL is to be, as a share of plain's;
    `limit_s`: for Q4_K_M with 16k tokens on two cores."""

    gains: Mapping[str, float]
    limit_s: float


FLOORS = {  # what `general.name` begins with, in any case → what was asked of this model
    "smollm2 135m": Floors({"Q4_0": 0.30, "Q4_K_M": 0.20, "Q3_K_M": 0.20, BUDGET: 0.25}, 120.0),
    "qwen2.5 coder 0.5b": Floors({"Q4_0": 0.10, "Q3_K_M": 0.10, BUDGET: 0.25}, 600.0),
}
TIMED_TOKENS = 16 * 1024
MEMORY_ABOVE_SOURCE_BYTES = 1_500_000_000
SAME_BYTES = 0.001
NUM_RESAMPLES = 5000


def floors_of(model_name: str) -> Floors | None:
    """None for a model that nothing was asked of."""
    return next((floors for name, floors in FLOORS.items() if model_name.lower().startswith(name)), None)


# -- one file, in a process of its own ---------------------------------------------------------------------------------


class Clock:
    """How long each stage took, and how much memory at most: a stage ends where the next begins."""

    def __init__(self) -> None:
        self.stages: dict[str, float] = {}
        self.peaks: dict[str, int] = {}  # bytes
        self._label, self._since_s = "opening", time.monotonic()

    def __call__(self, label: str) -> Callable[[int, int], None]:
        now_s = time.monotonic()
        self.stages[self._label] = self.stages.get(self._label, 0.0) + now_s - self._since_s
        self.peaks[self._label] = max(self.peaks.get(self._label, 0), self._peak())
        self._label, self._since_s = label, now_s
        return lambda done, total: None

    def _peak(self) -> int:
        """Since it was last asked, where the system can say that; else since the start."""
        try:
            lines = Path("/proc/self/status").read_text().splitlines()
            Path("/proc/self/clear_refs").write_text("5")
            return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024
        except OSError:
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    # models.progress.Progress
    def start(self, total_bytes: int | None, label: str, done_bytes: int = 0) -> None:
        self("rounding and writing")

    def update(self, done_bytes: int) -> None:
        """Nobody watches."""

    def finish(self) -> None:
        self("the rest")

    def note(self, message: str) -> None:
        """Nobody reads."""


def make(reference: Path, type_name: str, num_tokens: int, out: Path) -> None:
    """Write `out` and its importance matrix; print what it took, as JSON."""
    from ingle.quant.calibrate import self_written
    from ingle.quant.imatrix_file import write_imatrix
    from ingle.quant.recipe import choose_types, find_mix
    from ingle.quant.source import Source
    from ingle.quant.target import header_size, parse_bits, recipe_within
    from ingle.quant.workshop import Methods, Workshop
    from ingle.runtime.config import EngineConfig

    with Source(reference) as source:
        calibration = self_written(reference, source.sha256(), num_tokens=num_tokens)
    began_s, clock, config = time.monotonic(), Clock(), EngineConfig()
    with Source(reference) as source:
        workshop = Workshop(
            source,
            source.sha256(),
            calibration,
            Methods(),
            config=config,
            stages=clock,
            writing=clock,
            metadata={},
        )
        name = "Q4_K_M" if type_name == BUDGET else type_name
        recipe = choose_types(source.info, find_mix(name), has_imatrix=True)
        if type_name == BUDGET:
            target = parse_bits(recipe.bits_per_weight)
            found = workshop.sensitivities()
            recipe = recipe_within(source.info, target, found, (), num_header_bytes=header_size(source, (), {}))
        made = workshop.make(recipe, out)
        took_s = time.monotonic() - began_s
        clock("end")
        write_imatrix(out.with_suffix(".imatrix"), workshop.imatrix_data())
    told = {"seconds": took_s, "stages": clock.stages, "peaks": clock.peaks, "methods": made.methods}
    print(json.dumps(told | {"held_out_kl": dict(made.held_out_kl), "types": dict(made.recipe.counts)}))


# -- the comparison ----------------------------------------------------------------------------------------------------


def compare(reference: Path, type_name: str, text: str, num_chunks: int, num_tokens: int, folder: Path) -> bool:
    """Make, judge and tell one case; whether all its floors hold."""
    import numpy as np

    from ingle.models.gguf_info import read_model_info
    from ingle.quant.evaluate import evaluate_together, text_chunks
    from ingle.quant.imatrix_file import read_imatrix
    from ingle.quant.recipe import find_mix
    from ingle.runtime.llama import quantize_model

    info = read_model_info(reference)
    ours, plain = folder / "ours.gguf", folder / "plain.gguf"
    command = [sys.executable, __file__, "--one", type_name, "--tokens", str(num_tokens), "--out", str(ours)]
    command += ["--reference", str(reference), "--text", os.devnull]
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "XDG_CACHE_HOME": str(folder / "cache")}
    shutil.rmtree(folder / "cache" / "ingle" / "quantize", ignore_errors=True)  # statistics of the type before
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, env=environment)
    if done.returncode:
        print(f"{reference.name} {type_name}: FAILED with status {done.returncode}")
        return False
    told = json.loads(done.stdout.splitlines()[-1])
    mix = find_mix("Q4_K_M" if type_name == BUDGET else type_name)
    entries = read_imatrix(ours.with_suffix(".imatrix")).entries
    quantize_model(
        reference,
        plain,
        mix.file_type,
        imatrix={name: entry.means().ravel().tolist() for name, entry in entries.items()},
    )
    chunks = text_chunks(reference, text, max_chunks=num_chunks)
    scored = evaluate_together([ours, plain], chunks, against=reference)
    means = [np.array(one.chunk_kl) for one in scored]
    draws = np.random.default_rng(0).integers(0, len(chunks), (NUM_RESAMPLES, len(chunks)))
    changes = means[0][draws].mean(axis=1) / means[1][draws].mean(axis=1) - 1
    low, high = np.quantile(changes, (0.025, 0.975))
    change = float(means[0].mean() / means[1].mean() - 1)
    tops = [one.divergence.same_top for one in scored if one.divergence is not None]
    sizes = [path.stat().st_size for path in (ours, plain)]
    print(f"\n{reference.name} {type_name}: {len(chunks)} chunks, calibrated on {num_tokens} tokens")
    print(f"  mean KL     ours {means[0].mean():.5f}   plain {means[1].mean():.5f}")
    print(f"  same top    ours {tops[0]:.1%}   plain {tops[1]:.1%}")
    print(f"  change      {change:+.1%}   (95 %: {low:+.1%} to {high:+.1%})")
    print(f"  methods     {', '.join(told['methods'])}; held-out KL {told['held_out_kl']}; types {told['types']}")
    print(
        f"  seconds     {told['seconds']:.0f}: "
        + ", ".join(f"{k} {v:.0f}" for k, v in told["stages"].items() if v >= 1)
    )
    stage, peak_bytes = max(told["peaks"].items(), key=lambda item: item[1])
    checks = [
        ("not higher than plain beyond the interval", bool(low <= 0)),
        (f"bytes {sizes[0]} and {sizes[1]}", sizes[0] <= sizes[1] * (1 + SAME_BYTES)),
        (
            f"peak memory {peak_bytes / 1e9:.2f} GB ({stage})",
            peak_bytes <= info.size_bytes + MEMORY_ABOVE_SOURCE_BYTES,
        ),
    ]
    floors = floors_of(str(info.metadata.get("general.name", "")))
    if floors is None:
        print("  no floor was set for this model")
    else:
        if type_name in floors.gains:
            checks.append((f"lower by {floors.gains[type_name]:.0%}", change <= -floors.gains[type_name]))
        if (type_name, num_tokens) == ("Q4_K_M", TIMED_TOKENS):
            checks.append((f"within {floors.limit_s:.0f} s", told["seconds"] <= floors.limit_s))
    for label, holds in checks:
        print(f"  {'OK    ' if holds else 'MISSED'} {label}")
    return all(holds for _, holds in checks)


def count(text: str) -> int:
    """`16k` or `16384`."""
    return int(text[:-1]) * 1024 if text.lower().endswith("k") else int(text)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--reference", nargs="+", type=Path, required=True, help="F16 or F32 GGUF files")
    parser.add_argument("--text", type=Path, required=True, help="text to judge on")
    parser.add_argument("--types", default="q4_0,q4_k_m,q3_k_m,budget", help="types of llama.cpp, and budget")
    parser.add_argument("--tokens", type=count, default=count("16k"), help="calibration tokens, as 16k")
    parser.add_argument("--chunks", type=int, default=40, help="chunks of 512 tokens, spread over the text")
    parser.add_argument("--folder", type=Path, help="where files are made, and calibration text is kept")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        make(options.reference[0], options.one, options.tokens, options.out)
        return 0
    text = options.text.read_text(encoding="utf-8")
    types = [name if name == BUDGET else name.upper() for name in options.types.split(",")]
    all_hold = True
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        for reference in options.reference:
            for type_name in types:
                all_hold &= compare(reference, type_name, text, options.chunks, options.tokens, folder)
    return 0 if all_hold else 1


if __name__ == "__main__":
    raise SystemExit(main())
