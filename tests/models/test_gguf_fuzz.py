# Random damage to a valid header: whatever the bytes, a model or a ModelError, quickly, and never too much memory.
from __future__ import annotations

import os
import random
import struct
import tempfile
import tracemalloc
from pathlib import Path

from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from ingle.models.errors import ModelError
from ingle.models.gguf_info import read_model_info
from tests.models.gguf_bytes import tiny_model

VALID = tiny_model().to_bytes()
HEADER_BYTES = len(tiny_model().header_bytes())
EDGES = [0, 1, 2, 3, 7, 8, 31, 32, 33, 127, 128, 255, 1 << 15, 1 << 31, (1 << 32) - 1, 1 << 62, (1 << 64) - 1]


def survives(raw: bytes, path: Path) -> bool:
    """Whether `raw` is accepted. Anything but a model or a ModelError propagates and fails the test."""
    path.write_bytes(raw)
    try:
        info = read_model_info(path)
    except ModelError:
        return False
    # What was accepted lies inside the file and is consistent: native code may see it.
    assert all(t.num_bytes > 0 and t.offset + t.num_bytes <= len(raw) for t in info.tensors)
    assert info.vocab_size == info.arrays["tokenizer.ggml.tokens"].count > 0
    for key in info.arrays:
        assert len(info.read_array(key)) == info.arrays[key].count
    return True


def test_three_thousand_seeded_mutations(tmp_path: Path) -> None:
    rng = random.Random(20240607)
    path = tmp_path / "fuzz.gguf"
    accepted = 0
    for _ in range(3000):
        raw = bytearray(VALID)
        for _ in range(rng.choice((1, 1, 1, 2, 4))):
            at = rng.randrange(HEADER_BYTES)
            match rng.randrange(5):
                case 0:
                    raw[at] ^= 1 << rng.randrange(8)
                case 1:
                    raw[at] = rng.randrange(256)
                case 2:
                    raw[at : at + 8] = struct.pack("<Q", rng.choice(EDGES))
                case 3:
                    del raw[at : at + rng.randrange(1, 16)]
                case 4:
                    raw[at:at] = rng.randbytes(rng.randrange(1, 16))
        accepted += survives(bytes(raw), path)
    # Damage to a name or a score is harmless; most damage is not.
    assert 100 < accepted < 2000


@seed(1)
@settings(max_examples=300, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
@given(body=st.binary(max_size=300), num_kv=st.sampled_from(EDGES), num_tensors=st.sampled_from(EDGES))
def test_arbitrary_bytes_after_a_valid_start(body: bytes, num_kv: int, num_tensors: int) -> None:
    fd, name = tempfile.mkstemp(suffix=".gguf")
    os.close(fd)
    try:
        assert not survives(b"GGUF" + struct.pack("<IQQ", 3, num_tensors, num_kv) + body, Path(name))
    finally:
        Path(name).unlink()


def test_numbers_in_a_file_do_not_allocate_memory(tmp_path: Path) -> None:
    path = tmp_path / "greedy.gguf"
    tracemalloc.start()
    try:
        for at in range(4, HEADER_BYTES - 8, 3):
            raw = bytearray(VALID)
            raw[at : at + 8] = struct.pack("<Q", 1 << 34)
            survives(bytes(raw), path)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
