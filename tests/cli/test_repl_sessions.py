# Conversations on a terminal: kept without being asked, found again, edited in the line editor; a killed process.
from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.screen import CTRL_C, CTRL_D, TAB, Screen

OpenChat = Callable[..., Screen]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "data" / "ingle" / "conversations"


def ask(chat: Screen, question: str) -> None:
    chat.send(f"{question}\r")
    chat.says(f"['{question}']")
    chat.prompt()


def test_kept_without_being_asked_and_resumed(open_chat: OpenChat, folder: Path) -> None:
    chat = open_chat()
    ask(chat, "hello")
    chat.send(CTRL_D)
    chat.says("kept as ")
    assert chat.ends() == 0
    (file,) = folder.glob("*.jsonl")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d-\d{4}", file.stem)
    assert file.stem in chat.rest
    again = open_chat("--resume")
    assert f"{file.stem} · 1 exchange" in again.child.before
    assert "> hello" in again.child.before
    assert "  ['hello']" in again.child.before
    again.send("there\r")
    again.says("none of the")  # this model forgets everything with its process
    again.prompt()
    assert len(list(folder.glob("*.jsonl"))) == 1


def test_a_chat_without_a_word_leaves_no_file(open_chat: OpenChat, folder: Path) -> None:
    chat = open_chat()
    chat.send(CTRL_D)
    assert chat.ends() == 0
    assert "kept as" not in chat.rest
    assert list(folder.glob("*.jsonl")) == []


def test_save_gives_a_name_and_new_begins_another(open_chat: OpenChat, folder: Path) -> None:
    chat = open_chat()
    ask(chat, "one")
    chat.send("/save trip\r")
    chat.says("'trip' from here on")
    chat.prompt()
    ask(chat, "two")
    chat.send("/new\r")
    chat.says("A new conversation.")
    chat.prompt()
    ask(chat, "three")
    chat.send("/sessions\r")
    chat.says("* 20")
    chat.says("  trip")
    chat.prompt()
    assert len(list(folder.glob("*.jsonl"))) == 2, "renamed, not copied"
    chat.send(f"/resume tr{TAB}")
    chat.says("ip")
    chat.send("\r")
    chat.says("trip · 2 exchanges")
    chat.prompt()
    chat.send(CTRL_D)
    assert chat.ends() == 0
    assert "kept as" not in chat.rest, "a name that was chosen is known"


def test_edit_begins_with_the_last_question(open_chat: OpenChat) -> None:
    chat = open_chat("--session", "trip")
    ask(chat, "helo")
    chat.send("/edit\r")
    chat.prompt()
    chat.send("\x7flo\r")
    chat.says("['hello']")
    chat.prompt()
    chat.send("/edit\r")
    chat.prompt()
    chat.send(f"xyz{CTRL_C}{CTRL_C}")
    chat.says("(unchanged)")
    chat.prompt()
    chat.send("/context\r")
    chat.says("1 exchange")


def test_retry_and_undo(open_chat: OpenChat) -> None:
    chat = open_chat("--session", "trip")
    ask(chat, "one")
    chat.send("/retry\r")
    chat.says("['one']")
    chat.prompt()
    chat.send("/undo\r")
    chat.says("taken back: one")
    chat.prompt()
    chat.send("/cache\r")
    chat.says("from disk")
    chat.says("num_written")


def test_killed_in_the_middle_of_an_answer_the_message_is_kept(open_chat: OpenChat, folder: Path) -> None:
    chat = open_chat("--session", "trip")
    ask(chat, "one")
    chat.send("forever yours\r")
    chat.says("word20")
    chat.child.kill(signal.SIGKILL)
    chat.child.wait()
    lines = (folder / "trip.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["user"] == "forever yours"
    again = open_chat("--session", "trip")
    assert "trip · 1 exchange" in again.child.before
    assert "/retry" in again.child.before
    again.send("/retry\r")
    again.says("word20")
    again.send(CTRL_C)
    again.says("(stopped)")
    again.prompt()
    again.send("/context\r")
    again.says("2 exchanges")


def test_two_processes_with_one_conversation(open_chat: OpenChat, environ: dict[str, str]) -> None:
    import subprocess
    import sys

    from tests.cli.screen import DRIVER

    open_chat("--session", "trip")
    command = [sys.executable, str(DRIVER), "--session", "trip"]
    second = subprocess.run(command, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert (second.returncode, second.stdout) == (75, "")
    assert second.stderr.startswith("error: the conversation 'trip' is open in another process\nhint: ")


def test_memory_is_given_back_when_nobody_types(open_chat: OpenChat, environ: dict[str, str]) -> None:
    environ["IDLE_S"] = "0.3"
    chat = open_chat()
    chat.says("(shrunk)")
    ask(chat, "still there?")
    chat.says("(shrunk)")
    chat.send(CTRL_D)
    assert chat.ends() == 0
    assert "Traceback" not in chat.rest


def test_a_folder_that_cannot_be_written(open_chat: OpenChat, folder: Path) -> None:
    folder.parent.parent.mkdir(parents=True)
    folder.parent.write_text("in the way")
    chat = open_chat()
    assert "this conversation is not saved" in chat.child.before
    ask(chat, "hello")
