# Conversations that are kept: begun, gone on with, taken back, given names; in the chat and in `ingle run --session`.
from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import pytest

from ingle.cli import run as run_module
from ingle.cli import shelf
from ingle.cli.errors import BadTranscript, Busy, InputProblem, UsageProblem
from ingle.cli.options import ModelFlags, SamplingFlags
from ingle.cli.output import Output
from ingle.cli.run import RunFlags, run
from ingle.cli.signals import Signals
from ingle.cli.transcript import Transcript
from tests.cli.fakes import FakeEngine, open_fake


def questions(name: str) -> list[str]:
    """Of every question in the file, taken back or not."""
    lines = map(json.loads, shelf.path_of(name).read_text().splitlines())
    return [line["user"] for line in lines if "user" in line]


def test_a_session_goes_on_from_the_ids_it_had(talk: Any) -> None:
    engine = FakeEngine()
    talk(engine, ["one"], session="trip", system="be brief")
    assert talk(engine, ["two"], session="trip")[:2] == (0, "yes\n")
    history = engine.prompts[0] + engine.generated[0]
    assert engine.prompts[1][: len(history)] == history
    assert questions("trip") == ["one", "two"]


def test_resuming_shows_where_it_was_and_what_came_back(talk: Any) -> None:
    engine = FakeEngine(lambda _: "\n".join(f"line {number}" for number in range(6)))
    talk(engine, ["one"], session="trip")
    _, _, err = talk(engine, ["two", "three"], resume=True)
    assert err[:7] == ["trip · 1 exchange", "> one", "  …", "  line 2", "  line 3", "  line 4", "  line 5"]
    total = len(engine.prompts[1])
    cached = len(engine.prompts[0] + engine.generated[0]) - 1  # the last one was not fed back
    assert err[7].startswith(
        f"resumed: {cached} of {total} tokens came from pages in 12 ms, {total - cached} were computed"
    )
    assert len(err) == 8, "it is said once"


def test_pages_that_are_gone_are_computed_again_and_the_user_is_told(talk: Any) -> None:
    engine = FakeEngine()
    talk(engine, ["one"], session="trip")
    engine.forget()
    _, out, err = talk(engine, ["two"], session="trip")
    assert out == "yes\n"
    num = len(engine.prompts[0] + engine.generated[0])
    assert err[-1].startswith(f"resumed: none of the {num} tokens so far were stored any more; computed again in")


def test_the_last_used_is_resumed(talk: Any) -> None:
    engine = FakeEngine()
    with pytest.raises(InputProblem, match="no conversation to resume"):
        talk(engine, [], resume=True)
    for name in ("a", "b"):
        talk(engine, [name], session=name)
    os.utime(shelf.path_of("b"), (1, 1))
    assert talk(engine, ["again"], resume=True)[2][0] == "a · 1 exchange"
    with pytest.raises(UsageProblem, match="--resume"):
        talk(engine, [], resume=True, session="a")


def test_another_model_is_named_and_reads_the_words(talk: Any) -> None:
    engine = FakeEngine()
    talk(engine, ["one"], session="trip")
    _, _, err = talk(engine, ["two"], session="trip", name="other")
    assert err[0].startswith("note: this conversation was with fake; it goes on with other")
    assert "user\none<|im_end|>\n<|im_start|>assistant\nyes" in engine.detokenize(engine.prompts[1])
    assert not talk(engine, ["three"], session="trip", name="other")[2][0].startswith("note")


@pytest.mark.parametrize(
    "name", ["", "../x", "a/b", "a\\b", ".hidden", "-x", "a:b", "a\nb", "x" * 101, "dot.", "é" * 51]
)
def test_what_cannot_be_a_name(talk: Any, name: str) -> None:
    with pytest.raises(UsageProblem):
        talk(FakeEngine(), ["hi"], session=name)


@pytest.mark.parametrize("name", ["trip", "2026 plans", "a.b", "Größe-2", "x" * 100])
def test_what_can_be_a_name(talk: Any, name: str) -> None:
    talk(FakeEngine(), ["hi"], session=name)
    assert shelf.names() == [name]


def test_a_session_that_is_open_elsewhere(talk: Any) -> None:
    held = Transcript.open(shelf.path_of("trip"))
    with pytest.raises(Busy) as caught:
        talk(FakeEngine(), ["hi"], session="trip")
    assert caught.value.exit_code == 75
    held.close()
    assert talk(FakeEngine(), ["hi"], session="trip")[0] == 0


def test_a_file_that_is_not_ours(talk: Any) -> None:
    talk(FakeEngine(), ["hi"], session="trip")
    shelf.path_of("notes").write_text("milk\n")
    with pytest.raises(BadTranscript) as caught:
        talk(FakeEngine(), ["hi"], session="notes")
    assert caught.value.exit_code == 76
    _, _, err = talk(FakeEngine(), ["/sessions"], session="trip")
    assert any("notes" in line and "is not a conversation" in line for line in err), "and the list still works"


def test_a_piped_chat_is_kept_only_when_asked_for(talk: Any) -> None:
    talk(FakeEngine(), ["hi"])
    assert not shelf.folder().exists()


def test_undo_retry_and_edit(talk: Any) -> None:
    engine = FakeEngine(lambda prompt: f"answer {len(engine.prompts)}")
    turns = ["one", "two", "/retry", "/edit", "/edit better", "/undo 2", "/undo"]
    code, out, err = talk(engine, turns, session="trip")
    assert code == 1, "the last /undo had nothing to take back"
    assert out.split("\n")[:-1] == [f"answer {number}" for number in range(1, 6)]
    texts = [engine.detokenize(prompt) for prompt in engine.prompts]
    assert [text.count("<|im_start|>user") for text in texts] == [1, 2, 2, 2, 2]
    assert texts[2] == texts[1]
    assert "user\ntwo, edited<|im_end|>" in texts[3]
    assert "user\nbetter<|im_end|>" in texts[4]
    assert engine.seeds[1] is None
    assert engine.seeds[2] is not None, "the same seed would say the same"
    assert err[-3:] == ["taken back: one", "taken back: better", "error: there is nothing to take back"]
    again = FakeEngine()
    talk(again, ["afresh"], session="trip")
    assert again.detokenize(again.prompts[0]).count("<|im_start|>user") == 1
    assert questions("trip") == ["one", "two", "two", "two, edited", "better", "afresh"], "only ever added to"


def test_retry_has_a_seed_of_its_own_even_where_one_is_set(talk: Any) -> None:
    engine = FakeEngine()
    talk(engine, ["one", "/retry", "two"], sampling=SamplingFlags(seed=5))
    assert (engine.seeds[0], engine.seeds[2]) == (5, 5)
    assert engine.seeds[1] not in (5, None)


@pytest.mark.parametrize(
    "line", ["/undo", "/retry", "/edit x", "/undo many", "/undo 0", "/save", "/save a/b", "/save trip"]
)
def test_what_cannot_be_done_changes_nothing(talk: Any, line: str) -> None:
    code, out, err = talk(FakeEngine(), [line, "hi"], session="trip")
    assert (code, out) == (1, "yes\n")
    assert err[0].startswith("error: ")


def test_new_resume_save_and_sessions(talk: Any) -> None:
    engine = FakeEngine(lambda prompt: "first\nlast line of " + prompt.rpartition("user\n")[2].partition("<")[0])
    turns = ["a", "/save trip", "b", "/new", "c", "/resume trip", "d", "/sessions", "/resume", "/resume nowhere"]
    code, _, err = talk(engine, turns, session="plan")
    assert code == 1
    assert questions("plan") == ["a"], "a copy went on"
    assert questions("trip") == ["a", "b", "d"]
    assert "user\nb<" in engine.detokenize(engine.prompts[3])
    assert engine.detokenize(engine.prompts[2]).count("<|im_start|>user") == 1
    (unnamed,) = set(shelf.names()) - {"plan", "trip"}
    assert questions(unnamed) == ["c"]
    listed = [" ".join(line.split()) for line in err]
    assert "* trip just now 3 exchanges · last line of d" in listed
    assert f"{unnamed} just now 1 exchange · last line of c" in listed
    assert "plan just now 1 exchange · last line of a" in listed
    assert listed.index(f"{unnamed} · 1 exchange") > listed.index("* trip just now 3 exchanges · last line of d"), (
        "/resume alone means the last other one"
    )
    assert "no conversation 'nowhere'" in err[-2]
    assert "plan" in err[-1]


def test_the_message_is_kept_before_it_is_answered(talk: Any) -> None:
    def look(_prompt: str) -> str:
        seen.append(questions("trip"))
        return "yes"

    seen: list[list[str]] = []
    talk(FakeEngine(look), ["one", "two"], session="trip")
    assert seen == [["one"], ["one", "two"]]


def test_cache_shows_the_last_turn_and_the_store(talk: Any) -> None:
    engine = FakeEngine()
    _, _, err = talk(engine, ["/cache", "one", "two", "/cache"])
    assert err[0] == "nothing has been asked yet"
    cached, total = len(engine.prompts[0] + engine.generated[0]) - 1, len(engine.prompts[1])
    at = next(number for number, line in enumerate(err) if line.startswith("reused"))
    assert err[at:] == [
        f"reused {cached} of {total} prompt tokens: 0 resident, 0 from RAM, {cached} from disk"
        " · brought back in 12 ms · about 3.4 s saved",
        f"at token {cached}: nothing further is stored",
        r"  here    '<|im_end|>\n<|im_start|>user\ntwo<|im_end|>\n<|im_start|>a…",
        "  pages.num_written     7",
    ]


def test_stats_show_both_sides_of_a_miss_on_a_line_each(talk: Any) -> None:
    engine = FakeEngine()
    _, _, err = talk(engine, ["read: one\ttwo", "/new", "read: one\nthree " + "x" * 100], stats=True)
    at = len("<|im_start|>user\nread: one") - len("<|im_start|>") + 1
    lines = err[err.index(next(line for line in err if line.startswith("A new"))) + 1 :]
    assert lines[1].startswith(
        f"reused {at} of {len(engine.prompts[1])} prompt tokens: 0 resident, 0 from RAM, {at} from"
    )
    assert lines[2] == f"at token {at}: the text differs"
    assert lines[3].startswith(r"  here    '\nthree xxxx")
    assert lines[4].startswith(r"  stored  '\ttwo")
    assert all(len(line) <= 72 for line in lines[2:5])


# -- ingle run --session ---------------------------------------------------------------------------------------


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr("sys.stdin", None)

    def one(engine: FakeEngine, prompt: str, **changes: Any) -> tuple[int, str, list[str]]:
        monkeypatch.setattr(run_module, "open_for", open_fake(engine))
        values: dict[str, Any] = dict.fromkeys(("session", "system", "think", "quiet"))
        values |= dict.fromkeys(("raw", "hide_think", "json", "jsonl", "stats", "verbose"), False)
        values |= {"prompt": prompt, "files": (), **changes}
        out, err = io.StringIO(), io.StringIO()
        code = run(RunFlags(**values, model=ModelFlags(), sampling=SamplingFlags()), Output(out, err), Signals())
        return code, out.getvalue(), err.getvalue().splitlines()

    return one


def test_run_is_a_turn_of_the_conversation(ask: Any) -> None:
    engine = FakeEngine(lambda prompt: f"answer {prompt.count('user')}")
    assert ask(engine, "one", session="trip", system="be brief") == (0, "answer 1\n", [])
    assert ask(engine, "two", session="trip") == (0, "answer 2\n", [])
    history = engine.prompts[0] + engine.generated[0]
    assert engine.prompts[1][: len(history)] == history
    answer = json.loads(ask(engine, "three", session="trip", json=True)[1])
    assert (answer["session"], answer["text"]) == ("trip", "answer 3")
    assert answer["cache"]["disk_tokens"] == answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert questions("trip") == ["one", "two", "three"]


def test_run_without_a_session_keeps_nothing(ask: Any) -> None:
    assert ask(FakeEngine(), "one") == (0, "yes\n", [])
    assert not shelf.folder().exists()


@pytest.mark.parametrize("changes", [{"raw": True}, {"jsonl": True}, {"session": "a/b"}])
def test_what_does_not_go_with_a_session(ask: Any, changes: dict[str, Any]) -> None:
    with pytest.raises(UsageProblem):
        ask(FakeEngine(), "one", **{"session": "trip", **changes})
