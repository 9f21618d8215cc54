# What calibration found, kept between runs under the cache folder: activations, scales by the types they are for, and
# sensitivities. This file may not know how any is found.
"""``Kept``: the expensive part of a quantization, by source and calibration text.

An interrupted or repeated run begins where the expensive part ended. Files appear whole; what cannot be read is as if
it were not there. Of many models only the `MAX_KEPT` used last are kept.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ingle.models.errors import store_error
from ingle.models.places import cache_dir, ensure_private_dir
from ingle.quant.activations import Activations, InputStats, Rows, SquareSums
from ingle.quant.fold import Floats, TensorScale
from ingle.quant.sensitivity import CANDIDATES, Sensitivities
from ingle.quant.writer import is_alive

MAX_KEPT: Final = 4
_FORMAT: Final = 1
"""Of the files, and of what is searched and how: raised when the same inputs would give something else."""

Arrays = dict[str, npt.NDArray[Any]]


class Kept:
    """One folder: of one source (the hash of its bytes) and one calibration (that of its tokens)."""

    def __init__(self, source_sha256: str, calibration_digest: str) -> None:
        """Raises StoreError."""
        folder = ensure_private_dir(cache_dir() / "quantize")
        self._folder = ensure_private_dir(folder / f"{source_sha256[:20]}-{calibration_digest[:20]}")
        os.utime(self._folder)
        newest = sorted((entry for entry in folder.iterdir() if entry.is_dir()), key=lambda e: -e.stat().st_mtime)
        for old in newest[MAX_KEPT:]:
            shutil.rmtree(old, ignore_errors=True)
        for left in self._folder.glob("*.tmp"):  # of a process that was killed while it wrote
            owner = left.name.split(".")[-2]
            if owner.isdecimal() and not is_alive(int(owner)):
                left.unlink(missing_ok=True)

    def activations(self) -> Activations | None:
        """What `save_activations` was given; None where there is none."""
        found = _read(self._folder / "activations.npz")
        if found is None:
            return None
        about, arrays = found
        activations = Activations(about["num_chunks"], about["chunk_tokens"])
        for number, name in enumerate(about["squares"]):
            activations.squares[name] = SquareSums(arrays[f"sums{number}"], arrays[f"counts{number}"])
        for number, one in enumerate(about["inputs"]):
            rows = Rows.unpacked(arrays[f"rows{number}"], arrays[f"sizes{number}"])
            stats = InputStats(one["node"], one["num_cols"], arrays[f"abs{number}"], one["num_rows"], rows)
            activations.inputs.update(dict.fromkeys(one["names"], stats))
        return activations

    def save_activations(self, found: Activations) -> None:
        """Raises StoreError."""
        arrays: Arrays = {}
        for number, stats in enumerate(found.squares.values()):
            arrays[f"sums{number}"], arrays[f"counts{number}"] = stats.sums, stats.counts
        names: dict[int, list[str]] = {}
        for name, one in found.inputs.items():
            names.setdefault(id(one), []).append(name)
        inputs = []
        for number, together in enumerate(names.values()):
            one = found.inputs[together[0]]
            arrays[f"rows{number}"], arrays[f"sizes{number}"] = one.rows.packed()
            arrays[f"abs{number}"] = one.abs_sum
            inputs.append({"names": together, "node": one.node, "num_cols": one.num_cols, "num_rows": one.num_rows})
        about = {
            "num_chunks": found.num_chunks,
            "chunk_tokens": found.chunk_tokens,
            "squares": list(found.squares),
            "inputs": inputs,
        }
        _write(self._folder / "activations.npz", about, arrays)

    def scales(self, key: str) -> dict[str, TensorScale] | None:
        """What `save_scales` was given under `key`."""
        found = _read(self._path("scales", key))
        if found is None:
            return None
        about, arrays = found
        return {
            name: TensorScale(arrays.get(f"rows{number}"), arrays.get(f"columns{number}"))
            for number, name in enumerate(about["names"])
        }

    def save_scales(self, key: str, scales: Mapping[str, TensorScale]) -> None:
        """Raises StoreError."""
        arrays: Arrays = {}
        for number, scale in enumerate(scales.values()):
            for name, values in (("rows", scale.rows), ("columns", scale.columns)):
                if values is not None:
                    arrays[f"{name}{number}"] = values
        _write(self._path("scales", key), {"names": list(scales)}, arrays)

    def sensitivities(self, key: str) -> Sensitivities | None:
        """What `save_sensitivities` was given under `key`."""
        found = _read(self._path("sensitivities", key))
        if found is None or tuple(found[0]["types"]) != CANDIDATES:
            return None
        about, arrays = found
        return Sensitivities(tuple(about["names"]), arrays["sizes"], arrays["errors"])

    def save_sensitivities(self, key: str, found: Sensitivities) -> None:
        """Raises StoreError."""
        arrays: Arrays = {"sizes": found.sizes, "errors": found.errors}
        _write(self._path("sensitivities", key), {"names": found.names, "types": CANDIDATES}, arrays)

    def _path(self, kind: str, key: str) -> Path:
        return self._folder / f"{kind}-{hashlib.sha256(key.encode()).hexdigest()[:20]}.npz"


def key_of(types: Mapping[str, str], means: Mapping[str, Floats]) -> str:
    """What else was found depends on beside source and text: types by tensor, and the importance matrix, all of it."""
    digest = hashlib.sha256(repr(sorted(types.items())).encode())
    for name in sorted(means):
        digest.update(f"{name} {means[name].shape}\n".encode())
        digest.update(np.ascontiguousarray(means[name], "<f4").tobytes())
    return digest.hexdigest()


def _read(path: Path) -> tuple[dict[str, Any], Arrays] | None:
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        about = json.loads(arrays.pop("about").tobytes())
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
    return (about, arrays) if about.get("format") == _FORMAT else None


def _write(path: Path, about: Mapping[str, Any], arrays: Arrays) -> None:
    """Whole or not at all, readable by its owner alone."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    text = np.frombuffer(json.dumps({"format": _FORMAT, **about}).encode(), np.uint8)
    try:
        ensure_private_dir(path.parent)  # where others have calibrated many models since, it has been removed
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            np.savez(file, about=text, **arrays)  # type: ignore[arg-type]
        temporary.replace(path)
    except OSError as error:
        raise store_error(error, f"write {path}") from None
    finally:
        temporary.unlink(missing_ok=True)  # after Ctrl-C too
