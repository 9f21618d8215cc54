# What a conversation keeps, and what leaves it when the context is full.
from __future__ import annotations

from ingle.cli.conversation import Conversation
from ingle.models.chat_template import ChatTemplate
from tests.cli.fakes import CHATML, CONTROL, END, CharTokenizer


def conversation(system: str | None = None) -> Conversation:
    return Conversation(CharTokenizer(), ChatTemplate(CHATML), system)


def exchange(talk: Conversation, question: str, answer: str, limit: int = 10_000) -> None:
    talk.commit(talk.begin(question, limit), (*map(ord, answer), CONTROL[END]), answer)


def text(tokens: tuple[int, ...]) -> str:
    return CharTokenizer().detokenize(tokens)


def test_begin_changes_nothing() -> None:
    talk = conversation()
    assert talk.begin("a", 1000).prompt.tokens == talk.begin("a", 1000).prompt.tokens
    assert talk.exchanges == []


def test_oldest_exchanges_leave_first_until_the_others_take_half_of_the_room() -> None:
    talk = conversation("be brief")
    for number in range(4):
        exchange(talk, f"question {number}", f"answer {number}")
    whole = talk.begin("last", 10_000)
    assert whole.dropped == ()
    one_less = talk.begin("last", len(whole.prompt.tokens) - 1)
    assert one_less.dropped == tuple(talk.exchanges[:3])
    bare = len(conversation("be brief").begin("last", 10_000).prompt.tokens)
    history = len(whole.prompt.tokens) - bare
    assert len(one_less.prompt.tokens) == bare + history // 4, "a second one would be more than half of what is left"
    assert "question 2" not in text(one_less.prompt.tokens)
    assert "question 3" in text(one_less.prompt.tokens)
    assert "be brief" in text(one_less.prompt.tokens), "the system prompt stays"
    assert len(talk.exchanges) == 4, "nothing has left until the turn is over"
    talk.commit(one_less, (CONTROL[END],), "x")
    assert [e.question for e in talk.in_context] == ["question 3", "last"]


def test_a_question_that_cannot_fit_leaves_only_itself() -> None:
    talk = conversation()
    exchange(talk, "a", "b")
    turn = talk.begin("x" * 500, 100)
    assert len(turn.dropped) == 1
    assert len(turn.prompt.tokens) > 500


def test_after_a_drop_the_next_turn_extends_what_was_asked() -> None:
    talk = conversation()
    exchange(talk, "first " * 10, "one")
    turn = talk.begin("second", 60)
    generated = (*map(ord, "two"), CONTROL[END])
    talk.commit(turn, generated, "two")
    following = talk.begin("third", 1000)
    assert following.prompt.tokens[: len(turn.prompt.tokens) + len(generated)] == turn.prompt.tokens + generated


def test_clear_forgets_all_but_the_system_prompt() -> None:
    talk = conversation("be brief")
    fresh = talk.begin("a", 1000).prompt.tokens
    exchange(talk, "secret", "yes")
    talk.clear()
    assert talk.begin("a", 1000).prompt.tokens == fresh
    assert talk.tokens == ()


def test_a_new_system_prompt_stands_at_the_beginning_of_the_old_conversation() -> None:
    talk = conversation()
    exchange(talk, "a", "b")
    talk.system = "be brief"
    prompt = text(talk.begin("c", 1000).prompt.tokens)
    assert prompt.index("be brief") < prompt.index("user\na")


def test_ids_that_say_more_than_the_text_are_not_kept() -> None:
    talk = conversation()
    talk.commit(talk.begin("a", 1000), tuple(map(ord, "b\nUser:")), "b", exact=False)
    assert "b\nUser:" not in text(talk.begin("c", 1000).prompt.tokens)


def test_undo_brings_back_what_had_left() -> None:
    talk = conversation()
    exchange(talk, "first", "one")
    exchange(talk, "second", "two")
    before = talk.begin("third", 10_000).prompt.tokens
    exchange(talk, "x" * 200, "long", limit=250)
    assert len(talk.in_context) == 1, "the first two have left"
    assert [gone.question for gone in talk.undo(1)] == ["x" * 200]
    assert talk.begin("third", 10_000).prompt.tokens == before
    assert [gone.question for gone in talk.undo(5)] == ["first", "second"]
    assert talk.exchanges == []


def test_undo_across_a_new_system_prompt_makes_the_ids_anew() -> None:
    talk = conversation("old")
    exchange(talk, "a", "b")
    talk.system = "new"
    exchange(talk, "c", "d")
    talk.undo(1)
    assert text(talk.begin("e", 1000).prompt.tokens).startswith("<|im_start|>system\nnew")


def test_num_tokens_is_known_where_the_ids_are_not() -> None:
    talk = conversation("old")
    assert talk.num_tokens == 0
    exchange(talk, "a", "b")
    assert talk.num_tokens == len(talk.tokens)
    talk.system = "longer"
    assert talk.tokens == ()
    begun = talk.begin("", 10_000).prompt.tokens
    around = len(conversation().begin("", 10_000).prompt.tokens)  # an empty question, and where the answer begins
    assert talk.num_tokens == len(begun) - around
    talk.commit(talk.begin("c", 1000), tuple(map(ord, "d\nUser:")), "d", exact=False)
    assert talk.num_tokens == len(begun) - around + len("<user|c>|") + len("<assistant|d>|"), "a mark is one token"
