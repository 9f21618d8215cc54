"""How many drafts a step should bring: the most expected tokens a second, zero included. Pure: numbers in, numbers out.

Knows step costs and probabilities, nothing of tokens or sequences. What is not computed is not measured; so now and
then, ever more rarely, a number of rows that is hardly known is tried, and only where the drafts are right often enough
to win if those rows turn out to be nearly free. And what was measured while the machine was slow is measured again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ingle.runtime.config import MAX_DRAFTS
from ingle.runtime.cost import StepCosts

MIN_GAIN = 1.02
"""Drafts are computed where they promise so many times the tokens per second of a plain step."""

MIN_HOPE = 1.5
"""A number of rows is tried only where its drafts would give so many times the tokens a step."""

FIRST_TRY_STEPS = 4
"""Steps before the first such try; twice as many before each next one."""

NUM_TRIES = 2
"""Measurements after which a number of rows is known …"""

STALE_STEPS = 32
"""… and steps after which what is known of it counts as old: it is measured again where its shortest step would win."""


@dataclass(frozen=True, slots=True)
class Prospect:
    """What a sequence could have drafted. `survival` [n]: how likely the first, the first two, … are right.

    `token_s`: seconds to draft one more; sequences that draft at the same time do it together. `setup_s`: seconds
    before the first.
    """

    survival: Sequence[float]
    token_s: float = 0.0
    setup_s: float = 0.0


class Lengths:
    """Chooses, step by step, and remembers when it last tried something."""

    def __init__(self, costs: StepCosts) -> None:
        self.costs = costs
        self._interval = FIRST_TRY_STEPS
        self._wait = FIRST_TRY_STEPS

    def choose(self, prospects: Sequence[Prospect], num_rows: int, max_drafts: int = MAX_DRAFTS) -> list[int]:
        """How many drafts each of `prospects` should bring to a step that has `num_rows` rows without them: what gives
        the most expected tokens a second over the whole step, all zero where nothing beats the plain step.

        A draft is worth the probability that it and all before it are right. So for each total the best share is the
        most probable ones, and the total is chosen among the numbers that make a difference.
        """
        plain_s = self.costs.estimate(num_rows)
        if plain_s is None:
            return [0] * len(prospects)
        options = _options(prospects, num_rows, max_drafts)
        rate, best = max(self._rated(options, self.costs.estimate), key=_by_rate, default=(0.0, None))
        if rate <= MIN_GAIN * num_rows / plain_s:
            rate, best = num_rows / plain_s, None
        best = self._tried(options, rate, 0.0 if best is not None else MIN_HOPE * num_rows) or best
        lengths = [0] * len(prospects)
        if best is not None:
            for which in best.shares:
                lengths[which] += 1
        return lengths

    def gain(self, prospect: Prospect, num_rows: int, num_drafts: int | None = None) -> float:
        """Expected tokens a second with drafts for `prospect` alone, as a multiple of those without: with `num_drafts`,
        or as many as are best. 0.0 where nothing can be said."""
        plain_s = self.costs.estimate(num_rows)
        if plain_s is None:
            return 0.0
        max_drafts = MAX_DRAFTS if num_drafts is None else num_drafts
        options = _options([prospect], num_rows, max_drafts)
        rated = self._rated(options if num_drafts is None else options[-1:], self.costs.estimate)
        return max((rate for rate, _ in rated), default=0.0) * plain_s / num_rows

    def goes_on(self, first: float, prospect: Prospect, num_drafts: int, num_made: int = 1) -> bool:
        """Whether the rest of `num_drafts` of a sequence that is alone is worth its time where `num_made` are there,
        the first of them right with probability `first`: against leaving them and taking a plain step, and going on as
        fast as the better of both does."""
        plain_s, step_s = self.costs.estimate(1), self.costs.estimate(1 + num_drafts)
        if plain_s is None or step_s is None or self._hoped_s(1 + num_drafts) is not None:
            return True  # it is computed to find out
        survival = prospect.survival[:num_drafts]
        total = sum(survival)
        drafted_rate = (1 + total) / (step_s + num_drafts * prospect.token_s + prospect.setup_s)
        seconds = step_s - plain_s + (num_drafts - num_made) * prospect.token_s
        return first * total / survival[0] >= max(1 / plain_s, drafted_rate) * seconds

    def _hoped_s(self, num_rows: int) -> float | None:
        """Seconds that so many rows may take if all goes well; ``None``: there is nothing to find out."""
        costs = self.costs
        if costs.num_measured(num_rows) < NUM_TRIES:
            return costs.least(num_rows)
        return costs.lowest(num_rows) if (costs.age(num_rows) or 0) > STALE_STEPS else None

    @staticmethod
    def _rated(options: Sequence[_Option], seconds: Callable[[int], float | None]) -> Iterator[tuple[float, _Option]]:
        """Expected tokens a second of each, by what a step of so many rows takes; without those of which that is not
        known."""
        for option in options:
            step_s = seconds(option.num_rows)
            if step_s is not None:
                yield option.num_tokens / (step_s + option.draft_s), option

    def _tried(self, options: Sequence[_Option], rate: float, min_tokens: float) -> _Option | None:
        """Something to find out about, if it is time and there is hope to do better than `rate` tokens a second."""
        num_measured = self.costs.num_measured
        hopeful = [
            (hoped, option)
            for hoped, option in self._rated(options, self._hoped_s)
            if hoped > MIN_GAIN * rate and option.num_tokens >= min_tokens
        ]
        stale = [(hoped, option) for hoped, option in hopeful if num_measured(option.num_rows) >= NUM_TRIES]
        if stale:
            return max(stale, key=_by_rate)[1]
        if not hopeful:
            return None
        self._wait -= 1
        if self._wait > 0:
            return None
        self._interval *= 2
        self._wait = self._interval
        return max(hopeful, key=lambda one: (-num_measured(one[1].num_rows), one[0]))[1]


@dataclass(frozen=True, slots=True)
class _Option:
    """A step of `num_rows` rows, drafts included, those of `shares` (which prospect each belongs to), and what to
    expect of it."""

    num_rows: int
    shares: Sequence[int]
    num_tokens: float
    draft_s: float


def _by_rate(rated: tuple[float, _Option]) -> float:
    return rated[0]


def _options(prospects: Sequence[Prospect], num_rows: int, max_drafts: int) -> list[_Option]:
    """Numbers of drafts to weigh, fewest first."""
    ranked = sorted(
        (-worth, which, position) for which, p in enumerate(prospects) for position, worth in enumerate(p.survival)
    )[:max_drafts]
    shares = [which for _, which, _ in ranked]
    totals = set(candidate_totals(num_rows, len(ranked)))
    num_tokens, draft_s, setup_s = float(num_rows), 0.0, 0.0
    options = []
    for total, (minus_worth, which, position) in enumerate(ranked, 1):
        num_tokens -= minus_worth
        prospect = prospects[which]
        draft_s = max(draft_s, (position + 1) * prospect.token_s)
        setup_s = max(setup_s, prospect.setup_s)
        if total in totals:
            options.append(_Option(num_rows + total, shares[:total], num_tokens, draft_s + setup_s))
    return options


def candidate_totals(num_rows: int, num_available: int) -> list[int]:
    """Numbers of drafts worth weighing: those that make two rows or multiples of four, later of eight, and all there
    are.

    Kernels work in tiles of four and eight rows, so the numbers between have nothing to offer but more to measure: and
    of many measurements that are nearly as good the one that was luckiest would be chosen.
    """
    totals = [
        total
        for total in range(1, num_available + 1)
        if (rows := num_rows + total) == 2 or (rows % 4 == 0 and rows <= 16) or rows % 8 == 0
    ]
    if num_available and (not totals or totals[-1] != num_available):
        totals.append(num_available)
    return totals
