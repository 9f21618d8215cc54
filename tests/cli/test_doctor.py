# `ingle doctor`: facts are facts, and what looks wrong is named.
from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path

import pytest

from ingle.cli.doctor import Facts, Place, doctor, examine, problems
from ingle.cli.output import Output


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CACHE", "CONFIG", "DATA", "STATE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))


@pytest.fixture
def sound() -> Facts:
    """A machine on which nothing looks wrong."""
    return dataclasses.replace(
        examine(),
        memory_available_bytes=8_000_000_000,
        disk_free_bytes=50_000_000_000,
        encoding="UTF-8",
        llama_cpp_features="CPU : AVX2 = 1 | FMA = 1 | F16C = 1",
    )


def test_this_machine(sound: Facts, tmp_path: Path) -> None:
    from importlib.metadata import version

    assert sound.versions["llama-cpp-python"] == version("llama-cpp-python")
    assert sound.native_error is None
    assert sound.places["models"] == Place(str(tmp_path / "cache" / "ingle" / "models"), exists=False, writable=True)
    assert sound.default_model_on_disk is False
    assert list(tmp_path.iterdir()) == [], "looking creates nothing"
    assert problems(sound) == []


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"memory_available_bytes": 500_000_000}, "0.5 GB of memory"),
        ({"disk_free_bytes": 200_000_000}, "0.2 GB of disk"),
        ({"encoding": "ANSI_X3.4-1968"}, "ANSI_X3.4-1968"),
        ({"native_error": "libllama.so is gone"}, "libllama.so is gone"),
        ({"versions": {"numpy": None}}, "numpy is not installed"),
        ({"places": {"state": Place("/x", exists=True, writable=False)}}, "/x"),
    ],
)
def test_what_looks_wrong_is_named(sound: Facts, change: dict[str, object], word: str) -> None:
    found = problems(dataclasses.replace(sound, **change))  # type: ignore[arg-type]
    assert len(found) == 1
    assert word in found[0]


def test_slow_build_is_named(sound: Facts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    assert "AVX2" in problems(dataclasses.replace(sound, llama_cpp_features="CPU : FMA = 1 | F16C = 1"))[0]


def test_bad_config_is_a_problem(sound: Facts, tmp_path: Path) -> None:
    (tmp_path / "config" / "ingle").mkdir(parents=True)
    (tmp_path / "config" / "ingle" / "config.toml").write_text("colour = 1")
    assert "colour" in problems(sound)[0]


def test_json_has_every_fact() -> None:
    out = io.StringIO()
    code = doctor(Output(out, io.StringIO()), as_json=True)
    shown = json.loads(out.getvalue())
    assert shown.keys() == {field.name for field in dataclasses.fields(Facts)} | {"version", "problems"}
    assert code == (1 if shown["problems"] else 0)


def test_lines_name_the_places(tmp_path: Path) -> None:
    out = io.StringIO()
    doctor(Output(out, io.StringIO()), as_json=False)
    assert str(tmp_path / "cache" / "ingle" / "models") in out.getvalue()
    assert "smollm2, not downloaded" in out.getvalue()
