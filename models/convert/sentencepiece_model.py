# SentencePiece's tokenizer.model, as far as a vocabulary needs it, read without its library.
# This file may not know GGUF nor other tokenizer files.
"""A reader of the one protobuf message this package meets (sentencepiece_model.proto: ModelProto)."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ingle.models.errors import BadModelFile

_HINT: Final = "The file is damaged, or is no SentencePiece model: fetch it again."
_UNIGRAM, _BPE = 1, 2  # TrainerSpec.ModelType


@dataclass(frozen=True, slots=True)
class Piece:
    """One piece. `type`: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte, as in GGUF."""

    text: str
    score: float
    type: int


@dataclass(frozen=True, slots=True)
class SentencePieceModel:
    """What a tokenizer.model says."""

    pieces: tuple[Piece, ...]
    is_bpe: bool
    byte_fallback: bool
    whitespace_is_suffix: bool
    charsmap: bytes
    add_dummy_prefix: bool
    remove_extra_whitespaces: bool
    escape_whitespaces: bool


def read_sentencepiece(path: Path) -> SentencePieceModel:
    """Parse `path`. Raises BadModelFile."""
    try:
        return _model(path.read_bytes())
    except OSError as error:
        raise BadModelFile(f"cannot read {path}: {error.strerror}", "Check the file's permissions.") from None
    except (ValueError, IndexError, struct.error):
        raise BadModelFile(f"{path} is not a SentencePiece model", _HINT) from None


def _model(data: bytes) -> SentencePieceModel:
    pieces: list[Piece] = []
    trainer: dict[int, int | bytes] = {}
    normalizer: dict[int, int | bytes] = {}
    for number, value in _fields(data):
        if number == 1:
            piece = dict(_fields(_bytes(value)))
            score = piece.get(2, b"\0\0\0\0")
            text = _bytes(piece.get(1, b"")).decode("utf-8")
            pieces.append(Piece(text, struct.unpack("<f", _bytes(score))[0], _int(piece.get(3, 1))))
        elif number == 2:
            trainer = dict(_fields(_bytes(value)))
        elif number == 3:
            normalizer = dict(_fields(_bytes(value)))
    kind = _int(trainer.get(3, _UNIGRAM))
    if not pieces or kind not in (_UNIGRAM, _BPE) or any(not 1 <= piece.type <= 6 for piece in pieces):
        raise ValueError
    return SentencePieceModel(
        pieces=tuple(pieces),
        is_bpe=kind == _BPE,
        byte_fallback=bool(trainer.get(35, 0)),
        whitespace_is_suffix=bool(trainer.get(24, 0)),
        charsmap=_bytes(normalizer.get(2, b"")),
        add_dummy_prefix=bool(normalizer.get(3, 1)),
        remove_extra_whitespaces=bool(normalizer.get(4, 1)),
        escape_whitespaces=bool(normalizer.get(5, 1)),
    )


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(field number, value) in order: whole numbers as int, everything else as bytes. Raises ValueError, IndexError."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        wire = tag & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield tag >> 3, value
            continue
        if wire == 2:
            size, at = _varint(data, at)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise ValueError
        if at + size > len(data):
            raise ValueError
        yield tag >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError


def _bytes(value: int | bytes) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError
    return value


def _int(value: int | bytes) -> int:
    if not isinstance(value, int):
        raise ValueError
    return value
