# `ingle doctor`: facts about this machine and this installation, and what of it looks wrong.
# Facts are gathered in one place (`examine`), judged in another (`problems`), shown in a third.
"""What a bug report should begin with."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import locale
import os
import platform
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ingle.cli import settings as settings_file
from ingle.cli.output import Output

JSON_VERSION = 1

LOW_MEMORY_BYTES = 1_500_000_000
LOW_DISK_BYTES = 1_000_000_000

_DISTRIBUTIONS = (
    "ingle",
    "llama-cpp-python",
    "numpy",
    "jinja2",
    "typer",
    "rich",
    "prompt_toolkit",
    "platformdirs",
    "filelock",
)

# Instruction sets in llama.cpp's own words that a modern x86 build should have.
_X86_FEATURES = ("AVX2", "FMA", "F16C")


@dataclass(frozen=True, slots=True)
class Place:
    """A folder or file of ours."""

    path: str
    exists: bool
    writable: bool  # or could be created


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything `ingle doctor` knows. Field names are the keys of its JSON."""

    system: str
    python: str
    cpu: str
    num_cpus: int
    num_cores_used: int
    memory_bytes: int
    memory_available_bytes: int
    disk_free_bytes: int | None  # where models are kept
    encoding: str
    llama_cpp: str | None
    llama_cpp_features: str | None
    gpu_offload: bool
    devices: tuple[str, ...]
    versions: dict[str, str | None]
    places: dict[str, Place]
    default_model: str
    default_model_on_disk: bool
    native_error: str | None  # why llama.cpp could not be loaded


def doctor(output: Output, *, as_json: bool) -> int:
    """Prints the facts; returns 0 when nothing looks wrong, else 1."""
    facts = examine()
    wrong = problems(facts)
    if as_json:
        output.json({"version": JSON_VERSION, **dataclasses.asdict(facts), "problems": wrong})
    else:
        for line in _lines(facts, wrong):
            output.line(line)
    return 1 if wrong else 0


def examine() -> Facts:
    """Look at the machine. Creates nothing."""
    from ingle.runtime.config import default_num_threads

    native = _native()
    from ingle.models.memory import available_memory_bytes, total_memory_bytes

    places = _places()
    model, on_disk = _default_model()
    return Facts(
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=f"{platform.python_version()} ({sys.executable})",
        cpu=_cpu_name(),
        num_cpus=os.cpu_count() or 1,
        num_cores_used=default_num_threads(),
        memory_bytes=total_memory_bytes(),
        memory_available_bytes=available_memory_bytes(),
        disk_free_bytes=_disk_free_bytes(Path(places["cache"].path)),
        encoding=f"{locale.getpreferredencoding(False)}",
        versions={name: _version(name) for name in _DISTRIBUTIONS},
        places=places,
        default_model=model,
        default_model_on_disk=on_disk,
        **native,
    )


def problems(facts: Facts) -> list[str]:
    """What looks wrong, each with what to do."""
    found = []
    if facts.native_error is not None:
        found.append(f"llama.cpp does not load: {facts.native_error}; reinstall llama-cpp-python")
    features = facts.llama_cpp_features or ""
    if facts.llama_cpp_features and platform.machine() in ("x86_64", "AMD64"):
        missing = [name for name in _X86_FEATURES if f"{name} = 1" not in features]
        if missing:
            found.append(f"llama.cpp was compiled without {', '.join(missing)}: slow; rebuild it on this machine")
    if facts.memory_available_bytes < LOW_MEMORY_BYTES:
        found.append(f"only {_gigabytes(facts.memory_available_bytes)} of memory is free: close something")
    if facts.disk_free_bytes is not None and facts.disk_free_bytes < LOW_DISK_BYTES:
        found.append(f"only {_gigabytes(facts.disk_free_bytes)} of disk is free where models are kept")
    if facts.encoding.lower().replace("-", "") != "utf8":
        found.append(f"the locale's encoding is {facts.encoding}, not UTF-8: set LANG=C.UTF-8")
    found += [
        f"cannot write to {p.path} ({name})" for name, p in facts.places.items() if not p.writable and name != "config"
    ]
    found += [f"{name} is not installed" for name, version in facts.versions.items() if version is None]
    try:
        settings_file.load()
    except Exception as error:
        found.append(str(error))
    return found


def _lines(facts: Facts, wrong: list[str]) -> list[str]:
    def say(name: str, value: str) -> str:
        return f"{name:<16}{value}"

    memory = f"{_gigabytes(facts.memory_bytes)}, {_gigabytes(facts.memory_available_bytes)} free"
    lines = [
        say("system", facts.system),
        say("processor", f"{facts.cpu}, {facts.num_cpus} CPUs, {facts.num_cores_used} threads by default"),
        say("memory", memory),
        say("python", facts.python),
        say("llama.cpp", f"{facts.llama_cpp or 'not loaded'}, GPU offload: {'yes' if facts.gpu_offload else 'no'}"),
        say("devices", ", ".join(facts.devices) or "none"),
        say("features", facts.llama_cpp_features or "unknown"),
        say("versions", ", ".join(f"{name} {version or 'missing'}" for name, version in facts.versions.items())),
    ]
    for name, place in facts.places.items():
        state = "" if place.exists else " (not there yet)"
        lines.append(say(name, place.path + state + ("" if place.writable else " (NOT WRITABLE)")))
    disk = (
        "unknown"
        if facts.disk_free_bytes is None
        else f"{_gigabytes(facts.disk_free_bytes)} free where models are kept"
    )
    lines.append(say("disk", disk))
    lines.append(
        say("default model", f"{facts.default_model}, {'on disk' if facts.default_model_on_disk else 'not downloaded'}")
    )
    lines += [f"problem: {text}" for text in wrong] or ["Nothing looks wrong."]
    return lines


def _native() -> dict[str, Any]:
    try:
        from ingle.runtime import llama

        return {
            "llama_cpp": llama.version(),
            "llama_cpp_features": " ".join(llama.system_info().split()).strip(" |"),
            "gpu_offload": llama.supports_gpu_offload(),
            "devices": llama.devices(),
            "native_error": None,
        }
    except Exception as error:
        return {
            "llama_cpp": None,
            "llama_cpp_features": None,
            "gpu_offload": False,
            "devices": (),
            "native_error": " ".join(str(error).split()),
        }


def _default_model() -> tuple[str, bool]:
    from ingle.models.catalog import DEFAULT_ALIAS
    from ingle.models.errors import ModelError
    from ingle.models.resolve import resolve

    try:
        chosen: str = settings_file.load().pick("model", None) or DEFAULT_ALIAS
    except Exception:
        chosen = DEFAULT_ALIAS
    try:
        resolve(chosen, offline=True, converts=False)
    except (ModelError, OSError):
        return chosen, False
    return chosen, True


def _places() -> dict[str, Place]:
    from ingle.models import places

    found = {
        "config": settings_file.config_path(os.environ),
        "models": places.models_dir(),
        "cache": places.cache_dir(),
        "data": places.data_dir(),
        "state": places.state_dir(),
    }
    return {name: Place(str(path), path.exists(), _could_write(path)) for name, path in found.items()}


def _could_write(path: Path) -> bool:
    """Whether `path` can be written, or made in the nearest folder that exists."""
    while not path.exists():
        if path == path.parent:
            return False
        path = path.parent
    return os.access(path, os.W_OK) and (path.is_dir() or path.suffix == ".toml")


def _disk_free_bytes(path: Path) -> int | None:
    while not path.exists() and path != path.parent:
        path = path.parent
    try:
        return shutil.disk_usage(path).free
    except OSError:
        return None


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                if line.startswith(("model name", "Model")):
                    return " ".join(line.split(":", 1)[1].split())
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _gigabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f} GB"
