"""Speculative decoding for one engine: who drafts for which sequence, how much, and what came of it.

Before a step every running sequence with one pending token may get drafts behind it; the step computes them with it;
the engine verifies them; what that took and gave is noted here, and decides about the next step. Drafts from the text
cost nothing to make, so they are also made where they are not computed, and compared with what was said instead: their
acceptance is known all the time, without any probing. A draft model has to be tried to be known: at first, and then
ever more rarely where it does not pay. By how much its first draft leads the next best choice says how likely that is
right; so it is asked for more only where that promises enough, and a draft that is given up is watched like any other.
"""

from __future__ import annotations

import time
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

from ingle.runtime.acceptance import Acceptance, lead_kind
from ingle.runtime.config import MAX_DRAFTS, DraftConfig
from ingle.runtime.cost import StepCosts
from ingle.runtime.draft import Drafter, Offer, count_right
from ingle.runtime.lengths import Lengths, Prospect
from ingle.runtime.metrics import DraftCounters, DraftStats
from ingle.runtime.request import RequestId, RequestOutput
from ingle.runtime.sequence import Sequence
from ingle.runtime.step import StepPlan
from ingle.runtime.trials import TRIAL_TOKENS, Trials

SHADOW_TOKENS = 16
"""Of a draft that is not computed, so many tokens are compared with what is said instead."""

MIN_REFERENCES = 3
"""Plain steps before any draft: drafts are judged against them, and the first ones of a process take longer."""

REFERENCE_STEPS = 64
"""After so many steps without one, a plain step again: its cost rises with the context."""

SURENESS_FADING = 0.94
"""What a token still counts for the sureness of a text when the next one comes."""

MAX_TRIAL_SEQUENCES = 2
"""Beside more sequences than these a draft model is not tried: they all would wait."""


@dataclass(slots=True)
class _Shadow:
    """A draft behind token number `start` that is not computed; what is seen of it is noted for `kinds`."""

    kinds: tuple[str, ...]
    start: int
    tokens: tuple[int, ...]


@dataclass(slots=True)
class _State:
    """What is remembered of a sequence."""

    acceptance: Acceptance
    shadow: _Shadow | None = None
    offer: Offer | None = None  # the last
    num_wanted: int = 0  # drafts of it
    lead: str = ""  # the kind of the first of them, where a model made it
    num_chosen: int = 0  # of the sampler, and
    num_sure: int = 0
    chosen_weight: float = 0.0  # those of late
    sure_weight: float = 0.0

    def note_sureness(self, num_chosen: int, num_sure: int) -> None:
        """The sampler has chosen so many tokens by now, and was sure of so many."""
        new = num_chosen - self.num_chosen
        fading = SURENESS_FADING**new
        self.chosen_weight = self.chosen_weight * fading + new
        self.sure_weight = self.sure_weight * fading + num_sure - self.num_sure
        self.num_chosen, self.num_sure = num_chosen, num_sure

    @property
    def sureness(self) -> float:
        """Share of the tokens of late that the target was sure of."""
        return self.sure_weight / self.chosen_weight if self.chosen_weight else 0.0


@dataclass(frozen=True, slots=True)
class _Choice:
    """A sequence, and the offer that looks best for it."""

    sequence: Sequence
    state: _State
    drafter: Drafter
    offer: Offer


class Speculation:
    """Owns no models; its drafters are asked in order (see `draft`)."""

    def __init__(self, config: DraftConfig, drafters: SequenceOf[Drafter]) -> None:
        self._fixed = config.num_tokens
        self._drafters = tuple(drafters)
        self._costs = StepCosts()
        self._lengths = Lengths(self._costs)
        self._general = Acceptance()
        self._states: dict[RequestId, _State] = {}
        self._counters = DraftCounters()
        self._draft_s = 0.0  # spent on the drafts of the step under way
        self._trials = Trials()

    def forget(self, id: RequestId) -> None:
        """That request has ended, or waits again."""
        if self._states.pop(id, None) is not None:
            for drafter in self._drafters:
                drafter.forget(id)

    # -- before the step -------------------------------------------------------------------------------------------

    def propose(self, running: SequenceOf[Sequence]) -> None:
        """Give drafts to those of `running` that are worth it; the drafts of the last step are gone. None while any
        of their prompts is being read: such steps are long as they are, and are not measured."""
        self._draft_s = 0.0
        for id in self._states.keys() - {sequence.id for sequence in running}:
            self.forget(id)  # it waits again, and what drafters keep of it would be in the way of others
        for sequence in running:
            sequence.num_drafts = 0
        if any(sequence.num_pending != 1 for sequence in running):
            return
        started = time.perf_counter()
        choices = [choice for sequence in running if (choice := self._choice(sequence, len(running))) is not None]
        if choices:
            lengths = self._decide(choices, len(running))
            for choice, length in zip(choices, lengths, strict=True):
                choice.state.offer, choice.state.num_wanted, choice.state.lead = choice.offer, length, ""
            for drafter in self._drafters:
                wanted = [
                    (choice.sequence, choice.offer, length)
                    for choice, length in zip(choices, lengths, strict=True)
                    if length and choice.drafter is drafter
                ]
                if wanted:
                    drafter.draft(wanted, self._goes_on)
            for choice in choices:
                self._watch(choice)
        self._draft_s = time.perf_counter() - started

    def _choice(self, sequence: Sequence, num_running: int) -> _Choice | None:
        """The best offer for `sequence`; ``None`` where there is none, or no room for a draft."""
        state = self._states.get(sequence.id)
        if state is None:
            state = self._states[sequence.id] = _State(Acceptance(self._general))
        self._compare(sequence, state)
        state.note_sureness(sequence.sampler.num_chosen, sequence.sampler.num_sure)
        num_room = min(self._fixed or MAX_DRAFTS, sequence.max_tokens - sequence.num_tokens - 1)
        best: _Choice | None = None
        for drafter in self._drafters if num_room > 0 else ():
            offer = drafter.offer(sequence, num_room)
            if offer is not None and not offer.tokens:  # a model, whose trials go by it
                sequence.sampler.counts_sure = True
            if offer is not None and (best is None or self._is_better(state, offer, best.offer, num_running)):
                best = _Choice(sequence, state, drafter, offer)
            if best is not None and self._fixed is not None:
                break
        return best

    def _is_better(self, state: _State, offer: Offer, than: Offer, num_running: int) -> bool:
        """Whether `offer`, which takes time, promises more tokens a second than `than`, which is there already."""
        gain = self._lengths.gain
        return gain(_prospect(state, offer), num_running) > gain(_prospect(state, than), num_running)

    def _decide(self, choices: SequenceOf[_Choice], num_running: int) -> list[int]:
        if self._fixed is not None:
            return [min(self._fixed, choice.offer.num_tokens) for choice in choices]
        costs = self._costs
        if costs.num_measured(num_running) < MIN_REFERENCES or (costs.age(num_running) or 0) > REFERENCE_STEPS:
            return [0] * len(choices)
        prospects = [_prospect(choice.state, choice.offer) for choice in choices]
        lengths = self._lengths.choose(prospects, num_running)
        if any(length and not choice.offer.tokens for choice, length in zip(choices, lengths, strict=True)):
            self._trials.note_paid()
        elif not any(lengths) and num_running <= MAX_TRIAL_SEQUENCES:
            self._try_model(choices, prospects, lengths, num_running)
        return lengths

    def _try_model(
        self, choices: SequenceOf[_Choice], prospects: SequenceOf[Prospect], lengths: list[int], num_running: int
    ) -> None:
        """Let a draft model show what it is worth, if it is time."""
        models = [which for which, choice in enumerate(choices) if not choice.offer.tokens]
        plain_s = self._costs.estimate(num_running)
        if not models or plain_s is None:
            return
        gain = max(self._lengths.gain(prospects[which], num_running, TRIAL_TOKENS) for which in models)
        sureness = max(choices[which].state.sureness for which in models)
        setup = max(prospects[which].setup_s for which in models) / plain_s
        if self._trials.is_due(gain, sureness, self._counters.lost_share, setup):
            for which in models:
                lengths[which] = min(TRIAL_TOKENS, choices[which].offer.num_tokens)

    def _goes_on(self, sequence: Sequence, lead: float) -> bool:
        """Whether drafts of a model, the first of which leads the next best by so much, are worth going on with. Beside
        other sequences they are: those wait for the same step."""
        state = self._states[sequence.id]
        state.lead = lead_kind(lead)
        if self._fixed is not None or len(self._states) > 1:
            return True
        assert state.offer is not None
        first = state.acceptance.rates(state.lead)[0]
        if self._lengths.goes_on(first, _prospect(state, state.offer), state.num_wanted, sequence.num_drafts):
            return True
        self._counters.num_given_up += 1
        token = int(sequence.tokens_and_drafts[sequence.num_tokens])
        state.shadow = _Shadow((state.offer.kind, state.lead), sequence.num_tokens, (token,))
        return False

    def _watch(self, choice: _Choice) -> None:
        """Remember a draft that is there and not computed, unless another one is being watched."""
        state, offer = choice.state, choice.offer
        if choice.sequence.num_drafts:
            state.shadow = None
        elif state.shadow is None and offer.tokens:
            state.shadow = _Shadow((offer.kind,), choice.sequence.num_tokens, offer.tokens[:SHADOW_TOKENS])

    def _compare(self, sequence: Sequence, state: _State) -> None:
        """See whether what was said is what the watched draft says; enough is known at the first difference."""
        shadow = state.shadow
        if shadow is None:
            return
        said = sequence.tokens[shadow.start : shadow.start + len(shadow.tokens)].tolist()
        num_same = count_right(shadow.tokens, said)
        if num_same < len(said) or len(said) == len(shadow.tokens):
            for kind in shadow.kinds:
                state.acceptance.note(kind, num_same, len(shadow.tokens))
            state.shadow = None

    # -- after the step --------------------------------------------------------------------------------------------

    def note_verified(self, sequence: Sequence, num_drafts: int, num_right: int, *, is_cut: bool) -> None:
        """Of `num_drafts` of `sequence`, the first `num_right` were right. `is_cut`: the text ended there, and nothing
        is known of the next one."""
        state = self._states[sequence.id]
        assert state.offer is not None
        num_known = num_right if is_cut else num_drafts
        state.acceptance.note(state.offer.kind, num_right, num_known)
        if state.lead:
            state.acceptance.note(state.lead, min(num_right, 1), min(num_known, 1))
        self._counters.note_draft(num_drafts, num_right)
        sequence.metrics.num_draft_tokens += num_drafts
        sequence.metrics.num_accepted_tokens += num_right

    def note_step(self, plan: StepPlan, outputs: SequenceOf[RequestOutput], seconds: float) -> None:
        """Computing `plan` took `seconds` and gave `outputs`. Only steps of nothing but answers tell anything."""
        if plan.num_logits != plan.num_tokens:
            return
        num_sequences, num_drafts = len(plan.rows), plan.num_tokens - len(plan.rows)
        num_tokens = sum(len(output.new_tokens) for output in outputs)
        self._costs.note(num_sequences + num_drafts, seconds)
        counters = self._counters
        counters.draft_s += self._draft_s
        if num_drafts:
            counters.verify_s += seconds
        plain_s = self._costs.measured(num_sequences)
        if plain_s is not None:
            counters.decode_s += seconds + self._draft_s
            counters.plain_s += num_tokens / num_sequences * plain_s if num_drafts else seconds

    def stats(self) -> DraftStats:
        return self._counters.stats(self._costs.measured(1))


def _prospect(state: _State, offer: Offer) -> Prospect:
    return Prospect(state.acceptance.survival(offer.kind, offer.num_tokens), offer.token_s, offer.setup_s)
