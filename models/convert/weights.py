# Tensors as transformers keeps them → tensors as llama.cpp wants them, one at a time, in blocks of rows.
# This file may not know file headers nor tokenizers.
"""Names, transforms and number formats of weights. ``plan_weights`` decides all of it before a byte is read."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from ingle.models.convert.hyperparameters import Hyperparameters
from ingle.models.convert.tensor_files import StoredTensor
from ingle.models.errors import BadModelFile

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]

OutType = Literal["f32", "f16", "bf16"]
_BYTES: Final[Mapping[OutType, int]] = {"f32": 4, "f16": 2, "bf16": 2}
_BLOCK_BYTES: Final = 16 * 2**20  # of float32, what is converted at a time
_HINT: Final = "The directory is damaged or of another model: fetch it again."


class BeyondHalf(Exception):
    """A value too large for float16, in the tensor of this name."""


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    """A tensor of the GGUF to be. `shape` rows first; `source` None: `values` are computed, not read."""

    name: str
    shape: tuple[int, ...]
    type: OutType
    source: StoredTensor | None
    values: tuple[float, ...] = ()
    num_permuted_heads: int | None = None  # rows of q or k: from halves of a head to pairs
    add_one: bool = False

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * _BYTES[self.type]

    def blocks(self) -> Iterator[Array]:
        """The values in `type`, flat, some rows at a time. Raises BadModelFile, BeyondHalf."""
        import numpy as np

        if self.source is None:
            yield np.asarray(self.values, np.float32)
            return
        stored = self.source.read()
        if self.num_permuted_heads is not None:
            stored = _interleave(stored, self.num_permuted_heads)
        flat = stored.reshape(-1)
        for begin in range(0, flat.size, _BLOCK_BYTES // 4):
            block = flat[begin : begin + _BLOCK_BYTES // 4]
            _check_finite(block, self.source)
            if self.add_one:
                block = _as_f32(block) + np.float32(1)
            yield _as_type(block, self.type, self.source.name)


def plan_weights(hyper: Hyperparameters, stored: Mapping[str, StoredTensor], outtype: OutType) -> list[PlannedTensor]:
    """The tensors of the GGUF, in its order. Raises BadModelFile for missing, extra and misshapen ones."""
    import gguf

    found = _rename(hyper, stored)
    _check_shapes(hyper, found)
    row = hyper.architecture
    arch = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == row.name)
    names = gguf.get_tensor_name_map(arch, hyper.num_layers)
    planned = [
        PlannedTensor(name, (len(values),), "f32", None, tuple(values)) for name, values in hyper.rope.tensors.items()
    ]
    for name, shape in hyper.shapes.items():
        mapped = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert mapped is not None, f"gguf has no name for {name} of {row.name}"
        stem = name.rsplit(".", 2)[-2]
        heads = {"q_proj": hyper.num_heads, "k_proj": hyper.num_kv_heads}.get(stem)
        planned.append(
            PlannedTensor(
                mapped,
                shape,
                outtype if len(shape) > 1 else "f32",  # ggml's element-wise kernels want F32
                found[name],
                num_permuted_heads=heads if row.interleaved_rope else None,
                add_one=row.norm_plus_one and name.endswith("norm.weight"),
            )
        )
    return planned


def _rename(hyper: Hyperparameters, stored: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """`stored` under the usual names, without what is no weight of the text model."""
    found: dict[str, StoredTensor] = {}
    for name, tensor in stored.items():
        if name.startswith(hyper.architecture.left_out) or name.endswith(".rotary_emb.inv_freq"):
            continue
        for prefix, usual in hyper.architecture.prefixes.items():
            if name.startswith(prefix):
                name = usual + name.removeprefix(prefix)
                break
        if name == "lm_head.weight" and hyper.tied:
            continue  # transformers ignores it too
        found[name] = tensor
    return found


def _check_shapes(hyper: Hyperparameters, found: Mapping[str, StoredTensor]) -> None:
    missing = [name for name in hyper.shapes if name not in found]
    if missing:
        raise BadModelFile(f"{len(missing)} tensors are missing, the first {missing[0]!r}", _HINT)
    extra = sorted(name for name in found if name not in hyper.shapes)
    if extra:
        raise BadModelFile(f"{len(extra)} tensors do not belong to the model, the first {extra[0]!r}", _HINT)
    for name, shape in hyper.shapes.items():
        if found[name].shape != shape:
            have, want = ("×".join(map(str, s)) for s in (found[name].shape, shape))
            raise BadModelFile(f"the tensor {name!r} is {have}, but config.json makes it {want}", _HINT)


def _interleave(values: Array, num_heads: int) -> Array:
    """Rows [head, half, pair] → [head, pair, half]: transformers rotates the halves of a head, llama.cpp's
    LLAMA_ROPE_TYPE_NORM neighbouring values."""
    heads = values.reshape(num_heads, 2, values.shape[0] // num_heads // 2, *values.shape[1:])
    return heads.swapaxes(1, 2).reshape(values.shape)


def _check_finite(block: Array, source: StoredTensor) -> None:
    import numpy as np

    if source.dtype == "F32":
        bad = not bool(np.isfinite(block).all())
    else:  # all bits of the exponent set
        exponent = np.uint16(0x7F80 if source.dtype == "BF16" else 0x7C00)
        bad = bool(((block.view(np.uint16) & exponent) == exponent).any())
    if bad:
        raise BadModelFile(f"the tensor {source.name!r} of {source.path.name} holds NaN or infinity", _HINT)


def _as_f32(block: Array) -> Array:
    import numpy as np

    if block.dtype == np.uint16:  # bfloat16: the upper half of a float32
        return (block.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return block.astype(np.float32, copy=False)


def _as_type(block: Array, outtype: OutType, name: str) -> Array:
    """`block` (float32, float16, or uint16 holding bfloat16) in `outtype`, rounded to nearest even."""
    import numpy as np

    if outtype == "f32":
        return _as_f32(block)
    if outtype == "bf16":
        if block.dtype == np.uint16:
            return block
        bits = _as_f32(block).view(np.uint32)
        half = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
        rounded = ((bits + half) >> np.uint32(16)).astype(np.uint16)
        if bool(((rounded & np.uint16(0x7F80)) == np.uint16(0x7F80)).any()):
            raise BadModelFile(f"the tensor {name!r} holds values too large for bf16", "Convert it to f32.")
        return rounded
    with np.errstate(over="ignore"):
        result = _as_f32(block).astype(np.float16)
    if not bool(np.isfinite(result).all()):
        raise BeyondHalf(name)
    return result
