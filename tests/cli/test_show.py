# `ingle show` on models written by hand.
from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ingle.cli.errors import InputProblem, UsageProblem
from ingle.cli.show import show
from ingle.models.convert import kept
from ingle.models.errors import BadModelFile, ModelNotFound
from tests import tiny_models
from tests.cli.shelf_of import Machine
from tests.cli.shelf_of import machine as make_machine
from tests.models.gguf_bytes import tiny_model
from tests.models.hf_directory import write_directory


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return make_machine(tmp_path, monkeypatch)


def said(machine: Machine, name: str) -> dict[str, Any]:
    code, out, err = machine.run(show, name, only_template=False, as_json=True)
    assert (code, err) == (0, "")
    answer = json.loads(out)
    assert answer["version"] == 1
    return dict(answer)


def lines(machine: Machine, name: str) -> dict[str, list[str]]:
    """Label → its lines."""
    code, out, err = machine.run(show, name, only_template=False, as_json=False)
    assert (code, err) == (0, "")
    found: dict[str, list[str]] = {}
    label = ""
    for line in out.splitlines():
        label = line[:16].strip() or label
        found.setdefault(label, []).append(line[16:])
    return found


def test_everything_a_header_says(machine: Machine) -> None:
    file = tiny_model(
        tokenizer__chat_template=("str", "one\ntwo\nthree\nfour\nfive\nsix"),
        tokenizer__ggml__pre=("str", "default"),
        tokenizer__ggml__eot_token_id=("u32", 6),
        tokenizer__ggml__padding_token_id=("u32", 99),
        quantize__imatrix__file=("str", "calibration\x1b[2J.dat"),
        ingle__recipe=("str", "int4"),
    )
    link = machine.repo().add("tiny-Q8_0.gguf", file.to_bytes())
    answer = said(machine, "acme/tiny-gguf:q8_0")
    assert (answer["name"], answer["place"], answer["path"]) == ("acme/tiny-GGUF:Q8_0", "hub", str(link))
    assert (answer["quant"], answer["num_params"], answer["n_ctx_train"]) == ("Q4_K_M", 1568, 64)
    assert answer["bits_per_weight"] == round(8 * 2608 / 1568, 4)
    assert [(t["type"], t["num_tensors"], t["num_bytes"], t["bits_per_weight"]) for t in answer["tensors"]] == [
        ("F16", 1, 2048, 16.0),
        ("Q8_0", 1, 272, 8.5),
        ("Q4_1", 1, 160, 5.0),
        ("F32", 1, 128, 32.0),
    ]
    # One KV head of 16 values, K and V; a block of q8_0 takes 32.
    assert answer["kv_bytes_per_token"] == {"f16": 64, "q8_0": None, "q4_0": None}
    assert (answer["reuse"], answer["num_window_layers"], answer["sliding_window"]) == ("blocks", 0, None)
    assert answer["tokenizer"] == {
        "kind": "llama",
        "pre": "default",
        "vocab_size": 8,
        "full_vocab_size": None,
        "adds_bos": True,
        "special": {
            "bos": {"id": 1, "text": "<s>"},
            "eos": {"id": 2, "text": "</s>"},
            "eot": {"id": 6, "text": "<|im_end|>"},
        },
    }
    assert answer["metadata"]["ingle.recipe"] == "int4"
    assert "llama.block_count" not in answer["metadata"]
    shown = lines(machine, "acme/tiny-GGUF:Q8_0")
    assert shown["tokenizer"] == ["SentencePiece, pre-tokenizer default, 8 tokens, adds BOS"]
    assert shown["special tokens"] == ["bos <s> (1), eos </s> (2), eot <|im_end|> (6)"]
    assert shown["KV a token"] == ["f16 64 bytes, q8_0 does not fit, q4_0 does not fit"]
    assert shown["tensors"][0].split() == ["F16", "1", "2", "kB", "16.00", "bits", "a", "weight"]
    assert shown["chat template"] == ["one", "two", "three", "four", "… 2 more: --template"]
    assert "quantize.imatrix.file = calibration\\x1b[2J.dat" in shown["metadata"]


def test_the_template_whole(machine: Machine) -> None:
    template = "one\n  {{ two }}\n"
    machine.put(machine.mine / "a.gguf", tiny_model(tokenizer__chat_template=("str", template)).to_bytes())
    machine.put(machine.mine / "b.gguf", tiny_model().to_bytes())
    name = str(machine.mine / "a.gguf")
    assert machine.run(show, name, only_template=True, as_json=False) == (0, f"{template}\n", "")
    with pytest.raises(InputProblem, match="no chat template"):
        machine.run(show, str(machine.mine / "b.gguf"), only_template=True, as_json=False)


def test_what_each_architecture_lets_be_shared(machine: Machine) -> None:
    """Against what the writers of the models put into them."""
    expected = {
        tiny_models.write_llama: ("blocks", 0, 2 * 2 * 2 * 32 * 2),
        tiny_models.write_gemma3: ("blocks with window", 2, 4 * 2 * 2 * 32 * 2),
        tiny_models.write_mamba: ("whole conversation only", 0, 0),
        tiny_models.write_lfm2: ("whole conversation only", 0, 1 * 2 * 2 * 16 * 2),  # one layer of three
    }
    for writer, (reuse, num_window_layers, f16) in expected.items():
        path = writer(machine.mine / "m.gguf")
        answer = said(machine, str(path))
        assert (answer["reuse"], answer["num_window_layers"]) == (reuse, num_window_layers), writer.__name__
        assert answer["kv_bytes_per_token"]["f16"] == f16, writer.__name__
    assert said(machine, str(tiny_models.write_gemma3(machine.mine / "g.gguf")))["sliding_window"] == 16
    shown = lines(machine, str(machine.mine / "g.gguf"))
    assert shown["sliding window"] == ["16 tokens in 2 of 4 layers; kept whole, to be shared"]


def test_what_llama_cpp_says_of_the_same_files(machine: Machine) -> None:
    """Reuse follows what the runtime asks llama.cpp for: a window, a recurrent state."""
    from ingle.runtime.config import EngineConfig
    from ingle.runtime.loading import load_model

    for writer in (tiny_models.write_llama, tiny_models.write_gemma3, tiny_models.write_mamba, tiny_models.write_lfm2):
        path = writer(machine.mine / "m.gguf")
        model = load_model(path, EngineConfig(n_ctx=64))
        try:
            kind = (
                "whole conversation only" if model.is_stateful else "blocks with window" if model.window else "blocks"
            )
            assert said(machine, str(path))["reuse"] == kind, writer.__name__
        finally:
            model.close()


def test_a_model_that_generates_nothing_is_described(machine: Machine) -> None:
    path = tiny_models.write_bert(machine.mine / "bert.gguf")
    answer = said(machine, str(path))
    assert "embedding model" in answer["not_generative"]
    assert set(answer["kv_bytes_per_token"].values()) == {None}
    shown = lines(machine, str(path))
    assert "embedding model" in shown["note"][0]
    assert "KV a token" not in shown


@pytest.mark.parametrize(
    ("name", "words", "hint"),
    [
        ("smollm2", "smollm2 is not on this machine", "`ingle pull smollm2`"),
        ("acme/absent:Q4_0", "acme/absent:Q4_0 is not on this machine", "`ingle pull acme/absent:Q4_0`"),
        ("pypi:absent", "pypi:absent is not on this machine", "`ingle pull pypi:absent`"),
        ("./absent.gguf", "no such file", "path"),
        ("smolm2", "no model called 'smolm2'", "smollm2"),
    ],
)
def test_what_is_not_here(machine: Machine, name: str, words: str, hint: str) -> None:
    with pytest.raises(ModelNotFound, match=words) as caught:
        machine.run(show, name, only_template=False, as_json=False)
    assert caught.value.hint is not None
    assert hint in caught.value.hint


def test_a_repository_with_two_files_must_be_said_more_exactly(machine: Machine) -> None:
    machine.repo().add("tiny-Q8_0.gguf", tiny_model().to_bytes())
    assert said(machine, "acme/tiny-GGUF")["name"] == "acme/tiny-GGUF:Q8_0"
    machine.repo().add("tiny-F16.gguf", tiny_model(general__name=("str", "Other")).to_bytes())
    with pytest.raises(UsageProblem, match="2 files") as caught:
        machine.run(show, "acme/tiny-GGUF", only_template=False, as_json=False)
    assert "acme/tiny-GGUF:F16, acme/tiny-GGUF:Q8_0" in str(caught.value.hint)


def test_a_bad_file(machine: Machine) -> None:
    path = machine.put(machine.mine / "bad.gguf", tiny_model().to_bytes()[:-9])
    with pytest.raises(BadModelFile, match="truncated"):
        machine.run(show, str(path), only_template=False, as_json=False)


def test_through_the_door(machine: Machine) -> None:
    command = [sys.executable, "-m", "ingle.cli.start", "show", "smollm2"]
    done = subprocess.run(command, env=dict(os.environ), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (66, "")
    assert done.stderr.splitlines() == [
        "error: smollm2 is not on this machine",
        "hint: `ingle pull smollm2` fetches it",
    ]


@pytest.mark.parametrize("command", [["show"], ["rm", "--yes"]])
def test_to_be_asked_about_converts_no_safetensors(machine: Machine, command: list[str]) -> None:
    directory = write_directory(machine.root / "Little-1M")
    words = [sys.executable, "-m", "ingle.cli.start", *command, "./Little-1M"]
    done = subprocess.run(words, cwd=machine.root, env=dict(os.environ), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (66, "")
    assert done.stderr.splitlines() == [
        "error: Little-1M holds safetensors that have not been converted yet",
        "hint: `ingle pull ./Little-1M` converts them.",
    ]
    assert not (machine.ours / "converted").exists()
    assert kept(directory) is None
