# Parsing: --help, --version, completion, and usage errors in one line.
from __future__ import annotations

import pytest
from typer.testing import CliRunner

from ingle.cli.app import app, main


def ended(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    captured = capsys.readouterr()
    assert isinstance(caught.value.code, int)
    return caught.value.code, captured.out, captured.err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    from importlib.metadata import version

    assert ended(["--version"], capsys) == (0, f"ingle {version('ingle')}\n", "")


@pytest.mark.parametrize("arguments", [["-h"], ["--help"], ["run", "-h"], ["chat", "--help"], ["doctor", "--help"]])
def test_help_goes_to_stdout(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = ended(arguments, capsys)
    assert (code, err) == (0, "")
    assert out.startswith("Usage: ingle")


def test_no_command_shows_the_help_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = ended([], capsys)
    assert (code, out) == (2, "")
    assert err.startswith("Usage: ingle")


def test_usage_error_is_two_lines(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = ended(["run", "--temp", "warm", "hi"], capsys)
    assert (code, out) == (2, "")
    assert err.splitlines() == [
        "error: invalid value for '--temp': 'warm' is not a valid float",
        "hint: ingle run --help shows what there is",
    ]


def test_completion_knows_commands_and_flags() -> None:
    def completed(words: str) -> str:
        environ = {"_INGLE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
        return CliRunner().invoke(app, [], prog_name="ingle", env=environ).output

    assert completed("ingle do").split() == ["doctor"]
    assert "--max-tokens" in completed("ingle run --max")
