# How much memory there is and how much this process has, in bytes. Knows nothing of models.
"""Free and total memory, a container's limit included, and the memory this process holds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_STATUS = Path("/proc/self/status")
_CGROUP = Path("/proc/self/cgroup")
_CGROUP_ROOT = Path("/sys/fs/cgroup")

# Limit, use and the statistics of use: version 2 of control groups, and version 1.
_V2_FILES = ("memory.max", "memory.current", "memory.stat")
_V1_FILES = ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat")
# What the kernel would drop before it refused: file caches, as it counts them in each version.
_CACHES = {"inactive_file", "active_file", "total_inactive_file", "total_active_file"}


def available_memory_bytes() -> int:
    """Bytes that new allocations can have without swapping: on Linux the kernel's own estimate (MemAvailable, which
    counts file caches as free) or what the control group leaves, elsewhere psutil's."""
    available = _from_kernel(_MEMINFO, "MemAvailable:") or _from_psutil("available")
    return max(0, min([available, *(limit - used for limit, used in _cgroup_limits())]))


def total_memory_bytes() -> int:
    """Bytes of physical memory, or of the control group's limit where that is less."""
    total = _from_kernel(_MEMINFO, "MemTotal:") or _from_psutil("total")
    return min([total, *(limit for limit, _ in _cgroup_limits())])


def resident_bytes() -> int:
    """Bytes of this process in memory, those of mapped files included (VmRSS)."""
    found = _from_kernel(_STATUS, "VmRSS:")
    if found is not None:
        return found
    import psutil

    return int(psutil.Process().memory_info().rss)


def _from_kernel(file: Path, row: str) -> int | None:
    if file.exists():
        for line in file.read_text().splitlines():
            if line.startswith(row):
                return int(line.split()[1]) * 1024
    return None


def _from_psutil(field: str) -> int:
    import psutil  # here: importing it costs 10 ms at every start

    return int(getattr(psutil.virtual_memory(), field))


def _cgroup_limits() -> Iterator[tuple[int, int]]:
    """(limit, bytes in use that are no file cache) of our control group and of those around it that have a limit."""
    try:
        lines = _CGROUP.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, name = line.split(":", 2)
        if controllers == "":
            root, files = _CGROUP_ROOT, _V2_FILES
        elif "memory" in controllers.split(","):
            root, files = _CGROUP_ROOT / "memory", _V1_FILES
        else:
            continue
        inner = Path(os.path.normpath(root / name.lstrip("/")))
        if not inner.is_relative_to(root) or not inner.is_dir():
            inner = root  # inside a container the name may be the host's, and the root is our own group
        for folder in (inner, *inner.parents):
            if folder.is_relative_to(root) and (found := _limit_of(folder, files)) is not None:
                yield found


def _limit_of(folder: Path, files: tuple[str, str, str]) -> tuple[int, int] | None:
    """None where the folder has no limit ("max", or the absurd number that version 1 has for it)."""
    limit, used, stat = (_read(folder / name) for name in files)
    if not limit.strip().isdigit() or not used.strip().isdigit():
        return None
    rows = [line.split() for line in stat.splitlines()]
    figures = {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdigit()}
    names = {name for name in _CACHES & figures.keys() if name.startswith("total_")} or _CACHES & figures.keys()
    cached = sum(figures[name] for name in names)
    return int(limit), max(0, int(used) - cached)


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
