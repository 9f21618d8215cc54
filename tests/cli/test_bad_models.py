# A damaged model file given to a command: refused in Python, before anything native has seen it.
from __future__ import annotations

import io
from pathlib import Path

import pytest

from ingle.cli import app, errors, loading
from ingle.cli.loading import open_model
from ingle.cli.output import Output
from ingle.cli.signals import Signals
from ingle.models.errors import ModelError
from ingle.models.gguf_info import read_model_info
from ingle.runtime.config import EngineConfig
from tests.cli.shelf_of import machine
from tests.models.mutations import bases, mutants


class Reached(BaseException):
    """Native code would have been given the file."""


class Trap:
    """In the place of the thread that loads weights."""

    def __init__(self, *_: object) -> None:
        raise Reached


def put(path: Path, header: bytes, num_zeros: int) -> Path:
    path.write_bytes(header + bytes(num_zeros))
    return path


def bad_models(folder: Path, num: int) -> list[tuple[str, bytes, int]]:
    """Mutants of sound headers that are not sound any more."""
    found = []
    path = folder / "candidate.gguf"
    for mutant in mutants(bases(folder), seed=7, count=3 * num):
        try:
            read_model_info(put(path, *mutant[1:]))
        except ModelError:
            found.append(mutant)
    assert len(found) >= num
    return found[:num]


def try_to_open(path: Path) -> None:
    output = Output(io.StringIO(), io.StringIO())
    with open_model(str(path), EngineConfig(n_ctx=256), output, Signals()):
        raise AssertionError("it was opened")


def test_nothing_native_sees_a_bad_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(tmp_path, monkeypatch)
    monkeypatch.setattr(loading, "_Loader", Trap)
    path = tmp_path / "model.gguf"
    sound = bases(tmp_path)[0]
    with pytest.raises(Reached):  # the trap is where the sound ones pass
        try_to_open(put(path, sound.header, sound.num_data))
    for what, header, num_zeros in bad_models(tmp_path, 400):
        put(path, header, num_zeros)
        try:
            try_to_open(path)
        except ModelError as error:
            report = errors.describe(error)
        except BaseException as error:
            error.add_note(f"mutant {what}")
            raise
        assert report.exit_code == errors.BAD_FILE, what
        assert report.message is not None, what
        assert report.message.isprintable(), what


def test_the_door_answers_with_76_and_two_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine(tmp_path, monkeypatch)
    monkeypatch.setattr(loading, "_Loader", Trap)
    monkeypatch.setattr(Signals, "install", lambda _self: None)
    monkeypatch.setattr("gc.disable", lambda: None)
    monkeypatch.setattr("sys.stdin", None)  # as after `<&-`
    path = tmp_path / "model.gguf"
    for what, header, num_zeros in bad_models(tmp_path, 20):
        put(path, header, num_zeros)
        with pytest.raises(SystemExit) as caught:
            app.main(["run", "hi", "-n", "1", "-m", str(path)])
        said = capsys.readouterr()
        assert (caught.value.code, said.out) == (errors.BAD_FILE, ""), what
        first, second = said.err.splitlines()
        assert first.startswith("error: "), what
        assert str(path) in first, what
        assert second.startswith("hint: "), what
