"""Whether `ingle bench` measures what llama-bench measures: the same tests, the same file, run in pairs.

usage: scripts/compare-bench [--pairs N] [--model PATH] [--llama-bench PATH] [--build FOLDER]

llama-bench is the one given, else the one on the PATH; with --build it is compiled from the sources that come with
llama-cpp-python, of the version that is installed, so that both run the same kernels. Each pair runs both programs one
after the other, in turns; the median of the pairs' ratios is what counts, and has to lie within 3 % of 1. Nothing else
should run meanwhile: its interval, and the ratio of the fastest runs beside it, say how far that was so. Exit status 1
where it does not, 2 where there is no llama-bench.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
from importlib.metadata import version
from pathlib import Path

from ingle.cli.bench.statistics import paired_ratio_interval
from ingle.models.resolve import resolve
from ingle.runtime.config import default_num_threads
from ingle.runtime.llama import SPIN_COUNT, commit

TOLERANCE = 0.03
NUM_PROMPT, NUM_GENERATED = 512, 128


class Missing(Exception):
    """There is no llama-bench, and why."""


def find(given: Path | None, build_in: Path | None) -> Path:
    """llama-bench. Raises Missing."""
    if given is not None:
        if not os.access(given, os.X_OK):
            raise Missing(f"{given} is no program")
        return given
    if build_in is not None:
        return build(build_in)
    if (found := shutil.which("llama-bench")) is not None:
        return Path(found)
    raise Missing("llama-bench is not on the PATH; --llama-bench PATH names one, --build FOLDER compiles one there")


def build(folder: Path) -> Path:
    """Compile llama-bench under `folder` from the sources that pip has of llama-cpp-python. Raises Missing."""
    program = folder / "build" / "bin" / "llama-bench"
    if program.exists():
        return program
    if shutil.which("cmake") is None:
        raise Missing("CMake is needed to compile it, and is not installed")
    folder.mkdir(parents=True, exist_ok=True)
    wanted = f"llama-cpp-python=={version('llama-cpp-python')}"
    with tempfile.TemporaryDirectory() as downloads:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "llama-cpp-python"]
        run([*pip, "--dest", downloads, wanted], "pip could not fetch the sources")
        archives = list(Path(downloads).glob("*.tar.gz"))
        if not archives:
            raise Missing("pip fetched no archive of sources")
        with tarfile.open(archives[0]) as archive:
            archive.extractall(folder, filter="data")
    sources = next(folder.glob("*/vendor/llama.cpp"), None)
    if sources is None or not (sources / "tools" / "llama-bench").is_dir():
        raise Missing("the sources that pip has do not hold llama-bench")
    options = ["-DCMAKE_BUILD_TYPE=Release", "-DLLAMA_CURL=OFF", "-DLLAMA_OPENSSL=OFF", "-DLLAMA_BUILD_TESTS=OFF"]
    run(["cmake", "-S", str(sources), "-B", str(folder / "build"), *options], "CMake refused the sources")
    jobs = str(default_num_threads())
    run(["cmake", "--build", str(folder / "build"), "--target", "llama-bench", "-j", jobs], "it did not compile")
    if not program.exists():
        raise Missing(f"it was compiled, and is not at {program}")
    return program


def run(command: list[str], complaint: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        raise Missing(f"{complaint}: {' '.join(last)}")


def measure(command: list[str]) -> tuple[dict[str, list[float]], str]:
    """{test: tokens a second of each run} of a program that prints llama-bench's JSON, and its build."""
    environment = {"GOMP_SPINCOUNT": SPIN_COUNT, **os.environ}  # Ingle's own setting, for both
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment, check=True)
    rows = json.loads(done.stdout)
    return {name(row): row["samples_ts"] for row in rows}, str(rows[0]["build_commit"])


def name(row: dict[str, int]) -> str:
    test = f"pp{row['n_prompt']}" if row["n_prompt"] else f"tg{row['n_gen']}"
    return f"{test} @ d{row['n_depth']}" if row["n_depth"] else test


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, default=5, help="pairs of runs behind each median")
    parser.add_argument("--repetitions", type=int, default=3, help="runs of each test within a program's run")
    parser.add_argument("--depth", default="0,2048", help="tokens of context before, a list")
    parser.add_argument("--model", type=Path, help="a GGUF (default: smollm2)")
    parser.add_argument("--llama-bench", type=Path, help="the program to compare with")
    parser.add_argument("--build", type=Path, metavar="FOLDER", help="compile it there")
    options = parser.parse_args()
    try:
        program = find(options.llama_bench, options.build)
    except Missing as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    path = options.model or resolve(None).path
    threads = default_num_threads()
    common = ["-p", str(NUM_PROMPT), "-n", str(NUM_GENERATED), "-d", options.depth, "-r", str(options.repetitions)]
    common += ["-t", str(threads), "-b", "512", "-o", "json"]
    ours = [sys.executable, "-m", "ingle.cli.start", "bench", str(path), *common]
    theirs = [str(program), "-m", str(path), *common, "-ub", "512", "-ngl", "0"]
    pairs: list[tuple[dict[str, list[float]], dict[str, list[float]]]] = []
    for number in range(options.pairs):  # who goes first takes turns: the machine's speed drifts
        order = (ours, theirs) if number % 2 == 0 else (theirs, ours)
        found = [measure(command) for command in order]
        (own, _), (other, build_commit) = found if number % 2 == 0 else found[::-1]
        pairs.append((own, other))
    print(f"{path.name}, {threads} threads, {options.pairs} pairs of {options.repetitions} runs")
    print(f"llama.cpp {commit()} in Ingle, {build_commit} in llama-bench\n")
    print(f"{'test':18} {'ingle t/s':>10} {'llama-bench':>12}  {'ratio':>6}  {'95 %':13}  {'':6}  fastest runs")
    ok = True
    for test in pairs[0][0]:
        own_best, other_best = (max(max(side[test]) for side in sides) for sides in zip(*pairs, strict=True))
        own_ts, other_ts = ([statistics.median(side[test]) for side in sides] for sides in zip(*pairs, strict=True))
        ratio = statistics.median(a / b for a, b in zip(own_ts, other_ts, strict=True))
        interval = paired_ratio_interval(own_ts, other_ts)
        fits = abs(ratio - 1) <= TOLERANCE
        ok &= fits
        medians = f"{statistics.median(own_ts):10.2f} {statistics.median(other_ts):12.2f}"
        print(
            f"{test:18} {medians}  {ratio:6.3f}  {interval.low:.3f} – {interval.high:.3f}"
            f"  {'ok' if fits else 'MISSED':6}  {own_best / other_best:.3f}"
        )
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
