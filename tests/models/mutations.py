# Damage to GGUF headers, seeded: what bad disks, bad tools and bad people do.
from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests import tiny_models
from tests.models.gguf_bytes import File, Tensor, array, string, tiny_model
from tests.models.naive_gguf import read

HUGE = (0, 1, 2, 3, 7, 8, 31, 32, 33, 64, 127, 128, 255, 256, 1 << 15, 1 << 16, 1 << 20, 1 << 24, 1 << 30, 1 << 31)
HUGE += ((1 << 32) - 1, 1 << 32, 1 << 34, 1 << 40, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 8, (1 << 64) - 1)


@dataclass(frozen=True)
class Base:
    """A sound model: its header's bytes, and how many bytes of (all zero) weights follow."""

    name: str
    architecture: str
    header: bytes
    num_data: int
    lengths: tuple[int, ...]  # where its 64-bit counts and lengths stand
    types: tuple[int, ...]  # where its 32-bit types and ranks stand
    keys: tuple[tuple[int, int], ...]  # spans of its metadata entries


def bases(folder: Path) -> list[Base]:
    """Headers of several architectures and tokenizers, as the gguf library and as our own writer write them."""
    writers = (tiny_models.write_llama, tiny_models.write_gemma3, tiny_models.write_mamba, tiny_models.write_lfm2)
    found = [base(w.__name__.removeprefix("write_"), w(folder / f"{w.__name__}.gguf").read_bytes()) for w in writers]
    found.append(base("bert", tiny_models.write_bert(folder / "bert.gguf").read_bytes()))
    return [
        *found,
        base("small", tiny_model().to_bytes()),
        base("bpe", bpe().to_bytes()),
        base("moe", moe().to_bytes()),
    ]


def bpe() -> File:
    """A byte-level BPE vocabulary with merges, a chat template and all kinds of values."""
    merges = ("[str]", ["a b", "b c", "Ġ a"])
    file = tiny_model(
        tokenizer__ggml__model=("str", "gpt2"),
        tokenizer__ggml__pre=("str", "qwen2"),
        tokenizer__ggml__merges=merges,
        tokenizer__chat_template=("str", "{% for m in messages %}{{ m.content }}{% endfor %}"),
        tokenizer__ggml__add_bos_token=("bool", False),
        general__some__i8=("i8", -3),
        general__some__f64=("f64", 0.25),
        general__some__u64=("[u64]", [1, 1 << 60]),
        general__tags=("[str]", ["text-generation", "é"]),
    )
    del file.kv["tokenizer.ggml.scores"]
    return file


def moe() -> File:
    """Two layers of experts, one number a layer for the heads, 64-byte alignment."""
    file = tiny_model(
        general__alignment=("u32", 64),
        llama__block_count=("u32", 2),
        llama__expert_count=("u32", 4),
        llama__expert_used_count=("u32", 2),
        llama__attention__head_count=("[u32]", [2, 2]),
        llama__attention__head_count_kv=("[u32]", [1, 2]),
    )
    file.alignment = 64
    file.tensors.append(Tensor("blk.1.ffn_gate_exps.weight", [32, 32, 4], 8))
    return file


def base(name: str, raw: bytes) -> Base:
    lengths, types, keys = places(raw)
    sound = read(raw)
    end, architecture = sound.end, sound.scalars["general.architecture"][1]
    return Base(name, architecture, raw[:end], len(raw) - end, lengths, types, keys)


def places(raw: bytes) -> tuple[tuple[int, ...], tuple[int, ...], tuple[tuple[int, int], ...]]:
    """Offsets of counts and lengths, of types, and the spans of metadata entries, found by walking a sound file."""
    lengths, types, keys = [8, 16], [4], []
    num_tensors, num_kv = struct.unpack_from("<QQ", raw, 8)
    sizes = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
    at = 24

    def skip_text() -> None:
        nonlocal at
        lengths.append(at)
        at += 8 + int(struct.unpack_from("<Q", raw, at)[0])

    for _ in range(num_kv):
        start = at
        skip_text()
        types.append(at)
        (kind,), count = struct.unpack_from("<I", raw, at), 1
        at += 4
        if kind == 9:
            types.append(at)
            lengths.append(at + 4)
            kind, count = struct.unpack_from("<IQ", raw, at)
            at += 12
        for _ in range(count):
            if kind == 8:
                skip_text()
            else:
                at += sizes[kind]
        keys.append((start, at))
    for _ in range(num_tensors):
        skip_text()
        types.append(at)
        (rank,) = struct.unpack_from("<I", raw, at)
        lengths += [at + 4 + 8 * i for i in range(rank)] + [at + 8 + 8 * rank]
        types.append(at + 4 + 8 * rank)
        at += 16 + 8 * rank
    return tuple(lengths), tuple(types), tuple(keys)


Change = Callable[[random.Random, Base, bytearray, list[Base]], None]


def flip_bits(rng: random.Random, of: Base, raw: bytearray, _: list[Base]) -> None:
    for _number in range(rng.choice((1, 1, 2, 8))):
        raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)


def set_length(rng: random.Random, of: Base, raw: bytearray, _: list[Base]) -> None:
    at = rng.choice(of.lengths)
    raw[at : at + 8] = struct.pack("<Q", rng.choice(HUGE))


def nudge_length(rng: random.Random, of: Base, raw: bytearray, _: list[Base]) -> None:
    at = rng.choice(of.lengths)
    (old,) = struct.unpack_from("<Q", raw, at)
    raw[at : at + 8] = struct.pack("<Q", (old + rng.choice((-8, -2, -1, 1, 2, 8))) % (1 << 64))


def set_type(rng: random.Random, of: Base, raw: bytearray, _: list[Base]) -> None:
    at = rng.choice(of.types)
    raw[at : at + 4] = struct.pack("<I", rng.choice((*range(45), 1 << 16, 1 << 31, (1 << 32) - 1)))


def truncate(rng: random.Random, of: Base, raw: bytearray, _: list[Base]) -> None:
    del raw[rng.randrange(len(raw)) :]


def duplicate_key(rng: random.Random, of: Base, raw: bytearray, _: list[Base]) -> None:
    start, end = rng.choice(of.keys)
    at = rng.choice(of.keys)[0]
    raw[at:at] = of.header[start:end]
    count_keys(raw, 1)


def remove_key(rng: random.Random, of: Base, raw: bytearray, _: list[Base]) -> None:
    start, end = rng.choice(of.keys)
    del raw[start:end]
    count_keys(raw, -1)


def swap_regions(rng: random.Random, of: Base, raw: bytearray, _: list[Base]) -> None:
    size = rng.choice((1, 4, 8, 16, 64))
    a, b = (rng.randrange(len(raw) - size) for _number in range(2))
    raw[a : a + size], raw[b : b + size] = raw[b : b + size], raw[a : a + size]


def swap_values(rng: random.Random, of: Base, raw: bytearray, _: list[Base]) -> None:
    """Two metadata entries keep their names and exchange what stands behind them."""
    (a, a_end), (b, b_end) = sorted(rng.sample(of.keys, 2))
    a_name, b_name = (8 + struct.unpack_from("<Q", of.header, at)[0] for at in (a, b))
    old = of.header
    raw[a:b_end] = (
        old[a : a + a_name] + old[b + b_name : b_end] + old[a_end:b] + old[b : b + b_name] + old[a + a_name : a_end]
    )


def splice(rng: random.Random, of: Base, raw: bytearray, all_of_them: list[Base]) -> None:
    """The beginning of one header and the end of another."""
    other = rng.choice(all_of_them)
    whole_entries = rng.random() < 0.5
    cut = rng.choice(of.keys)[0] if whole_entries else rng.randrange(24, len(raw))
    join = rng.choice(other.keys)[0] if whole_entries else rng.randrange(24, len(other.header))
    raw[cut:] = other.header[join:]


def foreign_key(rng: random.Random, of: Base, raw: bytearray, all_of_them: list[Base]) -> None:
    """An entry of another model, whose own count it fits."""
    other = rng.choice(all_of_them)
    start, end = rng.choice(other.keys)
    at = rng.choice(of.keys)[0]
    raw[at:at] = other.header[start:end]
    count_keys(raw, 1)


def absurd_key(rng: random.Random, of: Base, raw: bytearray, _: list[Base]) -> None:
    """A well-formed entry with a value nobody should believe, under a name that matters."""
    names = ("context_length", "embedding_length", "block_count", "attention.head_count", "rope.dimension_count")
    name = rng.choice([f"{of.architecture}.{n}" for n in names] + ["general.alignment", "tokenizer.ggml.eos_token_id"])
    value = rng.choice((struct.pack("<II", 4, rng.choice(HUGE) % (1 << 32)), struct.pack("<IQ", 10, rng.choice(HUGE))))
    value = rng.choice((value, struct.pack("<I", 9) + array("u32", [rng.choice(HUGE) % (1 << 32)])))
    at = rng.choice(of.keys)[0]
    raw[at:at] = string(name) + value
    count_keys(raw, 1)


CHANGES: tuple[Change, ...] = (
    *(flip_bits, flip_bits, set_length, set_length, nudge_length, set_type, truncate, duplicate_key),
    *(remove_key, swap_regions, swap_values, splice, foreign_key, absurd_key),
)


def count_keys(raw: bytearray, change: int) -> None:
    if len(raw) >= 24:
        (old,) = struct.unpack_from("<Q", raw, 16)
        raw[16:24] = struct.pack("<Q", (old + change) % (1 << 64))


def mutants(models: list[Base], *, seed: int, count: int) -> Iterator[tuple[str, bytes, int]]:
    """`count` damaged headers: what was done to which, the bytes, and how many zero bytes follow them."""
    rng = random.Random(seed)
    for number in range(count):
        of, change = models[number % len(models)], rng.choice(CHANGES)
        raw = bytearray(of.header)
        change(rng, of, raw, models)
        is_cut = change is truncate or rng.random() < 0.05
        yield (
            f"{number}: {change.__name__} of {of.name}",
            bytes(raw),
            0 if is_cut else of.num_data + rng.choice((0, 0, 64)),
        )
