# How much memory there is, in bytes. Knows nothing of models.
from __future__ import annotations

from pathlib import Path

_MEMINFO = Path("/proc/meminfo")


def available_memory_bytes() -> int:
    """Bytes that new allocations can have without swapping: on Linux the kernel's own estimate (MemAvailable, which
    counts file caches as free), elsewhere psutil's."""
    return _from_kernel("MemAvailable:") or _from_psutil("available")


def total_memory_bytes() -> int:
    """Bytes of physical memory."""
    return _from_kernel("MemTotal:") or _from_psutil("total")


def _from_kernel(row: str) -> int | None:
    if _MEMINFO.exists():
        for line in _MEMINFO.read_text().splitlines():
            if line.startswith(row):
                return int(line.split()[1]) * 1024
    return None


def _from_psutil(field: str) -> int:
    import psutil  # here: importing it costs 10 ms at every start

    return int(getattr(psutil.virtual_memory(), field))
