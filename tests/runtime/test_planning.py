# Plans against what llama.cpp says it allocated, limits against free memory, and a memory that refuses.
from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ingle.models import plan
from ingle.models.gguf_info import read_model_info
from ingle.models.kv_layout import kv_layout
from ingle.models.needs import CELL_BYTES, compute_bytes, needs
from ingle.runtime import llama, planning
from ingle.runtime.config import DraftConfig, EngineConfig
from ingle.runtime.engine import Engine
from ingle.runtime.errors import EngineError, InvalidRequest, OutOfMemory
from ingle.runtime.executor import Executor
from ingle.runtime.llama_context import LlamaContext
from ingle.runtime.planning import context_limit, draft_needs, first_context, for_states, setting_of
from ingle.runtime.request import Request, SamplingParams
from tests.tiny_models import write_gemma3, write_lfm2, write_llama, write_mamba

MIB = 1 << 20
CELLS = 8192


@pytest.fixture
def log() -> Iterator[list[str]]:
    lines: list[str] = []
    llama.log_to(lines.append)
    yield lines
    llama.log_to(None)


def said(log: list[str], what: str) -> float:
    """Bytes, to a hundredth of a MiB, that llama.cpp allocated of `what` for the last context."""
    found = [float(match[1]) for line in log if (match := re.search(rf"{what} buffer size = +([\d.]+) MiB", line))]
    return sum(found) * MIB


@pytest.mark.parametrize("write", [write_llama, write_gemma3, write_mamba, write_lfm2])
@pytest.mark.parametrize(("type_k", "type_v"), [("f16", "f16"), ("q8_0", "f16"), ("f32", "bf16"), ("q4_0", "q8_0")])
def test_caches_and_states_are_those_of_llama_cpp(
    tmp_path: Path, log: list[str], write: Callable[[Path], Path], type_k: str, type_v: str
) -> None:
    path = write(tmp_path / "m.gguf")
    if write is write_lfm2 and {type_k, type_v} & {"q8_0", "q4_0"}:
        with pytest.raises(InvalidRequest, match="does not fit this model's heads"):  # rows of 16 + 16: half a block
            setting_of(read_model_info(path), EngineConfig(type_k=type_k, type_v="f16" if type_v == "q8_0" else type_v))
        return
    config = for_states(EngineConfig(type_k=type_k, type_v=type_v, num_threads=1))
    info = read_model_info(path)
    setting = setting_of(info, config)
    model = llama.LlamaModel(path, 0)
    context = LlamaContext(model, CELLS, config)
    context.close()
    model.close()
    found = needs(info, setting, CELLS)
    bookkeeping = CELLS * CELL_BYTES * kv_layout(info).num_kinds
    assert found.kv_bytes - bookkeeping == pytest.approx(said(log, "(?:KV|RS)"), abs=0.011 * MIB * 2)
    assert found.output_bytes == pytest.approx(said(log, "output"), abs=0.006 * MIB)


@pytest.mark.parametrize("write", [write_llama, write_gemma3])
@pytest.mark.parametrize("flash_attn", [True, False])
@pytest.mark.parametrize("n_batch", [64, 512])
def test_the_compute_buffer_is_that_of_llama_cpp(
    tmp_path: Path, log: list[str], write: Callable[[Path], Path], flash_attn: bool, n_batch: int
) -> None:
    path = write(tmp_path / "m.gguf")
    config = EngineConfig(flash_attn=flash_attn, n_batch=n_batch, num_threads=1)
    info = read_model_info(path)
    model = llama.LlamaModel(path, 0)
    LlamaContext(model, CELLS, config).close()
    model.close()
    assert compute_bytes(info, setting_of(info, config), CELLS) == pytest.approx(said(log, "compute"), rel=0.02)


def test_what_is_free_is_what_the_machine_says(monkeypatch: pytest.MonkeyPatch) -> None:
    assert planning.free_memory().host_bytes > 0
    gpus = [llama.Device("one", True, 3, 10), llama.Device("CPU", False, 7, 7), llama.Device("two", True, 4, 10)]
    monkeypatch.setattr(planning, "supports_gpu_offload", lambda: True)
    monkeypatch.setattr(planning, "compute_devices", lambda: tuple(gpus))
    assert planning.free_memory().gpu_bytes == 7


def test_the_cpu_is_a_device() -> None:
    (cpu, *_) = [device for device in llama.compute_devices() if not device.is_gpu]
    assert cpu.description in llama.devices()
    assert cpu.total_bytes > 0
    assert all("=" not in name for name in llama.cpu_features())


# -- the largest context ---------------------------------------------------------------------------------------------


def free_for(monkeypatch: pytest.MonkeyPatch, path: Path, tokens: int) -> None:
    """A machine where, with the weights loaded, just so many tokens fit."""
    info = read_model_info(path)
    made = plan.make_plan(info, setting_of(info, EngineConfig()), tokens)
    taken = made.full.loaded_bytes - made.full.weights_bytes
    monkeypatch.setattr(planning, "free_memory", lambda: plan.Free(int(made.peak_host_bytes / 0.9) + 2 - taken))


def test_auto_is_what_fits_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_llama(tmp_path / "m.gguf", n_ctx_train=65536)
    info = read_model_info(path)
    assert context_limit(info, EngineConfig(), 65536) == planning.Limit(65536, ())
    free_for(monkeypatch, path, 20_224)
    limit = context_limit(info, EngineConfig(), 65536)
    assert limit.n_ctx == 20_224
    assert limit.notes == ("context limited to 20224 of 65536 tokens by free memory",)
    assert context_limit(info, EngineConfig(kv_tokens=2048), 65536) == planning.Limit(2048, ())


def test_a_context_that_can_never_fit_is_refused_with_the_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_llama(tmp_path / "m.gguf", n_ctx_train=65536)
    info = read_model_info(path)
    free_for(monkeypatch, path, 20_224)
    assert context_limit(info, EngineConfig(n_ctx=20_000), 65536) == planning.Limit(20_000, ())
    with pytest.raises(
        OutOfMemory, match=r"a context of 4000000 tokens takes \d+\.\d GB of memory and 0\.\d GB are free"
    ):
        context_limit(info, EngineConfig(n_ctx=4_000_000), 65536)
    with pytest.raises(OutOfMemory, match="more than llama"):
        context_limit(info, EngineConfig(n_ctx=2**31), 65536)


def test_a_draft_model_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, small = write_llama(tmp_path / "m.gguf", n_ctx_train=65536), write_llama(tmp_path / "draft.gguf", seed=5)
    info, draft = read_model_info(path), read_model_info(small)
    config = EngineConfig(draft=DraftConfig(model=small))
    found = draft_needs(draft, config)
    assert found.full.weights_bytes == found.start.weights_bytes == sum(tensor.num_bytes for tensor in draft.tensors)
    per_token = kv_layout(draft).bytes_per_token("f16", "f16") + CELL_BYTES * kv_layout(draft).num_kinds
    assert (found.start.kv_bytes, found.full.kv_bytes) == (512 * per_token, (4 + 2) * (1024 + 256) * per_token)
    free_for(monkeypatch, path, 20_224)
    alone = context_limit(info, config, 65536).n_ctx
    assert context_limit(info, config, 65536, found.full).n_ctx < alone
    smallest = needs(info, setting_of(info, config), 256)
    host_bytes = smallest.host_bytes + found.full.host_bytes
    monkeypatch.setattr(planning, "free_memory", lambda: plan.Free(host_bytes))
    planning.check_fit(info, draft, config)
    monkeypatch.setattr(planning, "free_memory", lambda: plan.Free(host_bytes - 1))
    with pytest.raises(OutOfMemory, match=r"the draft model takes 0\.\d GB of memory, and 0\.\d GB are free beside"):
        planning.check_fit(info, draft, config)
    loaded = smallest.loaded_bytes - smallest.weights_bytes
    monkeypatch.setattr(planning, "free_memory", lambda: plan.Free(host_bytes - 1 - loaded))
    with pytest.raises(OutOfMemory, match="the draft model takes"):
        Engine.open(path, config)


def test_what_a_draft_model_takes_is_that_of_llama_cpp(tmp_path: Path, log: list[str]) -> None:
    path = write_llama(tmp_path / "m.gguf")
    config = EngineConfig(num_threads=1, draft=DraftConfig(model=path))
    with Engine.open(path, config) as engine:
        found = engine.info.draft_needs
    assert found is not None
    layout = kv_layout(read_model_info(path))
    bookkeeping = 512 * CELL_BYTES * layout.num_kinds
    target = 1024 * layout.bytes_per_token("f16", "f16")
    assert found.kv_bytes - bookkeeping == pytest.approx(said(log, "KV") - target, abs=0.011 * MIB * 2)


def test_more_than_it_was_trained_for_is_said(tmp_path: Path) -> None:
    info = read_model_info(write_llama(tmp_path / "m.gguf"))
    assert "trained for 2048 tokens" in context_limit(info, EngineConfig(n_ctx=4096), 2048).notes[0]


def test_states_cost_slots(tmp_path: Path) -> None:
    recurrent, plain = read_model_info(write_mamba(tmp_path / "a")), read_model_info(write_llama(tmp_path / "b"))
    assert setting_of(recurrent, EngineConfig()).num_slots == 4 + 2 + 1
    assert setting_of(plain, EngineConfig()).num_slots == 4 + 11 + 1


# -- memory that refuses ---------------------------------------------------------------------------------------------


def refusing(monkeypatch: pytest.MonkeyPatch, allowed: Callable[[int, int], bool]) -> list[tuple[int, int]]:
    """Contexts whose (cells, batch) are not `allowed` get no memory. What was tried."""
    tried: list[tuple[int, int]] = []

    def make(model: llama.LlamaModel, config: EngineConfig, num_cells: int) -> Executor:
        tried.append((num_cells, config.n_batch))
        if not allowed(num_cells, config.n_batch):
            raise OutOfMemory("no context")
        return Executor(model, config, num_cells)

    monkeypatch.setattr(planning, "Executor", make)
    return tried


def test_the_next_smaller_context_is_tried_and_announced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = refusing(monkeypatch, lambda cells, _batch: cells <= 512)
    config = EngineConfig(initial_kv_tokens=3000, num_threads=1)
    with Engine.open(write_llama(tmp_path / "m.gguf", n_ctx_train=4096), config) as engine:
        assert [cells for cells, _ in tried] == [3072, 1536, 768, 256]
        assert engine.info.notes == ("not enough memory for 3072 tokens of KV cache: beginning with 256",)
        engine.add(Request([1, 5, 6], SamplingParams(temperature=0, ignore_eos=True), max_output_tokens=4))
        while engine.has_work:
            engine.step()
        assert engine.stats().num_output_tokens == 4


def test_then_smaller_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = refusing(monkeypatch, lambda _cells, batch: batch <= 128)
    with Engine.open(write_llama(tmp_path / "m.gguf"), EngineConfig(num_threads=1)) as engine:
        assert tried == [(1024, 512), (512, 512), (256, 512), (256, 256), (256, 128)]
        assert engine.info.notes == ("not enough memory: beginning with 256 tokens of KV cache, 128 a step",)
        assert engine.info.setting.n_batch == 128


def test_the_smallest_is_refused_with_the_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refusing(monkeypatch, lambda _cells, _batch: False)
    with pytest.raises(OutOfMemory, match="no context"):
        Engine.open(write_llama(tmp_path / "m.gguf"), EngineConfig(num_threads=1))


def test_other_errors_are_not_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def make(*_: object) -> Executor:
        tried.append(1)
        raise EngineError("broken")

    monkeypatch.setattr(planning, "Executor", make)
    model = llama.LlamaModel(write_llama(tmp_path / "m.gguf"), 0)
    with pytest.raises(EngineError, match="broken"):
        first_context(model, replace(EngineConfig(), num_threads=1), 1024)
    model.close()
    assert len(tried) == 1
