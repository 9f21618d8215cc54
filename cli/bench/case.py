# One line of the engine's table: which test, on which file, in which context. Values only.
"""``Setup`` is what a context is made with, ``Case`` a test in one. `expand` makes all combinations asked for."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ingle.runtime.config import EngineConfig


@dataclass(frozen=True, slots=True)
class Setup:
    """A context of the file number `model`. Cases of equal setups share one."""

    model: int
    num_threads: int
    n_batch: int
    type_k: str
    type_v: str
    flash_attn: bool | None

    def config(self, gpu_layers: int | Literal["auto", "all"]) -> EngineConfig:
        """Raises InvalidRequest for what makes no sense."""
        return EngineConfig(
            max_num_seqs=1,
            max_cached_chains=0,
            n_batch=self.n_batch,
            num_threads=self.num_threads,
            gpu_layers=gpu_layers,
            flash_attn=self.flash_attn,
            type_k=self.type_k,
            type_v=self.type_v,
        )


@dataclass(frozen=True, slots=True)
class Case:
    """Reading `num_prompt` tokens or generating `num_generated` (the other is 0), behind `depth` tokens of context."""

    setup: Setup
    num_prompt: int
    num_generated: int
    depth: int

    @property
    def name(self) -> str:
        """As llama-bench has it: ``pp512``, ``tg128 @ d2048``."""
        what = f"pp{self.num_prompt}" if self.num_prompt else f"tg{self.num_generated}"
        return f"{what} @ d{self.depth}" if self.depth else what

    @property
    def num_tokens(self) -> int:
        return self.num_prompt or self.num_generated

    @property
    def num_cells(self) -> int:
        return self.depth + self.num_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """What was asked for, each a list."""

    prompts: Sequence[int]
    generations: Sequence[int]
    depths: Sequence[int]
    threads: Sequence[int]
    batches: Sequence[int]
    types_k: Sequence[str]
    types_v: Sequence[str]
    flash_attns: Sequence[bool | None]


def expand(sweep: Sweep, num_models: int) -> list[Case]:
    """All combinations: by file, then context, then depth, prompts before generations. Zero tokens are no test."""
    cases = []
    for values in itertools.product(
        range(num_models), sweep.threads, sweep.batches, sweep.types_k, sweep.types_v, sweep.flash_attns
    ):
        setup = Setup(*values)
        for depth in sweep.depths:
            cases += [Case(setup, num, 0, depth) for num in sweep.prompts if num]
            cases += [Case(setup, 0, num, depth) for num in sweep.generations if num]
    return list(dict.fromkeys(cases))


def shortened(case: Case, num_tokens: int) -> Case:
    """The same with at most so many tokens generated, to warm up with."""
    return replace(case, num_generated=min(case.num_generated, num_tokens))
