# `ingle run` on the real model, through a real shell and real pipes.
from __future__ import annotations

import json
import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.e2e.conftest import ESCAPE, Shell

FOX = b"The fox ran.\n"


def test_only_the_answer_is_on_stdout(shell: Shell) -> None:
    result = shell('ingle run "Why is the sky blue?" -n 12 --temp 0')
    assert result.code == 0
    assert result.err == ""
    assert ESCAPE not in result.text
    assert result.text.endswith("\n")
    assert "sky" in result.text.lower()


def test_pipe_is_byte_for_byte_the_text(shell: Shell) -> None:
    command = 'ingle run "Write a poem in six lines about rain." -n 30 --temp 0'
    plain = shell(command)
    text = json.loads(shell(f"{command} --json").text)["text"]
    assert plain.text == (text if text.endswith("\n") else text + "\n")
    assert shell(command, TERM="dumb", NO_COLOR="1").out == plain.out


def test_document_first_then_the_question(shell: Shell) -> None:
    """stdin, a blank line, the prompt: the same as that text given whole."""
    apart = shell('ingle run "Repeat the text above." -n 16 --temp 0 --json', stdin=FOX)
    whole = shell("ingle run -n 16 --temp 0 --json", stdin=b"The fox ran.\n\nRepeat the text above.")
    (shell.folder / "fox.txt").write_bytes(FOX)
    filed = shell('ingle run -f fox.txt "Repeat the text above." -n 16 --temp 0 --json')
    texts = [json.loads(result.text) for result in (apart, whole, filed)]
    assert len({(t["text"], t["usage"]["prompt_tokens"]) for t in texts}) == 1
    assert "fox" in texts[0]["text"].lower()


def test_json(shell: Shell) -> None:
    result = shell('ingle run "Say hello." -n 8 --seed 7 --json')
    answer = json.loads(result.text)
    usage = answer["usage"]
    assert answer["version"] == 1
    assert answer["seed"] == 7
    assert answer["finish_reason"] in ("stop", "length")
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["completion_tokens"] <= 8
    assert usage["prompt_tokens_details"] == {"cached_tokens": 0}
    times = answer["timings"]
    assert 0 < times["ttft_ms"] <= times["e2e_ms"]


def test_same_seed_same_text(shell: Shell) -> None:
    command = 'ingle run "Tell me something." -n 24 --temp 1.5 --seed'
    first, again, other = (shell(f"{command} {seed}").text for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_max_tokens_0_prints_nothing(shell: Shell) -> None:
    result = shell("ingle run hi --max-tokens 0")
    assert (result.code, result.out, result.err) == (0, b"", "")


def test_stop_text_ends_the_answer_before_it(shell: Shell) -> None:
    command = 'ingle run "Count: one two three" --raw -n 24 --temp 0'
    whole = shell(command).text
    word = whole.split()[3]
    assert shell(f"{command} --stop {word!r}").text.rstrip("\n") == whole[: whole.index(word)]


def test_raw_continues_the_text(shell: Shell) -> None:
    answer = json.loads(shell('ingle run "Once upon a" --raw -n 1 --temp 0 --json').text)
    assert answer["usage"]["prompt_tokens"] == 3
    assert answer["text"] == " time"


def test_control_tokens_in_a_prompt_are_text(shell: Shell) -> None:
    """A pasted <|im_end|> costs the tokens of its letters; as a control token it would cost one."""
    plain = json.loads(shell('ingle run "ab" -n 1 --json').text)["usage"]["prompt_tokens"]
    injected = json.loads(shell('ingle run "a<|im_end|>b" -n 1 --json').text)["usage"]["prompt_tokens"]
    as_raw = json.loads(shell('ingle run "a<|im_end|>b" --raw -n 1 --json').text)["usage"]["prompt_tokens"]
    assert as_raw == 3
    assert injected > plain + 3


def test_stats_hold_the_plan_against_the_memory_taken(shell: Shell) -> None:
    result = shell("ingle run hi -n 1 --temp 0 --stats")
    match = re.search(r"^memory (\d+) MB; the plan says (\d+) MB", result.err, re.MULTILINE)
    assert match is not None
    assert int(match[2]) == pytest.approx(int(match[1]), rel=0.1)


def test_stats_go_to_stderr(shell: Shell) -> None:
    plain = shell("ingle run hi -n 4 --temp 0")
    result = shell("ingle run hi -n 4 --temp 0 --stats")
    assert result.out == plain.out
    assert "first token after" in result.err
    assert "num_blocks_total" in result.err


def test_verbose_says_what_is_loaded(shell: Shell, smollm2_path: Path) -> None:
    result = shell("ingle run hi -n 1 --verbose")
    assert str(smollm2_path) in result.err
    assert "llama" in result.err


def test_context_full_is_said(shell: Shell) -> None:
    result = shell('ingle run "Once upon a time" --raw -c 64 --temp 0 --json')
    answer = json.loads(result.text)
    assert answer["finish_reason"] == "length"
    assert answer["usage"]["total_tokens"] == 64
    assert "64 tokens" in result.err


def test_flag_over_environment_over_config_file(shell: Shell) -> None:
    config = shell.folder / "config" / "ingle" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text("max_tokens = 3\ntemp = 0\n")

    def tokens(line: str, **environ: str) -> int:
        return int(json.loads(shell(line, **environ).text)["usage"]["completion_tokens"])

    command = 'ingle run "Tell me a story." --json'
    assert tokens(command) == 3
    assert tokens(command, INGLE_MAX_TOKENS="4") == 4
    assert tokens(f"{command} -n 5", INGLE_MAX_TOKENS="4") == 5


def test_closed_pipe(shell: Shell) -> None:
    line = 'ingle run "Write a very long story." --raw -n 400 --temp 0 | head -c 1; echo " ${PIPESTATUS[0]}"'
    result = shell(line)
    assert result.text.split()[-1] == "141"
    assert result.err == ""


def test_stdout_closed_from_the_start(shell: Shell) -> None:
    result = shell("ingle run hi -n 2 >&-")
    assert (result.code, result.err) == (141, "")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_signal_in_mid_answer(shell: Shell, number: signal.Signals, code: int) -> None:
    process = shell.start('ingle run "Write a very long story." --raw --temp 0 -n 4000 -c 4096')
    assert process.stdout is not None
    said = process.stdout.read(10)  # the answer is under way
    process.send_signal(number)
    rest, err = process.communicate(timeout=30)
    assert process.returncode == code
    assert err == b""
    assert (said + rest).endswith(b"\n")
    assert len(said + rest) < 4000, "it went on to the end"


def test_two_processes_at_once(shell: Shell) -> None:
    command = 'ingle run "Why is the sky blue?" -n 12 --temp 0'
    alone = shell(command).out
    processes = [shell.start(command) for _ in range(2)]
    outs = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert outs == [(alone, b""), (alone, b"")]


def test_jsonl(shell: Shell) -> None:
    """Results in the order of the requests, each as it would be alone; a bad line spoils only itself."""
    requests = [
        {"prompt": "Write a long story about a fox.", "id": "long", "max_tokens": 24},
        {"prompt": "Say hi.", "id": "short", "max_tokens": 3},
        {"prompt": "Say hi.", "max_tokens": 3, "colour": "red"},
        {"prompt": "The sky is", "max_tokens": 4, "stop": [" blue"], "temp": 0.0, "seed": 5},
    ]
    stdin = "\n".join(map(json.dumps, requests)).encode() + b"\n\nnot json\n"
    result = shell("ingle run --jsonl --temp 0", stdin=stdin)
    answers = [json.loads(line) for line in result.text.splitlines()]
    assert result.code == 1
    assert [answer["id"] for answer in answers] == ["long", "short", 3, 4, 6]
    assert "colour" in answers[2]["error"]
    assert "line 6" in answers[4]["error"]
    assert answers[3]["seed"] == 5
    alone = json.loads(shell('ingle run "Say hi." -n 3 --temp 0 --json').text)
    assert answers[1]["text"] == alone["text"]
    assert answers[0]["usage"]["completion_tokens"] == 24


def test_the_default_model_needs_no_name(shell: Shell) -> None:
    del shell.environ["INGLE_MODEL"]
    named = json.loads(shell("ingle run hi -n 1 --json").text)
    assert named["model"] == "smollm2"


@pytest.mark.timeout(60)
def test_jsonl_as_a_coprocess(shell: Shell) -> None:
    """Whoever writes a line gets its result before the next, and a signal ends the waiting."""
    process = shell.start("ingle run --jsonl -n 3 --temp 0", stdin=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    for number in (1, 2):
        process.stdin.write(b'{"prompt": "Say hi."}\n' if number == 1 else b"not json\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["id"] == number
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=20) == 143
    rest, err = process.communicate()
    assert (rest, err) == (b"", b"")


@pytest.mark.parametrize("delay_s", [0.15, 0.3, 0.5, 0.7])
def test_ctrl_c_at_any_time_is_quiet(shell: Shell, delay_s: float) -> None:
    process = shell.start('ingle run "Write a very long story." --raw --temp 0 -n 4000 -c 4096')
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=delay_s)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert b"Traceback" not in err


def test_json_of_an_answer_that_was_stopped(shell: Shell) -> None:
    process = shell.start('ingle run "Write a very long story." --raw --temp 0 -n 4000 -c 4096 --json --verbose')
    assert process.stderr is not None
    while b"template" not in process.stderr.readline():
        pass
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=20)
    assert process.returncode == 130
    if out:  # it may have come before the first step
        assert json.loads(out)["finish_reason"] == "abort"


def test_raw_is_byte_for_byte(shell: Shell) -> None:
    def tokens(line: str, stdin: bytes = b"") -> int:
        return int(json.loads(shell(f"{line} --raw -n 1 --temp 0 --json", stdin=stdin).text)["usage"]["prompt_tokens"])

    assert tokens("ingle run", b"The fox\n") == tokens("ingle run $'The fox\\n'") == tokens("ingle run 'The fox'") + 1
    (shell.folder / "a.txt").write_bytes(b"The ")
    assert tokens("ingle run -f a.txt fox") == tokens("ingle run 'The fox'")


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ('{"prompt": "a", "temp": NaN}', "NaN"),
        ('{"prompt": "a", "seed": ' + "9" * 5000 + "}", "digits"),
        ('{"prompt": "a", "seed": ' + "9" * 500 + "}", "seed"),
        ('{"prompt": "a", "temp": 1e999}', "temp"),
        ('{"prompt": "a\\ud800"}', "surrogate"),
        ('{"prompt": "a", "stop": "\\udfff"}', "surrogate"),
        ("[" * 100_000, "line 1"),
    ],
)
def test_jsonl_edge_values(shell: Shell, line: str, word: str) -> None:
    result = shell(
        "ingle run --jsonl -n 1 --temp 0", stdin=line.encode() + b'\n{"prompt": "hi", "top_k": 1000000000000}\n'
    )
    bad, good = map(json.loads, result.text.splitlines())
    assert result.code == 1
    assert word in bad["error"]
    assert "bug" not in str(bad["hint"])
    assert good["finish_reason"] == "length"


def test_jsonl_raw_has_no_system(shell: Shell) -> None:
    result = shell("ingle run --jsonl --raw -n 1", stdin=b'{"prompt": "a", "system": "b"}\n')
    assert result.code == 1
    assert "system" in json.loads(result.text)["error"]


@pytest.mark.parametrize("flag", ["--think", "--no-think"])
def test_thinking_that_the_template_does_not_know_is_said(shell: Shell, flag: str) -> None:
    assert shell(f"ingle run hi -n 1 --temp 0 {flag}").err_lines == [
        f"note: {flag} changes nothing: this model's template knows no thinking"
    ]
