"""Whether `ingle bench` measures what llama-bench measures: the same tests, the same file, run in turns.

usage: scripts/compare-bench [--pairs N] [--model PATH] [--llama-bench PATH] [--build FOLDER] [--json FILE]

llama-bench is the one given, else the one on the PATH; with --build it is compiled from the sources that come with
llama-cpp-python, of the version that is installed, so that both run the same kernels. Of each test both programs make
one run after the other, each standing still while the other computes: a pair lies within seconds, so that what changes
about the machine meets both. The median of the pairs' ratios is what counts, and has to lie within 3 % of 1. Nothing
else should run meanwhile: the interval says how far that was so. Exit status 1 where it does not, 2 where there is no
llama-bench.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ingle.cli.bench.case import Case, Setup
from ingle.cli.bench.engine import EngineBench, Series
from ingle.cli.bench.flags import comma_list, count
from ingle.cli.bench.opened import OpenedModel
from ingle.cli.bench.result import Result
from ingle.cli.bench.statistics import paired_ratio_interval
from ingle.models.gguf_info import read_model_info
from ingle.models.resolve import ModelRef, resolve
from ingle.models.wheel import atomic_file
from ingle.runtime.config import EngineConfig, default_num_threads
from ingle.runtime.llama import SPIN_COUNT, commit
from ingle.runtime.llama_context import Interrupt
from ingle.runtime.loading import load_model

TOLERANCE = 0.03
NUM_PROMPT, NUM_GENERATED = 512, 128


class Missing(Exception):
    """There is no llama-bench that can be run, and why."""


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


class LlamaBench:
    """llama-bench at one test, a run at a time; in between it stands still (SIGSTOP).

    It tells on stderr that a run begins, having looked at its clock just before. Stopped at that line, it stands still
    within that run, and the time it stood is taken off what it says the run took.
    """

    def __init__(self, command: Sequence[str]) -> None:
        """Start it, up to its first run: the model is loaded, warm, and the depth computed. Raises Missing."""
        environment = {"GOMP_SPINCOUNT": SPIN_COUNT, **os.environ}  # Ingle's own setting
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            [*command, "--progress", "-o", "json"], stdout=pipe, stderr=pipe, text=True, env=environment
        )
        self._stood_ns: list[int] = []
        self._last_line = ""
        if not self._stop_at_next_run():
            self._process.wait()
            raise Missing(f"llama-bench failed: {self._last_line.strip() or 'it made no run'}")

    def __enter__(self) -> LlamaBench:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def run(self) -> None:
        """Let it make a run. Back when the next begins, or it has printed its results."""
        self._stood_ns.append(time.perf_counter_ns() - self._stopped_at)
        self._process.send_signal(signal.SIGCONT)
        self._stop_at_next_run()

    def result(self) -> tuple[list[int], str]:
        """Nanoseconds of each run, and the commit it was built from. Raises Missing where it has failed."""
        output = self._process.communicate()[0]
        if self._process.returncode:
            raise Missing(f"llama-bench failed: {self._last_line.strip()}")
        (row,) = json.loads(output)
        took = [whole - stood for whole, stood in zip(row["samples_ns"], self._stood_ns, strict=True)]
        if min(took) <= 0:
            raise Missing("llama-bench's runs end before they can be stopped: take a larger model")
        return took, str(row["build_commit"])

    def _stop_at_next_run(self) -> bool:
        """False where none comes."""
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._last_line = line
            if re.search(r": (prompt|generation) run \d", line):
                self._process.send_signal(signal.SIGSTOP)
                os.waitpid(self._process.pid, os.WUNTRACED)
                self._stopped_at = time.perf_counter_ns()
                return True
        return False


class InTurns(EngineBench):
    """`ingle bench` at one test, with the other program's runs between its own. Who goes first takes turns, too."""

    def __init__(self, other: LlamaBench, model: OpenedModel, case: Case, num_runs: int) -> None:
        super().__init__(
            [model],
            [case],
            gpu_layers=0,
            num_repetitions=num_runs,
            seed=0,
            interrupt=Interrupt(),
            counters=None,
            live=lambda text: None,
        )
        self._other = other

    def run_once(self, series: Series, number: int) -> None:
        if number % 2 == 0:
            super().run_once(series, number)
            self._other.run()
        else:
            self._other.run()
            super().run_once(series, number)


def compare(program: Path, model: OpenedModel, case: Case, num_pairs: int) -> tuple[list[int], list[int], str]:
    """Nanoseconds of Ingle's runs and of llama-bench's, and the latter's commit."""
    command = [str(program), "-m", str(model.ref.path), "-t", str(case.setup.num_threads), "-r", str(num_pairs)]
    command += ["-p", str(case.num_prompt), "-n", str(case.num_generated), "-d", str(case.depth)]
    command += ["-b", str(case.setup.n_batch), "-ub", str(case.setup.n_batch), "-ngl", "0"]
    with LlamaBench(command) as other:
        own = Result(settings={})
        InTurns(other, model, case, num_pairs).run(own)
        return own.rows[0]["samples_ns"], *other.result()


def compare_all(
    program: Path, path: Path | None, depths: Sequence[int], num_pairs: int
) -> tuple[list[dict[str, Any]], str]:
    """What --json writes of each test, each printed as it comes, and llama-bench's commit. Raises Missing."""
    ref = resolve(None) if path is None else ModelRef(path, path.name, "file")
    setup = Setup(0, default_num_threads(), EngineConfig().n_batch, "f16", "f16", None)
    weights = load_model(ref.path, setup.config(gpu_layers=0))
    model = OpenedModel(ref, read_model_info(ref.path), weights, 0)
    print(f"{ref.path.name}, {setup.num_threads} threads, {num_pairs} pairs of runs")
    print(f"{'test':18} {'ingle t/s':>10} {'llama-bench':>12}  {'ratio':>6}  95 %", flush=True)
    rows: list[dict[str, Any]] = []
    for depth in depths:
        for case in (Case(setup, NUM_PROMPT, 0, depth), Case(setup, 0, NUM_GENERATED, depth)):
            own, other, build_commit = compare(program, model, case, num_pairs)
            own_ts, other_ts = ([case.num_tokens * 1e9 / run for run in runs] for runs in (own, other))
            interval = paired_ratio_interval(own_ts, other_ts)
            row = {
                "test": case.name,
                "ingle_ts": statistics.median(own_ts),
                "llama_bench_ts": statistics.median(other_ts),
                "ratio": statistics.median(a / b for a, b in zip(own_ts, other_ts, strict=True)),
                "ci95": [interval.low, interval.high],
            }
            print(
                f"{case.name:18} {row['ingle_ts']:10.2f} {row['llama_bench_ts']:12.2f}"
                f"  {row['ratio']:6.3f}  {interval.low:.3f} – {interval.high:.3f}  {'ok' if fits(row) else 'MISSED'}",
                flush=True,
            )
            rows.append(row)
    weights.close()
    print(f"llama.cpp {commit()} in Ingle, {build_commit} in llama-bench")
    return rows, build_commit


def fits(row: dict[str, Any]) -> bool:
    return bool(abs(row["ratio"] - 1) <= TOLERANCE)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, default=20, help="runs of each test by both programs")
    parser.add_argument("--depth", type=comma_list(count), default=(0, 2048), help="tokens of context before, a list")
    parser.add_argument("--model", type=Path, help="a GGUF (default: smollm2)")
    parser.add_argument("--llama-bench", type=Path, help="the program to compare with")
    parser.add_argument("--build", type=Path, metavar="FOLDER", help="compile it there")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, for make-benchmarks")
    options = parser.parse_args()
    if options.pairs < 1:
        parser.error("--pairs needs at least one")
    try:
        program = find(options.llama_bench, options.build)
        rows, build_commit = compare_all(program, options.model, options.depth, options.pairs)
    except Missing as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if options.json is not None:
        told = {"pairs": options.pairs, "depth": options.depth, "llama_bench_commit": build_commit, "tests": rows}
        if options.model is not None:
            told["model"] = options.model.name
        try:
            with atomic_file(options.json) as file:
                file.write(json.dumps(told).encode() + b"\n")
        except OSError as error:
            print(f"error: {options.json}: {error.strerror}", file=sys.stderr)
            return 2
    return 0 if all(map(fits, rows)) else 1


if __name__ == "__main__":
    sys.exit(main())
