# How fast a file is on this machine, as `ingle bench` measures it, only shorter.
"""``measure``: prompt and generated tokens a second."""

from __future__ import annotations

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
    info = read_model_info(path)
    num_prompt = min(PROMPT_TOKENS, info.n_ctx_train)
    setup = Setup(0, config.threads(), config.n_batch, config.type_k, config.type_v, config.flash_attn)
    weights = load_model(path, config)
    try:
        loop = DecodeLoop(weights, info, setup.config(config.gpu_layers), num_prompt, Interrupt(), 0, None)
        try:
            speeds = []
            for case in (Case(setup, num_prompt, 0, 0), Case(setup, 0, min(GENERATED_TOKENS, num_prompt), 0)):
                loop.measure(Case(setup, 0, _WARM_TOKENS, 0))
                times_ns = [loop.measure(case).nanoseconds for _ in range(NUM_REPETITIONS)]
                speeds.append(case.num_tokens * 1e9 / median(times_ns))
        finally:
            loop.close()
    finally:
        weights.close()
    return Speed(*speeds)
