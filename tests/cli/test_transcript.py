# The file of a conversation: whatever was torn off its end, what was whole stays, and the next line is whole again.
from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingle.cli.errors import BadTranscript, Busy, InputProblem
from ingle.cli.transcript import Transcript, header, read

HEADER = header(model="fake", created="now")

texts = st.text(st.sampled_from('aé字🔥\n\u2028\x00"\\{}[]:,'), max_size=8)
records = st.lists(st.dictionaries(st.sampled_from(["user", "answer", "x"]), texts, min_size=1), max_size=5)


def write(path: Path, records: list[dict[str, Any]]) -> None:
    kept = Transcript.open(path)
    for record in records:
        kept.append(record)
    kept.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "conversations" / "trip.jsonl"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("conversations")


def test_lines_can_be_read_by_hand(path: Path) -> None:
    write(path, [HEADER, {"user": "Wie geht’s?"}])
    assert path.read_text().splitlines()[1] == '{"user": "Wie geht’s?"}'
    assert read(path) == [HEADER, {"user": "Wie geht’s?"}]


def test_private(path: Path) -> None:
    write(path, [HEADER])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_nothing_said_leaves_no_file(path: Path) -> None:
    Transcript.open(path).close()
    assert not path.exists()


@given(before=records, after=records, cut=st.integers(min_value=0))
def test_torn_anywhere(folder: Path, before: list[dict[str, str]], after: list[dict[str, str]], cut: int) -> None:
    """Cut at any byte: whole records stay, and what is appended then is all there is besides."""
    path = folder / "torn.jsonl"
    path.unlink(missing_ok=True)
    write(path, [HEADER, *before])
    data = path.read_bytes()
    data = data[: cut % (len(data) + 1)]
    path.write_bytes(data)
    whole = data.count(b"\n") + (data.endswith(b"}") and _is_json(data.rpartition(b"\n")[2]))
    expected = [HEADER, *before][:whole]
    assert read(path) == expected
    write(path, after if expected else [HEADER, *after])
    assert read(path) == [*(expected or [HEADER]), *after]
    assert all(_is_json(line) for line in path.read_bytes().splitlines() if path.read_bytes().endswith(b"\n"))


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def test_torn_lines_are_cut_off_by_the_next_append_and_not_before(path: Path) -> None:
    write(path, [HEADER, {"user": "hi"}])
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"answer": "hel')
    kept = Transcript.open(path)
    assert kept.records == [HEADER, {"user": "hi"}]
    assert path.read_bytes().endswith(b"hel")
    kept.append({"undo": 1})
    kept.close()
    assert path.read_bytes() == whole + b'{"undo": 1}\n'


def test_what_is_no_record_is_kept_and_passed_over(path: Path) -> None:
    write(path, [HEADER, {"user": "hi"}])
    path.write_bytes(path.read_bytes() + b"a note\n\n[1]\n\x00\x00\n" + b"[" * 100_000 + b"\n")
    before = path.read_bytes()
    write(path, [{"answer": "yes"}])
    assert path.read_bytes() == before + b'{"answer": "yes"}\n'
    assert read(path) == [HEADER, {"user": "hi"}, {"answer": "yes"}]


@pytest.mark.parametrize(
    "data",
    [
        b"# Groceries\n",
        b"milk",
        b'{"a": 1}\n',
        b"[]\n",
        b'\n{"ingle": "conversation", "version": 1}\n',
        b"\xff\xfe\x00",
    ],
)
def test_a_file_that_is_not_ours_is_refused_and_left_alone(path: Path, data: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(data)
    with pytest.raises(BadTranscript, match="is not a conversation"):
        Transcript.open(path)
    assert path.read_bytes() == data
    path.unlink()
    Transcript.open(path).close()  # the lock was given back


def test_a_later_version_is_refused(path: Path) -> None:
    path.parent.mkdir()
    path.write_text('{"ingle": "conversation", "version": 2}\n')
    with pytest.raises(BadTranscript, match="later version"):
        Transcript.open(path)


def test_a_folder_of_that_name(path: Path) -> None:
    path.mkdir(parents=True)
    with pytest.raises(InputProblem, match="not a file"):
        Transcript.open(path)


def test_one_process_at_a_time(path: Path) -> None:
    held = Transcript.open(path)
    with pytest.raises(Busy, match="'trip' is open in another process"):
        Transcript.open(path)
    held.close()
    Transcript.open(path).close()


def test_a_killed_process_holds_nothing(path: Path) -> None:
    program = (
        "import sys, pathlib; from ingle.cli.transcript import Transcript\n"
        "kept = Transcript.open(pathlib.Path(sys.argv[1])); kept.append({'ingle': 'conversation', 'version': 1})\n"
        "print('held', flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline() == b"held\n"
    with pytest.raises(Busy):
        Transcript.open(path)
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()
    write(path, [{"user": "hi"}])
    assert len(read(path)) == 2


def test_a_full_disk_leaves_no_torn_line_and_is_made_up_for(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Transcript.open(path)
    kept.append(HEADER)
    whole = path.read_bytes()
    real = os.write

    def write_half(descriptor: int, data: memoryview) -> int:
        real(descriptor, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", write_half)
    for question in ("one", "two"):
        with pytest.raises(OSError, match="No space"):
            kept.append({"user": question})
        assert path.read_bytes() == whole
    monkeypatch.setattr(os, "write", real)
    kept.append({"user": "three"})
    kept.close()
    assert [record["user"] for record in read(path)[1:]] == ["one", "two", "three"]


def test_move_and_copy(path: Path) -> None:
    other, third = path.with_stem("other"), path.with_stem("third")
    write(other, [HEADER, {"user": "other"}])
    kept = Transcript.open(path)
    kept.append(HEADER)
    for change in (kept.move, kept.copy):
        with pytest.raises(InputProblem, match="already"):
            change(other)
    kept.move(third)
    kept.append({"user": "moved"})
    Transcript.open(path).close()  # free again
    copied = kept.copy(path)
    assert len(copied.records) == 2
    copied.append({"user": "copy"})
    kept.append({"user": "original"})
    copied.close()
    kept.close()
    assert [record.get("user") for record in read(path)] == [None, "moved", "copy"]
    assert [record.get("user") for record in read(third)] == [None, "moved", "original"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.fixture(autouse=True)
def _no_umask() -> Iterator[None]:
    before = os.umask(0)  # so that modes are what the code asked for
    yield
    os.umask(before)
