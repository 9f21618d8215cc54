"""How often drafts are right: by kind of draft, by position in it, lately. Pure counting.

A kind's rate at a position is conditional: of the drafts whose tokens before it were right, the part that is right
there too. Positions further out share a rate with their neighbours, and borrow from nearer ones while they have seen
little. Older observations fade, so that a text that changes its nature is noticed.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping

FADING = 0.97
"""What an observation still counts when the next one of its kind and place comes: some thirty of them matter."""

WEIGHT_BEFORE = 3.0
"""Observations that what was believed before is worth."""

LEADS = (0.5, 1.0, 2.0, 4.0)
"""Where the first draft of a model leads the next best choice by less than these it is of kind lead-0, lead-1, …"""

PRIOR: Mapping[str, float] = {
    "ngram-12": 0.8,
    "ngram-8": 0.65,
    "ngram-5": 0.45,
    "ngram-3": 0.3,
    "model": 0.6,
    "lead-0": 0.4,
    "lead-1": 0.6,
    "lead-2": 0.75,
    "lead-3": 0.85,
    "lead-4": 0.97,
    "guess-4": 0.65,
    "guess-2": 0.5,
    "guess-1": 0.35,
    "guess-alone": 0.25,
}
"""Believed of each kind until it has been seen; `tests/runtime/test_acceptance.py` says what that leads to. Of leads:
0.41, 0.69, 0.81, 0.87 and 1.0 were seen of a 0.5B model that drafts code for a 1.5B one."""

_PLACES = (0, 1, 2, 3, 4, 4, 4, 4, 5, 5, 5, 5, 5, 5, 5, 5)
NUM_PLACES = 7


def lead_kind(lead: float) -> str:
    return f"lead-{bisect.bisect(LEADS, lead)}"


def place_of(position: int) -> int:
    """Which rate draft number `position` (from 0) goes by: 1, 2, 3, 4, 5–8, 9–16, the rest."""
    return _PLACES[position] if position < len(_PLACES) else NUM_PLACES - 1


class _Rates:
    """Faded counts of one kind: at each place, drafts that got so far, and those that were right there."""

    __slots__ = ("right", "tried")

    def __init__(self) -> None:
        self.tried = [0.0] * NUM_PLACES
        self.right = [0.0] * NUM_PLACES

    def note(self, place: int, is_right: bool) -> None:
        self.tried[place] = self.tried[place] * FADING + 1.0
        self.right[place] = self.right[place] * FADING + float(is_right)


class Acceptance:
    """Rates of every kind. `general`: what to believe where this one has seen little; it learns what this learns."""

    def __init__(self, general: Acceptance | None = None) -> None:
        self._general = general
        self._rates: dict[str, _Rates] = {}

    def note(self, kind: str, num_right: int, num_tokens: int) -> None:
        """Of a draft of `num_tokens`, the first `num_right` were right (and the next one wrong, if there is one)."""
        rates = self._rates.get(kind)
        if rates is None:
            rates = self._rates[kind] = _Rates()
        for position in range(num_right):
            rates.note(place_of(position), True)
        if num_right < num_tokens:
            rates.note(place_of(num_right), False)
        if self._general is not None:
            self._general.note(kind, num_right, num_tokens)

    def rates(self, kind: str) -> list[float]:
        """[NUM_PLACES]: how likely a draft of that kind is right at each place, if it was right before it."""
        general = self._general
        believed = [PRIOR.get(kind, 0.5)] * NUM_PLACES if general is None else general.rates(kind)
        rates = self._rates.get(kind)
        if rates is None:
            return believed
        found: list[float] = []
        all_right, all_tried = WEIGHT_BEFORE * believed[0], WEIGHT_BEFORE
        for place, before in enumerate(believed):
            right, tried = rates.right[place], rates.tried[place]
            if general is None and found:  # what is known of the places before it, however long one draft went well
                before = min(found[-1], all_right / all_tried)
            found.append((right + WEIGHT_BEFORE * before) / (tried + WEIGHT_BEFORE))
            all_right += right
            all_tried += tried
        return found

    def survival(self, kind: str, num_tokens: int) -> list[float]:
        """[num_tokens]: how likely the first, the first two, … are all right. Never rises."""
        rates = self.rates(kind)
        alive = 1.0
        result = []
        for position in range(num_tokens):
            alive *= rates[place_of(position)]
            result.append(alive)
        return result
