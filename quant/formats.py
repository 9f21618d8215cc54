# ggml's block formats taken apart: which codes, which steps, which offsets; and put together again with other codes.
# This file may not know models, files or how codes are chosen.
"""Block formats as arithmetic.

Every format here stores a value as ``step × level[code] + offset`` with one step and one offset for each group of 16 or
32 values. `unpack` says what a quantizer chose; `pack` writes other codes into the same blocks, steps untouched. So an
algorithm that chooses codes (gptq.py) needs to know no format.

Layouts: the ``block_*`` structs of ggml-common.h and the ``dequantize_row_*`` functions of ggml-quants.c.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ingle.models.ggml_types import BY_NAME

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Codes = npt.NDArray[Any]  # uint8; numpy's stubs say signed wherever a Python int takes part

_IQ4_LEVELS: Final = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)  # kvalues_iq4nl


@dataclass(frozen=True, slots=True)
class Unpacked:
    """A matrix in parts: codes [rows, cols]; steps and offsets [rows, cols / group]."""

    codes: Codes
    steps: Floats
    offsets: Floats


@dataclass(frozen=True)
class Format:
    """One block format. `levels`: what each code stands for, rising; `group`: values that share a step."""

    name: str
    group: int
    levels: Floats  # [number of codes]
    codes_of: Callable[[Bytes], Codes]  # [blocks, bytes] → [blocks, values]
    scales_of: Callable[[Bytes], tuple[Floats, Floats | None]]  # → steps, offsets [blocks, groups]; None: all zero
    store: Callable[[Bytes, Codes], None]  # writes the codes into the blocks

    @property
    def block_size(self) -> int:
        return BY_NAME[self.name].block_size

    def unpack(self, data: Bytes) -> Unpacked:
        """data: uint8 [rows, bytes of a row]."""
        rows = len(data)
        blocks = _blocks(self.name, data)
        steps, offsets = self.scales_of(blocks)
        if offsets is None:
            offsets = np.zeros_like(steps)
        return Unpacked(self.codes_of(blocks).reshape(rows, -1), steps.reshape(rows, -1), offsets.reshape(rows, -1))

    def pack(self, data: Bytes, codes: Codes) -> Bytes:
        """A copy of `data` [rows, bytes of a row] with `codes` [rows, cols] in place of its own."""
        packed = np.array(data, order="C")
        self.store(_blocks(self.name, packed), np.ascontiguousarray(codes).reshape(-1, self.block_size))
        return packed

    def values(self, parts: Unpacked) -> Floats:
        """What the codes stand for, float32 [rows, cols]."""
        steps = np.repeat(parts.steps, self.group, axis=1)
        return np.asarray(self.levels[parts.codes] * steps + np.repeat(parts.offsets, self.group, axis=1))

    def snap(self, wanted: Floats, codes: Codes) -> None:
        """Each of `wanted`, a value less its offset and in steps, becomes the level nearest to it; `codes`, of the same
        shape, gets its code. Both in place: this is called for every column of a model."""
        if self.is_linear:
            np.rint(wanted, out=wanted)  # levels are whole numbers
            np.maximum(wanted, self.levels[0], out=wanted)
            np.minimum(wanted, self.levels[-1], out=wanted)
            np.subtract(wanted, self.levels[0], out=codes, casting="unsafe")
        else:
            codes[...] = np.searchsorted(self._borders, wanted)
            np.take(self.levels, codes, out=wanted)

    @cached_property
    def _borders(self) -> Floats:
        return np.asarray((self.levels[1:] + self.levels[:-1]) / 2)

    @cached_property
    def is_linear(self) -> bool:
        return bool(self.levels[-1] - self.levels[0] == len(self.levels) - 1)


def _blocks(name: str, data: Bytes) -> Bytes:
    assert data.dtype == np.uint8
    return data.reshape(-1, BY_NAME[name].type_size)


def _half(blocks: Bytes, at: int) -> Floats:
    """The float16 at byte `at` of each block, [blocks, 1]."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view(np.float16).astype(np.float32)


# -- blocks of 32: a float16 step, maybe a float16 offset, nibbles, maybe fifth bits -----------------------------------


def _nibbles(blocks: Bytes, at: int) -> Codes:
    """Low halves of 16 bytes, then high halves: [blocks, 32]."""
    packed = blocks[:, at : at + 16]
    return np.concatenate([packed & 15, packed >> 4], axis=1)


def _store_nibbles(blocks: Bytes, codes: Codes, at: int) -> None:
    blocks[:, at : at + 16] = (codes[:, :16] & 15) | (codes[:, 16:] & 15) << 4


def _fifth_bits(blocks: Bytes, at: int) -> Codes:
    return np.unpackbits(blocks[:, at : at + 4], axis=1, bitorder="little")


def _simple(name: str, levels: range | tuple[int, ...], *, has_offset: bool = False, has_fifth: bool = False) -> Format:
    high = 4 if has_offset else 2
    low = high + (4 if has_fifth else 0)

    def codes_of(blocks: Bytes) -> Codes:
        codes = _nibbles(blocks, low)
        return codes | _fifth_bits(blocks, high) << 4 if has_fifth else codes

    def store(blocks: Bytes, codes: Codes) -> None:
        _store_nibbles(blocks, codes, low)
        if has_fifth:
            blocks[:, high : high + 4] = np.packbits(codes >> 4, axis=1, bitorder="little")

    def scales_of(blocks: Bytes) -> tuple[Floats, Floats | None]:
        return _half(blocks, 0), _half(blocks, 2) if has_offset else None

    return Format(name, 32, np.array(levels, np.float32), codes_of, scales_of, store)


def _store_q8(blocks: Bytes, codes: Codes) -> None:
    blocks[:, 2:] = codes - np.uint8(127)  # wraps: two's complement


_Q8_0 = Format(
    "Q8_0",
    32,
    np.arange(-127, 128, dtype=np.float32),
    lambda blocks: blocks[:, 2:] + np.uint8(127),
    lambda blocks: (_half(blocks, 0), None),
    _store_q8,
)


# -- super-blocks of 256 -----------------------------------------------------------------------------------------------


def _pairs_of_halves(blocks: Bytes, at: int) -> Codes:
    """Four times 32 bytes, each low halves of 32 values and high halves of the next 32 (Q4_K, Q5_K): [blocks, 256]."""
    packed = blocks[:, at : at + 128].reshape(-1, 4, 1, 32)
    return np.concatenate([packed & 15, packed >> 4], axis=2).reshape(-1, 256)


def _store_pairs(blocks: Bytes, codes: Codes, at: int) -> None:
    low, high = np.moveaxis(codes.reshape(-1, 4, 2, 32) & 15, 2, 0)
    blocks[:, at : at + 128] = (low | high << 4).reshape(-1, 128)


def _scales_k4(blocks: Bytes) -> tuple[Floats, Floats]:
    """Eight 6-bit scales and eight 6-bit mins in 12 bytes (get_scale_min_k4)."""
    packed = blocks[:, 4:16]
    first, second, third = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([first & 63, (third & 15) | first >> 6 << 4], axis=1)
    mins = np.concatenate([second & 63, third >> 4 | second >> 6 << 4], axis=1)
    return _half(blocks, 0) * scales, -(_half(blocks, 2) * mins)


def _bit_planes(packed: Bytes, num_bits: int) -> Codes:
    """32 bytes → [blocks, 8 / num_bits, 32]: plane k holds bits k·num_bits and up of each byte."""
    shifts = np.arange(0, 8, num_bits, dtype=np.uint8)
    return (packed[:, None, :] >> shifts[None, :, None]) & np.uint8((1 << num_bits) - 1)


def _store_planes(planes: Codes, num_bits: int) -> Bytes:
    shifts = np.arange(0, 8, num_bits, dtype=np.uint8)
    return np.asarray(np.bitwise_or.reduce(planes << shifts[None, :, None], axis=1), np.uint8)


def _codes_q5k(blocks: Bytes) -> Codes:
    return np.asarray(_pairs_of_halves(blocks, 48) | _bit_planes(blocks[:, 16:48], 1).reshape(-1, 256) << 4)


def _store_q5k(blocks: Bytes, codes: Codes) -> None:
    _store_pairs(blocks, codes, 48)
    blocks[:, 16:48] = _store_planes((codes >> 4).reshape(-1, 8, 32), 1)


def _two_bits(blocks: Bytes, at: int) -> Codes:
    """64 bytes → [blocks, 256], for each half of the block four planes of 32 (Q2_K, Q3_K)."""
    halves = [_bit_planes(blocks[:, at + 32 * half : at + 32 * half + 32], 2) for half in (0, 1)]
    return np.concatenate(halves, axis=1).reshape(-1, 256)


def _store_two_bits(blocks: Bytes, codes: Codes, at: int) -> None:
    planes = (codes & 3).reshape(-1, 2, 4, 32)
    for half in (0, 1):
        blocks[:, at + 32 * half : at + 32 * half + 32] = _store_planes(planes[:, half], 2)


def _scales_q2k(blocks: Bytes) -> tuple[Floats, Floats]:
    packed = blocks[:, :16]
    return _half(blocks, 80) * (packed & 15), -(_half(blocks, 82) * (packed >> 4))


def _codes_q3k(blocks: Bytes) -> Codes:
    return np.asarray(_two_bits(blocks, 32) | _bit_planes(blocks[:, :32], 1).reshape(-1, 256) << 2)


def _store_q3k(blocks: Bytes, codes: Codes) -> None:
    _store_two_bits(blocks, codes, 32)
    blocks[:, :32] = _store_planes((codes >> 2).reshape(-1, 8, 32), 1)


def _scales_q3k(blocks: Bytes) -> tuple[Floats, None]:
    packed = blocks[:, 96:108]
    low = np.concatenate([packed[:, :8] & 15, packed[:, :8] >> 4], axis=1)  # [blocks, 16]
    high = _bit_planes(packed[:, 8:12], 2).reshape(-1, 16)
    return _half(blocks, 108) * ((low | high << 4).astype(np.float32) - 32), None


def _codes_q6k(blocks: Bytes) -> Codes:
    low = blocks[:, :128].reshape(-1, 2, 1, 64)
    nibbles = np.concatenate([low & 15, low >> 4], axis=2).reshape(-1, 256)
    high = [_bit_planes(blocks[:, 128 + 32 * half : 160 + 32 * half], 2) for half in (0, 1)]
    return np.asarray(nibbles | np.concatenate(high, axis=1).reshape(-1, 256) << 4)


def _store_q6k(blocks: Bytes, codes: Codes) -> None:
    low, high = np.moveaxis(codes.reshape(-1, 2, 2, 64) & 15, 2, 0)
    blocks[:, :128] = (low | high << 4).reshape(-1, 128)
    planes = (codes >> 4).reshape(-1, 2, 4, 32)
    for half in (0, 1):
        blocks[:, 128 + 32 * half : 160 + 32 * half] = _store_planes(planes[:, half], 2)


def _scales_q6k(blocks: Bytes) -> tuple[Floats, None]:
    return _half(blocks, 208) * np.ascontiguousarray(blocks[:, 192:208]).view(np.int8), None


def _scales_iq4xs(blocks: Bytes) -> tuple[Floats, None]:
    low = np.stack([blocks[:, 4:8] & 15, blocks[:, 4:8] >> 4], axis=2).reshape(-1, 8)
    high = _bit_planes(blocks[:, 2:4], 2).swapaxes(1, 2).reshape(-1, 8)
    return _half(blocks, 0) * ((low | high << 4).astype(np.float32) - 32), None


def _codes_iq4xs(blocks: Bytes) -> Codes:
    return _nibbles(blocks[:, 8:].reshape(-1, 16), 0).reshape(-1, 256)


def _store_iq4xs(blocks: Bytes, codes: Codes) -> None:
    groups = codes.reshape(-1, 8, 32)
    blocks[:, 8:] = (groups[..., :16] | groups[..., 16:] << 4).reshape(-1, 128)


def _linear(first: int, count: int) -> Floats:
    return np.arange(first, first + count, dtype=np.float32)


_FORMATS: Final = (
    _simple("Q4_0", range(-8, 8)),
    _simple("Q4_1", range(16), has_offset=True),
    _simple("Q5_0", range(-16, 16), has_fifth=True),
    _simple("Q5_1", range(32), has_offset=True, has_fifth=True),
    _Q8_0,
    _simple("IQ4_NL", _IQ4_LEVELS),
    Format("Q2_K", 16, _linear(0, 4), lambda b: _two_bits(b, 16), _scales_q2k, lambda b, c: _store_two_bits(b, c, 16)),
    Format("Q3_K", 16, _linear(-4, 8), _codes_q3k, _scales_q3k, _store_q3k),
    Format(
        "Q4_K", 32, _linear(0, 16), lambda b: _pairs_of_halves(b, 16), _scales_k4, lambda b, c: _store_pairs(b, c, 16)
    ),
    Format("Q5_K", 32, _linear(0, 32), _codes_q5k, _scales_k4, _store_q5k),
    Format("Q6_K", 16, _linear(-32, 64), _codes_q6k, _scales_q6k, _store_q6k),
    Format("IQ4_XS", 32, np.array(_IQ4_LEVELS, np.float32), _codes_iq4xs, _scales_iq4xs, _store_iq4xs),
)

BY_TYPE: Final[dict[str, Format]] = {row.name: row for row in _FORMATS}
"""Formats whose codes can be chosen here, by ggml type name."""
