# The sink: what reaches a terminal, what reaches a pipe.
from __future__ import annotations

import io
import json

import pytest

from ingle.cli.output import Output


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def sink(
    monkeypatch: pytest.MonkeyPatch, *, terminal: bool, quiet: bool = False, **environ: str
) -> tuple[Output, io.StringIO, io.StringIO]:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "30")
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    out, err = (Terminal(), Terminal()) if terminal else (io.StringIO(), io.StringIO())
    return Output(out, err, quiet=quiet), out, err


LONG = "the quick brown fox jumps over the lazy dog"


def test_pipe_gets_the_text_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    output, out, err = sink(monkeypatch, terminal=False)
    for char in LONG:
        output.answer(char)
    output.end_answer()
    output.note("a note")
    assert out.getvalue() == LONG + "\n"
    assert err.getvalue() == "a note\n"


def test_terminal_gets_words_whole_and_notes_dimmed(monkeypatch: pytest.MonkeyPatch) -> None:
    output, out, err = sink(monkeypatch, terminal=True)
    output.answer(LONG)
    output.end_answer()
    output.note("a note")
    assert "\n" in out.getvalue().rstrip("\n")
    assert err.getvalue() == "\x1b[2ma note\x1b[0m\n"


def test_notes_on_a_terminal_keep_their_words_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    output, _, err = sink(monkeypatch, terminal=True, NO_COLOR="1")
    output.report(f"  {LONG}")
    assert err.getvalue() == "  the quick brown fox jumps\nover the lazy dog\n"


@pytest.mark.parametrize("environ", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_no_colour_where_it_is_not_wanted(monkeypatch: pytest.MonkeyPatch, environ: dict[str, str]) -> None:
    output, _, err = sink(monkeypatch, terminal=True, **environ)
    output.warn("careful")
    output.error("no", "so")
    assert err.getvalue() == "warning: careful\nerror: no\nhint: so\n"


def test_dumb_terminal_is_not_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    output, out, _ = sink(monkeypatch, terminal=True, TERM="dumb")
    output.answer(LONG)
    assert out.getvalue() == LONG


def test_quiet_silences_notes_only(monkeypatch: pytest.MonkeyPatch) -> None:
    output, _, err = sink(monkeypatch, terminal=False, quiet=True)
    output.note("a note")
    output.report("asked for")
    output.warn("careful")
    output.error("no")
    assert err.getvalue() == "asked for\nwarning: careful\nerror: no\n"


def test_an_answer_ends_in_one_newline(monkeypatch: pytest.MonkeyPatch) -> None:
    output, out, _ = sink(monkeypatch, terminal=False)
    output.answer("a\n")
    output.end_answer()
    output.end_answer()
    output.answer("")
    output.end_answer()
    output.answer("b")
    output.error("cut short")
    assert out.getvalue() == "a\nb\n"


def test_json_is_one_line_of_utf8(monkeypatch: pytest.MonkeyPatch) -> None:
    output, out, _ = sink(monkeypatch, terminal=False)
    output.json({"text": "é\n"})
    assert out.getvalue() == '{"text": "é\\n"}\n'
    assert json.loads(out.getvalue()) == {"text": "é\n"}


def test_pipe_is_utf8_whatever_the_locale(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    output = Output(io.TextIOWrapper(raw, encoding="ascii", newline="\r\n"), io.StringIO())
    output.answer("é\n")
    assert raw.getvalue() == b"\xc3\xa9\n"


def test_nobody_listens_on_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(io.StringIO):
        def write(self, _text: str) -> int:
            raise BrokenPipeError

    out = io.StringIO()
    output = Output(out, Gone())
    output.note("a note")
    output.answer("b")
    assert out.getvalue() == "b"


def test_an_answer_cannot_steer_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "a\x1b[2J\x07\r\x9b1mb\tc\n"
    output, out, _ = sink(monkeypatch, terminal=True)
    output.answer(text)
    assert out.getvalue() == "a[2J1mb\tc\n"
    piped, out, _ = sink(monkeypatch, terminal=False)
    piped.answer(text)
    assert out.getvalue() == text
