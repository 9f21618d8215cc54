# Names of files, and what `int4` is taken to mean.
from __future__ import annotations

from pathlib import Path

import pytest

from ingle.quant.four_bits import Figures, choose_among
from ingle.quant.naming import default_name


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("Model-1B-Instruct-F16.gguf", "Model-1B-Instruct-Q4_K_M.gguf"),
        ("Model-1B-Instruct.Q8_0.gguf", "Model-1B-Instruct-Q4_K_M.gguf"),
        ("model-1b-v1.0-q4_k_m.gguf", "model-1b-v1.0-Q4_K_M.gguf"),
        ("model-bf16-00001-of-00003.gguf", "model-Q4_K_M.gguf"),
        ("model-IQ4_XS.GGUF", "model-Q4_K_M.gguf"),
        ("qwen.gguf", "qwen-Q4_K_M.gguf"),
        ("no-suffix-1.5", "no-suffix-1.5-Q4_K_M.gguf"),
    ],
)
def test_names(source: str, name: str) -> None:
    assert default_name(Path("/models") / source, "Q4_K_M") == name


def figures(name: str, prompt: float, generated: float, kl: float) -> Figures:
    return Figures(name=name, prompt_tokens_per_s=prompt, generated_tokens_per_s=generated, mean_kl=kl)


def test_int4_is_faithful_among_the_fast() -> None:
    """512/583 + 128/115 = 1.99 s; 512/324 + 128/85 = 3.09 s: too slow. 512/500 + 128/110 = 2.19 s is not."""
    fast, slow = figures("Q4_0", 583, 115, 0.14), figures("Q4_K_M", 324, 85, 0.04)
    name, why = choose_among([slow, fast])
    assert (name, why) == ("Q4_0", "Q4_0 is the fastest here; Q4_K_M, more faithful, takes 1.5× as long")
    name, why = choose_among([slow, fast, figures("IQ4_NL", 500, 110, 0.07)])
    assert (name, why) == ("IQ4_NL", "IQ4_NL is 2.0× closer to the original than Q4_0 and nearly as fast here")
    assert choose_among([fast])[1] == "Q4_0 is the fastest here (2.0 s an exchange) and the most faithful"
