# Joules, where the machine counts them. Knows nothing of what they were spent on.
"""Energy counters: Linux's power capping interface (RAPL).

Each zone counts microjoules up to a limit of its own and starts again at 0. Packages are counted, and the memory of
each; cores and graphics are parts of a package, and a whole-platform zone would count everything twice. Many kernels
let only root read them: then there are none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

POWERCAP = Path("/sys/class/powercap")


@dataclass(frozen=True, slots=True)
class Zone:
    """One counter: a file of microjoules, and the value after which it starts again at 0."""

    path: Path
    limit_uj: int


class EnergyCounters:
    """All zones that together are the machine's processors and memory."""

    def __init__(self, zones: Sequence[Zone]) -> None:
        self._zones = tuple(zones)

    @classmethod
    def find(cls, folder: Path = POWERCAP) -> EnergyCounters | None:
        """None where there is no counter that may be read."""
        zones = [zone for path in sorted(folder.glob("intel-rapl:*")) if (zone := _zone(path)) is not None]
        return cls(zones) if zones else None

    def read(self) -> tuple[int, ...] | None:
        """Microjoules of every zone now; None when one cannot be read any more."""
        try:
            return tuple(int(zone.path.read_text()) for zone in self._zones)
        except (OSError, ValueError):
            return None

    def joules_between(self, before: tuple[int, ...] | None, after: tuple[int, ...] | None) -> float | None:
        """Spent between two readings less than one turn of a counter apart."""
        if before is None or after is None:
            return None
        spent = 0
        for zone, start, end in zip(self._zones, before, after, strict=True):
            spent += end - start if end >= start else end + zone.limit_uj - start
        return spent / 1e6


def _zone(path: Path) -> Zone | None:
    try:
        name = (path / "name").read_text().strip()
        limit = int((path / "max_energy_range_uj").read_text())
        int((path / "energy_uj").read_text())
    except (OSError, ValueError):
        return None
    return Zone(path / "energy_uj", limit) if name.startswith(("package", "dram")) else None
