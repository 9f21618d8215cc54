# Which of several files to take, from figures. `int4` is such a choice: not a format but a wish, and what fulfils it
# depends on the model's shapes and on this machine.
# This file may not know how anything is measured: figures in, a name and a reason out.
"""``choose_among``: measured candidates → the one to take, and why in a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

INT4_CANDIDATES: Final = ("Q4_0", "IQ4_NL", "Q4_K_S", "Q4_K_M")
"""The mixes of four to five bits a weight worth measuring."""

PROMPT_TOKENS: Final = 512  # of an exchange as it is timed here
ANSWER_TOKENS: Final = 128
PATIENCE: Final = 1.25  # how much longer than the fastest a better one may take


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One candidate as measured for this model on this machine. `mean_kl` is against the source, on held-out text."""

    name: str
    prompt_tokens_per_s: float
    generated_tokens_per_s: float
    mean_kl: float

    @property
    def exchange_s(self) -> float:
        """Seconds to read a prompt of `PROMPT_TOKENS` and to write an answer of `ANSWER_TOKENS`."""
        return PROMPT_TOKENS / self.prompt_tokens_per_s + ANSWER_TOKENS / self.generated_tokens_per_s


def choose_among(figures: Sequence[Figures]) -> tuple[str, str]:
    """The most faithful of the candidates that are not much slower than the fastest; its name, and the reason."""
    fastest = min(figures, key=lambda one: one.exchange_s)
    in_time = [one for one in figures if one.exchange_s <= PATIENCE * fastest.exchange_s]
    best = min(in_time, key=lambda one: (one.mean_kl, one.exchange_s))
    most_faithful = min(figures, key=lambda one: one.mean_kl)
    if best is fastest and best is most_faithful:
        return best.name, f"{best.name} is the fastest here ({best.exchange_s:.1f} s an exchange) and the most faithful"
    if best is fastest:
        slower = most_faithful.exchange_s / best.exchange_s
        return (
            best.name,
            f"{best.name} is the fastest here; {most_faithful.name}, more faithful, takes {slower:.1f}× as long",
        )
    closer = fastest.mean_kl / best.mean_kl if best.mean_kl else float("inf")
    return best.name, f"{best.name} is {closer:.1f}× closer to the original than {fastest.name} and nearly as fast here"
