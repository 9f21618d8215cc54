# Free memory where a control group gives less than the machine has; files as the kernel writes them.
from __future__ import annotations

import mmap
from pathlib import Path

import pytest

from ingle.models import memory

KIB = 1024


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with 8000 kB, 6000 of them free, and no limit."""
    (tmp_path / "meminfo").write_text("MemTotal:  8000 kB\nMemFree:  10 kB\nMemAvailable:  6000 kB\n")
    (tmp_path / "root").mkdir()
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "_CGROUP", tmp_path / "cgroup")
    monkeypatch.setattr(memory, "_CGROUP_ROOT", tmp_path / "root")
    return tmp_path


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("_", ".", 1)).write_text(text)


def figures() -> tuple[int, int]:
    return memory.available_memory_bytes() // KIB, memory.total_memory_bytes() // KIB


def test_without_control_groups_the_machine_counts(kernel: Path) -> None:
    assert figures() == (6000, 8000)


def test_a_limit_counts_and_file_caches_are_free(kernel: Path) -> None:
    (kernel / "cgroup").write_text("0::/user.slice/ingle.scope\n")
    stat = f"anon 1\ninactive_file {300 * KIB}\nactive_file {100 * KIB}\n"
    inner = kernel / "root" / "user.slice" / "ingle.scope"
    write(inner, memory_max=f"{2000 * KIB}\n", memory_current=f"{1500 * KIB}\n", memory_stat=stat)
    assert figures() == (2000 - (1500 - 400), 2000)


def test_the_tightest_of_the_groups_around_us_counts(kernel: Path) -> None:
    (kernel / "cgroup").write_text("0::/a/b\n")
    write(kernel / "root" / "a" / "b", memory_max="max\n", memory_current="5\n", memory_stat="")
    write(kernel / "root" / "a", memory_max=f"{700 * KIB}\n", memory_current=f"{100 * KIB}\n", memory_stat="")
    assert figures() == (600, 700)


def test_a_group_above_its_limit_leaves_nothing(kernel: Path) -> None:
    (kernel / "cgroup").write_text("0::/\n")
    write(kernel / "root", memory_max=f"{700 * KIB}\n", memory_current=f"{900 * KIB}\n", memory_stat="")
    assert figures() == (0, 700)


def test_version_one(kernel: Path) -> None:
    (kernel / "cgroup").write_text("12:cpu,cpuacct:/x\n7:memory:/docker/0123\n")
    stat = f"inactive_file {1 * KIB}\ntotal_inactive_file {50 * KIB}\ntotal_active_file {50 * KIB}\n"
    folder = kernel / "root" / "memory"  # a container sees its own group as the root
    folder.mkdir()
    (folder / "memory.limit_in_bytes").write_text(f"{3000 * KIB}\n")
    (folder / "memory.usage_in_bytes").write_text(f"{1000 * KIB}\n")
    (folder / "memory.stat").write_text(stat)
    assert figures() == (2100, 3000)
    (folder / "memory.limit_in_bytes").write_text("9223372036854771712\n")  # no limit
    assert figures() == (6000, 8000)


@pytest.mark.parametrize("name", ["/../../etc", "/not/there"])
def test_a_group_we_cannot_see_is_the_root(kernel: Path, name: str) -> None:
    (kernel / "cgroup").write_text(f"0::{name}\n")
    write(kernel / "root", memory_max=f"{500 * KIB}\n", memory_current="0\n", memory_stat="")
    assert figures() == (500, 500)


def test_what_this_process_holds_grows_with_what_it_touches() -> None:
    before = memory.resident_bytes()
    with mmap.mmap(-1, 50_000_000) as held:  # new pages, not ones that other tests have left to the allocator
        held.write(b"x" * 50_000_000)
        assert memory.resident_bytes() - before > 40_000_000
