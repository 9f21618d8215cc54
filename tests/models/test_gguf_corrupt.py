# Every way in which a file is known to go wrong: the class of the error, and that its message names the thing.
from __future__ import annotations

import os
import struct
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from ingle.models.errors import BadModelFile, ModelError, ModelNotFound, UnsupportedModel
from ingle.models.gguf_info import read_model_info
from tests.models.gguf_bytes import TOKENS, File, Tensor, string, tiny_model

HUGE = 1 << 62


def refuse(path: Path, raw: bytes, kind: type[ModelError], words: str) -> None:
    path.write_bytes(raw)
    with pytest.raises(kind, match=words) as caught:
        read_model_info(path)
    assert type(caught.value) is kind
    assert str(path) in caught.value.message
    assert "\n" not in caught.value.message
    assert caught.value.hint


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


@pytest.mark.parametrize(
    ("raw", "kind", "words"),
    [
        (b"", BadModelFile, r"empty \(0 bytes\)"),
        (b"GG", BadModelFile, "not a GGUF file: only 2 bytes"),
        (b"PK\x03\x04 and so on", BadModelFile, r"begins with 'PK\\x03\\x04' instead of 'GGUF'"),
        (b"GGUF\x03", BadModelFile, "truncated.*inside the header"),
        (b"GGUF" + struct.pack("<IQ", 3, 1), BadModelFile, "truncated.*inside the header"),
        (b"GGUF" + struct.pack("<I", 1) + bytes(64), UnsupportedModel, "GGUF version 1 is no longer supported"),
        (b"GGUF" + struct.pack("<I", 4) + bytes(64), UnsupportedModel, "GGUF version 4 is not supported"),
        (b"GGUF" + struct.pack("<I", 0) + bytes(64), UnsupportedModel, "GGUF version 0 is not supported"),
        (b"GGUF" + struct.pack(">I", 3) + bytes(64), UnsupportedModel, "big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, HUGE), BadModelFile, f"absurd number of metadata keys: {HUGE}"),
        (b"GGUF" + struct.pack("<IQQ", 3, HUGE, 0), BadModelFile, f"absurd number of tensors: {HUGE}"),
        (
            b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + bytes(8),
            BadModelFile,
            "should hold 1 tensors",
        ),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 0), BadModelFile, r"general\.architecture is missing"),
    ],
)
def test_first_bytes(model: Path, raw: bytes, kind: type[ModelError], words: str) -> None:
    refuse(model, raw, kind, words)


KEY = string("k")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (struct.pack("<Q", HUGE) + bytes(16), f"name of metadata key 0 claims {HUGE} bytes"),
        (string(b"\xff\xfe") + bytes(16), "name of metadata key 0 is not UTF-8"),
        (string("") + bytes(16), "name of metadata key 0 is empty"),
        (string("a\0b") + bytes(16), "name of metadata key 0 is empty or holds a zero byte"),
        (KEY + struct.pack("<I", 13) + bytes(16), "'k' has unknown value type 13"),
        (KEY + struct.pack("<IQ", 8, HUGE) + bytes(16), f"value of 'k' claims {HUGE} bytes"),
        (KEY + struct.pack("<IB", 4, 1), "truncated.*inside the value of 'k'"),
        (KEY + struct.pack("<IIQ", 9, 9, 1) + bytes(32), "'k' is an array of arrays"),
        (KEY + struct.pack("<IIQ", 9, 77, 1) + bytes(32), "array 'k' has unknown value type 77"),
        (KEY + struct.pack("<IIQ", 9, 4, HUGE) + bytes(32), f"array 'k' claims {HUGE} items"),
        (KEY + struct.pack("<IIQ", 9, 8, HUGE) + bytes(32), f"array 'k' claims {HUGE} items"),
        (KEY + struct.pack("<IIQ", 9, 8, 2) + string("a") + struct.pack("<Q", 99), "array 'k' runs past the end"),
        (KEY + struct.pack("<IIQ", 9, 8, 2) + struct.pack("<QQ", (1 << 64) - 1, 1), "array 'k' runs past the end"),
        (KEY + struct.pack("<IIQ", 9, 6, 3) + bytes(8), "array 'k' claims 3 items where 8 bytes are left"),
    ],
)
def test_metadata_bytes(model: Path, body: bytes, words: str) -> None:
    refuse(model, b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + body, BadModelFile, words)


def test_the_kept_array_is_bounded_like_the_others(model: Path) -> None:
    body = string("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 2) + string("a") + struct.pack("<Q", HUGE)
    refuse(model, b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + body, BadModelFile, r"tokens' runs past the end")


def test_duplicate_keys(model: Path) -> None:
    file = tiny_model()
    file.num_kv = len(file.kv) + 1
    file.extra_kv = string("general.name") + struct.pack("<I", 8) + string("again")
    refuse(model, file.to_bytes(), BadModelFile, "duplicate metadata key 'general.name'")


def test_truncation_anywhere_is_named(model: Path) -> None:
    raw = tiny_model().to_bytes()
    for length in range(4, len(raw), 7):
        model.write_bytes(raw[:length])
        with pytest.raises(BadModelFile, match=r"truncated|absurd|runs past the end|bytes are left"):
            read_model_info(model)


def tensors(*changed: Tensor) -> Callable[[File], None]:
    def change(file: File) -> None:
        file.tensors = [*file.tensors, *changed]

    return change


def with_field(name: str, value: Any, index: int = 0) -> Callable[[File], None]:
    def change(file: File) -> None:
        setattr(file.tensors[index], name, value)

    return change


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        (tensors(Tensor("output.weight", [1])), BadModelFile, "duplicate tensor 'output.weight'"),
        (tensors(Tensor("n" * 64, [1])), BadModelFile, "name of tensor 4 is 64 bytes long; 63 are allowed"),
        (tensors(Tensor(b"\xc3", [1])), BadModelFile, "name of tensor 4 is not UTF-8"),
        (tensors(Tensor("", [1])), BadModelFile, "name of tensor 4 is empty"),
        (tensors(Tensor("t", [])), BadModelFile, "'t' has 0 dimensions; 1 to 4"),
        (tensors(Tensor("t", [1] * 5)), BadModelFile, "'t' has 5 dimensions; 1 to 4"),
        (tensors(Tensor("t", [32, 0])), BadModelFile, "'t' has a dimension of 0"),
        (tensors(Tensor("t", [-1])), BadModelFile, "'t' has a dimension of -1"),
        (tensors(Tensor("t", [1 << 40, 1 << 40])), BadModelFile, "'t' has a shape of .* overflows"),
        (tensors(Tensor("t", [HUGE])), BadModelFile, "truncated: tensor 't' ends at byte"),
        (tensors(Tensor("t", [33], type_id=8)), BadModelFile, "'t': rows of 33 are not whole Q8_0 blocks of 32"),
        (tensors(Tensor("t", [32], type_id=43)), BadModelFile, "'t' has unknown ggml type 43"),
        (tensors(Tensor("t", [32], type_id=1 << 31)), BadModelFile, "'t' has unknown ggml type 2147483648"),
        (tensors(Tensor("t", [32], type_id=31)), UnsupportedModel, r"type 31 \(Q4_0_4_4\), withdrawn"),
        (tensors(Tensor("t", [32], type_id=4)), UnsupportedModel, r"type 4 \(Q4_2\), withdrawn"),
        (with_field("offset", 8, index=1), BadModelFile, "'output_norm.weight' has offset 8, not a multiple of 32"),
        (with_field("offset", 0, index=1), BadModelFile, "'output_norm.weight' has offset 0 where 160 was expected"),
        (with_field("offset", 192, index=1), BadModelFile, "'output_norm.weight' has offset 192 where 160"),
        (with_field("offset", 1 << 63, index=3), BadModelFile, "'blk.0.attn_q.weight' has offset"),
        (with_field("type_id", 1, index=1), BadModelFile, "'output_norm.weight' has type F16; norms and biases"),
        (with_field("type_id", 24, index=3), BadModelFile, "'blk.0.attn_q.weight' has type I8, which no kernel"),
        (with_field("shape", [32, 9]), BadModelFile, "'token_embd.weight' has shape 32×9 for 8 tokens"),
        (lambda file: file.tensors.clear(), UnsupportedModel, "a vocabulary without weights"),
    ],
)
def test_tensor_table(model: Path, change: Callable[[File], None], kind: type[ModelError], words: str) -> None:
    file = tiny_model()
    change(file)
    refuse(model, file.header_bytes() + bytes(8192), kind, words)


def test_file_that_ends_inside_a_tensor(model: Path) -> None:
    raw = tiny_model().to_bytes()
    refuse(model, raw[:-1], BadModelFile, rf"truncated: tensor 'blk.0.attn_q.weight' ends at byte {len(raw)}")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("u64", 32), "general.alignment has type u64, not u32"),
        (("u32", 0), "general.alignment is 0"),
        (("u32", 48), "general.alignment is 48, not a power of two"),
        (("u32", 4), "general.alignment is 4"),
        (("[u32]", [32]), "general.alignment is an array"),
        (("u32", 1 << 31), "ends at byte|not a multiple"),
    ],
)
def test_alignment(model: Path, change: tuple[str, Any], words: str) -> None:
    refuse(model, tiny_model(general__alignment=change).to_bytes(), BadModelFile, words)


A = "llama__"
T = "tokenizer__ggml__"


@pytest.mark.parametrize(
    ("key", "change", "words"),
    [
        ("general__architecture", None, "general.architecture is missing"),
        ("general__architecture", ("u32", 1), "general.architecture has type u32, not str"),
        ("general__architecture", ("str", ""), "general.architecture is empty"),
        (A + "context_length", None, "llama.context_length is missing"),
        (A + "context_length", ("u64", 64), "llama.context_length has type u64, not u32"),
        (A + "context_length", ("u32", 0), "llama.context_length is 0"),
        (A + "embedding_length", None, "llama.embedding_length is missing"),
        (A + "block_count", None, "llama.block_count is missing"),
        (A + "block_count", ("u32", 0), "llama.block_count is 0"),
        (A + "block_count", ("u32", 513), "llama.block_count is 513"),
        (A + "block_count", ("[u32]", [1]), "llama.block_count is an array"),
        (A + "nextn_predict_layers", ("u32", 2), "nextn_predict_layers is larger than the block count 1"),
        (A + "expert_count", ("u32", 2000), "expert_count is 2000"),
        (A + "expert_count", ("u32", 4), "expert_used_count is 0 with 4 experts"),
        (A + "expert_used_count", ("u32", 2), "expert_used_count is 2 with 0 experts"),
        (A + "expert_group_count", ("u32", 2), "2 expert groups"),
        (A + "attention__head_count", None, "head_count is missing or zero"),
        (A + "attention__head_count", ("[u32]", [2, 2]), "head_count has 2 entries for 1 layers"),
        (A + "attention__head_count", ("[str]", ["2"]), "head_count is an array of str"),
        (A + "attention__head_count", ("[i32]", [-2]), "head_count has a negative entry"),
        (A + "attention__head_count_kv", ("u32", 3), "layer 0: 2 attention heads cannot share 3"),
        (A + "rope__dimension_count", ("u32", 17), "rope.dimension_count is 17"),
        (A + "rope__dimension_count", ("u32", 64), "rope.dimension_count is 64 with attention heads of 16"),
        (A + "rope__scaling__type", ("str", "spiral"), "rope.scaling.type is 'spiral'"),
        (A + "rope__freq_base", ("f32", float("nan")), "rope.freq_base is nan"),
        (A + "attention__layer_norm_rms_epsilon", ("f32", -1.0), "layer_norm_rms_epsilon is -1.0"),
        (T + "model", None, "tokenizer.ggml.model is missing"),
        (T + "model", ("str", "gpt2"), "tokenizer.ggml.merges is missing"),
        (T + "merges", ("[u32]", [1]), "merges is an array of u32, not of str"),
        (T + "tokens", None, "tokenizer.ggml.tokens is missing"),
        (T + "tokens", ("str", "a"), "tokens is a single value, not an array"),
        (T + "tokens", ("[u32]", [1, 2]), "tokens is an array of u32, not of str"),
        (T + "tokens", ("[str]", []), "tokens is empty"),
        (T + "tokens", ("[str]", [*TOKENS[:7], "a"]), "tokens holds 'a' twice"),
        (T + "scores", ("[f32]", [0.0] * 7), "scores has 7 entries for 8 tokens"),
        (T + "scores", ("[f64]", [0.0] * 8), "scores is an array of f64"),
        (T + "token_type", ("[i32]", [1] * 9), "token_type has 9 entries for 8 tokens"),
        (T + "token_type", ("[u32]", [1] * 8), "token_type is an array of u32, not of i32"),
        (T + "suppress_tokens", ("[u32]", [1]), "suppress_tokens is an array of u32"),
        (T + "eos_token_id", ("u32", 8), "eos_token_id is 8 in a vocabulary of 8"),
        (T + "bos_token_id", ("i32", 1), "bos_token_id has type i32, not u32"),
        ("split__count", ("u32", 2), "split.count has type u32, not u16"),
    ],
)
def test_keys(model: Path, key: str, change: tuple[str, Any] | None, words: str) -> None:
    refuse(model, tiny_model(**{key: change}).to_bytes(), BadModelFile, words)


def test_no_tokenizer(model: Path) -> None:
    raw = tiny_model(tokenizer__ggml__model=("str", "none")).to_bytes()
    refuse(model, raw, UnsupportedModel, "it has no tokenizer")


def test_control_characters_of_a_file_never_reach_the_terminal(model: Path) -> None:
    file = tiny_model()
    file.tensors.append(Tensor("\x1b[2Jgone\n", [0]))
    model.write_bytes(file.header_bytes() + bytes(4096))
    with pytest.raises(BadModelFile) as caught:
        read_model_info(model)
    assert caught.value.message.isprintable()


def test_paths_that_are_not_files(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="no such file"):
        read_model_info(tmp_path / "missing.gguf")
    (tmp_path / "plain").write_text("x")
    with pytest.raises(ModelNotFound, match="no such file"):
        read_model_info(tmp_path / "plain" / "below.gguf")
    with pytest.raises(BadModelFile, match="is a folder"):
        read_model_info(tmp_path)
    with pytest.raises(BadModelFile, match="/dev/null is not a regular file"):
        read_model_info("/dev/null")
    with pytest.raises(BadModelFile, match="cannot read"):
        read_model_info("bad\0name.gguf")
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(BadModelFile, match="cannot read"):
        read_model_info(tmp_path / "loop")


def test_a_pipe_nobody_writes_to_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadModelFile, match="is not a regular file"):
        read_model_info(tmp_path / "pipe")


def test_unreadable_file(open_dir: Path, unprivileged: Callable[[], AbstractContextManager[None]]) -> None:
    model = open_dir / "model.gguf"
    model.write_bytes(tiny_model().to_bytes())
    model.chmod(0)
    with unprivileged(), pytest.raises(BadModelFile, match="Permission denied"):
        read_model_info(model)
