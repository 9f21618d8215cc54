# Where a figure comes from: the machine, the build, and what else was going on. Reads /proc and /sys; changes nothing.
# This file may not know what is measured.
"""``describe`` says what the machine is, ``Conditions`` what state it was in, ``doubts`` why a figure may mislead."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BUSY_LOAD = 0.5
"""Processes that want to run, on average over the last minute, before we have begun."""

MAX_STALLED_SHARE = 0.05
"""Of the time, the part in which something that could have run waited for a CPU."""

LOOK_EVERY_S = 2.0
"""While measuring: often enough to see the clock fall, seldom enough to cost nothing."""

SLOW_SHARE = 0.85
"""A CPU that runs below this part of its highest frequency, while it computes, is held back."""


def describe() -> dict[str, Any]:
    """What stands in every result about the machine and the build: hardware, system, versions."""
    from ingle.cli.doctor import examine
    from ingle.runtime import llama

    facts = examine()
    return {
        "cpu": facts.cpu,
        "num_cpus": facts.num_cpus,
        "num_cores_used": facts.num_cores_used,
        "cpu_features": facts.llama_cpp_features,
        "devices": list(facts.devices),
        "governor": governor(),
        "memory_bytes": facts.memory_bytes,
        "system": facts.system,
        "python": facts.python.split(" ")[0],
        "llama_cpp": facts.llama_cpp,
        "llama_cpp_commit": llama.commit(),
        "versions": {name: facts.versions[name] for name in ("ingle", "llama-cpp-python", "numpy")},
    }


def governor(root: Path = Path("/")) -> str | None:
    """How Linux chooses the first CPU's frequency; None where it does not say."""
    return _text(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")


@dataclass(frozen=True, slots=True)
class Conditions:
    """The machine's state at one moment. None: this machine does not say.

    ``stalled_us``: since the machine started, time in which a task waited for a CPU (pressure stall information).
    ``num_throttles``: since then, how often a core was slowed down by heat. ``frequency_share``: the fastest CPU's
    frequency now, of the highest it can have.
    """

    time_s: float
    load: float | None
    stalled_us: int | None
    num_throttles: int | None
    frequency_share: float | None
    is_on_battery: bool | None


def look(time_s: float, root: Path = Path("/")) -> Conditions:
    """The state now, `time_s` by the caller's clock. `root`: where /proc and /sys are."""
    cpus = root / "sys/devices/system/cpu"
    load = _text(root / "proc/loadavg")
    throttles = [_number(path) for path in cpus.glob("cpu[0-9]*/thermal_throttle/core_throttle_count")]
    return Conditions(
        time_s=time_s,
        load=float(load.split()[0]) if load else None,
        stalled_us=_stalled_us(root / "proc/pressure/cpu"),
        num_throttles=sum(count for count in throttles if count is not None) if throttles else None,
        frequency_share=_frequency_share(cpus),
        is_on_battery=_is_on_battery(root / "sys/class/power_supply"),
    )


def doubts(before: Conditions, during: Conditions, after: Conditions, governor: str | None) -> list[str]:
    """Reasons, for people, why what was measured between these may not be what the machine can do."""
    found = []
    if before.load is not None and before.load > BUSY_LOAD:
        found.append(f"something else was running before the first measurement (load average {before.load:.1f})")
    if before.stalled_us is not None and after.stalled_us is not None and after.time_s > before.time_s:
        share = (after.stalled_us - before.stalled_us) / 1e6 / (after.time_s - before.time_s)
        if share > MAX_STALLED_SHARE:
            found.append(f"tasks waited for a CPU {share:.0%} of the time: something else was running")
    if before.num_throttles is not None and after.num_throttles is not None:
        times = after.num_throttles - before.num_throttles
        if times > 0:
            found.append(f"the CPU was slowed down by heat {times} times")
    if during.frequency_share is not None and during.frequency_share < SLOW_SHARE:
        found.append(f"the CPU ran at {during.frequency_share:.0%} of its highest frequency")
    if any(conditions.is_on_battery for conditions in (before, during, after)):
        found.append("the machine ran on its battery")
    if governor == "powersave":
        found.append("the CPU frequency governor is powersave")
    return found


def as_json(conditions: Conditions) -> dict[str, Any]:
    return {name: value for name, value in dataclasses.asdict(conditions).items() if name != "time_s"}


def _stalled_us(path: Path) -> int | None:
    """`some avg10=0.00 avg60=0.00 avg300=0.00 total=12345`"""
    for line in (_text(path) or "").splitlines():
        if line.startswith("some ") and (total := line.rpartition("total=")[2]).isdigit():
            return int(total)
    return None


def _frequency_share(cpus: Path) -> float | None:
    shares = []
    for folder in cpus.glob("cpu[0-9]*/cpufreq"):
        now, most = _number(folder / "scaling_cur_freq"), _number(folder / "cpuinfo_max_freq")
        if now and most:
            shares.append(now / most)
    return max(shares, default=None)


def _is_on_battery(folder: Path) -> bool | None:
    """None where there is no battery of the machine's own: those of mice and keyboards are of scope "Device"."""
    batteries = [
        path
        for path in folder.glob("*")
        if _text(path / "type") == "Battery" and (_text(path / "scope") or "System") == "System"
    ]
    if not batteries:
        return None
    return any(_text(path / "status") == "Discharging" for path in batteries)


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text is not None and text.isdigit() else None
