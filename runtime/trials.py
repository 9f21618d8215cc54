"""When a draft model that does not pay is tried: in bursts, ever more rarely. Pure: knows no models and no tokens.

Whoever is not asked shows nothing, and a model that has not been asked for a while must first read what was said since,
which costs more than the drafts. So a trial is several steps in a row, for as long as there is hope; and where it ended
near the point at which drafts pay, the next one comes soon: it costs little, and there may be something to win. Where
it ended without hope, none comes before what drafts have cost so far is a small part of the whole time.

What the target itself is sure of costs nothing to know, and is what a draft model guesses best. Where the text has
become much surer than it was in a trial (an answer opens in prose and goes on in code), the next one comes at once,
unless much has to be read for few steps.
"""

from __future__ import annotations

TRIAL_TOKENS = 3
"""Drafts in a step of a trial."""

MIN_STEPS = 3
"""Steps of a trial, whatever is believed …"""

MAX_STEPS = 10
"""… and with hope."""

FIRST_HOPE, LAST_HOPE = 0.65, 0.9
"""Tokens a second, in those of a plain step, that have to be promised for a trial to go on: few drafts say little, so
it begins with the first and rises to the last."""

HOPEFUL_WAIT_STEPS, HOPELESS_WAIT_STEPS = 16, 512
"""Steps after a first trial, by whether it ended with hope; twice as many after each next one …"""

MAX_WAIT_STEPS = 4096
"""… but no more than these."""

MAX_LOSS = 0.01
"""Share of all time that drafts may have cost when another trial begins after one without hope."""

MAX_SETUP = 0.1
"""What reading may cost each step that is left, in plain steps, for surer text to be tried at once."""

MORE_SURE = 0.3
"""By how much the share of sure tokens has to have risen since a trial for what it found to be out of date."""


class Trials:
    """Asked at every step for which no drafts pay, and told of those for which some do."""

    def __init__(self) -> None:
        self._num_steps = 0  # of the trial under way
        self._wait = 0
        self._num_trials = 0
        self._had_hope = True  # at the end of the last one
        self._sureness = 0.0  # then

    def is_due(self, gain: float, sureness: float = 0.0, loss: float = 0.0, setup: float = 0.0) -> bool:
        """Whether to draft for the next step all the same. `gain`: what is believed of that, tokens a second as a
        multiple of those of a plain step; `sureness`: share of the last tokens that the target was sure of; `loss`:
        share of all time that drafts have cost by now; `setup`: seconds of reading, spread over the steps that are
        left, as a multiple of those of a plain step."""
        if self._num_steps == 0:
            self._wait = max(0, self._wait - 1)
            is_surer = sureness >= self._sureness + MORE_SURE and setup <= MAX_SETUP
            if not is_surer and (self._wait > 0 or (loss > MAX_LOSS and not self._had_hope)):
                return False
        has_hope = gain >= FIRST_HOPE + (LAST_HOPE - FIRST_HOPE) * self._num_steps / MAX_STEPS
        if self._num_steps < (MAX_STEPS if has_hope else MIN_STEPS):
            self._num_steps += 1
            return True
        self._had_hope = has_hope
        first_wait = HOPEFUL_WAIT_STEPS if has_hope else HOPELESS_WAIT_STEPS
        self._wait = min(first_wait << self._num_trials, MAX_WAIT_STEPS)
        self._num_trials += 1
        self._num_steps = 0
        self._sureness = sureness
        return False

    def note_paid(self) -> None:
        """Drafts of the model are worth their cost at the next step: it will be tried at once when they no longer
        are."""
        self._num_steps = self._wait = self._num_trials = 0
        self._had_hope = True
