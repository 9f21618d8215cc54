# Tiny wheels for tests: real zip files with a RECORD, holding whatever the test wants; and one model in one wheel.
from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path

from ingle.models.pypi import WheelSource
from tests.models.gguf_bytes import tiny_model


def write_wheel(
    folder: Path, package: str, version: str, files: dict[str, bytes], *, record: dict[str, str] | None = None
) -> Path:
    """``package-version-py3-none-any.whl`` in `folder`; `record` replaces the recorded hash of a file."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = package.replace("-", "_")
    info = f"{stem}-{version}.dist-info"
    members = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    lines = []
    for name, content in members.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        said = (record or {}).get(name, f"sha256={digest}")
        lines.append(f"{name},{said},{len(content)}")
    members[f"{info}/RECORD"] = ("\n".join([*lines, f"{info}/RECORD,,"]) + "\n").encode()
    path = folder / f"{stem}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


MODEL = tiny_model().to_bytes()
SHA256 = hashlib.sha256(MODEL).hexdigest()
SOURCE = WheelSource("tiny-model", "1.0", "tiny.gguf", SHA256, len(MODEL), 3000)


class Recorder:
    """A Progress that remembers what it was told."""

    def __init__(self) -> None:
        self.started: list[tuple[int | None, str]] = []
        self.updates: list[int] = []
        self.finished = 0
        self.notes: list[str] = []

    def start(self, total_bytes: int | None, label: str) -> None:
        self.started.append((total_bytes, label))

    def update(self, done_bytes: int) -> None:
        self.updates.append(done_bytes)

    def finish(self) -> None:
        self.finished += 1

    def note(self, message: str) -> None:
        self.notes.append(message)


def leftovers(source: WheelSource) -> list[str]:
    return sorted(p.name for p in source.folder.iterdir() if p.name != ".lock")
