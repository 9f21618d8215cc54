# The chat without a terminal: turns, commands, a full context, and the ids of the next prompt.
from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from ingle.cli import source
from ingle.cli.errors import InputProblem, Terminated
from ingle.cli.signals import Signals
from tests.cli.conftest import Turns
from tests.cli.fakes import CHATML, FakeEngine


def test_answers_are_all_that_is_on_stdout(talk: Any) -> None:
    engine = FakeEngine(lambda prompt: f"answer {prompt.count('user')}")
    assert talk(engine, ["one", "", "two"]) == (0, "answer 1\nanswer 2\n", [])


def test_the_next_prompt_begins_with_the_ids_so_far(talk: Any) -> None:
    engine = FakeEngine(lambda _: "yes")
    talk(engine, ["one", "two", "three"], system="be brief")
    for before, generated, after in zip(engine.prompts, engine.generated, engine.prompts[1:], strict=False):
        assert after[: len(before) + len(generated)] == before + generated
    assert "be brief" in engine.detokenize(engine.prompts[2])


def test_commands(talk: Any) -> None:
    engine = FakeEngine()
    turns: Turns = ["one", "/context", "/new", "/context", "/system Be nice.", "two", "/set temp 0.5", "/set", "/stats"]
    code, out, err = talk(engine, [*turns, "/help", "/exit", "never asked"])
    assert (code, out) == (0, "yes\nyes\n")
    used = len(engine.prompts[0]) + len(engine.generated[0])
    assert err[0] == f"{used} of 4096 tokens ({100 * used / 4096:.0f} %), 1 exchange"
    assert err[1].startswith("A new conversation")
    assert err[2].startswith("0 of 4096")
    assert err[3] == "system: Be nice."
    assert err[4] == "temp = 0.5"
    assert "  temp            0.5" in err
    assert any(line.startswith("  num_requests_running") for line in err)
    assert any("/context" in line for line in err)
    second = engine.detokenize(engine.prompts[1])
    assert "one" not in second
    assert "Be nice." in second


def test_a_command_may_be_shortened_and_a_message_may_begin_with_a_slash(talk: Any) -> None:
    engine = FakeEngine()
    _, _, err = talk(engine, ["/con", "//etc/hosts is what?"])
    assert err[0].startswith("0 of 4096")
    assert "\n/etc/hosts is what?" in engine.detokenize(engine.prompts[0])


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("/sets", ["there is no command /sets", "/set"]),
        ("/s", ["there is no command /s"]),
        ("/set colour red", ["colour"]),
        ("/set temp hot", ["temp", "hot"]),
        ("/set temp -1", ["temp is -1"]),
    ],
)
def test_a_wrong_command_changes_nothing(talk: Any, line: str, words: list[str]) -> None:
    code, out, err = talk(FakeEngine(), [line, "/set", "go on"])
    assert out == "yes\n"
    assert code == 1, "a piped turn failed"
    for word in words:
        assert word in "\n".join(err[:2])
    assert "  temp            (default)" in err


def test_settings_of_set_reach_the_request(talk: Any) -> None:
    engine = FakeEngine(lambda _: "a long answer")
    _, out, _ = talk(engine, ["/set max_tokens 3", "one", "/set max_tokens default", "two"])
    assert out == "a l\na long answer\n"


def test_full_context_drops_the_oldest_and_says_so(talk: Any) -> None:
    engine = FakeEngine(lambda _: "x" * 30, n_ctx=400)
    code, _, err = talk(engine, [f"question number {n}" for n in range(6)])
    assert code == 0
    dropped = [line for line in err if "dropping" in line]
    assert dropped[0].startswith("warning: the context (400 tokens) is full: dropping the 3 oldest exchanges (")
    assert '"question number 0"' in dropped[0]
    foretold = [line for line in err if "will be dropped first" in line]
    assert foretold
    assert all(len(prompt) <= 400 - 100 for prompt in engine.prompts)


def test_a_question_longer_than_the_context_is_refused_with_both_numbers(talk: Any) -> None:
    engine = FakeEngine(n_ctx=100)
    code, out, err = talk(engine, ["x" * 200, "hi"])
    assert code == 1
    assert out == "yes\n", "the chat goes on"
    assert "100" in err[0]
    assert any(word.isdigit() and int(word) > 200 for word in err[0].split())
    assert "xxx" not in engine.detokenize(engine.prompts[0])


def test_interrupted_answer_stays_in_the_conversation(talk: Any) -> None:
    signals = Signals()
    engine = FakeEngine(lambda _: "a very long answer")
    original = engine.stream

    def stream(request_id: Any) -> Iterator[Any]:
        for number, output in enumerate(original(request_id)):
            if number == 6 and len(engine.prompts) == 1:
                signals._handle(signal.SIGINT, None)
            yield output

    engine.stream = stream  # type: ignore[method-assign]
    code, out, err = talk(engine, ["one", "two"], signals=signals)
    assert code == 0
    assert out == "a very \na very long answer\n"
    assert "(stopped)" in err
    assert "assistant\na very <|im_end|>\n" in engine.detokenize(engine.prompts[1])


def test_terminated_in_an_answer(talk: Any) -> None:
    signals = Signals()
    engine = FakeEngine(lambda _: "a very long answer")
    engine.answer = lambda _: (signals._handle(signal.SIGTERM, None), "abc")[1]  # type: ignore[func-returns-value]
    with pytest.raises(Terminated) as caught:
        talk(engine, ["one"], signals=signals)
    assert caught.value.exit_code == 143


def test_hidden_thinking_is_not_shown_but_remembered(talk: Any) -> None:
    engine = FakeEngine(lambda _: "<think>hm</think>yes")
    _, out, _ = talk(engine, ["one", "two"], hide_think=True)
    assert out == "yes\nyes\n"
    assert "<think>hm</think>yes" in engine.detokenize(engine.prompts[1])


def test_thinking_switch_reaches_the_template(talk: Any) -> None:
    template = CHATML + "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
    engine = FakeEngine()
    talk(engine, ["one"], template, think=False)
    talk(engine, ["one"], template, think=True)
    assert engine.detokenize(engine.prompts[0]).endswith("<think></think>")
    assert engine.detokenize(engine.prompts[1]).endswith("assistant\n")


def test_json_is_one_object_a_turn(talk: Any) -> None:
    _, out, _ = talk(FakeEngine(), ["one", "two"], json=True)
    turns = [json.loads(line) for line in out.splitlines()]
    assert [turn["text"] for turn in turns] == ["yes", "yes"]
    assert {turn["dropped_exchanges"] for turn in turns} == {0}
    assert turns[1]["usage"]["prompt_tokens"] > turns[0]["usage"]["prompt_tokens"]


def test_stats(talk: Any) -> None:
    _, _, err = talk(FakeEngine(), ["one"], stats=True)
    assert "answer 3 tokens" in err[0]


def test_context_and_its_warning_after_a_new_system_prompt(talk: Any) -> None:
    engine = FakeEngine(lambda _: "x" * 30, n_ctx=200)
    _, _, err = talk(engine, ["one", "/system Be nice.", "/context", "/system " + "a" * 60, "two"])
    assert next(line for line in err if " of 200 tokens (" in line)[0] != "0"
    assert any("will be dropped" in line for line in err)


def test_a_json_turn_that_fails_is_an_object(talk: Any) -> None:
    code, out, err = talk(FakeEngine(n_ctx=100), ["x" * 200, InputProblem("no text", "so"), "hi"], json=True)
    failed, unread, answered = map(json.loads, out.splitlines())
    assert (code, err) == (1, [])
    assert failed.keys() == unread.keys() == {"version", "error", "hint"}
    assert (unread["error"], unread["hint"]) == ("no text", "so")
    assert answered["text"] == "yes"


def test_ctrl_c_while_a_prompt_is_made_ends_a_pipe(talk: Any) -> None:
    def interrupted() -> str:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        talk(FakeEngine(), [interrupted])


def test_no_tokens_is_said(talk: Any) -> None:
    _, out, err = talk(FakeEngine(), ["/set max_tokens 0", "one"])
    assert out == ""
    assert "max_tokens is 0" in err[1]


def test_arguments_begin_after_any_space_and_keep_their_lines(talk: Any) -> None:
    engine = FakeEngine()
    _, _, err = talk(engine, ["/system\nBe nice.\nBe brief.", "/set\ttemp\t0.5", "one"])
    assert "Be nice.\nBe brief." in engine.detokenize(engine.prompts[0])
    assert "temp = 0.5" in err


def test_one_letter_is_no_command(talk: Any) -> None:
    engine = FakeEngine()
    code, _, err = talk(engine, ["one", "/n", "two"])
    assert code == 1
    assert "there is no command /n" in err[0]
    assert "one" in engine.detokenize(engine.prompts[1])


def test_somebody_whose_answers_go_elsewhere_is_told_to_type(talk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "stdin_is_terminal", lambda: True)
    assert talk(FakeEngine(), ["one"]) == (0, "yes\n", ["reading turns from the terminal, one a line; Ctrl-D ends"])
