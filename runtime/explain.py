"""Why a prompt was not reused any further: where it parts from what is stored, and what stands on both sides."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ingle.runtime.prefix import num_common_tokens


@dataclass(frozen=True, slots=True)
class Miss:
    """`position`: the first token that was not reused. `ours` and `stored`: the tokens from there on, on both sides."""

    position: int
    cause: str
    ours: tuple[int, ...] = ()
    stored: tuple[int, ...] = ()


def find_parting(tokens: tuple[int, ...], start: int, candidates: Iterable[tuple[int, ...]]) -> Miss:
    """Compare `tokens` from `start`, a block border, with the stored blocks that begin there, and say where they part.

    The candidate that agrees longest is the one meant. One that agrees to the end of either is no difference.
    """
    ours = tokens[start:]
    best: Miss | None = None
    for stored in candidates:
        common = num_common_tokens(ours, stored)
        if common < min(len(ours), len(stored)) and (best is None or start + common > best.position):
            best = Miss(start + common, "the text differs", ours[common:], stored[common:])
    return best or Miss(start, "nothing further is stored", ours)
