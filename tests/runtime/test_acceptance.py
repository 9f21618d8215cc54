# Rates of drafts: counted, faded, borrowed. And drafts that are made, watched and tried by a whole `Speculation`.
from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingle.runtime.acceptance import NUM_PLACES, PRIOR, Acceptance, place_of
from ingle.runtime.config import DraftConfig
from ingle.runtime.draft import GoesOn, Offer
from ingle.runtime.draft_ngram import NgramDrafter
from ingle.runtime.request import RequestId, RequestOutput
from ingle.runtime.sequence import Sequence
from ingle.runtime.speculation import MIN_REFERENCES, REFERENCE_STEPS, Speculation
from ingle.runtime.step import Row, StepPlan
from ingle.runtime.trials import HOPELESS_WAIT_STEPS, MIN_STEPS, TRIAL_TOKENS
from tests.fakes import sequence_of


def test_positions_share_places_further_out() -> None:
    assert [place_of(position) for position in range(20)] == [0, 1, 2, 3, *[4] * 4, *[5] * 8, *[6] * 4]


def test_rates_are_conditional_on_what_came_before() -> None:
    acceptance = Acceptance()
    for _ in range(200):
        acceptance.note("model", 2, 5)  # two right, the third wrong
    rates = acceptance.rates("model")
    assert min(rates[:2]) > 0.95
    assert rates[2] < 0.1
    assert rates[3] == rates[6] == rates[2], "nothing is known further out but what is known before it"
    assert acceptance.survival("model", 3) == pytest.approx(
        [rates[0], rates[0] * rates[1], rates[0] * rates[1] * rates[2]]
    )


def test_one_long_draft_that_was_right_promises_little_further_out() -> None:
    acceptance = Acceptance()
    drafts = [(0, 3), (2, 3), (1, 3), (3, 3), (12, 12)]
    for num_right, num_tokens in drafts:
        acceptance.note("model", num_right, num_tokens)
    num_right, num_wrong = sum(right for right, _ in drafts), sum(right < tokens for right, tokens in drafts)
    nearer, unseen = acceptance.rates("model")[5:]
    assert nearer > 0.9
    assert unseen < num_right / (num_right + num_wrong) < nearer


def test_a_text_that_changes_is_noticed() -> None:
    acceptance = Acceptance()
    for _ in range(500):
        acceptance.note("ngram-8", 4, 4)
    assert acceptance.rates("ngram-8")[0] > 0.95
    for _ in range(30):
        acceptance.note("ngram-8", 0, 4)
    assert acceptance.rates("ngram-8")[0] < 0.5


def test_a_new_text_begins_with_what_others_have_taught() -> None:
    general = Acceptance()
    first = Acceptance(general)
    for _ in range(100):
        first.note("ngram-3", 1, 1)
    assert Acceptance(general).rates("ngram-3")[0] == general.rates("ngram-3")[0] > 0.9
    assert Acceptance().rates("ngram-3") == [PRIOR["ngram-3"]] * NUM_PLACES


@given(st.lists(st.tuples(st.integers(0, 31), st.integers(0, 31)), max_size=40), st.integers(0, 31))
def test_survival_is_a_probability_and_never_rises(notes: list[tuple[int, int]], num_tokens: int) -> None:
    acceptance = Acceptance(Acceptance())
    for right, more in notes:
        acceptance.note("model", right, min(31, right + more))
    survival = [1.0, *acceptance.survival("model", num_tokens)]
    assert all(0 <= later <= earlier for earlier, later in pairwise(survival))


# -- Speculation -------------------------------------------------------------------------------------------------------


class Steps:
    """Says one token after another to a `Speculation`, each step of `step_s` seconds a row beyond the first."""

    def __init__(self, speculation: Speculation, prompt: list[int]) -> None:
        self.speculation = speculation
        self.sequence = sequence_of(prompt)
        self.sequence.table = _Computed(self.sequence)  # type: ignore[assignment]
        self.num_drafted: list[int] = []

    def say(self, token: int, seconds: float = 0.1) -> None:
        self.speculation.propose([self.sequence])
        drafts = self.sequence.tokens_and_drafts[self.sequence.num_tokens :].tolist()
        self.num_drafted.append(len(drafts))
        if drafts:
            num_right = int(drafts[0] == token)
            self.speculation.note_verified(self.sequence, len(drafts), num_right, is_cut=num_right == 1)
        self.sequence.append(token)
        self.sequence.num_drafts = 0
        row = Row(0, 0, self.sequence.tokens[: 1 + len(drafts)], 1 + len(drafts))
        output = RequestOutput(self.sequence.id, (token,), "", self.sequence.metrics)
        self.speculation.note_step(StepPlan((), (row,)), [output], seconds * (1 + 0.5 * len(drafts)))


class _Computed:
    """A table of all tokens but the last."""

    def __init__(self, sequence: Sequence) -> None:
        self._sequence = sequence

    @property
    def num_tokens(self) -> int:
        return self._sequence.num_tokens - 1


class FakeModel:
    """A drafter that always has something to say, and takes its time."""

    def __init__(self, token: int, token_s: float, lead: float = 9.0, free: tuple[int, ...] = ()) -> None:
        """`free`: drafts that come with the first."""
        self.token = token
        self.free = free
        self.token_s = token_s
        self.lead = lead
        self.forgotten: list[RequestId] = []
        self.asked: list[tuple[int, int]] = []  # after how many tokens, and for how many

    def offer(self, sequence: Sequence, num_tokens: int) -> Offer:
        return Offer("model", num_tokens, token_s=self.token_s)

    def draft(self, wanted: list[tuple[Sequence, Offer, int]], goes_on: GoesOn) -> None:
        for sequence, _, num_tokens in wanted:
            self.asked.append((sequence.num_tokens, num_tokens))
            for token in (self.token, *self.free)[:num_tokens]:
                sequence.add_draft(token)
            if not goes_on(sequence, self.lead):
                sequence.num_drafts = 0
                continue
            while sequence.num_drafts < num_tokens:
                sequence.add_draft(self.token)

    def forget(self, id: RequestId) -> None:
        self.forgotten.append(id)


def test_drafts_that_are_not_computed_are_watched_for_nothing() -> None:
    speculation = Speculation(DraftConfig(), [NgramDrafter()])
    steps = Steps(speculation, [1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3])
    before = speculation._general.rates("ngram-3")[0]
    steps.say(9, seconds=0.1)  # 4 was offered, and nothing is known of costs yet
    steps.say(9)
    assert steps.num_drafted[0] == 0
    assert speculation._general.rates("ngram-3")[0] < before
    assert speculation.stats().num_draft_tokens == 0


def test_a_model_that_never_pays_is_tried_ever_more_rarely() -> None:
    model = FakeModel(token=7, token_s=0.05)
    speculation = Speculation(DraftConfig(), [model])
    steps = Steps(speculation, [1, 2])
    steps.sequence.max_tokens = 16 * HOPELESS_WAIT_STEPS
    for _ in range(8 * HOPELESS_WAIT_STEPS):
        steps.say(3)
    assert {num_tokens for _, num_tokens in model.asked} == {TRIAL_TOKENS}
    gaps = [later - earlier for (earlier, _), (later, _) in pairwise(model.asked)]
    burst = [1] * (MIN_STEPS - 1)
    assert gaps == [*burst, HOPELESS_WAIT_STEPS + 1, *burst, 2 * HOPELESS_WAIT_STEPS + 1, *burst,
                    4 * HOPELESS_WAIT_STEPS + 1, *burst]  # fmt: skip
    figures = speculation.stats()
    assert figures.net_speedup is not None
    assert figures.num_drafts + figures.num_given_up == len(model.asked)
    assert figures.num_given_up > 0


def test_a_model_that_pays_is_used_and_now_and_then_compared_with_a_plain_step() -> None:
    speculation = Speculation(DraftConfig(), [FakeModel(token=3, token_s=0.001)])
    steps = Steps(speculation, [1, 2])
    for _ in range(300):
        steps.say(3, seconds=0.1)
    assert [num > 0 for num in steps.num_drafted[: MIN_REFERENCES + 1]] == [False] * MIN_REFERENCES + [True]
    late = steps.num_drafted[40:]
    assert late.count(0) == pytest.approx(260 / (REFERENCE_STEPS + 1), abs=2)


@pytest.mark.parametrize("free", [(), (4,)])
def test_what_a_model_is_not_sure_of_is_given_up_and_watched(free: tuple[int, ...]) -> None:
    """Its drafts pay; then it doubts, and what it doubts is wrong: the first one, whatever came with it."""
    model = FakeModel(token=3, token_s=0.02)
    speculation = Speculation(DraftConfig(), [model])
    steps = Steps(speculation, [1, 2])
    for _ in range(40):
        steps.say(3)
    assert steps.num_drafted[-1] > 0
    model.lead, model.free = 0.1, free
    for _ in range(60):
        steps.say(4)
    assert steps.num_drafted[-30:].count(0) == 30
    assert speculation._general.rates("lead-0")[0] < 0.15 < 0.9 < speculation._general.rates("lead-4")[0]
    assert speculation._general.rates("model")[0] < 0.7, "what is given up counts too"


def test_a_fixed_number_is_kept_whatever_it_costs() -> None:
    speculation = Speculation(DraftConfig(num_tokens=5), [FakeModel(token=7, token_s=1.0)])
    steps = Steps(speculation, [1, 2])
    for _ in range(20):
        steps.say(3)
    assert steps.num_drafted == [5] * 20


def test_no_draft_reaches_beyond_the_limit_and_what_has_ended_is_forgotten() -> None:
    model = FakeModel(token=7, token_s=0.0)
    speculation = Speculation(DraftConfig(num_tokens=5), [model])
    steps = Steps(speculation, [1, 2])
    steps.sequence.max_tokens = 2 + 8
    for _ in range(8):
        steps.say(3)
    assert steps.num_drafted == [5, 5, 5, 4, 3, 2, 1, 0]
    speculation.forget(steps.sequence.id)
    speculation.forget(steps.sequence.id)
    assert model.forgotten == [steps.sequence.id]


def test_what_waits_again_is_forgotten_by_its_drafters() -> None:
    model = FakeModel(token=7, token_s=0.0)
    speculation = Speculation(DraftConfig(num_tokens=5), [model])
    first, second = sequence_of([1, 2], id=0), sequence_of([1, 2], id=1)
    for sequence in (first, second):
        sequence.table = _Computed(sequence)  # type: ignore[assignment]
    speculation.propose([first, second])
    assert model.forgotten == []
    speculation.propose([second])
    assert model.forgotten == [first.id]
    speculation.propose([first, second])
    assert (first.num_drafts, second.num_drafts) == (5, 5)
