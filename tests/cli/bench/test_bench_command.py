# `ingle bench` as a command: what it prints, keeps and refuses, and what is left when it is cut short.
from __future__ import annotations

import hashlib
import io
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ingle.cli.bench import bandwidth, saved
from ingle.cli.bench.bench import bench
from ingle.cli.bench.decode import DecodeLoop
from ingle.cli.bench.flags import BenchFlags
from ingle.cli.bench.slo import Slo
from ingle.cli.errors import InputProblem, Unreachable, UsageProblem
from ingle.cli.output import Output
from ingle.cli.signals import Signals
from ingle.runtime.errors import InvalidRequest
from tests import tiny_models
from tests.cli.bench.fake_server import Handler, polite, serving

UNSET = (
    "model prompt generate depth repetitions quants concurrency rate url api_key requests prompts shared_prefix slo "
    "timeout_s draft draft_tokens threads batch_size cache_type_k cache_type_v flash_attn gpu_layers ctx_size save "
    "plot offline quiet"
)


def flags(**given: Any) -> BenchFlags:
    values: dict[str, Any] = dict.fromkeys(UNSET.split())
    values |= {"resume": False, "seed": 0, "format": "table", "json": False}
    return BenchFlags(**{**values, **given})


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CONFIG", "DATA", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    monkeypatch.setattr(bandwidth, "measure", lambda _num_threads: 1e9)


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    return str(tiny_models.write_llama(tmp_path / "tiny.gguf"))


def run(given: BenchFlags, signals: Signals | None = None) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    code = bench(given, Output(out, err), signals or Signals())
    return code, out.getvalue(), err.getvalue()


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    whole = [sys.executable, "-m", "ingle.cli.start", "bench", *arguments]
    return subprocess.run(whole, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)


SMALL: dict[str, Any] = {"prompt": "16", "generate": "2", "repetitions": 2, "threads": (1,)}


def test_the_whole_result_as_one_object(tiny: str) -> None:
    code, out, _ = run(flags(model=tiny, json=True, depth=(0, 8), **SMALL))
    said = json.loads(out)
    assert (code, said["version"], said["is_complete"], said["stopped_by"]) == (0, 1, True, None)
    assert [row["test"] for row in said["rows"]] == ["pp16", "tg2", "pp16 @ d8", "tg2 @ d8"]
    (model,) = said["models"]
    assert model["sha256"] == hashlib.sha256(Path(tiny).read_bytes()).hexdigest()
    assert said["settings"]["seed"] == 0
    assert {"cpu", "governor", "versions", "llama_cpp_commit", "system"} <= said["machine"].keys()
    assert said["conditions"].keys() == {"before", "during", "after"}
    assert said["read_bandwidth_bytes_per_s"] == {"1": 1e9}


@pytest.mark.parametrize("kind", ["table", "md", "csv", "json", "jsonl"])
def test_every_format(tiny: str, kind: str) -> None:
    _, out, _ = run(flags(model=tiny, format=kind, **SMALL))
    assert "pp16" in out
    assert "tg2" in out


def test_quants_stand_side_by_side(tiny: str, tmp_path: Path) -> None:
    other = str(tiny_models.write_llama(tmp_path / "other.gguf", seed=1))
    _, out, _ = run(flags(quants=(tiny, other), format="json", **{**SMALL, "prompt": "0"}))
    assert [row["model"] for row in json.loads(out)] == ["tiny", "other"]


def test_serving_in_process_and_saved(tiny: str) -> None:
    given = {"prompt": "8:12", "generate": "2", "threads": (1,), "concurrency": (1, 2), "requests": 4}
    code, out, err = run(flags(model=tiny, save="base", **given))
    assert code == 0
    assert "at once" in out
    kept = saved.load("base")
    assert kept.is_complete
    assert [(row["concurrency"], row["completed"]) for row in kept.rows] == [(1, 4), (2, 4)]
    assert "saved as" in err


def test_a_server_is_measured_by_the_same_client() -> None:
    def sometimes(handler: Handler, body: dict[str, Any]) -> None:
        if len(handler.fake.bodies) % 4:
            polite(handler, body)
        else:
            handler.refuse(503, "busy")

    with serving(sometimes) as fake:
        code, out, err = run(flags(url=fake.url, generate="3", rate=(500.0,), requests=8, format="json", slo=Slo(9.0)))
    (row,) = json.loads(out)
    assert (row["model"], row["target"], row["completed"], row["failed"]) == ("fake-model", fake.url, 6, 2)
    assert row["request_goodput"] == row["request_throughput"]
    assert code == 0
    assert "2 of 8 requests failed: HTTP 503 Service Unavailable (2)" in err


def test_no_request_answered_is_a_failure() -> None:
    with serving(lambda handler, _body: handler.refuse(500, "no")) as fake:
        code, _, err = run(flags(url=fake.url, requests=4, concurrency=(2,)))
    assert code == 1
    assert "4 of 4 requests failed" in err


def test_nobody_at_the_url_is_said_and_kept() -> None:
    with serving(polite) as fake:
        pass
    with pytest.raises(Unreachable):
        run(flags(url=fake.url, save="gone"))
    kept = saved.load("gone")
    assert (kept.is_complete, kept.rows) == (False, [])
    assert "no server answers" in str(kept.stopped_by)


def test_ctrl_c_keeps_what_there_is(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    signals = Signals()
    measure = DecodeLoop.measure
    count = 0

    def interrupted(loop: DecodeLoop, case: Any) -> Any:
        nonlocal count
        count += 1
        if count == 30:  # past warming up
            signals._handle(signal.SIGINT, None)
        return measure(loop, case)

    monkeypatch.setattr(DecodeLoop, "measure", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(flags(model=tiny, save="cut", **{**SMALL, "repetitions": 50}), signals)
    kept = saved.load("cut")
    assert (kept.is_complete, kept.stopped_by) == (False, "Ctrl-C")
    assert kept.rows
    assert all(0 < len(row["samples_ns"]) < 50 for row in kept.rows)


def test_prompts_beyond_the_context_are_failures(tiny: str) -> None:
    code, _, err = run(flags(model=tiny, prompt="3000", concurrency=(1,), requests=2, threads=(1,)))
    assert code == 1
    assert "2 of 2 requests failed: the prompt is longer than the context (2)" in err


def test_resume(tiny: str) -> None:
    code, out, _ = run(flags(model=tiny, resume=True, prompt="64", repetitions=1, threads=(1,), format="json"))
    (row,) = json.loads(out)
    assert (code, row["test"], row["num_restored_tokens"]) == (0, "resume64", 64)


def test_drafts(tiny: str, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "a b a b a b a b"}\n{"prompt": "b a", "max_tokens": 4}\n')
    given = {"prompts": prompts, "generate": "24", "repetitions": 2, "threads": (1,), "format": "json"}
    plot = tmp_path / "drafts.svg"
    code, out, err = run(flags(model=tiny, draft="ngram", draft_tokens=3, plot=plot, **given))
    assert "with drafts" in plot.read_text()
    rows = json.loads(out)
    assert (code, [row["test"] for row in rows]) == (0, ["prompt 1", "prompt 2"]), err
    for row in rows:
        assert len(row["samples"]["plain_ts"]) == len(row["samples"]["draft_ts"]) == 2
        assert row["ci95_speedup"][0] <= row["median_speedup"] <= row["ci95_speedup"][1]
        assert 0 <= row["num_accepted_tokens"] <= row["num_draft_tokens"]
    assert (rows[0]["draft_model"], rows[0]["draft_tokens"]) == (None, 3)
    assert rows[1]["median_output_tokens"] == 4
    prompts.write_text('{"prompt": "b a", "max_tokens": 1}\n')
    _, _, err = run(flags(model=tiny, draft="ngram", **given))
    assert "prompt 1: no answer of two tokens or more" in err
    prompts.write_text('{"prompt": "b a"}\n')
    _, out, _ = run(flags(model=tiny, draft=tiny, draft_tokens=3, **{**given, "format": "table"}))
    assert out.splitlines()[0].split("  ")[0].strip() == "test"
    assert out.splitlines()[-1].endswith("100%"), "a model that drafts for itself"


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"prompt": "0", "generate": "0"}, "-p 0 and -n 0 leave nothing"),
        ({"prompt": "x"}, "-p is 'x', which is not"),
        ({"prompt": "5:3", "concurrency": (1,)}, "-p is '5:3', which is not a range"),
        ({"depth": (1,), "concurrency": (1,)}, "-d is for the engine"),
        ({"timeout_s": 1.0}, "--timeout is for serving"),
        ({"json": True, "format": "csv"}, "--json and -o are two ways"),
        ({"model": "a", "quants": ("b",)}, "--quants names the models"),
        ({"rate": (1.0,), "concurrency": (1,)}, "--rate at times of its own"),
        ({"prompts": Path("x"), "prompt": "5"}, "--prompts brings its own prompts"),
        ({"api_key": "k", "concurrency": (1,)}, "--api-key is for a server"),
        ({"url": "http://a/v1", "threads": (1,)}, "--threads is the server's affair"),
        ({"threads": (1, 2), "concurrency": (1,)}, "--threads lists several values"),
        ({"resume": True, "prompt": "0"}, "-p 0 leaves nothing to resume"),
        ({"resume": True, "generate": "1"}, "leave out -n|first token alone"),
        ({"draft": "off"}, "--draft off leaves nothing to compare"),
        ({"draft": "ngram", "resume": True}, "measure different things"),
        ({"draft": "ngram", "prompt": "5"}, "-p draws words"),
        ({"draft": "ngram", "generate": "5:9"}, "-n is a range"),
        ({"draft": "ngram", "concurrency": (1,)}, "--concurrency is for serving"),
        ({"draft_tokens": 3}, "--draft-tokens is for --draft"),
        ({"cache_type_k": ("q9",)}, "is 'q9', which is none of"),
        ({"threads": (100_000,)}, "-t/--threads is 100000"),
        ({"save": "../x"}, "cannot be the name of a result"),
    ],
)
def test_what_makes_no_sense_is_said_before_anything_is_loaded(given: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UsageProblem, match=complaint):
        run(flags(**given))


def test_impossible_contexts_and_missing_files() -> None:
    with pytest.raises(InvalidRequest, match="needs flash attention"):
        run(flags(cache_type_v=("q4_0",), flash_attn=(False,)))
    with pytest.raises(InputProblem, match="no such file"):
        run(flags(prompts=Path("/nowhere/at/all.jsonl")))


def test_a_model_and_the_words_compare_and_list(tiny: str) -> None:
    done = command(tiny, "-p", "16", "-n", "0", "-r", "1", "-t", "1", "-o", "md", "--save", "one")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].startswith("| model ")
    compared = command("compare", "one", "one")
    assert (compared.returncode, compared.stdout.splitlines()[1].split()[0]) == (0, "pp16")
    assert command("list").stdout.startswith("one ")
    wrong = command("--nonsense")
    assert (wrong.returncode, wrong.stderr.splitlines()[1]) == (2, "hint: ingle bench --help shows what there is")
    assert [path.name for path in saved.folder().iterdir()] == ["one.json"]
