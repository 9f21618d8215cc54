# Whatever was done in a conversation, resuming gives the same one: messages, token ids, what has left the context.
from __future__ import annotations

import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingle.cli.conversation import Conversation
from ingle.cli.errors import UsageProblem
from ingle.cli.output import Output
from ingle.cli.records import ModelId
from ingle.cli.session import Session
from ingle.cli.transcript import Transcript
from ingle.models.chat_template import ChatTemplate
from tests.cli.fakes import CHATML, CONTROL, END, CharTokenizer

FAKE, OTHER = ModelId("fake", "fake.gguf", 1000), ModelId("other", "other.gguf", 2000)
LIMIT = 150


def opened(path: Path, model: ModelId = FAKE) -> Session:
    conversation = Conversation(CharTokenizer(), ChatTemplate(CHATML), "be brief")
    return Session(conversation, model, Output(io.StringIO(), io.StringIO()), Transcript.open(path))


def exchange(session: Session, question: str, answer: str = "yes", *, exact: bool = True) -> None:
    """An answer made of other ids than tokenizing its text would give: 100 more each."""
    turn = session.conversation.begin(question, LIMIT)
    session.ask(turn)
    session.answer(turn, [*(ord(char) + 100 for char in answer), CONTROL[END]], answer, "stop", exact=exact)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trip.jsonl"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("conversations")


words = st.sampled_from(["hi", "é", "a long question, long enough to push others out", "\n", END])
steps = st.one_of(
    st.tuples(st.just("ask"), words, words),
    st.tuples(st.just("stopped by a stop string"), words, words),
    st.tuples(st.just("killed"), words, words),
    st.tuples(st.just("undo"), st.integers(1, 3)),
    st.tuples(st.just("system"), st.sampled_from([None, "be brief", "be long"])),
    st.tuples(st.just("reopen")),
    st.tuples(st.just("another model"), st.sampled_from([FAKE, OTHER])),
)


@given(st.lists(steps, max_size=12))
def test_resuming_gives_the_same_conversation(folder: Path, steps: list[tuple[str, ...]]) -> None:
    path = folder / "random.jsonl"
    path.unlink(missing_ok=True)
    model, session = FAKE, opened(path)
    for step in steps:
        match step:
            case ("ask", question, answer):
                exchange(session, question, answer)
            case ("stopped by a stop string", question, answer):
                exchange(session, question, answer, exact=False)
            case ("killed", question, _):
                session.ask(session.conversation.begin(question, LIMIT))
            case ("undo", num):
                if session.conversation.exchanges or session.pending is not None:
                    session.undo(int(num))
            case ("system", text):
                session.set_system(text)
            case ("reopen",):
                session.close()
                session = opened(path, model)
            case ("another model", changed):
                session.close()
                assert isinstance(changed, ModelId)
                model = changed
                session = opened(path, model)
    session.close()
    again = opened(path, model)
    before, after = session.conversation, again.conversation
    if session.conversation.exchanges:  # otherwise there may be no file, and the system prompt is as it was
        assert after.system == before.system
    assert list(after.exchanges) == list(before.exchanges)
    assert after.begin("?", LIMIT) == before.begin("?", LIMIT) or after.system != before.system
    assert again.pending == session.pending
    again.close()


def test_the_ids_are_those_that_were_generated(path: Path) -> None:
    session = opened(path)
    exchange(session, "hi", "yes")
    history = session.conversation.tokens
    session.close()
    again = opened(path)
    assert again.conversation.begin("?", LIMIT).prompt.tokens[: len(history)] == history
    assert ord("y") + 100 in history, "and not those of the text"
    again.close()


def test_another_models_ids_are_not_used_but_its_words_are(path: Path) -> None:
    session = opened(path)
    exchange(session, "hi", "yes")
    session.close()
    other = opened(path, OTHER)
    assert other.former_model == FAKE
    tokens = other.conversation.begin("?", LIMIT).prompt.tokens
    assert "assistant\nyes<|im_end|>" in CharTokenizer().detokenize(tokens)
    exchange(other, "and now?", "no")
    other.close()
    again = opened(path, OTHER)
    assert again.former_model is None, "it has been said"
    assert again.conversation.tokens == (
        *again.conversation.begin("?", 1000).prompt.tokens[: len(again.conversation.tokens)],
    )
    assert [exchange.answer for exchange in again.conversation.exchanges] == ["yes", "no"]
    again.close()


def test_ids_that_do_not_add_up_are_made_from_the_text(path: Path) -> None:
    session = opened(path)
    exchange(session, "hi", "yes")
    exchange(session, "there", "no")
    session.close()
    path.write_text(path.read_text().replace('"kept": ', '"kept": 1'))
    again = opened(path)
    assert again.conversation.tokens == ()
    assert "user\nthere" in CharTokenizer().detokenize(again.conversation.begin("?", 1000).prompt.tokens)
    again.close()


@pytest.mark.parametrize(
    "line",
    [
        '{"user": 7}',
        '{"answer": "to nothing"}',
        '{"undo": -1}',
        '{"undo": "all"}',
        '{"branch": 3}',
        '{"system": 5}',
        '{"note": "mine"}',
    ],
)
def test_records_of_later_versions_are_passed_over(path: Path, line: str) -> None:
    session = opened(path)
    exchange(session, "hi", "yes")
    session.close()
    path.write_text(path.read_text() + line + "\n")
    again = opened(path)
    assert list(again.conversation.exchanges) == list(session.conversation.exchanges)
    assert again.conversation.system == "be brief"
    again.close()
    assert line in path.read_text()


def test_undo_counts_a_message_without_an_answer(path: Path) -> None:
    session = opened(path)
    exchange(session, "one")
    exchange(session, "two")
    session.ask(session.conversation.begin("three", LIMIT))
    assert session.undo(1) == ["three"]
    assert session.undo(5) == ["one", "two"]
    with pytest.raises(UsageProblem):
        session.undo()
    session.close()
    assert path.read_text().count('{"user"') == 3, "what was taken back is still there to read"


def test_a_disk_that_fills_up_is_told_once_and_the_chat_goes_on(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    err = io.StringIO()
    conversation = Conversation(CharTokenizer(), ChatTemplate(CHATML))
    session = Session(conversation, FAKE, Output(io.StringIO(), err), Transcript.open(path))

    def full(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.write", full)
        exchange(session, "one")
        exchange(session, "two")
    assert err.getvalue().count("\n") == 1
    assert "No space left" in err.getvalue()
    exchange(session, "three")
    session.close()
    again = opened(path)
    assert [each.question for each in again.conversation.exchanges] == ["one", "two", "three"]
    assert again.conversation.tokens == session.conversation.tokens
    again.close()
