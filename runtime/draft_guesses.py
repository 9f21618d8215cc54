"""Guesses at what a draft model is about to draft: what followed in the text, computed in rows that cost next to
nothing.

After a draft that was right as a whole the draft model begins with two rows (its last draft, and the token the target
added); kernels compute rows in tiles of `TILE_ROWS`, so four may take no longer than two. The rows to spare are filled
with the tokens that the text itself suggests: each one that the draft model would have drafted as well saves it a step.
Wrong ones cost nothing but their rows, and change no draft but where two tokens nearly tie. Behind a single row, after
a draft that was wrong, the text is seldom of use, and its rows are rarely free.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from ingle.runtime.acceptance import Acceptance
from ingle.runtime.cost import TILE_ROWS, StepCosts
from ingle.runtime.draft import count_right
from ingle.runtime.draft_ngram import NgramIndex
from ingle.runtime.lengths import NUM_TRIES, STALE_STEPS
from ingle.runtime.request import RequestId
from ingle.runtime.sequence import Sequence

SIZES = (4, 2, 1)
"""Tokens that have to agree, longest first: shorter than what is offered as drafts, because a wrong guess is cheap."""

TEXT_TOKENS = 4096
"""The end of a text that is looked up where it begins: enough for guesses, and no work worth naming."""


class Guesses:
    """An index of each text, and how often its suggestions were drafted. `costs`: of the draft model's steps."""

    def __init__(self, costs: StepCosts) -> None:
        self._costs = costs
        self._acceptance = Acceptance()
        self._texts: dict[RequestId, tuple[int, NgramIndex]] = {}  # from which token on
        self._kind = ""
        self._found: list[int] = []

    def make(self, sequence: Sequence, num_rows: int, num_wanted: int) -> list[int]:
        """What to compute behind the `num_rows` tokens that a step has to, of `num_wanted` drafts: at most a tile with
        them, and not the last draft, of which nothing follows. Empty where that does not pay. `compare` comes next."""
        text = self._texts.get(sequence.id)
        if text is None:
            text = self._texts[sequence.id] = max(0, sequence.num_tokens - TEXT_TOKENS), NgramIndex(SIZES)
        start, index = text
        index.extend(sequence.tokens[start + len(index) :].tolist())
        num_free = min(TILE_ROWS - num_rows, num_wanted - 1)
        found = index.find(num_free) if num_free > 0 else None
        if found is None:
            self._found = []
            return []
        size, self._found = found
        self._kind = f"guess-{size}" if num_rows > 1 else "guess-alone"
        saved_s = sum(self._acceptance.survival(self._kind, len(self._found))) * (self._costs.estimate(1) or 0.0)
        return self._found if self._pays(num_rows, num_rows + len(self._found), saved_s) else []

    def compare(self, drafts: SequenceOf[int]) -> None:
        """`drafts` is what was drafted; nothing: it was given up, and no guess saved anything. Guesses that did not pay
        are compared as well: they may come to."""
        if self._found:
            num_known = max(1, min(len(self._found), len(drafts)))
            self._acceptance.note(self._kind, count_right(self._found, drafts), num_known)

    def forget(self, id: RequestId) -> None:
        """That request has ended, or waits again."""
        self._texts.pop(id, None)

    def _pays(self, few: int, many: int, saved_s: float) -> bool:
        """Whether `many` rows instead of `few` are worth `saved_s`, as measured. What is not known is found out, and so
        is what was measured long ago and may have come to be the better one."""
        costs = self._costs
        few_s, many_s = costs.measured(few), costs.measured(many)
        if few_s is None:
            return False
        if many_s is None or costs.num_measured(many) < NUM_TRIES:
            return True
        pays = saved_s > many_s - few_s
        other = few if pays else many
        lowest_s = costs.lowest(other)
        if lowest_s is None or (costs.age(other) or 0) <= STALE_STEPS:
            return pays
        return saved_s > (many_s - lowest_s if pays else lowest_s - few_s)
