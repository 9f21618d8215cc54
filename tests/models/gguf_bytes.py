# A small writer of GGUF files for tests. It checks nothing: tests use it to write wrong files as easily as right ones.
"""``tiny_model().to_bytes()`` is a valid one-layer llama of a few kilobytes; change its fields to break it."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

FORMATS = {"u8": "B", "i8": "b", "u16": "H", "i16": "h", "u32": "I", "i32": "i", "f32": "f", "bool": "?"}
FORMATS |= {"u64": "Q", "i64": "q", "f64": "d"}
TYPE_IDS = {"u8": 0, "i8": 1, "u16": 2, "i16": 3, "u32": 4, "i32": 5, "f32": 6, "bool": 7, "str": 8, "arr": 9}
TYPE_IDS |= {"u64": 10, "i64": 11, "f64": 12}

# ggml type id → (values a block, bytes a block): the few that the tests write.
BLOCKS = {0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 8: (32, 34), 12: (256, 144), 24: (1, 1), 30: (1, 2)}


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def value(kind: str, content: Any) -> bytes:
    return string(content) if kind == "str" else struct.pack("<" + FORMATS[kind], content)


def array(kind: str, items: list[Any]) -> bytes:
    """Body of an array value, its item type and count included."""
    return struct.pack("<IQ", TYPE_IDS[kind], len(items)) + b"".join(value(kind, item) for item in items)


@dataclass
class Tensor:
    name: str | bytes
    shape: list[int]
    type_id: int = 0
    offset: int | None = None  # None: where it belongs

    def num_bytes(self) -> int:
        total = 1
        for n in self.shape:
            total *= n
        per_block, block_bytes = BLOCKS.get(self.type_id, (1, 4))
        return total // per_block * block_bytes


@dataclass
class File:
    """`kv` maps a key to (type, value); type "[T]" is an array of T; type "raw" is the bytes after the key."""

    kv: dict[str, tuple[str, Any]] = field(default_factory=dict)
    tensors: list[Tensor] = field(default_factory=list)
    magic: bytes = b"GGUF"
    version: int = 3
    alignment: int = 32
    num_kv: int | None = None
    num_tensors: int | None = None
    extra_kv: bytes = b""  # appended to the keys, not counted

    def key_bytes(self) -> bytes:
        out = b""
        for key, (kind, content) in self.kv.items():
            out += string(key)
            if kind == "raw":
                out += content
            elif kind.startswith("["):
                out += struct.pack("<I", TYPE_IDS["arr"]) + array(kind[1:-1], content)
            else:
                out += struct.pack("<I", TYPE_IDS[kind]) + value(kind, content)
        return out + self.extra_kv

    def header_bytes(self) -> bytes:
        num_tensors = len(self.tensors) if self.num_tensors is None else self.num_tensors
        num_kv = len(self.kv) if self.num_kv is None else self.num_kv
        out = self.magic + struct.pack("<IQQ", self.version, num_tensors, num_kv) + self.key_bytes()
        expected = 0
        for t in self.tensors:
            out += string(t.name) + struct.pack("<I", len(t.shape))
            out += b"".join(struct.pack("<Q", n & (1 << 64) - 1) for n in t.shape)
            out += struct.pack("<IQ", t.type_id, expected if t.offset is None else t.offset)
            expected += self.pad(t.num_bytes())
        return out

    def to_bytes(self) -> bytes:
        out = self.header_bytes()
        out += bytes(self.pad(len(out)) - len(out))
        return out + b"".join(bytes(self.pad(t.num_bytes())) for t in self.tensors)

    def pad(self, n: int) -> int:
        return -(-n // self.alignment) * self.alignment


TOKENS = ["<unk>", "<s>", "</s>", "a", "b", "<|im_start|>", "<|im_end|>", "é"]


def tiny_model(**changes: tuple[str, Any] | None) -> File:
    """One layer, 32 wide, 2 heads on 1 key/value head, 8 tokens. `changes`: key (`__` for a dot) → (type, value) or
    None to leave it out."""
    kv: dict[str, tuple[str, Any]] = {
        "general.architecture": ("str", "llama"),
        "general.name": ("str", "Tiny"),
        "general.size_label": ("str", "1K"),
        "general.license": ("str", "mit"),
        "general.file_type": ("u32", 15),
        "llama.context_length": ("u32", 64),
        "llama.embedding_length": ("u32", 32),
        "llama.block_count": ("u32", 1),
        "llama.feed_forward_length": ("u32", 64),
        "llama.attention.head_count": ("u32", 2),
        "llama.attention.head_count_kv": ("u32", 1),
        "llama.attention.layer_norm_rms_epsilon": ("f32", 1e-5),
        "llama.rope.dimension_count": ("u32", 16),
        "tokenizer.ggml.model": ("str", "llama"),
        "tokenizer.ggml.tokens": ("[str]", list(TOKENS)),
        "tokenizer.ggml.scores": ("[f32]", [0.0] * len(TOKENS)),
        "tokenizer.ggml.token_type": ("[i32]", [1] * len(TOKENS)),
        "tokenizer.ggml.bos_token_id": ("u32", 1),
        "tokenizer.ggml.eos_token_id": ("u32", 2),
    }
    for key, change in changes.items():
        name = key.replace("__", ".")
        if change is None:
            del kv[name]
        else:
            kv[name] = change
    tensors = [
        Tensor("token_embd.weight", [32, 8], 3),
        Tensor("output_norm.weight", [32], 0),
        Tensor("output.weight", [32, 8], 8),
        Tensor("blk.0.attn_q.weight", [32, 32], 1),
    ]
    return File(kv=kv, tensors=tensors)
