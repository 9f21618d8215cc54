# The file to draft with: judged by how often its likeliest token is the target's, and by what a token costs.
# This file may not know how drafting works.
"""``ladder``: recipes, the smallest first; the next one only where it could gain more.
``shorten``: a file with fewer tokens. ``choose_draft``: of all that were made the one the target gains most by.

A draft is paid for with every token and earns with every accepted one. So its output head may be coarse too, and what
counts is not how near it is to its own source but that its first guess is still the target's, on the target's own text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from ingle.models.gguf_info import ModelInfo, read_model_info
from ingle.models.progress import Progress
from ingle.quant.activations import Tokens
from ingle.quant.likeliest import likeliest
from ingle.quant.recipe import Override, Recipe, choose_types, find_mix, parse_override
from ingle.quant.short_file import write_short
from ingle.quant.short_rows import Vocabulary, choose_tokens, reads_as
from ingle.quant.source import Source
from ingle.runtime.config import EngineConfig

_HEAD: Final = r"^(output|token_embd)\.weight$"
LADDER: Final = (
    ("Q8_0", None),
    ("Q4_K_M", None),
    ("Q4_0", f"{_HEAD}|ffn_down=q4_0"),  # the mix has some in Q4_1, of which kernels compute a step's rows one by one
    ("Q3_K_S", f"{_HEAD}=q4_0"),
    ("Q2_K", f"{_HEAD}=q4_0"),
)
"""Mixes to try, and what to override of each."""
MIN_SAVED: Final = 0.06
"""A mix is tried only where its file is smaller than the next one's by that share: of fewer bits a byte takes longer.
(Where rows are not whole blocks of a K-quant, 256 values, mixes of few bits save hardly any.)"""
MAX_DRAFTED: Final = 16
"""Tokens drafted at once, at most."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """Share of tokens whose likeliest successor is the target's."""

    name: str
    num_bytes: int
    same_top: float


def ladder(info: ModelInfo, *, has_imatrix: bool, overrides: Sequence[Override]) -> list[Recipe]:
    """From the smallest file on; of those about as large the largest. The user's overrides go before the ladder's."""
    recipes = [
        choose_types(
            info,
            find_mix(mix),
            has_imatrix=has_imatrix,
            overrides=(*overrides, *([parse_override(own)] if own else [])),
        )
        for mix, own in LADDER
    ]
    rungs: list[Recipe] = []
    for recipe in sorted(recipes, key=lambda recipe: recipe.num_bytes, reverse=True):
        if not rungs or recipe.num_bytes <= (1 - MIN_SAVED) * rungs[-1].num_bytes:
            rungs.append(recipe)
    return rungs[::-1]


def agreement(
    name: str,
    path: Path,
    expected: npt.NDArray[np.intp],
    chunks: Sequence[Tokens],
    *,
    config: EngineConfig,
    progress: Callable[[int, int], None],
) -> Agreement:
    """Of the file at `path`, whole or short, with `expected`: what ``likeliest`` found of the target on `chunks`.

    Raises ModelError, EngineError.
    """
    found = likeliest(path, chunks, config=config, progress=progress)
    num_bytes = read_model_info(path, to_draft=True).size_bytes
    return Agreement(name, num_bytes, float((found == expected).mean()))


def shorten(path: Path, out: Path, used: Iterable[int], num_tokens: int, *, progress: Progress | None = None) -> None:
    """Write the file at `path` to `out` with a vocabulary of `num_tokens`, the `used` ones among them (of more, where
    it has to have more). Raises BadRecipe, ModelError."""
    with Source(path) as source:
        vocabulary = Vocabulary.of(source.info)
        token_ids = choose_tokens(vocabulary, used, num_tokens)
        write_short(source, out, token_ids, reads_as(vocabulary, token_ids), progress=progress)


def expected_gain(same_top: float, cost: float) -> float:
    """How many times as fast the target would be with a draft that is right so often and takes `cost` of the target's
    time a token: that of the best number of drafted tokens (Leviathan et al. 2023, theorem 3.8). What it costs the
    target to check several tokens is left out: it is the same for every draft."""
    expected, best = 1.0, 0.0
    for num_drafted in range(1, MAX_DRAFTED + 1):
        expected += same_top**num_drafted
        best = max(best, expected / (num_drafted * cost + 1))
    return best


def gain_by_size(same_top: float, num_bytes: int, target_bytes: int) -> float:
    """The expected gain if the times of a token were as the sizes: what can be said of a file before it is there."""
    return expected_gain(same_top, num_bytes / target_bytes)


def choose_draft(files: Sequence[Agreement], costs: Mapping[str, float]) -> Agreement:
    """The one with the largest expected gain, of equals the smallest. `costs`: a token's time in the target's."""
    return max(files, key=lambda one: (expected_gain(one.same_top, costs[one.name]), -one.num_bytes))
