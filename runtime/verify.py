"""Verification of drafts: the target's own choices, one after another, for as long as the drafts agree with them.

Nothing is accepted by chance: at each position the request's own sampler draws from the target's logits, with the noise
of that position, exactly as if there were no drafts. A draft is right when it equals that choice, so the text is the
same with and without drafts, at every temperature and with every penalty, and a draft model that draws with the same
noise is right about as often as speculative sampling can be (Daliri, Musco, Suresh 2024, drafter-invariant
speculative decoding; compare Leviathan et al. 2023). Pure: knows logits and tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from ingle.runtime.step import Logits, Tokens


class Chooser(Protocol):
    """What verification asks of a `Sampler`."""

    def sample(self, logits: Logits, tokens: Tokens) -> int: ...


def verify(logits: Logits, tokens: Tokens, sampler: Chooser) -> Iterator[int]:
    """The tokens that follow, first to last: the drafts that are right, then one more (the correction of the first
    wrong draft, or the bonus behind the last).

    `logits` [1 + drafts, vocab]: the rows of the last known token and of every draft; `tokens`: the known ones and then
    the drafts. Draws lazily, so that whoever has seen the end of the text draws nothing beyond it.
    """
    num_known = len(tokens) - len(logits) + 1
    for number, row in enumerate(logits):
        position = num_known + number
        token = sampler.sample(row, tokens[:position])
        is_wrong = position < len(tokens) and token != tokens[position]  # now: the caller may write to `tokens`
        yield token
        if is_wrong:
            return
