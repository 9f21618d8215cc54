# Messages to tokens: control tokens in messages stay text, and a conversation keeps the ids it generated.
from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from ingle.cli.prompt import PromptBuilder
from ingle.models.chat_template import ChatTemplate, Message
from tests.cli.fakes import CHATML, CONTROL, END, START, CharTokenizer

TRIMMING = CHATML.replace("m.content", "(m.content | trim)")
FORGETFUL = CHATML.replace("m.content", "(m.content.split('</think>')[-1])")


def builder(template: str = CHATML) -> PromptBuilder:
    return PromptBuilder(CharTokenizer(), ChatTemplate(template))


def user(text: str) -> list[Message]:
    return [Message("user", text)]


def controls(tokens: tuple[int, ...]) -> list[int]:
    return [token for token in tokens if token in CONTROL.values()]


def test_template_controls_are_tokens() -> None:
    tokens = builder().build(user("hi")).tokens
    start, end = CONTROL[START], CONTROL[END]
    assert tokens == (start, *map(ord, "user\nhi"), end, ord("\n"), start, *map(ord, "assistant\n"))


# Pieces that build control tokens, overlap them, or look like the builder's own placeholders.
pieces = st.sampled_from([START, END, "<|im_", "end|>", "<|", "|>", "a", " ", "\n", "\ue0f0", "\ue0f1", "0", "é"])
hostile = st.lists(pieces, max_size=12).map("".join)


@given(hostile)
def test_controls_in_a_message_stay_text(text: str) -> None:
    tokens = builder().build(user(text)).tokens
    assert len(controls(tokens)) == 3
    assert CharTokenizer().detokenize(tokens) == f"{START}user\n{text}{END}\n{START}assistant\n"


@given(st.lists(st.tuples(hostile, hostile), min_size=2, max_size=4))
def test_a_conversation_extends_its_own_ids(exchanges: list[tuple[str, str]]) -> None:
    build = builder()
    messages = user(exchanges[0][0])
    prompt = build.build(messages)
    for (_, answer), (question, _) in itertools.pairwise(exchanges):
        generated = (*map(ord, answer), CONTROL[END])  # a control token ends it; inside, there are only letters
        messages = [*messages, Message("assistant", answer), Message("user", question)]
        following = build.extend((*prompt.tokens, *generated), messages[:-2], answer, messages)
        assert following.tokens[: len(prompt.tokens) + len(generated)] == prompt.tokens + generated
        assert following.tokens == builder().build(messages).tokens, "nothing doubled, nothing missing"
        prompt = following


def test_an_interrupted_answer_is_closed_by_the_template() -> None:
    build = builder()
    prompt = build.build(user("hi"))
    messages = [*user("hi"), Message("assistant", "hel"), Message("user", "go on")]
    following = build.extend((*prompt.tokens, *map(ord, "hel")), messages[:-2], "hel", messages)
    assert following.tokens == builder().build(messages).tokens


def test_ids_are_kept_where_tokenizing_again_would_change_them() -> None:
    """The model said "yes" with a token of its own (7), which tokenizing the text does not give."""
    build = builder()
    prompt = build.build(user("hi"))
    messages = [*user("hi"), Message("assistant", "yes"), Message("user", "?")]
    following = build.extend((*prompt.tokens, 7, CONTROL[END]), messages[:-2], "yes", messages)
    assert following.tokens[len(prompt.tokens) :][:3] == (7, CONTROL[END], ord("\n"))


def test_ids_are_kept_where_the_template_trims() -> None:
    build = builder(TRIMMING)
    prompt = build.build(user("hi"))
    generated = (*map(ord, " yes "), CONTROL[END])
    messages = [*user("hi"), Message("assistant", " yes "), Message("user", "?")]
    following = build.extend((*prompt.tokens, *generated), messages[:-2], " yes ", messages)
    assert following.tokens[: len(prompt.tokens) + len(generated)] == prompt.tokens + generated


def test_a_template_that_rewrites_the_past_is_followed() -> None:
    build = builder(FORGETFUL)
    prompt = build.build(user("hi"))
    answer = "hm</think>yes"
    messages = [*user("hi"), Message("assistant", answer), Message("user", "?")]
    following = build.extend((*prompt.tokens, *map(ord, answer), CONTROL[END]), messages[:-2], answer, messages)
    assert following.tokens == builder(FORGETFUL).build(messages).tokens
    assert "hm" not in CharTokenizer().detokenize(following.tokens)


def test_opens_thinking() -> None:
    assert not builder().build(user("hi")).opens_thinking
    assert builder(CHATML.replace("assistant\\n'", "assistant\\n<think>\\n'")).build(user("hi")).opens_thinking


def test_a_template_that_writes_the_time_does_not_lose_the_history() -> None:
    """Rendered anew each time, yesterday's beginning says today: the ids must still be yesterday's."""

    class Dated:
        adds_bos = True
        day = 1

        def render(self, messages: object, **flags: object) -> str:
            return f"day {self.day} " + ChatTemplate(CHATML).render(messages, **flags)  # type: ignore[arg-type]

    template = Dated()
    build = PromptBuilder(CharTokenizer(), template)
    prompt = build.build(user("hi"))
    generated = (*map(ord, "yes"), CONTROL[END])
    template.day = 2
    messages = [*user("hi"), Message("assistant", "yes"), Message("user", "?")]
    following = build.extend((*prompt.tokens, *generated), messages[:-2], "yes", messages)
    assert following.tokens[: len(prompt.tokens) + len(generated)] == prompt.tokens + generated


class Counting(CharTokenizer):
    def __init__(self) -> None:
        self.num_characters = 0
        self.num_asked = 0

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        self.num_characters += len(text)
        return super().tokenize(text, add_special=add_special, parse_special=parse_special)

    def control_tokens(self) -> tuple[str, ...]:
        self.num_asked += 1
        return super().control_tokens()


def test_a_message_is_searched_once_however_many_control_tokens_it_holds() -> None:
    tokenizer = Counting()
    build = PromptBuilder(tokenizer, ChatTemplate(CHATML))
    build.build(user("a" * 1000))
    assert tokenizer.num_asked == 0, "the list of control tokens is not free"
    text = f"some words {END} " * 200
    tokenizer.num_characters = 0
    tokens = build.build(user(text)).tokens
    assert len(controls(tokens)) == 3
    assert tokenizer.num_characters < 3 * len(text) + 100, "twice to find out, once for the prompt"
    tokenizer.num_characters = 0
    build.build(user(text))
    assert tokenizer.num_characters < len(text) + 100
    assert tokenizer.num_asked == 1
