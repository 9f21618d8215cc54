"""Drafts: guesses at the tokens that follow, made by something much cheaper than the model. Words and protocol.

A drafter first *offers* (at no cost worth naming): where a guess would come from and how long it can be. Whoever weighs
cost against hope (`cost`, `speculation`) then says how much of it is wanted, and the drafter writes so many tokens
behind the known ones of the sequence. Drafts are never more than guesses; `verify` decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from itertools import takewhile
from typing import Protocol

from ingle.runtime.request import RequestId
from ingle.runtime.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Offer:
    """What a drafter could give a sequence. `kind` names guesses that are right about equally often.

    `tokens`: the guess itself, where it is there already; `num_tokens`: how many can be had. `token_s`: seconds that
    one more token takes to draft; `setup_s`: seconds before the first.
    """

    kind: str
    num_tokens: int
    tokens: tuple[int, ...] = ()
    token_s: float = 0.0
    setup_s: float = 0.0


GoesOn = Callable[[Sequence, float], bool]
"""Asked once of a sequence whose first draft a model has made, perhaps with some more: whether it is worth the others,
and being computed. The float: by how much that token's score leads the next best (`Sampler.sample_and_lead`)."""


class Drafter(Protocol):
    """Guesses for many sequences. Keeps what it needs to know of each until `forget`."""

    def offer(self, sequence: Sequence, num_tokens: int) -> Offer | None:
        """At most `num_tokens` tokens behind those known; ``None``: nothing comes to mind."""
        ...

    def draft(self, wanted: SequenceOf[tuple[Sequence, Offer, int]], goes_on: GoesOn) -> None:
        """Add so many drafts, or fewer, of its own offers to each sequence."""
        ...

    def forget(self, id: RequestId) -> None:
        """That request has ended, or waits again."""
        ...


def count_right(drafts: Iterable[int], tokens: Iterable[int]) -> int:
    """How many of `drafts`, from the first on, are what `tokens` say."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(drafts, tokens, strict=False)))
