# Draft files on disk: the rows that are kept are the source's own, and llama.cpp computes with them what it did before.
from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from ingle.models.gguf_info import read_model_info
from ingle.models.short_vocabulary import reads_as, token_ids
from ingle.models.vocabulary import digest
from ingle.quant.activations import context_config
from ingle.quant.draft import agreement
from ingle.quant.errors import BadRecipe
from ingle.quant.evaluate import chunk_logits, evaluate_together
from ingle.quant.likeliest import likeliest
from ingle.quant.pipeline import quantize
from ingle.quant.recipe import choose_types, find_mix
from ingle.quant.short_file import check_can_shorten, write_short
from ingle.quant.source import Source
from ingle.runtime.config import EngineConfig
from ingle.runtime.llama import LlamaModel
from ingle.runtime.llama_context import LlamaContext
from tests import tiny_models
from tests.quant.architectures import write_model
from tests.short_draft import write_draft

NUM_KEPT = 300  # of 320 and some


def logits(path: Path, tokens: list[int]) -> np.ndarray:
    """[tokens, vocab]"""
    config = context_config(EngineConfig(num_threads=1, gpu_layers=0), len(tokens))
    model = LlamaModel(path, 0)
    context = LlamaContext(model, 256, config, num_outputs=len(tokens))
    try:
        (logits,) = chunk_logits(context, np.array(tokens, np.int32), slice(0, len(tokens)), len(tokens))
        return logits.copy()
    finally:
        context.close()
        model.close()


@pytest.mark.parametrize("name", ["llama", "qwen2", "gemma2"])  # gemma2: without an output of its own
@pytest.mark.parametrize("mix", [None, "Q4_0"])
def test_llama_cpp_computes_the_same_of_the_tokens_that_are_kept(tmp_path: Path, name: str, mix: str | None) -> None:
    source = write_model(tmp_path / "source.gguf", name)
    if mix is not None:
        with Source(source) as model:
            quantize(model, tmp_path / "coarse.gguf", choose_types(model.info, find_mix(mix), has_imatrix=False))
        source = tmp_path / "coarse.gguf"
    ids = write_draft(source, tmp_path / "short.gguf", num_tokens=NUM_KEPT)
    assert len(ids) == NUM_KEPT
    tokens = [tiny_models.BOS, 260, 17, 281, 299, 40]
    info = read_model_info(tmp_path / "short.gguf", to_draft=True)
    assert (info.vocab_size, token_ids(info)) == (NUM_KEPT, ids)
    rows = [reads_as(info)[token] for token in tokens]
    np.testing.assert_array_equal(logits(tmp_path / "short.gguf", rows), logits(source, tokens)[:, ids])


def test_what_is_in_it(tmp_path: Path) -> None:
    """Read by gguf-py: everything else is as it was, and no tokenizer is left."""
    source = tiny_models.write_llama(tmp_path / "source.gguf")
    ids = write_draft(source, tmp_path / "short.gguf", used=[300, 310])
    before, after = gguf.GGUFReader(source), gguf.GGUFReader(tmp_path / "short.gguf")
    for one, other in zip(before.tensors, after.tensors, strict=True):
        expected = one.data[ids] if one.name in ("token_embd.weight", "output.weight") else one.data
        assert one.name == other.name
        np.testing.assert_array_equal(expected, other.data)
    keys = {key for key in before.fields if not key.startswith("tokenizer.")}
    ours = {"ingle.draft.token_ids", "ingle.draft.reads_as", "ingle.draft.vocabulary"}
    assert set(after.fields) == keys | ours | {"tokenizer.ggml.model", "llama.vocab_size"}
    assert after.fields["ingle.draft.token_ids"].contents() == ids
    assert {300, 310} <= set(ids)
    assert after.fields["ingle.draft.vocabulary"].contents() == digest(read_model_info(source))
    assert (tmp_path / "short.gguf").stat().st_mode & 0o077 == 0


def test_a_bias_goes_with_its_rows(tmp_path: Path) -> None:
    writer, _ = tiny_models._start(tmp_path / "source.gguf", "llama", 0, 64, 1)
    tiny_models._add_attention_keys(writer, 2)
    bias = np.arange(tiny_models.NUM_VOCAB, dtype=np.float32)
    writer.add_tensor("output.bias", bias)
    source = tiny_models._finish(writer)
    ids = write_draft(source, tmp_path / "short.gguf", num_tokens=270)
    found = {tensor.name: tensor.data for tensor in gguf.GGUFReader(tmp_path / "short.gguf").tensors}
    np.testing.assert_array_equal(found["output.bias"], bias[ids])


def test_a_vocabulary_that_other_tensors_know_of_is_left_alone(tmp_path: Path) -> None:
    writer, rng = tiny_models._start(tmp_path / "source.gguf", "llama", 0, 64, 1)
    tiny_models._add_attention_keys(writer, 2)
    writer.add_tensor("blk.0.nextn.embed_tokens.weight", rng(tiny_models.NUM_VOCAB, tiny_models.N_EMBD))
    with Source(tiny_models._finish(writer)) as source, pytest.raises(BadRecipe, match=r"nextn\.embed_tokens"):
        write_short(source, tmp_path / "short.gguf", [0], [0] * tiny_models.NUM_VOCAB)
    assert [path.name for path in tmp_path.iterdir()] == ["source.gguf"]
    check_can_shorten(read_model_info(tiny_models.write_llama(tmp_path / "good.gguf")))


def test_agreement_is_that_of_the_whole_file_where_all_is_kept(tmp_path: Path) -> None:
    """And falls by the guesses that cannot be made where it is not."""
    target = tiny_models.write_llama(tmp_path / "target.gguf")
    source = tiny_models.write_llama(tmp_path / "source.gguf", seed=5)
    rng = np.random.default_rng(3)
    chunks = [rng.integers(3, tiny_models.NUM_VOCAB, 64).astype(np.int32) for _ in range(4)]
    config = EngineConfig(num_threads=1, gpu_layers=0)
    expected = likeliest(target, chunks, config=config)
    tops = np.concatenate([logits(target, chunk.tolist())[32:63].argmax(axis=1) for chunk in chunks])
    np.testing.assert_array_equal(expected, tops)

    def same_top(path: Path) -> float:
        one = agreement("one", path, expected, chunks, config=config, progress=lambda done, total: None)
        assert (one.name, one.num_bytes) == ("one", path.stat().st_size)
        return one.same_top

    write_draft(target, tmp_path / "same.gguf", num_tokens=10_000)
    assert same_top(tmp_path / "same.gguf") == 1.0
    write_draft(source, tmp_path / "all.gguf", num_tokens=10_000)
    (evaluation,) = evaluate_together([source], chunks, against=target, config=config)
    assert evaluation.divergence is not None
    assert same_top(tmp_path / "all.gguf") == same_top(source) == pytest.approx(evaluation.divergence.same_top)
    ids = write_draft(target, tmp_path / "few.gguf")
    assert same_top(tmp_path / "few.gguf") <= np.isin(tops, ids).mean() < 1.0
