# Folders, and errors that say which one and why.
from __future__ import annotations

import errno
import stat
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from ingle.models import errors, places


@pytest.mark.skipif(sys.platform != "linux", reason="XDG folders")
def test_xdg(tmp_path: Path) -> None:
    base = tmp_path / "xdg"
    assert places.cache_dir() == base / "cache" / "ingle"
    assert places.config_dir() == base / "config" / "ingle"
    assert places.data_dir() == base / "data" / "ingle"
    assert places.state_dir() == base / "state" / "ingle"
    assert places.models_dir() == base / "cache" / "ingle" / "models"
    assert not base.exists()  # asking creates nothing


def test_private_folders(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    assert places.ensure_private_dir(tmp_path / "a" / "b") == tmp_path / "a" / "b"
    assert [stat.S_IMODE(p.stat().st_mode) for p in (tmp_path, tmp_path / "a", tmp_path / "a" / "b")] == [
        0o755,
        0o700,
        0o700,
    ]
    (tmp_path / "a" / "b").chmod(0o755)
    places.ensure_private_dir(tmp_path / "a" / "b")
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700


def test_a_file_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(errors.StoreError, match=r"cannot create the folder .*file: File exists \(EEXIST\)") as caught:
        places.ensure_private_dir(tmp_path / "file")
    assert caught.value.errno == errno.EEXIST
    with pytest.raises(errors.StoreError, match=r"\((ENOTDIR|EEXIST)\)"):
        places.ensure_private_dir(tmp_path / "file" / "below")


def test_a_folder_that_is_not_ours_to_write(
    open_dir: Path, unprivileged: Callable[[], AbstractContextManager[None]]
) -> None:
    (open_dir / "closed").mkdir(mode=0o500)
    with unprivileged(), pytest.raises(errors.StoreError, match="EACCES"):
        places.ensure_private_dir(open_dir / "closed" / "below")


def test_messages_are_one_printable_line() -> None:
    error = errors.ModelError("a\nb\tc \x1b[31m" + "x" * 1000, "do\nthis")
    assert error.message.startswith("a b c \\x1b[31mxxx")
    assert len(error.message) == 400
    assert error.hint == "do this"
    assert str(error) == error.message


def test_the_tree_of_errors() -> None:
    assert issubclass(errors.UnsupportedModel, errors.BadModelFile)
    for kind in (errors.ModelNotFound, errors.BadModelFile, errors.DownloadFailed, errors.StoreError):
        assert kind.__base__ is errors.ModelError
