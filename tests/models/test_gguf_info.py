# What a valid header says.
from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest

from ingle.models.errors import BadModelFile, UnsupportedModel
from ingle.models.gguf_info import ModelInfo, read_model_info
from tests.models.gguf_bytes import File, Tensor, tiny_model


def write(path: Path, file: File) -> Path:
    path.write_bytes(file.to_bytes())
    return path


def read(tmp_path: Path, file: File) -> ModelInfo:
    return read_model_info(write(tmp_path / "m.gguf", file))


def test_every_field_of_a_tiny_model(tmp_path: Path) -> None:
    info = read(tmp_path, tiny_model())
    assert info.size_bytes == (tmp_path / "m.gguf").stat().st_size
    assert (info.architecture, info.name, info.size_label, info.licence) == ("llama", "Tiny", "1K", "mit")
    assert info.file_type == "Q4_K_M"
    assert info.num_params == 32 * 8 + 32 + 32 * 8 + 32 * 32
    assert (info.n_ctx_train, info.num_layers, info.n_embd) == (64, 1, 32)
    assert (info.n_head, info.n_head_kv, info.key_length, info.value_length) == (2, 1, 16, 16)
    assert info.sliding_window is None
    assert (info.vocab_size, info.tokenizer_model) == (8, "llama")
    assert (info.bos_token, info.eos_token, info.add_bos) == ("<s>", "</s>", True)
    assert info.chat_template is None
    assert info.chat_markers == {"<|im_start|>", "<|im_end|>"}
    assert info.is_generative
    assert info.is_generative


def test_tensor_table(tmp_path: Path) -> None:
    info = read(tmp_path, tiny_model())
    table = {t.name: (t.shape, t.type, t.num_bytes) for t in info.tensors}
    assert table["token_embd.weight"] == ((32, 8), "Q4_1", 8 * 20)
    assert table["output.weight"] == ((32, 8), "Q8_0", 8 * 34)
    assert table["output_norm.weight"] == ((32,), "F32", 128)
    assert info.weights_bytes == 160 + 128 + 272 + 2048
    assert info.bits_per_weight == pytest.approx(8 * 2608 / 1568)
    assert all(t.offset % 32 == 0 for t in info.tensors)


def test_kv_bytes_per_token(tmp_path: Path) -> None:
    file = tiny_model(llama__block_count=("u32", 3), llama__attention__head_count_kv=("[u32]", [1, 0, 2]))
    info = read(tmp_path, file)
    assert info.n_head_kv == (1, 0, 2)
    assert info.kv_bytes_per_token() == 3 * (16 * 2 + 16 * 2)  # three heads in all, f16 keys and values
    with pytest.raises(ValueError, match="Q8_0 blocks"):
        info.kv_bytes_per_token("q8_0", "f16")  # one head of 16 is half a block


def test_arrays_are_decoded_when_asked(tmp_path: Path) -> None:
    info = read(tmp_path, tiny_model())
    assert "tokenizer.ggml.tokens" not in info.metadata
    assert info.arrays["tokenizer.ggml.tokens"].count == 8
    assert info.read_array("tokenizer.ggml.tokens")[7] == "é"
    assert info.read_array("tokenizer.ggml.token_type") == [1] * 8
    with pytest.raises(KeyError):
        info.read_array("general.name")


def test_array_of_a_file_that_shrank(tmp_path: Path) -> None:
    info = read(tmp_path, tiny_model())
    (tmp_path / "m.gguf").write_bytes(b"GGUF" + bytes(60))
    for key in ("tokenizer.ggml.tokens", "tokenizer.ggml.token_type"):
        with pytest.raises(BadModelFile, match="has changed"):
            info.read_array(key)


def test_long_strings_do_not_upset_the_token_walk(tmp_path: Path) -> None:
    tokens = ["x" * 5000, "y" * 3000, "", *"abcde"]  # far beyond the guessed average; an empty token is allowed
    info = read(tmp_path, tiny_model(tokenizer__ggml__tokens=("[str]", tokens)))
    assert info.read_array("tokenizer.ggml.tokens") == tokens
    assert info.bos_token == "y" * 3000


def test_version_2_and_other_alignments(tmp_path: Path) -> None:
    file = tiny_model(general__alignment=("u32", 64))
    file.version, file.alignment = 2, 64
    info = read(tmp_path, file)
    assert info.gguf_version == 2
    assert all(t.offset % 64 == 0 for t in info.tensors)


def test_the_last_tensor_needs_no_padding(tmp_path: Path) -> None:
    file = tiny_model()
    file.tensors.append(Tensor("blk.0.ffn_norm.weight", [33], 0))
    raw = file.to_bytes()
    path = tmp_path / "m.gguf"
    path.write_bytes(raw[: len(raw) - (file.pad(132) - 132)])
    assert read_model_info(path).tensors[-1].num_bytes == 132


def test_agrees_with_the_gguf_package(tmp_path: Path) -> None:
    path = tmp_path / "theirs.gguf"
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_name("Theirs")
    writer.add_context_length(128)
    writer.add_embedding_length(32)
    writer.add_block_count(2)
    writer.add_head_count([4, 2])
    writer.add_head_count_kv([2, 2])
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_sliding_window(16)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(["<unk>", "<s>", "</s>"])
    writer.add_token_types([2, 3, 3])
    writer.add_token_scores([0.0, 0.0, 0.0])
    writer.add_chat_template("{{ messages }}")
    writer.add_tensor("token_embd.weight", np.zeros((3, 32), dtype=np.float16))
    writer.add_tensor("output_norm.weight", np.zeros(32, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    info = read_model_info(path)
    reader = gguf.GGUFReader(str(path))
    assert [(t.name, t.shape, t.type, t.num_bytes, t.offset) for t in info.tensors] == [
        (t.name, tuple(int(n) for n in t.shape), t.tensor_type.name, int(t.n_bytes), int(t.data_offset))
        for t in reader.tensors
    ]
    assert (info.n_head, info.n_head_kv, info.sliding_window) == ((4, 2), 2, 16)
    assert info.chat_template == "{{ messages }}"


def shards(tmp_path: Path, count: int = 2) -> list[Path]:
    first = tiny_model(split__count=("u16", count), split__no=("u16", 0), split__tensors__count=("i32", 5))
    second = File(kv={"split.no": ("u16", 1)}, tensors=[Tensor("blk.0.attn_k.weight", [32, 16], 1)])
    names = [tmp_path / f"m-{i:05d}-of-{count:05d}.gguf" for i in (1, 2)]
    return [write(names[0], first), write(names[1], second)]


def test_split_model_is_read_as_one(tmp_path: Path) -> None:
    paths = shards(tmp_path)
    info = read_model_info(paths[0])
    assert info.split_count == 2
    assert info.size_bytes == sum(p.stat().st_size for p in paths)
    assert [(t.name, t.shard) for t in info.tensors][-1] == ("blk.0.attn_k.weight", 1)


def test_split_model_with_a_shard_missing_or_given_the_wrong_one(tmp_path: Path) -> None:
    paths = shards(tmp_path, count=3)
    with pytest.raises(BadModelFile, match="shard 3 of 3 is missing"):
        read_model_info(paths[0])
    second = tiny_model(split__count=("u16", 2), split__no=("u16", 1))
    with pytest.raises(BadModelFile, match="shard 2 of 2") as caught:
        read_model_info(write(tmp_path / "x-00002-of-00002.gguf", second))
    assert caught.value.hint is not None
    assert "00001-of-00002" in caught.value.hint
    with pytest.raises(BadModelFile, match="not named so"):
        read_model_info(write(tmp_path / "renamed.gguf", tiny_model(split__count=("u16", 2), split__no=("u16", 0))))


def test_split_model_with_a_corrupt_or_repeated_shard(tmp_path: Path) -> None:
    first, second = shards(tmp_path)
    whole = second.read_bytes()
    second.write_bytes(whole[:-64])
    with pytest.raises(BadModelFile, match=r"00002-of-00002.*truncated"):
        read_model_info(first)
    repeated = File(kv={"split.no": ("u16", 1)}, tensors=[Tensor("output.weight", [32, 8], 1)])
    write(second, repeated)
    with pytest.raises(BadModelFile, match=r"duplicate tensor 'output.weight'"):
        read_model_info(first)
    write(second, File(kv={"split.no": ("u16", 1)}, tensors=[Tensor("a", [1]), Tensor("b", [1])]))
    with pytest.raises(BadModelFile, match=r"split\.tensors\.count is 5 .* 6 tensors"):
        read_model_info(first)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"general__architecture": ("str", "bert")}, "an embedding model: it cannot generate text"),
        ({"general__architecture": ("str", "nomic-bert")}, "an embedding model"),
        ({"llama__attention__causal": ("bool", False)}, "an embedding model"),
        ({"llama__pooling_type": ("u32", 3)}, "an embedding model"),
        ({"general__architecture": ("str", "clip")}, "projector"),
        ({"general__architecture": ("str", "t5")}, "encoder-decoder"),
        ({"general__architecture": ("str", "llada")}, "diffusion"),
        ({"general__type": ("str", "adapter")}, "LoRA adapter"),
        ({"general__type": ("str", "imatrix")}, "importance matrix"),
    ],
)
def test_what_cannot_generate_is_refused_but_can_be_described(
    tmp_path: Path, changes: dict[str, tuple[str, object]], words: str
) -> None:
    path = write(tmp_path / "m.gguf", tiny_model(**changes))
    with pytest.raises(UnsupportedModel, match=words):
        read_model_info(path)
    info = read_model_info(path, require_generative=False)
    assert not info.is_generative


def test_pooling_type_none_is_no_embedding_model(tmp_path: Path) -> None:
    assert read(tmp_path, tiny_model(llama__pooling_type=("u32", 0))).is_generative


def test_importing_the_reader_imports_nothing_heavy() -> None:
    code = (
        "import sys; before = set(sys.modules); import ingle.models.gguf_info, ingle.models.resolve; "
        "heavy = {'rich', 'jinja2', 'numpy', 'huggingface_hub', 'platformdirs', 'filelock', 'zipfile', 'subprocess'}; "
        "print(sorted(heavy & (set(sys.modules) - before)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
