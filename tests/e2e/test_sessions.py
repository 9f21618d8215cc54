# What was read once is not read again: by a second question, in a second process, in a conversation that is resumed.
from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pexpect
import pytest

from tests.e2e.conftest import Shell

PROMPT = r"\?2004h.*?>[ \x08]"  # the line editor reads keys
SONG = "".join(f"{number} bottles of beer on the wall, {number} bottles of beer.\n" for number in range(25))


@pytest.fixture
def big(shell: Shell) -> Path:
    path = shell.folder / "big.txt"
    path.write_text(SONG)
    return path


def answer(shell: Shell, line: str, **environ: str) -> Any:
    return json.loads(shell(f"{line} -n 4 --temp 0 --json", **environ).text)


def test_a_second_question_about_a_document(shell: Shell, big: Path) -> None:
    first = shell('ingle run -f big.txt "First question" -n 4 --temp 0 --stats')
    assert "reused 0 of" in first.err
    second = shell('ingle run -f big.txt "Second question" -n 4 --temp 0 --stats')
    assert " 0 resident, 0 from RAM, " in second.err
    assert "saved" in second.err
    assert "pages.num_written" in second.err
    alone = shell('ingle run -f big.txt "Second question" -n 4 --temp 0 --stats --no-kv-store')
    assert second.out == alone.out, "pages change nothing"
    assert "reused 0 of" in alone.err
    found = answer(shell, 'ingle run -f big.txt "Third question"')
    num_prompt = found["usage"]["prompt_tokens"]
    assert num_prompt > 400
    assert found["cache"]["disk_tokens"] == found["usage"]["prompt_tokens_details"]["cached_tokens"] > num_prompt - 64
    assert found["cache"]["saved_ms"] > found["cache"]["restore_ms"] > 0


def test_a_miss_shows_both_sides(shell: Shell, big: Path) -> None:
    shell('ingle run -f big.txt "Question" -n 1')
    big.write_text(SONG.replace("20 bottles", "twenty bottles"))
    err = shell('ingle run -f big.txt "Question" -n 1 --stats').err_lines
    at = next(number for number, line in enumerate(err) if line.startswith("at token"))
    assert err[at].endswith(": the text differs")
    assert err[at + 1].startswith("  here    'twenty bottles of beer")
    assert err[at + 2].startswith("  stored  '2")


@pytest.mark.parametrize("environ", [{"INGLE_KV_STORE": "off"}, {}])
def test_switched_off_nothing_is_stored(shell: Shell, big: Path, environ: dict[str, str]) -> None:
    flag = "" if environ else "--no-kv-store"
    shell(f'ingle run -f big.txt "Question" -n 1 {flag}', **environ)
    assert not (shell.folder / "stored" / "ingle" / "kv").exists()


def test_cache_info_verify_clear(shell: Shell, big: Path) -> None:
    shell('ingle run -f big.txt "Question" -n 1')
    info = json.loads(shell("ingle cache info --json").text)
    assert info["num_pages"] > 10
    assert info["folders"][0]["type_k"] == "f16"
    assert json.loads(shell("ingle cache verify --json").text)["num_good"] == info["num_pages"]
    page = next(Path(info["directory"]).rglob("*.kv"))
    page.write_bytes(page.read_bytes()[:-1])
    assert shell("ingle cache verify").text.endswith("; 1 bad one removed\n")
    assert shell("ingle cache clear").code == 2, "nobody is there to be asked"
    assert json.loads(shell("ingle cache clear --yes --json").text)["num_pages"] == info["num_pages"] - 1
    assert answer(shell, 'ingle run -f big.txt "Question"')["cache"]["disk_tokens"] == 0


def test_a_conversation_of_several_processes(shell: Shell, big: Path) -> None:
    """The ids of what was said are those that were said, so all whole blocks of it come from pages."""
    command = "ingle run --session trip"
    first = shell(f'{command} -f big.txt "Who am I? I am Bo." -n 40 --temp 0.9 --seed 1 --json')
    usage = json.loads(first.text)["usage"]
    second = answer(shell, f'{command} "And who are you?"')
    history = usage["total_tokens"]
    assert second["usage"]["prompt_tokens"] > history
    assert second["cache"]["disk_tokens"] >= (history - 1) // 32 * 32
    assert shell("ingle cache clear --yes").code == 0
    third = shell(f'{command} "Are you sure?" -n 2')
    assert third.err_lines[0].startswith("resumed: none of the ")
    lines = (shell.folder / "data" / "ingle" / "conversations" / "trip.jsonl").read_text().splitlines()
    assert [next(iter(json.loads(line))) for line in lines] == ["ingle", *["user", "answer"] * 3]


def test_chat_is_left_and_resumed(shell: Shell) -> None:
    environ = shell.environ | {"TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"}
    command = str(Path(sys.executable).with_name("ingle"))

    def chat(*arguments: str) -> pexpect.spawn[str]:
        flags = ["chat", "-n", "12", "--temp", "0", "-t", "1", *arguments]  # threads wait for busy neighbours
        child = pexpect.spawn(command, flags, env=environ, encoding="utf-8", dimensions=(40, 120), timeout=60)
        child.expect(PROMPT)
        return child

    child = chat("--session", "trip")
    child.send("Tell me a story about a fox.\r")
    child.expect("fox")
    child.expect(PROMPT)
    child.send("\x04")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0
    child = chat("--resume")
    assert "trip · 1 exchange" in child.before
    assert "> Tell me a story about a fox." in child.before
    child.send("Go on.\r")
    child.expect(r"resumed: (\d+) of \d+ tokens came from pages in")
    assert int(child.match[1]) >= 32
    child.expect(PROMPT)
    child.send("/cache\r")
    child.expect(r"reused \d+ of \d+ prompt tokens: 0 resident, 0 from RAM, \d+ from disk")
    child.expect(PROMPT)
    child.send("\x04")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0
