# What several files are worth, side by side: how near to the source, how fast here, how large. And which one to take.
# This file may not know how speed is measured: it is given a function for that.
"""``judge``: files → one row each; ``recommend``: rows → the one to take, and why in a sentence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ingle.models.gguf_info import read_model_info
from ingle.models.plan import make_plan
from ingle.quant.activations import Tokens
from ingle.quant.evaluate import Evaluation, evaluate_together
from ingle.quant.four_bits import Figures, choose_among
from ingle.runtime.config import EngineConfig
from ingle.runtime.planning import setting_of

MEMORY_TOKENS: Final = 4096
"""The context that the predicted memory is for, where the model has that much."""
MAX_CHUNKS: Final = 40
"""Chunks of a text that files are judged on, spread evenly over it."""


@dataclass(frozen=True, slots=True)
class Speed:
    """Tokens a second on this machine."""

    prompt: float
    generated: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One file. `evaluation`: against the source; None without a text, and for the source itself."""

    name: str
    path: Path
    num_bytes: int
    bits_per_weight: float
    evaluation: Evaluation | None
    speed: Speed
    memory_bytes: int


Measure = Callable[[Path], Speed]


def judge(
    source: Path,
    files: Sequence[tuple[str, Path]],
    chunks: Sequence[Tokens] | None,
    measure: Measure,
    *,
    config: EngineConfig,
    progress: Callable[[int, int], None],
) -> list[Row]:
    """A row for the source, then one for each of `files` (name, path). Raises what loading and scoring raise."""
    evaluations: list[Evaluation | None] = [None] * len(files)
    if chunks is not None:
        paths = [path for _, path in files]
        evaluations = [*evaluate_together(paths, chunks, against=source, config=config, progress=progress)]
    rows = []
    for (name, path), evaluation in zip([("source", source), *files], [None, *evaluations], strict=True):
        info = read_model_info(path)
        plan = make_plan(info, setting_of(info, config), min(info.n_ctx_train, MEMORY_TOKENS))
        num_values = sum(tensor.num_values for tensor in info.tensors)
        rows.append(
            Row(
                name=name,
                path=path,
                num_bytes=info.size_bytes,
                bits_per_weight=8 * sum(tensor.num_bytes for tensor in info.tensors) / num_values,
                evaluation=evaluation,
                speed=measure(path),
                memory_bytes=plan.peak_host_bytes + plan.peak_gpu_bytes,
            )
        )
    return rows


def figures_of(rows: Sequence[Row]) -> list[Figures]:
    """Of all rows that have been compared with the source."""
    return [
        Figures(
            name=row.name,
            prompt_tokens_per_s=row.speed.prompt,
            generated_tokens_per_s=row.speed.generated,
            mean_kl=row.evaluation.divergence.mean_kl,
        )
        for row in rows
        if row.evaluation is not None and row.evaluation.divergence is not None
    ]


def recommend(rows: Sequence[Row]) -> tuple[str, str] | None:
    """The name of the file to take, and the reason; None where there is no choice."""
    figures = figures_of(rows)
    return choose_among(figures) if len(figures) > 1 else None
