# Guesses at drafts: made where rows are to spare, weighed as measured, and harmless where they are wrong.
from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ingle.runtime.config import DraftConfig, EngineConfig
from ingle.runtime.cost import TILE_ROWS, StepCosts
from ingle.runtime.draft import GoesOn
from ingle.runtime.draft_guesses import TEXT_TOKENS, Guesses
from ingle.runtime.draft_model import ModelDrafter, draft_config
from ingle.runtime.engine import Engine
from ingle.runtime.lengths import NUM_TRIES, STALE_STEPS
from ingle.runtime.request import Request, SamplingParams
from ingle.runtime.sequence import Sequence
from tests import tiny_models
from tests.fakes import sequence_of
from tests.runtime.test_cost import known
from tests.runtime.test_tiny_models import Judge, prompt_of, run, tokens_of

TEXT = [1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 4]  # was followed by 5, 6, 7


# -- what is guessed ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_rows", "num_wanted", "expected"), [(1, 9, 3), (2, 9, 2), (2, 2, 1), (2, 1, 0), (3, 9, 1), (4, 9, 0)]
)
def test_what_followed_in_the_text_up_to_a_tile(num_rows: int, num_wanted: int, expected: int) -> None:
    guesses = Guesses(known(r1=10, r2=10, r3=10, r4=10))
    assert guesses.make(sequence_of(TEXT), num_rows, num_wanted) == [5, 6, 7][:expected]


def test_nothing_comes_to_mind_in_a_new_text() -> None:
    assert Guesses(known(r1=10, r2=10, r4=10)).make(sequence_of([1, 2, 3, 4]), 2, 3) == []


def test_the_text_grows_and_another_begins() -> None:
    guesses = Guesses(known(r1=10, r2=10, r4=10))
    sequence = sequence_of([1, 2, 3, 4])
    assert guesses.make(sequence, 2, 3) == []
    sequence.append(2)
    assert guesses.make(sequence, 2, 3) == [3, 4]
    guesses.forget(sequence.id)
    assert guesses.make(sequence_of([5, 6, 7, 5]), 2, 3) == [6, 7], "of the other text nothing is left"


# -- where it pays -----------------------------------------------------------------------------------------------------


def test_rows_that_take_longer_than_they_save_are_left_out() -> None:
    """Two guesses of four tokens that agree, of which 0.65 and 0.42 are believed to be drafted, are worth 10.7 s."""
    assert Guesses(known(r1=10, r2=15, r4=25)).make(sequence_of(TEXT), 2, 3)
    assert not Guesses(known(r1=10, r2=15, r4=26)).make(sequence_of(TEXT), 2, 3)


def test_what_is_never_drafted_is_no_longer_guessed() -> None:
    guesses = Guesses(known(r1=10, r2=15, r4=18))
    made = []
    for drafts in [[9, 9]] * 20 + [[5, 6]] * 20:  # it is watched all the same
        made.append(bool(guesses.make(sequence_of(TEXT), 2, 3)))
        guesses.compare(drafts)
    assert made[:4] == [True] * 4
    assert made[19:21] == [False] * 2
    assert made[-1]


def test_drafts_that_are_given_up_save_nothing() -> None:
    guesses = Guesses(known(r1=10, r2=15, r4=18))
    for _ in range(20):
        guesses.make(sequence_of(TEXT), 2, 3)
        guesses.compare([])
    assert not guesses.make(sequence_of(TEXT), 2, 3)


def test_of_a_long_text_the_end_is_looked_up() -> None:
    guesses = Guesses(known(r1=10, r2=10, r4=10))
    sequence = sequence_of([1, 2, 3, 4, 5, *range(10, TEXT_TOKENS), 1, 2, 3, 4])
    assert guesses.make(sequence, 2, 3) == [5, 10]
    sequence = sequence_of([1, 2, 3, 4, 5, *range(10, TEXT_TOKENS + 10), 1, 2, 3, 4], id=1)
    assert guesses.make(sequence, 2, 3) == []
    sequence.append(TEXT_TOKENS)
    assert guesses.make(sequence, 2, 3) == [TEXT_TOKENS + 1, TEXT_TOKENS + 2]


def test_behind_a_single_row_less_is_believed_of_the_text() -> None:
    for many, is_worth_it in ((12, True), (14, False)):
        assert bool(Guesses(known(r1=10, r4=many)).make(sequence_of(TEXT), 1, 4)) is is_worth_it


def test_a_tile_is_tried_once_its_alternative_is_known() -> None:
    costs = known(r1=10)
    guesses, sequence = Guesses(costs), sequence_of(TEXT)
    assert not guesses.make(sequence, 2, 3)
    costs.note(2, 15)
    for _ in range(NUM_TRIES):
        assert guesses.make(sequence, 2, 3)
        costs.note(4, 100)
    assert not guesses.make(sequence, 2, 3)


@pytest.mark.parametrize("was_slow", [2, 4])
def test_what_was_measured_long_ago_is_measured_again_where_it_may_win(was_slow: int) -> None:
    """Of two and four rows one was last measured while the machine was slow, but once was fast."""
    costs = known(**{"r1": 10, "r2": 15, "r4": 40 if was_slow == 2 else 15, f"r{was_slow}": 60})
    guesses, sequence = Guesses(costs), sequence_of(TEXT)
    costs.note(was_slow, 10)
    for _ in range(NUM_TRIES + 1):
        costs.note(was_slow, 60)
    chosen = bool(guesses.make(sequence, 2, 3))
    assert chosen == (was_slow == 2)
    for _ in range(STALE_STEPS + 1):
        costs.note(1, 10)
    assert bool(guesses.make(sequence, 2, 3)) is not chosen
    costs.note(was_slow, 60)
    assert bool(guesses.make(sequence, 2, 3)) is chosen


def test_a_draft_models_context_gives_the_logits_of_a_tile() -> None:
    assert draft_config(EngineConfig(max_num_seqs=1)).num_outputs >= TILE_ROWS


# -- in the engine -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def judge(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    path = tmp_path_factory.mktemp(request.param) / "tiny.gguf"
    judge = Judge(
        tiny_models.write_llama(path) if request.param == "llama" else tiny_models.write_gemma3(path), "plain"
    )
    yield judge
    judge.close()


Change = Callable[[list[int]], list[int]]
CHANGES: dict[str, Change] = {
    "right": lambda tokens: tokens,
    "first": lambda tokens: [*tokens[:1], *(token ^ 1 for token in tokens[1:])],
    "wrong": lambda tokens: [token ^ 1 for token in tokens],
}


@pytest.mark.parametrize("kind", CHANGES)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_wrong_guesses_change_no_draft_and_right_ones_save_steps(
    judge: Judge, kind: str, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that drafts for itself is always right, unless its cells hold what was only guessed."""
    request = Request(
        prompt_of(20), SamplingParams(temperature=temperature, seed=1, ignore_eos=True), max_output_tokens=41
    )
    with Engine.open(judge.path, judge.config()) as engine:
        plain = tokens_of(run(engine, [request])[0])
    text = [*prompt_of(20), *plain]
    num_guesses: list[int] = []
    steps: list[int] = []  # turns that each began with

    def make(self: Guesses, sequence: Sequence, num_rows: int, num_wanted: int) -> list[int]:
        start = sequence.num_tokens
        guessed = CHANGES[kind](text[start : start + max(0, min(TILE_ROWS - num_rows, num_wanted - 1))])
        num_guesses.append(len(guessed))
        return guessed

    monkeypatch.setattr(Guesses, "make", make)
    monkeypatch.setattr(ModelDrafter, "_step", counted(ModelDrafter._step, steps))
    draft = DraftConfig(ngram=False, model=judge.path, num_tokens=4)
    with Engine.open(judge.path, judge.config(draft=draft)) as engine:
        assert tokens_of(run(engine, [request])[0]) == plain
        stats = engine.stats().drafts
    assert stats is not None
    assert stats.accepted_by_position == (8, 8, 8, 8)
    assert sum(num_guesses) > 10
    num_saved = {"right": sum(num_guesses), "first": sum(map(bool, num_guesses)), "wrong": 0}[kind]
    assert len(steps) == 8 * 4 - num_saved


def counted(step: Callable[..., Any], calls: list[int]) -> Callable[..., Any]:
    def counting(self: ModelDrafter, turns: list[Any], goes_on: GoesOn) -> Any:
        calls.append(len(turns))
        return step(self, turns, goes_on)

    return counting


def test_in_a_text_that_repeats_itself_steps_are_saved(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that cost nothing, as far as is known."""
    steps: list[int] = []
    monkeypatch.setattr(ModelDrafter, "_step", counted(ModelDrafter._step, steps))
    monkeypatch.setattr(StepCosts, "measured", lambda self, num_rows: 0.01)
    draft = DraftConfig(ngram=False, model=judge.path, num_tokens=4)
    with Engine.open(judge.path, judge.config(draft=draft)) as engine:
        run(engine, [Request(prompt_of(9) * 4, SamplingParams(temperature=0), max_output_tokens=101)])
        stats = engine.stats().drafts
    assert stats is not None
    assert len(steps) < stats.num_draft_tokens


def test_several_sequences_fill_their_tiles_with_each_other(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(self: Guesses, sequence: Sequence, num_rows: int, num_wanted: int) -> list[int]:
        raise AssertionError("guessed beside another sequence")

    draft = DraftConfig(ngram=False, model=judge.path, num_tokens=4)
    requests = [Request(prompt_of(9), SamplingParams(temperature=0), max_output_tokens=20) for _ in range(2)]
    with Engine.open(judge.path, judge.config(draft=draft)) as engine:
        monkeypatch.setattr(Guesses, "make", never)
        answers = [tokens_of(outputs) for outputs in run(engine, requests)]
    assert answers[0] == answers[1]
