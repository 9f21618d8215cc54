# Random damage to a valid header: whatever the bytes, a model or a ModelError, quickly, and never too much memory.
from __future__ import annotations

import os
import resource
import signal
import struct
import tempfile
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import gguf
import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from ingle.models import gguf_facts
from ingle.models.errors import ModelError
from ingle.models.ggml_types import BY_NAME
from ingle.models.gguf_info import ModelInfo, read_model_info
from ingle.models.header_summary import summarise
from tests.models.gguf_bytes import tiny_model
from tests.models.mutations import CHANGES, bases, mutants
from tests.models.naive_gguf import Naive, read

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


@contextmanager
def limits(num_spare_bytes: int) -> Iterator[None]:
    """No more memory than now and `num_spare_bytes` (where the system can say so)."""
    statm = Path("/proc/self/statm")
    if not statm.exists():
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    now = int(statm.read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + num_spare_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@contextmanager
def alarm(seconds: float) -> Iterator[None]:
    """Fails what is inside when it takes longer: nothing here may hang."""

    def ring(*_: object) -> None:
        raise AssertionError(f"still at it after {seconds} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def write(path: Path, header: bytes, num_zeros: int) -> None:
    path.write_bytes(header)
    os.truncate(path, len(header) + num_zeros)  # weights of zeros that take no room


def same(a: object, b: object) -> bool:
    """Equal, a NaN to itself too."""
    return repr(a) == repr(b)


def agrees(info: ModelInfo, theirs: Naive) -> None:
    """What was accepted says what an independent reader finds in the same bytes."""
    assert info.gguf_version == theirs.version
    assert same(dict(info.metadata), {key: value for key, (_, value) in theirs.scalars.items()})
    assert info.arrays.keys() == theirs.arrays.keys()
    for key, (kind, items) in theirs.arrays.items():
        assert info.arrays[key].type == kind
        assert same(info.read_array(key), items)
    alignment = theirs.scalars.get("general.alignment", ("u32", 32))[1]
    data_start = -(-theirs.end // alignment) * alignment
    assert [(t.name, t.shape, BY_NAME[t.type].id, t.offset - data_start) for t in info.tensors] == theirs.tensors


def everything_said(info: ModelInfo) -> None:
    """What `ingle show` asks of a header; none of it may fail or take long for one that was accepted."""
    assert sum(share.num_bytes for share in gguf_facts.type_shares(info)) == info.weights_bytes
    assert 0 <= gguf_facts.num_window_layers(info) <= info.num_layers
    assert gguf_facts.reuse(info) in gguf_facts.REUSE_WORDS
    gguf_facts.special_tokens(info)
    gguf_facts.kv_bytes_per_token(info, "q8_0")


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Path]:
    """A file that is written ten thousand times: in memory where the system has such a folder."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if os.access(shared, os.W_OK) else tmp_path) as folder:
        yield Path(folder, "fuzz.gguf")


def test_ten_thousand_seeded_mutations(tmp_path: Path, scratch: Path) -> None:
    """Always a typed error or the right values; no hang, no more memory than the file explains."""
    models = bases(tmp_path)
    path = scratch
    for model in models:
        write(path, model.header, model.num_data)
        info = read_model_info(path, require_generative=False)
        agrees(info, read(path.read_bytes()))
        everything_said(info)
    outcomes = {"accepted": 0, "refused": 0}
    by_change: dict[str, set[str]] = {}
    for number, (what, raw, num_zeros) in enumerate(mutants(models, seed=20241130, count=10_000)):
        write(path, raw, num_zeros)
        try:
            with limits(96 << 20), alarm(5):
                summary = summarise(path)
                info = accepted(path)
                if info is not None:
                    assert (summary.problem, summary.num_params) == (None, info.num_params)
                    everything_said(info)
            if info is not None:
                agrees(info, read(raw + bytes(num_zeros)))
                if number % 97 == 0:
                    agrees_with_the_gguf_package(info, path)
        except BaseException as error:
            error.add_note(f"mutant {what}")
            raise
        outcome = "refused" if info is None else "accepted"
        outcomes[outcome] += 1
        by_change.setdefault(what.split()[1], set()).add(outcome)
    # Damage to a name or a score is harmless; most damage is not. Each kind of damage was refused at least once.
    assert 1000 < outcomes["accepted"] < 5000
    assert len(by_change) == len(set(CHANGES))
    assert all("refused" in found for found in by_change.values())


def accepted(path: Path) -> ModelInfo | None:
    try:
        return read_model_info(path, require_generative=False)
    except ModelError:
        return None


def agrees_with_the_gguf_package(info: ModelInfo, path: Path) -> None:
    reader = gguf.GGUFReader(path)
    assert [(t.name, tuple(int(n) for n in t.shape), t.tensor_type.name, int(t.n_bytes)) for t in reader.tensors] == [
        (t.name, t.shape, t.type, t.num_bytes) for t in info.tensors
    ]
    for key, value in info.metadata.items():
        field = reader.get_field(key)
        assert field is not None
        if not (isinstance(value, str) and "\N{REPLACEMENT CHARACTER}" in value):  # it refuses what is not UTF-8
            assert same(field.contents(), value)


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
