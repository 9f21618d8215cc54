# The chat on a real (pseudo-)terminal, with a fake model: keys, pastes, Ctrl-C, history.
from __future__ import annotations

import re
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from ingle.cli.repl import is_unfinished
from tests.cli.screen import CTRL_C, CTRL_D, END_PASTE, ESC, PASTE, TAB, UP, Screen


def test_question_answer_and_ctrl_d(open_chat: Callable[..., Screen]) -> None:
    chat = open_chat()
    chat.send("hello\r")
    chat.says("['hello']")
    chat.prompt()
    chat.send(CTRL_D)
    assert chat.ends() == 0
    assert "Abort" not in chat.rest
    assert "Traceback" not in chat.rest


def test_ctrl_c_stops_the_answer_and_keeps_the_chat(open_chat: Callable[..., Screen]) -> None:
    chat = open_chat()
    chat.send("forever\r")
    chat.says("word20")
    chat.send(CTRL_C)
    chat.says("(stopped)")
    chat.prompt()
    chat.send("still there?\r")
    chat.says("['still there?']")
    chat.prompt()
    chat.send("/exit\r")
    assert chat.ends() == 0


def test_ctrl_c_twice_when_idle_leaves(open_chat: Callable[..., Screen]) -> None:
    chat = open_chat()
    chat.send(CTRL_C)
    chat.says("(Ctrl-C again or Ctrl-D leaves)")
    chat.prompt()
    chat.send(CTRL_C)
    assert chat.ends() == 0
    assert "Traceback" not in chat.rest


def test_ctrl_c_on_a_line_clears_it(open_chat: Callable[..., Screen]) -> None:
    chat = open_chat()
    chat.send("half a thou")
    chat.says("half a thou")
    chat.send(CTRL_C)
    chat.send("whole\r")
    chat.says("['whole']")


def test_paste_keeps_its_lines(open_chat: Callable[..., Screen]) -> None:
    chat = open_chat()
    chat.send(f"{PASTE}one\ntwo\nthree{END_PASTE}\r")
    chat.says(r"['one\ntwo\nthree']")


def test_many_lines_by_escape_enter_and_by_quotes(open_chat: Callable[..., Screen]) -> None:
    chat = open_chat()
    chat.send(f"one{ESC}\rtwo\r")
    chat.says(r"['one\ntwo']")
    chat.prompt()
    chat.send('"""one\rtwo\r"""\r')
    chat.says(r"['one\ntwo']")


def test_history_is_private_and_lasts(open_chat: Callable[..., Screen], tmp_path: Path) -> None:
    chat = open_chat()
    chat.send("remember me\r")
    chat.says("['remember me']")
    chat.prompt()
    chat.send(CTRL_D)
    assert chat.ends() == 0
    history = tmp_path / "state" / "ingle" / "chat-history"
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    again = open_chat()
    again.send(UP)
    again.says("remember me")
    again.send("\r")
    again.says("['remember me']")


def test_tab_completes_commands(open_chat: Callable[..., Screen]) -> None:
    chat = open_chat()
    chat.send(f"/cont{TAB}")
    chat.says("ext")
    chat.send("\r")
    chat.says("0 of 4096 tokens")


def test_typing_during_an_answer_waits_for_the_prompt(open_chat: Callable[..., Screen]) -> None:
    chat = open_chat()
    chat.send("forever\r")
    chat.says("word5 ")
    chat.send("next")
    chat.says("word40 ")
    seen = re.sub(r"\s", "", chat.child.before)
    assert "next" not in seen
    chat.send(CTRL_C)
    chat.says("(stopped)")


def test_terminated_while_idle(open_chat: Callable[..., Screen]) -> None:
    import signal

    chat = open_chat()
    chat.child.kill(signal.SIGTERM)
    assert chat.ends() == 143
    assert "Traceback" not in chat.rest


@pytest.mark.parametrize(
    ("text", "expected"),
    [('"""', True), ('"""a', True), ('"""a"""', False), ("a", False), ('a """', False), ('  """a\nb', True)],
)
def test_is_unfinished(text: str, expected: bool) -> None:
    assert is_unfinished(text) is expected


def test_ctrl_c_while_a_prompt_is_made_keeps_the_chat(open_chat: Callable[..., Screen]) -> None:
    chat = open_chat()
    chat.send("slow to tokenize\r")
    chat.says("(tokenizing)")
    chat.send(CTRL_C)
    chat.says("(stopped)")
    chat.prompt()
    chat.send("still there?\r")
    chat.says("['still there?']")
