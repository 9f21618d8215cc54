# What /sys and /proc say, on made-up ones: energy, pressure, heat, batteries, caches.
from __future__ import annotations

from pathlib import Path

import pytest

from ingle.cli.bench import bandwidth, machine
from ingle.cli.bench.energy import EnergyCounters


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")
    return path


def add_zone(root: Path, number: str, name: str, energy_uj: int, limit_uj: int = 1_000_000) -> Path:
    folder = root / f"intel-rapl:{number}"
    write(folder / "name", name)
    write(folder / "max_energy_range_uj", str(limit_uj))
    return write(folder / "energy_uj", str(energy_uj))


def test_packages_and_their_memory_are_counted_once(tmp_path: Path) -> None:
    package = add_zone(tmp_path, "0", "package-0", 500_000)
    dram = add_zone(tmp_path, "0:1", "dram", 100_000)
    core = add_zone(tmp_path, "0:0", "core", 400_000)
    platform = add_zone(tmp_path, "1", "psys", 0)
    counters = EnergyCounters.find(tmp_path)
    assert counters is not None
    before = counters.read()
    for path, value in ((package, 750_000), (dram, 150_000), (core, 900_000), (platform, 999_999)):
        write(path, str(value))
    assert counters.joules_between(before, counters.read()) == pytest.approx(0.3)


def test_a_counter_that_starts_again_at_zero(tmp_path: Path) -> None:
    package = add_zone(tmp_path, "0", "package-0", 900_000)
    counters = EnergyCounters.find(tmp_path)
    assert counters is not None
    before = counters.read()
    write(package, "50000")
    assert counters.joules_between(before, counters.read()) == pytest.approx(0.15)


def test_no_counters_no_figure(tmp_path: Path) -> None:
    assert EnergyCounters.find(tmp_path) is None
    assert EnergyCounters.find(tmp_path / "missing") is None
    package = add_zone(tmp_path, "0", "package-0", 0)
    counters = EnergyCounters.find(tmp_path)
    assert counters is not None
    before = counters.read()
    package.unlink()
    assert counters.joules_between(before, counters.read()) is None
    assert EnergyCounters.find(tmp_path) is None


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A quiet laptop on the mains."""
    write(tmp_path / "proc/loadavg", "0.10 0.20 0.30 1/200 4711")
    write(tmp_path / "proc/pressure/cpu", "some avg10=0.00 avg60=0.00 avg300=0.00 total=1000000")
    for cpu in (0, 1):
        folder = tmp_path / f"sys/devices/system/cpu/cpu{cpu}"
        write(folder / "thermal_throttle/core_throttle_count", "7")
        write(folder / "cpufreq/scaling_cur_freq", str(3_000_000 + cpu * 100_000))
        write(folder / "cpufreq/cpuinfo_max_freq", "3200000")
    write(tmp_path / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance")
    write(tmp_path / "sys/class/power_supply/BAT0/type", "Battery")
    write(tmp_path / "sys/class/power_supply/BAT0/status", "Charging")
    write(tmp_path / "sys/class/power_supply/mouse/type", "Battery")
    write(tmp_path / "sys/class/power_supply/mouse/scope", "Device")
    write(tmp_path / "sys/class/power_supply/mouse/status", "Discharging")
    return tmp_path


def test_a_quiet_machine_leaves_no_doubt(root: Path) -> None:
    state = machine.look(0.0, root)
    assert state == machine.Conditions(0.0, 0.1, 1_000_000, 14, pytest.approx(3.1 / 3.2), False)
    assert machine.doubts(state, state, machine.look(10.0, root), machine.governor(root)) == []


def test_every_doubt_is_named(root: Path) -> None:
    write(root / "proc/loadavg", "3.50 0 0 1/2 3")
    write(root / "sys/class/power_supply/BAT0/status", "Discharging")
    before = machine.look(0.0, root)
    write(root / "proc/pressure/cpu", "some avg10=9.00 avg60=9.00 avg300=9.00 total=4000000")
    write(root / "sys/devices/system/cpu/cpu1/thermal_throttle/core_throttle_count", "9")
    write(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq", "1600000")
    write(root / "sys/devices/system/cpu/cpu1/cpufreq/scaling_cur_freq", "1280000")
    after = machine.look(10.0, root)
    assert machine.doubts(before, after, after, "powersave") == [
        "something else was running before the first measurement (load average 3.5)",
        "tasks waited for a CPU 30% of the time: something else was running",
        "the CPU was slowed down by heat 2 times",
        "the CPU ran at 50% of its highest frequency",
        "the machine ran on its battery",
        "the CPU frequency governor is powersave",
    ]


def test_a_machine_that_says_nothing(tmp_path: Path) -> None:
    state = machine.look(0.0, tmp_path)
    assert machine.as_json(state) == dict.fromkeys(
        ("load", "stalled_us", "num_throttles", "frequency_share", "is_on_battery")
    )
    assert machine.doubts(state, state, state, None) == []


def test_the_buffer_is_larger_than_the_last_cache(tmp_path: Path) -> None:
    write(tmp_path / "index0/size", "48K")
    write(tmp_path / "index3/size", "260M")
    assert bandwidth.largest_cache_bytes(tmp_path) == 260 * 2**20
    assert bandwidth.largest_cache_bytes(tmp_path / "none") == 0
    assert bandwidth.buffer_bytes(260 * 2**20, 64 * 2**30) == 520 * 2**20
    assert bandwidth.buffer_bytes(0, 64 * 2**30) == 256 * 2**20
    assert bandwidth.buffer_bytes(260 * 2**20, 400 * 2**20) == 100 * 2**20


def test_all_threads_read_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    class Part:
        nbytes = 4000

        def max(self) -> float:
            sizes.append(self.nbytes)
            return 1.0

    monkeypatch.setattr(bandwidth, "buffer_bytes", lambda *_: 4000)
    monkeypatch.setattr(bandwidth.np, "array_split", lambda _buffer, count: [Part() for _ in range(count)])
    assert bandwidth.measure(3) > 0
    assert sizes == [4000] * 3 * bandwidth.NUM_PASSES
