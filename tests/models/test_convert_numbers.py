# Converted models against transformers: the same logits, the same token ids. transformers runs in a process of its own.
from __future__ import annotations

import json
import shutil
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import load_file, save_file

from ingle.models.convert import check, convert
from ingle.models.gguf_info import read_model_info
from tests.models import bare_llama
from tests.models.hard_texts import TEXTS
from tests.models.hf_directory import write_directory
from tests.models.hf_models import MODELS

BYTE_LEVEL = ("llama3", "phi4", "o200k", "qwen2", "gpt2", "smollm")
PIECES = ("llama", "gemma", "unigram")
MODELS_ALONE = ("bpe-model", "unigram-model")


@pytest.fixture(scope="session")
def references(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of models and tokenizers with what transformers makes of them."""
    folder = tmp_path_factory.mktemp("references")
    (folder / "texts.json").write_text(json.dumps(TEXTS))
    script = Path(__file__).with_name("hf_models.py")
    made = subprocess.run([sys.executable, str(script), str(folder)], capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr[-2000:]
    return folder


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_transformers(name: str, references: Path, tmp_path: Path) -> None:
    path = convert(references / name, tmp_path / f"{name}.gguf", "f32")
    read_model_info(path)
    wanted = np.load(references / name / "logits.npy")
    found = bare_llama.logits(path, np.load(references / name / "ids.npy").tolist())
    cosine = (wanted * found).sum(1) / (np.linalg.norm(wanted, axis=1) * np.linalg.norm(found, axis=1))
    assert cosine.min() > 0.9999
    assert np.array_equal(wanted.argmax(1), found.argmax(1))


@pytest.mark.parametrize(("name", "original"), [("phi3-long", 32), ("phi3-short", 512), ("llama-longrope", 32)])
def test_what_is_compared_has_the_factors_it_should(name: str, original: int, references: Path) -> None:
    keys = check(references / name).hyperparameters.keys
    (key,) = (key for key in keys if key.endswith(".rope.scaling.original_context_length"))
    assert keys[key] == original  # below the 64 positions, or above the 256 that llama.cpp makes of them


@pytest.mark.parametrize("name", [*BYTE_LEVEL, *PIECES, *MODELS_ALONE])
def test_token_ids_are_those_of_the_tokenizer(name: str, references: Path, tmp_path: Path) -> None:
    source = references / "tokenizers" / name
    wanted = json.loads((source / "token_ids.json").read_text())
    num_tokens = 1 + max(number for ids in wanted for number in ids)
    directory = write_directory(tmp_path / "model", config={"vocab_size": max(num_tokens, 720)})
    for stale in ("tokenizer.json", "tokenizer_config.json"):
        (directory / stale).unlink()
    for file in source.iterdir():
        shutil.copy(file, directory)
    path = convert(directory, tmp_path / "model.gguf")
    texts = list(TEXTS)
    if name == "qwen2":  # llama.cpp has no normalization to NFC; the plan says so
        assert any("NFC" in note for note in check(directory).notes)
        texts = [unicodedata.normalize("NFC", text) for text in texts]
    found = bare_llama.token_ids(path, texts)
    differing = [text for text, ours, theirs in zip(texts, found, wanted, strict=True) if ours != theirs]
    if name in MODELS_ALONE:  # SentencePiece itself reads no special tokens in text
        differing = [text for text in differing if "<tool>" not in text]
    assert differing == []


def _tensors(path: Path) -> dict[str, Any]:
    return {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}


def test_bf16_stays_bit_for_bit_what_it_is(tmp_path: Path) -> None:
    directory = write_directory(tmp_path / "model")
    bits = _save_bf16(directory)
    path = convert(directory, tmp_path / "model.gguf")
    tensors = _tensors(path)
    assert read_model_info(path).file_type == "BF16"
    assert tensors["token_embd.weight"].tensor_type == gguf.GGMLQuantizationType.BF16
    assert tensors["output.weight"].data.tobytes() == bits["lm_head.weight"].tobytes()
    norm = bits["model.norm.weight"].astype(np.uint32) << 16
    assert tensors["output_norm.weight"].data.tobytes() == norm.tobytes()


def _save_bf16(directory: Path) -> dict[str, npt.NDArray[np.uint16]]:
    """Rewrite the weights as bf16, by hand since NumPy has no such type. Returns their bits."""
    tensors = load_file(directory / "model.safetensors")
    bits = {name: (value.view(np.uint32) >> 16).astype(np.uint16) for name, value in tensors.items()}
    header: dict[str, Any] = {}
    offset = 0
    for name, value in bits.items():
        header[name] = {"dtype": "BF16", "shape": value.shape, "data_offsets": [offset, offset + value.nbytes]}
        offset += value.nbytes
    text = json.dumps(header).encode()
    data = b"".join(value.tobytes() for value in bits.values())
    (directory / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    return bits


@pytest.mark.parametrize("outtype", ["f16", "bf16"])
def test_f32_is_rounded_to_the_nearest(outtype: Any, tmp_path: Path) -> None:
    directory = write_directory(tmp_path / "model")
    source = load_file(directory / "model.safetensors")["lm_head.weight"]
    data = _tensors(convert(directory, tmp_path / "model.gguf", outtype))["output.weight"].data
    if outtype == "f16":
        assert np.array_equal(data, source.astype(np.float16))
        return
    bits = np.ascontiguousarray(data).view(np.uint16).reshape(source.shape).astype(np.uint32)
    distance = np.abs((bits << 16).view(np.float32) - source)
    for neighbour in (bits - 1, bits + 1):
        assert (distance <= np.abs((neighbour << 16).view(np.float32) - source)).all()


def test_values_too_large_for_f16_make_it_bf16(tmp_path: Path) -> None:
    directory = write_directory(tmp_path / "model")
    tensors = load_file(directory / "model.safetensors")
    tensors["lm_head.weight"][3, 5] = 1e6
    save_file(tensors, directory / "model.safetensors")
    (tmp_path / "out").mkdir()
    path = convert(directory, tmp_path / "out", name="Some Model")
    assert path.name == "Some-Model-32K-BF16.gguf"
    assert [p.name for p in (tmp_path / "out").iterdir()] == [path.name]


def test_shards_make_the_same_file_as_one(tmp_path: Path) -> None:
    whole = write_directory(tmp_path / "whole")
    shards = write_directory(tmp_path / "shards")
    tensors = load_file(shards / "model.safetensors")
    (shards / "model.safetensors").unlink()
    table: dict[str, str] = {}
    for part in range(3):
        file = f"model-{part + 1:05}-of-00003.safetensors"
        mine = {name: value for i, (name, value) in enumerate(tensors.items()) if i % 3 == part}
        save_file(mine, shards / file)
        table.update(dict.fromkeys(mine, file))
    (shards / "model.safetensors.index.json").write_text(json.dumps({"weight_map": table}))
    first = convert(whole, tmp_path / "a.gguf", name="x").read_bytes()
    assert convert(shards, tmp_path / "b.gguf", name="x").read_bytes() == first


def test_the_text_model_of_a_multimodal_one(references: Path, tmp_path: Path) -> None:
    text = references / "gemma3"
    directory = tmp_path / "multimodal"
    shutil.copytree(text, directory)
    config = json.loads((text / "config.json").read_text())
    whole = {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "text_config": config}
    (directory / "config.json").write_text(json.dumps(whole))
    tensors = {f"language_model.{name}": value for name, value in load_file(text / "model.safetensors").items()}
    tensors["vision_tower.encoder.weight"] = np.ones((2, 2), np.float32)
    save_file(tensors, directory / "model.safetensors")
    wanted = convert(text, tmp_path / "a.gguf", name="x").read_bytes()
    assert convert(directory, tmp_path / "b.gguf", name="x").read_bytes() == wanted
