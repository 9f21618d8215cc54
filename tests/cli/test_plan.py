# `ingle plan` on small models: what it says, in words and as JSON, with memory as the test has it.
from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from ingle.cli import plan_report
from ingle.cli.errors import TRY_AGAIN, UsageProblem
from ingle.cli.options import ModelFlags
from ingle.cli.output import Output
from ingle.cli.plan import PlanFlags, plan
from ingle.models import hub
from ingle.models.errors import ModelNotFound
from ingle.models.gguf_info import read_model_info
from ingle.models.hub import HubFile, RepoListing
from ingle.models.needs import PROGRAM_BYTES, Needs
from ingle.models.plan import Free, make_plan
from ingle.runtime import planning
from ingle.runtime.config import EngineConfig
from ingle.runtime.errors import InvalidRequest
from ingle.runtime.planning import setting_of
from tests.tiny_models import write_llama

GIB = 1 << 30


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return write_llama(tmp_path / "tiny.gguf", n_ctx_train=100_000)


@pytest.fixture
def roomy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "free_memory", lambda: Free(16 * GIB))


def ask(model: str | Path, *, draft: Path | None = None, parallel: int = 1, as_json: bool = False, **flags: Any) -> Any:
    """(exit code, stdout, stderr)."""
    out, err = io.StringIO(), io.StringIO()
    given = ModelFlags(model=str(model), **flags)
    draft_name = None if draft is None else str(draft)
    code = plan(PlanFlags(draft=draft_name, parallel=parallel, json=as_json, quiet=None, model=given), Output(out, err))
    return code, out.getvalue(), err.getvalue()


def rows(text: str) -> dict[str, str]:
    return {line[:13].strip(): line[13:] for line in text.splitlines()}


def test_what_fits(model: Path, roomy: None) -> None:
    code, out, err = ask(model)
    said = rows(out)
    assert (code, err) == (0, "")
    assert said["fits"] == "yes, up to all 100000 tokens it was trained for"
    assert said["KV cache"].startswith("66 MB for 100000 tokens (f16/f16), 672 kB at the start")
    assert said["free RAM"] == "17.2 GB"
    assert said["GPU"].startswith("none")
    assert "note" not in said


def test_what_does_not(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = read_model_info(model)
    made = make_plan(info, setting_of(info, EngineConfig(max_num_seqs=1)), 20_224)
    monkeypatch.setattr(planning, "free_memory", lambda: Free(int(made.peak_host_bytes / 0.9) + 2))
    code, out, _ = ask(model, ctx_size=90_000)
    assert code == TRY_AGAIN
    verdict = rows(out)["fits"]
    assert verdict.startswith("no; the largest context that does is 20224 tokens (-c 20224), with -ctk q8_0 -ctv q8_0 ")
    assert int(verdict.rpartition(" ")[2]) > 20_224
    code, out, _ = ask(model)  # auto: that context is what is planned for
    assert code == 0
    assert rows(out)["fits"] == "yes; the largest context that does is 20224 of 100000 tokens"
    assert "for 20224 tokens" in rows(out)["KV cache"]


def test_nothing_fits(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "free_memory", lambda: Free(PROGRAM_BYTES))
    code, out, _ = ask(model)
    assert code == TRY_AGAIN
    assert rows(out)["fits"] == "no, not even with the smallest context"


def test_the_object(model: Path, roomy: None) -> None:
    code, out, _ = ask(model, as_json=True, ctx_size=4096, cache_type_k="q8_0")
    found = json.loads(out)
    info = read_model_info(model)
    setting = setting_of(info, EngineConfig(max_num_seqs=1, type_k="q8_0"))
    made = make_plan(info, setting, 4096)
    assert code == 0
    assert (found["version"], found["architecture"], found["n_ctx"]) == (1, "llama", 4096)
    assert (found["cache_type_k"], found["cache_type_v"], found["fits"]) == ("q8_0", "f16", True)
    assert Needs(**found["full"]) == made.full
    assert Needs(**found["start"]) == made.start
    assert found["peak_host_bytes"] == made.peak_host_bytes
    assert found["free_host_bytes"] == 16 * GIB
    assert len(found["notes"]) == 1
    assert found["quants"] == []


def test_a_quantized_cache_is_said_to_cost_time(model: Path, roomy: None) -> None:
    assert "prompts at depth are computed more slowly" in rows(ask(model, cache_type_k="q8_0")[1])["note"]


def test_sequences_multiply_the_cache(model: Path, roomy: None) -> None:
    one = json.loads(ask(model, as_json=True, ctx_size=4096)[1])["full"]["kv_bytes"]
    four = json.loads(ask(model, as_json=True, ctx_size=4096, parallel=4)[1])["full"]["kv_bytes"]
    assert four == 4 * one


def test_a_draft_model_is_counted_with_the_context_that_it_gets(model: Path, roomy: None, tmp_path: Path) -> None:
    draft = write_llama(tmp_path / "small.gguf", seed=1)
    added = {}
    for n_ctx in (4096, 8192):
        alone = json.loads(ask(model, as_json=True, ctx_size=n_ctx)[1])["full"]
        both = json.loads(ask(model, as_json=True, ctx_size=n_ctx, draft=draft)[1])["full"]
        added[n_ctx] = both["kv_bytes"] - alone["kv_bytes"]
        assert both["program_bytes"] == alone["program_bytes"]
    per_token = alone["kv_bytes"] // 8192
    assert added == dict.fromkeys(added, per_token * 3 * (1024 + 256)), "three views of a text, however long it grows"
    assert rows(ask(model, ctx_size=4096, draft=draft)[1])["draft model"].startswith("small, ")


def test_on_a_gpu(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Room there for the output and one layer of two, with 4,096 tokens."""
    monkeypatch.setattr(planning, "supports_gpu_offload", lambda: True)
    info = read_model_info(model)
    setting = setting_of(info, EngineConfig(max_num_seqs=1, gpu_layers=2))
    assert setting.gpu_layers == 2
    room = int(make_plan(info, setting, 4096).peak_gpu_bytes / 0.9) + 2
    monkeypatch.setattr(planning, "free_memory", lambda: Free(16 * GIB, room))
    code, out, _ = ask(model, ctx_size=4096)
    assert code == 0
    assert rows(out)["on the GPU"].startswith("-ngl 2 of 3, ")
    code, out, _ = ask(model, ctx_size=4096, gpu_layers=3)
    assert code == TRY_AGAIN


def test_what_makes_no_sense_is_refused(model: Path, roomy: None, tmp_path: Path) -> None:
    with pytest.raises(UsageProblem, match="q9"):
        ask(model, cache_type_k="q9")
    with pytest.raises(ModelNotFound):
        ask(tmp_path / "none.gguf")
    with pytest.raises(InvalidRequest, match="needs flash attention"):
        ask(model, cache_type_v="q8_0", flash_attn=False)


def test_what_stats_say_of_it() -> None:
    predicted = Needs(
        weights_bytes=60_000_000, repacked_bytes=10_000_000, kv_bytes=20_000_000, program_bytes=20_000_000
    )
    line = plan_report.predicted_and_taken(predicted, 100_000_000)
    assert line == "memory 100 MB; the plan says 110 MB (+10.0%): weights 70 MB, KV 20 MB"


# -- on the hub --------------------------------------------------------------------------------------------------------


@pytest.fixture
def repo(model: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """acme/tiny with three quantizations, by listing and ranges only. The ranges that were read."""
    data = model.read_bytes()
    sizes = {"tiny-F16.gguf": 60 * len(data), "tiny-Q8_0.gguf": 30 * len(data), "tiny-Q4_K_M.gguf": len(data)}
    files = tuple(HubFile(name, size, None) for name, size in sizes.items())
    asked: list[tuple[str, int, int]] = []

    def read_range(_listing: RepoListing, name: str, start: int, length: int) -> bytes:
        asked.append((name, start, length))
        return data[start : start + length]

    monkeypatch.setenv("HF_HUB_CACHE", str(model.parent / "hub"))
    monkeypatch.setattr(
        hub, "list_repo", lambda *_args, **_more: RepoListing("acme/tiny", "c" * 40, files, None, False)
    )
    monkeypatch.setattr(hub, "read_range", read_range)
    return asked


def test_a_repo_is_planned_without_a_download(repo: list[tuple[str, int, int]], roomy: None, model: Path) -> None:
    code, out, _ = ask("acme/tiny", as_json=True, ctx_size=4096)
    found = json.loads(out)
    size = model.stat().st_size
    assert code == 0
    assert (found["model"], found["is_on_disk"], found["quant"]) == ("acme/tiny", False, "Q4_K_M")
    assert [(q["quant"], q["size_bytes"]) for q in found["quants"]] == [
        ("F16", 60 * size),
        ("Q8_0", 30 * size),
        ("Q4_K_M", size),
    ]
    assert found["take"] == "Q8_0"
    assert {name for name, _, _ in repo} == {"tiny-Q4_K_M.gguf"}
    assert sum(length for _, _, length in repo) <= 1 << 20


def test_the_quantization_to_take_is_one_that_fits(
    repo: list[tuple[str, int, int]], model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = read_model_info(model)
    made = make_plan(info, setting_of(info, EngineConfig(max_num_seqs=1)), 4096)
    monkeypatch.setattr(planning, "free_memory", lambda: Free(int((made.peak_host_bytes + 1_000_000) / 0.9)))
    code, out, _ = ask("acme/tiny", ctx_size=4096)
    table = [line[13:] for line in out.splitlines() if " to download" in line]
    assert code == 0
    assert [line.split()[0] for line in table] == ["F16", "Q8_0", "Q4_K_M"]
    assert [line.endswith("too large") for line in table] == [True, True, False]
    assert table[2].endswith("fits  ← take this")


def test_offline_asks_nobody(repo: list[tuple[str, int, int]], roomy: None) -> None:
    with pytest.raises(ModelNotFound, match="not on this machine"):
        ask("acme/tiny", offline=True)
    assert repo == []
