# How much memory there is, in bytes. Knows nothing of models.
from __future__ import annotations

from pathlib import Path

_MEMINFO = Path("/proc/meminfo")


def available_memory_bytes() -> int:
    """Bytes that new allocations can have without swapping: on Linux the kernel's own estimate (MemAvailable, which
    counts file caches as free), elsewhere psutil's."""
    if _MEMINFO.exists():
        for line in _MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    import psutil  # here: importing it costs 10 ms at every start

    return int(psutil.virtual_memory().available)
