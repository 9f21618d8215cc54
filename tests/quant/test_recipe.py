# Every mix for every kind of model, against llama.cpp's own choice.
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ingle.models.ggml_types import BY_NAME
from ingle.models.gguf_info import read_model_info
from ingle.quant.errors import BadRecipe
from ingle.quant.mixes import MIXES
from ingle.quant.recipe import choose_types, find_mix, parse_override
from tests import tiny_models
from tests.quant.layouts import Layout, llama_types

LAYOUTS = {
    "plain": Layout(num_layers=33, num_heads=8, num_heads_kv=4),
    "one layer": Layout(num_layers=1),
    "tied": Layout(num_layers=16, is_tied=True),
    "eight heads a KV head": Layout(num_layers=24, num_heads_kv=1),
    "rows of 32s": Layout(num_layers=9, width=576, num_heads=9, num_heads_kv=3, ffn=1536),
    "rows of 32s, tied": Layout(num_layers=9, width=288, num_heads=9, num_heads_kv=3, ffn=1056, is_tied=True),
    "rows of 16s": Layout(num_layers=4, width=528, num_heads=11, num_heads_kv=11, ffn=1040),
    "eight experts": Layout(num_layers=16, num_experts=8, num_heads_kv=2),
    "four experts": Layout(num_layers=11, num_experts=4),
    "many experts": Layout("qwen3moe", num_layers=12, num_experts=64, num_heads_kv=1),
    "70B": Layout(num_layers=80, num_heads_kv=1),
    "65B": Layout(num_layers=80),
    "70B of another kind": Layout("qwen2", num_layers=80, num_heads_kv=4),
    "fused": Layout("phi3", num_layers=32, fused_qkv=True),
    "falcon": Layout("falcon", num_layers=32, fused_qkv=True, num_heads_kv=1),
    "tied gemma": Layout("gemma2", num_layers=26, is_tied=True, num_heads_kv=4),
    "odd names": Layout(
        num_layers=3,
        extra=(
            ("position_embd.weight", (256, 512)),
            ("blk.0.ssm_conv1d.weight", (512, 4)),
            ("blk.1.attn_q_norm.weight", (4, 512)),
            ("blk.1.ffn_down_shexp.weight", (512, 1024)),
            ("blk.2.attn_kv_b.weight", (512, 256)),
            ("blk.2.attn_sinks", (8, 512)),
        ),
    ),
}


# Layers by the dozen cost time, and only say something about the mixes that ask for them.
_DEEP = ("70B", "65B", "70B of another kind")
_CASES = [
    (name, with_imatrix) for name in LAYOUTS for with_imatrix in (False, True) if not (name in _DEEP and with_imatrix)
]


@pytest.mark.parametrize(("name", "with_imatrix"), _CASES)
def test_chooses_as_llama_cpp(name: str, with_imatrix: bool, tmp_path: Path) -> None:
    path = LAYOUTS[name].write_hollow(tmp_path / "model.gguf")
    info = read_model_info(path, require_generative=False)
    imatrix = {"some.weight": [1.0]} if with_imatrix else None
    for mix in MIXES.values():
        if mix.name in ("Q1_0", "Q2_0") and name.startswith("rows"):
            continue  # llama.cpp gives up where we take F16
        if name in _DEEP and "_K" not in mix.name:
            continue
        recipe = choose_types(info, mix, has_imatrix=with_imatrix)
        ours = {tensor.name: tensor.type for tensor in recipe.tensors}
        assert ours == llama_types(path, mix.file_type, imatrix), mix.name
        assert [tensor.name for tensor in recipe.tensors] == [tensor.name for tensor in info.tensors]


@pytest.mark.parametrize("write", [tiny_models.write_gemma3, tiny_models.write_lfm2, tiny_models.write_mamba])
def test_other_kinds_of_models(write: Callable[[Path], Path], tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf")
    info = read_model_info(path)
    for name in ("Q4_0", "Q4_K_M", "IQ3_XS", "IQ2_M", "Q8_0", "BF16"):
        ours = {t.name: t.type for t in choose_types(info, MIXES[name], has_imatrix=True).tensors}
        assert ours == llama_types(path, MIXES[name].file_type, {"some.weight": [1.0]}), name


def test_overrides_as_llama_cpp(tmp_path: Path) -> None:
    path = LAYOUTS["rows of 32s"].write_hollow(tmp_path / "model.gguf")
    info = read_model_info(path)
    typed = [r"blk\.[02]\.attn_v=q8_0", "attn_v=Q5_1", "ffn_(up|gate)=iq4_xs", "ffn_down=f16", "token_embd=q6_k"]
    overrides = [parse_override(text) for text in typed]
    recipe = choose_types(info, MIXES["Q4_K_M"], has_imatrix=False, overrides=overrides)
    given = [(o.pattern.pattern, BY_NAME[o.type_name].id) for o in overrides]
    assert {t.name: t.type for t in recipe.tensors} == llama_types(path, MIXES["Q4_K_M"].file_type, None, given)
    by_name = {t.name: t for t in recipe.tensors}
    assert by_name["blk.2.attn_v.weight"].type == "Q8_0"
    assert by_name["blk.3.attn_v.weight"].type == "Q5_1"
    assert by_name["blk.3.ffn_up.weight"].fell_back_from == "IQ4_XS"
    assert by_name["blk.3.ffn_up.weight"].type == "IQ4_NL"


def test_an_override_counts_in_a_mix_of_floats_too(tmp_path: Path) -> None:
    info = read_model_info(Layout().write_hollow(tmp_path / "model.gguf"))
    recipe = choose_types(info, MIXES["F16"], has_imatrix=False, overrides=[parse_override("ffn=q8_0")])
    assert recipe.counts == {"F16": 2 + 8 * 4, "Q8_0": 8 * 3, "F32": 1 + 8 * 3}


def test_sizes(tmp_path: Path) -> None:
    layout = Layout(num_layers=1, width=256, num_heads=4, num_heads_kv=4, ffn=512)
    info = read_model_info(layout.write_hollow(tmp_path / "model.gguf"))
    recipe = choose_types(info, MIXES["Q8_0"], has_imatrix=False)
    values = 2 * 320 * 256 + 4 * 256 * 256 + 3 * 256 * 512
    floats = 4 * (3 * 256 + 256)
    assert recipe.num_bytes == values // 32 * 34 + floats
    assert recipe.bits_per_weight == 8 * recipe.num_bytes / (values + floats // 4)


def test_which_tensors_need_importances(tmp_path: Path) -> None:
    info = read_model_info(Layout(num_layers=8).write_hollow(tmp_path / "model.gguf"))
    needing = {t.type for t in choose_types(info, MIXES["IQ2_XXS"], has_imatrix=False).tensors if t.needs_imatrix}
    assert needing == {"IQ2_XXS"}
    assert not any(t.needs_imatrix for t in choose_types(info, MIXES["Q2_K"], has_imatrix=False).tensors)
    assert any(t.needs_imatrix for t in choose_types(info, MIXES["Q2_K_S"], has_imatrix=False).tensors)


def test_names() -> None:
    assert find_mix("q4_k").name == "Q4_K_M"
    assert find_mix("int8").name == "Q8_0"
    assert find_mix("Q4-K-S").name == "Q4_K_S"
    assert find_mix("iq2_s").default_type == "IQ2_XS"
    with pytest.raises(BadRecipe) as caught:
        find_mix("q4_k_x")
    assert "q4_k_s" in str(caught.value.hint)


@pytest.mark.parametrize("text", ["ffn", "=q8_0", "ffn=", "ffn=q9", "ffn=q8_k", "(=q8_0", "ffn=i8"])
def test_overrides_that_make_no_sense(text: str) -> None:
    with pytest.raises(BadRecipe):
        parse_override(text)


def test_an_override_that_touches_nothing(tmp_path: Path) -> None:
    info = read_model_info(Layout(num_layers=1).write_hollow(tmp_path / "model.gguf"))
    with pytest.raises(BadRecipe, match="attn_norm"):
        choose_types(info, MIXES["Q4_0"], has_imatrix=False, overrides=[parse_override("attn_norm=q8_0")])
