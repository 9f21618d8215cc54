# Which files of a repo a name means.
from __future__ import annotations

import pytest

from ingle.models.errors import ModelNotFound, NoSuchQuant
from ingle.models.quants import Choice, choose, is_sidecar, label, labels


@pytest.mark.parametrize(
    ("name", "quant"),
    [
        ("smollm2-1.7b-instruct-q4_k_m.gguf", "Q4_K_M"),
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "Q4_1"),
        ("Qwen3-0.6B-Q8_0.gguf", "Q8_0"),
        ("gemma-4-E2B_q4_0-it.gguf", "Q4_0"),
        ("model-IQ3_XXS.gguf", "IQ3_XXS"),
        ("model-IQ4_NL.gguf", "IQ4_NL"),
        ("model.i1-IQ2_M.gguf", "i1-IQ2_M"),
        ("UD-Q4_K_XL/model-UD-Q4_K_XL-00001-of-00002.gguf", "UD-Q4_K_XL"),
        ("Q6_K/model-00001-of-00002.gguf", "Q6_K"),
        ("model-ud-q2_k_xl.gguf", "UD-Q2_K_XL"),
        ("model-BF16.gguf", "BF16"),
        ("model-f16.gguf", "F16"),
        ("gpt-oss-20b-mxfp4.gguf", "MXFP4"),
        ("model-Q4_0_4_8.gguf", "Q4_0_4_8"),
        ("Phi-3-mini-4k-instruct-q4.gguf", "Q4"),
        ("TriLM_3.9B-TQ2_0.gguf", "TQ2_0"),
        ("model.gguf", None),
        ("stories260K.gguf", None),
        ("FAQ4U-7B.gguf", None),
    ],
)
def test_labels(name: str, quant: str | None) -> None:
    assert label(name) == quant


REPO = [
    "m-Q2_K.gguf",
    "m-Q4_K_M.gguf",
    "m-Q5_K_M.gguf",
    "m-Q8_0.gguf",
    "mmproj-m-f16.gguf",
    "imatrix.gguf",
    "README.md",
]


def test_the_default_and_one_by_name() -> None:
    assert choose(REPO, "acme/m") == Choice(("m-Q4_K_M.gguf",), "Q4_K_M")
    assert choose(REPO, "acme/m", quant="q5_k_m") == Choice(("m-Q5_K_M.gguf",), "Q5_K_M")
    assert labels(REPO) == ["Q4_K_M", "Q5_K_M", "Q8_0", "Q2_K"]


@pytest.mark.parametrize(
    ("there", "taken"),
    [
        (["Q8_0", "Q4_0"], "Q4_0"),
        (["Q8_0", "Q2_K"], "Q8_0"),
        (["F16", "Q3_K_M"], "Q3_K_M"),
        (["F32", "IQ1_S"], "F32"),
        (["Q6_K", "Q5_K_S", "IQ4_XS"], "IQ4_XS"),
        (["UD-Q4_K_M", "Q4_K_S"], "UD-Q4_K_M"),
        (["UD-Q4_K_XL", "Q4_K_S"], "UD-Q4_K_XL"),
    ],
)
def test_without_the_default_the_nearest_is_taken_and_said(there: list[str], taken: str) -> None:
    choice = choose([f"m-{quant}.gguf" for quant in there], "acme/m")
    assert choice.quant == taken
    assert (choice.note or "").startswith(f"acme/m has no Q4_K_M: taking {taken} (it has ")


def test_a_single_file_without_a_label() -> None:
    assert choose(["model.gguf", "mmproj.gguf"], "acme/m") == Choice(("model.gguf",), None)
    with pytest.raises(NoSuchQuant, match="no file of acme/m says that it is Q8_0"):
        choose(["model.gguf"], "acme/m", quant="Q8_0")


def test_prefixes_of_authors() -> None:
    both = ["m-UD-Q4_K_M.gguf", "m-Q4_K_M.gguf"]
    assert choose(both, "acme/m", quant="Q4_K_M").names == ("m-Q4_K_M.gguf",)
    assert choose(both[:1], "acme/m", quant="Q4_K_M").names == ("m-UD-Q4_K_M.gguf",)
    assert choose(both, "acme/m", quant="ud-q4_k_m").names == ("m-UD-Q4_K_M.gguf",)


def test_no_such_quantization_names_those_there_are() -> None:
    with pytest.raises(NoSuchQuant, match="acme/m has no Q6_K") as caught:
        choose(REPO, "acme/m", quant="Q6_K")
    assert caught.value.hint == "It has Q4_K_M, Q5_K_M, Q8_0, Q2_K."


SHARDS = [f"big-Q4_K_M-{n:05d}-of-00003.gguf" for n in (1, 2, 3)]


def test_shards_come_together_and_in_order() -> None:
    assert choose(SHARDS[::-1], "acme/big").names == tuple(SHARDS)
    assert choose(SHARDS, "acme/big", file=SHARDS[1]).names == tuple(SHARDS)
    folder = [f"Q8_0/{name.replace('Q4_K_M', 'Q8_0')}" for name in SHARDS]
    assert choose([*folder, *SHARDS], "acme/big", quant="Q8_0").names == tuple(folder)


def test_missing_shards() -> None:
    with pytest.raises(ModelNotFound, match="acme/big holds 2 of the 3 shards of big-Q4_K_M-00001-of-00003"):
        choose(SHARDS[:2], "acme/big")
    assert choose([*SHARDS[:2], "big-Q8_0.gguf"], "acme/big").quant == "Q8_0"  # the whole one is taken


def test_an_exact_file() -> None:
    assert choose(REPO, "acme/m", file="mmproj-m-f16.gguf").names == ("mmproj-m-f16.gguf",)
    assert choose(REPO, "acme/m", file="M-q8_0.GGUF").names == ("m-Q8_0.gguf",)
    with pytest.raises(ModelNotFound, match=r"acme/m holds no file 'm-Q8\.gguf'") as caught:
        choose(REPO, "acme/m", file="m-Q8.gguf")
    assert caught.value.hint == "Did you mean acme/m/m-Q8_0.gguf?"


def test_what_lies_beside_a_model() -> None:
    sidecars = ["mmproj-F16.gguf", "model-imatrix.gguf", "model.imatrix.gguf", "x/mmproj-model-f16-4B.gguf"]
    assert [name for name in [*sidecars, "model-draft-Q4_0.gguf", "my-lora-f16.gguf"] if not is_sidecar(name)] == []
    assert not is_sidecar("draftsman-7b-Q4_0.gguf")
    assert choose(["Qwen3-0.6B-DRAFT-Q4_0.gguf"], "acme/draft").quant == "Q4_0"  # a repo of nothing else
    with pytest.raises(ModelNotFound, match="acme/m holds no GGUF model"):
        choose(["mmproj-F16.gguf"], "acme/m")


def test_several_that_could_be_meant() -> None:
    two = ["a-1b-Q4_K_M.gguf", "a-2b-Q4_K_M.gguf"]
    with pytest.raises(ModelNotFound, match="2 files of acme/a could be meant") as caught:
        choose(two, "acme/a")
    assert caught.value.hint == "Name one: acme/a/a-1b-Q4_K_M.gguf, acme/a/a-2b-Q4_K_M.gguf."
    assert choose(["m-Q4_K_M.gguf", "old/m-Q4_K_M.gguf"], "acme/m").names == ("m-Q4_K_M.gguf",)
