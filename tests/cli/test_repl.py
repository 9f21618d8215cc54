# The chat on a real (pseudo-)terminal, with a fake model: keys, pastes, Ctrl-C, history.
from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pexpect
import pytest

from ingle.cli.repl import is_unfinished

DRIVER = Path(__file__).parent / "chat_driver.py"
CTRL_C, CTRL_D, ESC, TAB, UP = "\x03", "\x04", "\x1b", "\t", "\x1b[A"
PASTE, END_PASTE = "\x1b[200~", "\x1b[201~"


class Screen:
    """A chat on a terminal of 100 columns."""

    def __init__(self, environ: dict[str, str], *arguments: str) -> None:
        self.child = pexpect.spawn(
            sys.executable, [str(DRIVER), *arguments], env=environ, encoding="utf-8", dimensions=(40, 100), timeout=10
        )
        self.prompt()

    def prompt(self) -> None:
        """Wait until the line editor reads keys."""
        self.child.expect(r">[ \x08]")  # prompt_toolkit moves the cursor instead of writing the blank

    def says(self, text: str) -> None:
        self.child.expect_exact(text)

    def send(self, text: str) -> None:
        self.child.send(text)

    def ends(self) -> int:
        """The exit code, after everything it still had to say."""
        self.rest = self.child.read()
        self.child.close()
        return int(self.child.exitstatus if self.child.exitstatus is not None else -self.child.signalstatus)


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("INGLE_", "XDG_"))}
    return kept | {
        "TERM": "xterm",
        "PROMPT_TOOLKIT_NO_CPR": "1",  # pexpect answers no questions about the cursor
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
    }


@pytest.fixture
def open_chat(environ: dict[str, str]) -> Iterator[Callable[..., Screen]]:
    opened: list[Screen] = []

    def open_one(*arguments: str) -> Screen:
        opened.append(Screen(environ, *arguments))
        return opened[-1]

    yield open_one
    for screen in opened:
        screen.child.close(force=True)


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
