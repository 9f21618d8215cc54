# The whole way: a file in, a file out, its bytes against llama.cpp's; and what may go wrong on the way.
from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

from ingle.models.errors import BadModelFile, StoreError
from ingle.models.gguf_info import read_model_info
from ingle.models.progress import Silent
from ingle.quant import ggml, gguf_values
from ingle.quant.errors import BadRecipe, BadWeights
from ingle.quant.pipeline import Treatment, quantize
from ingle.quant.recipe import choose_types, find_mix, parse_override
from ingle.quant.source import SLAB_VALUES, Source
from ingle.runtime import llama
from tests.quant.layouts import Layout

SMALL = Layout(num_layers=2, width=256, num_heads=4, num_heads_kv=2, ffn=512)
ODD = Layout(num_layers=2, width=96, num_heads=3, num_heads_kv=1, ffn=160, is_tied=True)
EXPERTS = Layout(num_layers=2, width=256, num_heads=4, num_heads_kv=1, ffn=256, num_experts=4)


def tensors(path: Path) -> dict[str, tuple[str, bytes]]:
    return {t.name: (t.tensor_type.name, t.data.tobytes()) for t in gguf.GGUFReader(path).tensors}


def run(path: Path, out: Path, name: str, treatment: Treatment | None = None, *overrides: str) -> Path:
    treatment = treatment or Treatment()
    with Source(path) as source:
        recipe = choose_types(
            source.info,
            find_mix(name),
            has_imatrix=bool(treatment.imatrix),
            overrides=[parse_override(text) for text in overrides],
        )
        return quantize(source, out, recipe, treatment).path


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return SMALL.write(tmp_path / "small.gguf")


_TYPES = {
    "small": (SMALL, ["q4_0", "q5_1", "q4_k_m", "q3_k_m", "q8_0", "iq4_xs", "f16", "bf16", "tq1_0", "q2_k"]),
    "odd": (ODD, ["q5_0", "q4_k_m", "q6_k", "iq4_nl"]),
    "experts": (EXPERTS, ["q4_0", "q4_k_s", "mxfp4_moe"]),
}


@pytest.mark.parametrize("with_imatrix", [False, True])
@pytest.mark.parametrize(
    ("layout", "name"),
    [pytest.param(layout, name, id=f"{key}-{name}") for key, (layout, names) in _TYPES.items() for name in names],
)
def test_the_same_bytes_as_llama_cpp(layout: Layout, name: str, with_imatrix: bool, tmp_path: Path) -> None:
    path = layout.write(tmp_path / "model.gguf")
    imatrix = layout.importances() if with_imatrix else None
    flat = {key: value.ravel().tolist() for key, value in imatrix.items()} if imatrix else None
    llama.quantize_model(path, tmp_path / "theirs.gguf", find_mix(name).file_type, imatrix=flat)
    run(path, tmp_path / "ours.gguf", name, Treatment(imatrix=imatrix or {}))
    assert tensors(tmp_path / "ours.gguf") == tensors(tmp_path / "theirs.gguf")


@pytest.mark.parametrize("dtype", [np.float16, "Q8_0"])
def test_other_sources(dtype: object, small: Path, tmp_path: Path) -> None:
    if dtype == "Q8_0":
        path = run(small, tmp_path / "source.gguf", "q8_0")
    else:
        path = SMALL.write(tmp_path / "source.gguf", dtype=np.float16)
    llama.quantize_model(path, tmp_path / "theirs.gguf", find_mix("q4_k_m").file_type, allow_requantize=True)
    assert tensors(run(path, tmp_path / "ours.gguf", "q4_k_m")) == tensors(tmp_path / "theirs.gguf")


def test_a_split_source(small: Path, tmp_path: Path) -> None:
    reader = gguf.GGUFReader(small)
    total, shards = len(reader.tensors), 2
    for index in range(shards):
        path = tmp_path / f"split-{index + 1:05d}-of-{shards:05d}.gguf"
        writer = SMALL.start(path) if index == 0 else gguf.GGUFWriter(path, "llama")
        writer.add_uint16("split.no", index)
        writer.add_uint16("split.count", shards)
        writer.add_int32("split.tensors.count", total)
        for tensor in reader.tensors[index::shards]:
            writer.add_tensor(tensor.name, tensor.data)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    whole = tensors(run(small, tmp_path / "whole.gguf", "q4_0"))
    parts = run(tmp_path / "split-00001-of-00002.gguf", tmp_path / "parts.gguf", "q4_0")
    assert tensors(parts) == whole
    assert not any(key.startswith("split.") for key in read_model_info(parts).metadata)


def test_metadata_passes_through_in_order(small: Path, tmp_path: Path) -> None:
    extra = Treatment(metadata={"ingle.quantize.source.sha256": gguf_values.string("abc")})
    out = run(small, tmp_path / "out.gguf", "q4_k_m", extra, "ffn_down=q8_0")
    before, after = gguf_values.read_metadata(small), gguf_values.read_metadata(out)
    assert list(after)[: len(before)] == list(before)
    assert {key: after[key] for key in before} == before
    assert read_model_info(out).metadata["general.file_type"] == 15
    assert read_model_info(out).metadata["general.quantization_version"] == 2
    assert read_model_info(out).metadata["ingle.quantize.type"] == "Q4_K_M"
    assert read_model_info(out).metadata["ingle.quantize.source.sha256"] == "abc"
    assert read_model_info(out).read_array("ingle.quantize.overrides") == ["ffn_down=Q8_0"]
    again = run(out, tmp_path / "again.gguf", "q8_0")
    assert "ingle.quantize.overrides" not in read_model_info(again).arrays


def test_slabs_do_not_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, treatment = EXPERTS.write(tmp_path / "model.gguf"), Treatment(imatrix=EXPERTS.importances())
    whole = tensors(run(path, tmp_path / "whole.gguf", "q4_k_m", treatment))
    monkeypatch.setattr("ingle.quant.source.SLAB_VALUES", 7 * 256)
    assert tensors(run(path, tmp_path / "slabs.gguf", "q4_k_m", treatment)) == whole


def test_transforms_and_blocks(small: Path, tmp_path: Path) -> None:
    """Doubling a norm (copied otherwise) and a matrix is seen; blocks are taken as they are."""
    norm, matrix, coded = "blk.0.attn_norm.weight", "blk.0.ffn_up.weight", "blk.1.ffn_up.weight"
    source = tensors(small)
    negative = -np.frombuffer(source[coded][1], np.float32).reshape(512, 256)
    treatment = Treatment(
        transforms={norm: lambda values: values * 2, matrix: lambda values: values * 2},
        blocks={coded: ggml.quantize(negative, "Q8_0")},
    )
    plain, ours = (
        tensors(run(small, tmp_path / "plain.gguf", "q8_0")),
        tensors(run(small, tmp_path / "ours.gguf", "q8_0", treatment)),
    )
    assert {name for name in plain if plain[name] != ours[name]} == {norm, matrix, coded}
    assert np.array_equal(np.frombuffer(ours[norm][1], np.float32), 2 * np.frombuffer(source[norm][1], np.float32))
    assert ours[coded] == ("Q8_0", ggml.quantize(negative, "Q8_0").tobytes())


# -- what may go wrong -------------------------------------------------------------------------------------------------


def _with(path: Path, name: str, change: Callable[[np.ndarray], None]) -> Path:  # type: ignore[type-arg]
    tensor = next(t for t in gguf.GGUFReader(path, "r+").tensors if t.name == name)
    change(tensor.data)
    return path


@pytest.mark.parametrize(("value", "what"), [(np.nan, "NaN"), (np.inf, "infinite")])
@pytest.mark.parametrize("name", ["blk.1.ffn_down.weight", "blk.1.attn_norm.weight"])
def test_a_bad_weight_is_named(
    name: str, value: float, what: str, small: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def spoil(data: np.ndarray) -> None:  # type: ignore[type-arg]
        data.reshape(-1, data.shape[-1])[-1, 5] = value

    _with(small, name, spoil)
    with pytest.raises(BadWeights, match=rf"{name}: row (255|0), column 5 is {what}"):
        run(small, tmp_path / "out.gguf", "q4_0")
    assert capfd.readouterr() == ("", "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["small.gguf"]


def test_a_weight_too_large_is_named(small: Path, tmp_path: Path) -> None:
    _with(small, "blk.1.ffn_down.weight", lambda data: data.__setitem__((3, 5), 1e6))
    with pytest.raises(BadWeights, match=r"blk.1.ffn_down.weight \(from row 0\): row 3, column 5 is 1e\+06, too large"):
        run(small, tmp_path / "out.gguf", "q4_0")


def test_the_source_is_never_written_over(small: Path, tmp_path: Path) -> None:
    before = small.read_bytes()
    (tmp_path / "link.gguf").symlink_to(small)
    os.link(small, tmp_path / "hard.gguf")
    for out in (small, tmp_path / "link.gguf", tmp_path / "hard.gguf"):
        with pytest.raises(BadRecipe, match="the model that is read"):
            run(small, out, "q4_0")
    assert small.read_bytes() == before


def test_missing_importances_are_named(small: Path, tmp_path: Path) -> None:
    with pytest.raises(BadRecipe, match="IQ2_XXS needs an importance matrix"):
        run(small, tmp_path / "out.gguf", "iq2_xxs")
    some = {"blk.0.attn_q.weight": np.ones((1, 256), np.float32)}
    with pytest.raises(BadRecipe, match=r"IQ2_XXS needs importances of blk\.0\.attn_k\.weight"):
        run(small, tmp_path / "out.gguf", "iq2_xxs", Treatment(imatrix=some))


def test_a_quantized_source_is_refused(small: Path, tmp_path: Path) -> None:
    coarse = run(small, tmp_path / "coarse.gguf", "q4_k_m")
    with Source(small) as source:
        source.refuse_if_coarse()
    with Source(coarse) as source, pytest.raises(BadRecipe, match=r"quantized already \(Q4_K, Q6_K\)"):
        source.refuse_if_coarse()


def test_a_source_that_shrinks(small: Path, tmp_path: Path) -> None:
    with Source(small) as source:
        recipe = choose_types(source.info, find_mix("q4_0"), has_imatrix=False)
        os.truncate(small, small.stat().st_size // 2)
        with pytest.raises(BadModelFile, match="shorter"):
            quantize(source, tmp_path / "out.gguf", recipe)
    assert not list(tmp_path.glob("*out*"))


def test_no_room_is_said_before_anything_is_written(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _path: type("Usage", (), {"free": 1000}))
    with pytest.raises(StoreError, match=r"needs \d+ MB and .* has 0 MB left"):
        run(small, tmp_path / "out.gguf", "q4_0")
    assert [path.name for path in tmp_path.iterdir()] == ["small.gguf"]


CHILD = """
import os, resource, signal, sys
from pathlib import Path
from ingle.quant import pipeline, writer
from ingle.quant.recipe import choose_types, find_mix
from ingle.quant.source import SLAB_VALUES, Source

source, out, how = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
if how == "full":
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
if how == "killed":
    inner = writer.GgufWriter.write
    def write(self, data):
        inner(self, data)
        if self._index == 5:
            os.kill(os.getpid(), signal.SIGKILL)
    writer.GgufWriter.write = write
def peak():  # of this process image alone: ru_maxrss would count the parent's pages before exec
    return int(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))) * 1024
with Source(source) as model:
    recipe = choose_types(model.info, find_mix(sys.argv[4]), has_imatrix=False)
    before = peak()
    try:
        pipeline.quantize(model, out, recipe)
    except Exception as error:
        sys.exit(f"{type(error).__name__}: {error}")
    print(peak() - before, peak())
"""


def child(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", CHILD, *map(str, arguments)], capture_output=True, text=True)


def test_a_full_disk(small: Path, tmp_path: Path) -> None:
    done = child(small, tmp_path / "out.gguf", "full", "q4_0")
    assert done.stderr.startswith(f"StoreError: cannot write {tmp_path}/out.gguf: File too large")
    assert [path.name for path in tmp_path.iterdir()] == ["small.gguf"]


def test_an_interrupted_run_leaves_nothing(small: Path, tmp_path: Path) -> None:
    class Interrupted(Silent):
        def update(self, done_bytes: int) -> None:
            assert list(tmp_path.glob(".out.gguf.*.partial"))
            raise KeyboardInterrupt

    with Source(small) as source, pytest.raises(KeyboardInterrupt):
        quantize(
            source,
            tmp_path / "out.gguf",
            choose_types(source.info, find_mix("q4_0"), has_imatrix=False),
            progress=Interrupted(),
        )
    assert [path.name for path in tmp_path.iterdir()] == ["small.gguf"]


def test_progress_only_rises_and_ends_at_the_end(small: Path, tmp_path: Path) -> None:
    told: list[int] = []

    class Kept(Silent):
        def start(self, total_bytes: int | None, label: str) -> None:
            told.append(total_bytes or 0)

        def update(self, done_bytes: int) -> None:
            told.append(done_bytes)

    with Source(small) as source:
        recipe = choose_types(source.info, find_mix("q4_0"), has_imatrix=False)
        written = quantize(source, tmp_path / "out.gguf", recipe, progress=Kept())
    total, *steps = told
    assert steps == sorted(steps)
    assert steps[-1] == total == sum(tensor.num_bytes for tensor in read_model_info(small).tensors)
    assert written.size_bytes == (tmp_path / "out.gguf").stat().st_size


def test_what_a_killed_run_leaves_goes_with_the_next(small: Path, tmp_path: Path) -> None:
    (tmp_path / "out.gguf").write_text("an older one")
    done = child(small, tmp_path / "out.gguf", "killed", "q4_0")
    assert done.returncode == -9
    left = sorted(path.name for path in tmp_path.iterdir())
    assert len(left) == 3
    assert left[0].startswith(".out.gguf.")
    assert (tmp_path / "out.gguf").read_text() == "an older one"
    run(small, tmp_path / "out.gguf", "q4_0")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.gguf", "small.gguf"]
    assert read_model_info(tmp_path / "out.gguf").file_type == "Q4_0"
    assert (tmp_path / "out.gguf").stat().st_mode & 0o777 == 0o600


def test_memory_is_bounded(tmp_path: Path) -> None:
    """A file of half a gigabyte (a hole: zeros) in less than it, and in less than its largest tensor × 4 + 300 MB."""
    layout = Layout(num_layers=7, width=1024, num_heads=8, num_heads_kv=8, ffn=4096, vocabulary=8192)
    path = layout.write_hollow(tmp_path / "model.gguf")
    largest = 4 * 8192 * 1024
    assert path.stat().st_size > 4 * largest + 300e6
    done = child(path, tmp_path / "out.gguf", "whole", "q8_0")
    assert done.returncode == 0, done.stderr
    grown, peak = map(int, done.stdout.split())
    assert peak < 4 * largest + 300e6
    assert grown < 4 * (4 * SLAB_VALUES)  # the slab as stored, as floats and as blocks, and some room
