# How fast a file is on this machine, as `ingle bench` measures it, only shorter.
"""``measure``: prompt and generated tokens a second. ``seconds_a_token``: of several files, beside each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Final

from ingle.cli.bench.case import Case, Setup
from ingle.cli.bench.decode import DecodeLoop
from ingle.models.gguf_info import read_model_info
from ingle.quant.verdict import Speed
from ingle.runtime.config import EngineConfig
from ingle.runtime.llama_context import Interrupt
from ingle.runtime.loading import load_model

PROMPT_TOKENS: Final = 512
GENERATED_TOKENS: Final = 32
NUM_REPETITIONS: Final = 3
_WARM_TOKENS: Final = 4


def measure(path: Path, config: EngineConfig) -> Speed:
    """The middle of three runs, after a short one. Raises EngineError, OutOfMemory."""
    num_prompt = min(PROMPT_TOKENS, read_model_info(path).n_ctx_train)
    with _opened(path, config, num_prompt) as (loop, setup):
        speeds = []
        for case in (Case(setup, num_prompt, 0, 0), Case(setup, 0, min(GENERATED_TOKENS, num_prompt), 0)):
            loop.measure(Case(setup, 0, _WARM_TOKENS, 0))
            times_ns = [loop.measure(case).nanoseconds for _ in range(NUM_REPETITIONS)]
            speeds.append(case.num_tokens * 1e9 / median(times_ns))
    return Speed(*speeds)


def seconds_a_token(
    paths: Mapping[str, Path], config: EngineConfig, *, progress: Callable[[int, int], None] = lambda done, total: None
) -> dict[str, float]:
    """Of generating, by name; files that can only draft too. The middle of three rounds in which all take turns, one
    open at a time. Raises EngineError, OutOfMemory."""
    found: dict[str, list[float]] = {name: [] for name in paths}
    total = NUM_REPETITIONS * len(paths)
    for done, (name, path) in enumerate([*paths.items()] * NUM_REPETITIONS):
        progress(done, total)
        with _opened(path, config, GENERATED_TOKENS) as (loop, setup):
            loop.measure(Case(setup, 0, _WARM_TOKENS, 0))
            case = Case(setup, 0, GENERATED_TOKENS, 0)
            found[name].append(loop.measure(case).nanoseconds / 1e9 / case.num_tokens)
    progress(total, total)
    return {name: median(times) for name, times in found.items()}


@contextmanager
def _opened(path: Path, config: EngineConfig, num_cells: int) -> Iterator[tuple[DecodeLoop, Setup]]:
    info = read_model_info(path, to_draft=True)
    setup = Setup(0, config.threads(), config.n_batch, config.type_k, config.type_v, config.flash_attn)
    with ExitStack() as stack:
        weights = load_model(path, config)
        stack.callback(weights.close)
        loop = DecodeLoop(weights, info, setup.config(config.gpu_layers), num_cells, Interrupt(), 0, None)
        stack.callback(loop.close)
        yield loop, setup
