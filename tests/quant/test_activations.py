# What arrives at each weight, against numpy where the input can be worked out, and against invariants elsewhere.
from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from ingle.models.gguf_info import read_model_info
from ingle.quant.activations import NUM_SKIPPED, Activations, Rows, capture, cut
from ingle.quant.errors import BadActivations
from ingle.quant.sequential import by_node, walk
from tests.quant.architectures import NUM_EXPERTS, NUM_USED, rewrite, write_model

LENGTH = 64


def weights_of(path: Path) -> list[str]:
    return [tensor.name for tensor in read_model_info(path).tensors if len(tensor.shape) > 1]


def chunks_of(count: int) -> list[np.ndarray[tuple[int, ...], np.dtype[np.int32]]]:
    tokens = np.random.default_rng(9).integers(3, 300, count * LENGTH + 5)
    return cut(tokens.tolist(), LENGTH)


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("qwen3") / "model.gguf", "qwen3")


@pytest.fixture(scope="module")
def captured(qwen3: Path) -> Activations:
    return capture(qwen3, chunks_of(3), weights_of(qwen3))


def test_the_first_input_is_the_normed_embedding(qwen3: Path, captured: Activations) -> None:
    tensors = {tensor.name: tensor.data for tensor in gguf.GGUFReader(qwen3).tensors}
    rows = tensors["token_embd.weight"][np.concatenate(chunks_of(3))].astype(np.float64)
    rows = rows / np.sqrt(np.square(rows).mean(axis=1, keepdims=True) + 1e-6) * tensors["blk.0.attn_norm.weight"]
    stats = captured.squares["blk.0.attn_k.weight"]
    assert stats.counts.tolist() == [3 * LENGTH]
    np.testing.assert_allclose(stats.sums[0], np.square(rows).sum(axis=0), rtol=1e-4)
    np.testing.assert_allclose(stats.mean()[0], np.square(rows).mean(axis=0), rtol=1e-4)
    late = np.abs(rows.reshape(3, LENGTH, -1)[:, NUM_SKIPPED:].reshape(-1, rows.shape[1]))
    inputs = captured.inputs["blk.0.attn_q.weight"]
    np.testing.assert_allclose(inputs.mean_abs, late.mean(axis=0), rtol=1e-4)
    assert inputs.num_rows == len(late)
    sample = np.abs(inputs.rows.all())
    assert len(sample) == len(late)  # fewer than may be kept: all
    np.testing.assert_allclose(sample, late, rtol=2e-3, atol=1e-3)


def test_inputs_are_captured_once_for_all_that_read_them(captured: Activations) -> None:
    inputs = captured.inputs
    assert inputs["blk.1.attn_q.weight"] is inputs["blk.1.attn_v.weight"]
    assert inputs["blk.1.ffn_gate.weight"] is inputs["blk.1.ffn_up.weight"]
    assert inputs["blk.1.ffn_up.weight"] is not inputs["blk.1.ffn_down.weight"]
    assert "token_embd.weight" not in inputs  # looked up, not multiplied
    assert len(by_node(captured)) == 2 * 4 + 1  # of two layers, and of the output


def test_experts_are_counted_by_who_was_chosen(tmp_path: Path) -> None:
    path = write_model(tmp_path / "model.gguf", "qwen3moe")
    found = capture(path, chunks_of(2), weights_of(path))
    router, gate = found.squares["blk.0.ffn_gate_inp.weight"], found.squares["blk.0.ffn_gate_exps.weight"]
    assert len(gate.counts) == NUM_EXPERTS
    assert gate.counts.sum() == 2 * LENGTH * NUM_USED
    np.testing.assert_allclose(gate.sums.sum(axis=0), NUM_USED * router.sums[0], rtol=1e-5)
    down = found.squares["blk.0.ffn_down_exps.weight"]
    assert down.counts.tolist() == gate.counts.tolist()
    seen, total = found.coverage()
    assert total == 2 * 3 * NUM_EXPERTS
    assert 0 < seen <= total


def test_an_expert_without_tokens_is_neutral(tmp_path: Path) -> None:
    path = write_model(tmp_path / "model.gguf", "mixtral")
    found = capture(path, [np.array([5], np.int32)], weights_of(path))
    stats = found.squares["blk.0.ffn_up_exps.weight"]
    assert sorted(stats.counts.tolist()) == [0, 0, 1, 1]
    assert stats.unseen == 2
    assert (stats.mean()[stats.counts == 0] == 1).all()
    assert found.coverage() == (2 * 3 * 2, 2 * 3 * 4)


def test_what_is_not_finite_is_named(qwen3: Path, tmp_path: Path) -> None:
    def overflow(name: str, values: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
        return values * np.float32(1e30) if name in ("blk.1.ffn_up.weight", "blk.1.ffn_gate.weight") else values

    bad = rewrite(qwen3, tmp_path / "bad.gguf", overflow)
    with pytest.raises(BadActivations, match=r"blk\.1\.ffn_down\.weight is not finite"):
        capture(bad, chunks_of(1), weights_of(bad))


def test_rows_are_kept_whatever_their_size() -> None:
    rows = Rows()
    wide = np.array([[1e6, 1, 0], [1e-6, 2e-6, 0], [0, 0, 0]], np.float32)
    rows.add(wide)
    np.testing.assert_allclose(rows.all(), wide, rtol=5e-2, atol=1e-30)


def test_the_end_of_a_text_is_dropped() -> None:
    assert [len(chunk) for chunk in cut(range(10), 4)] == [4, 4]
    assert [len(chunk) for chunk in cut(range(3), 4)] == [3]


# -- the walk ----------------------------------------------------------------------------------------------------------


def test_a_walk_that_changes_nothing_sees_what_capture_saw(qwen3: Path, captured: Activations) -> None:
    seen: dict[tuple[str, ...], np.ndarray] = {}  # type: ignore[type-arg]
    walk(qwen3, chunks_of(3), by_node(captured), lambda names, rows, _: seen.update({names: rows}) or {})
    assert sorted(next(iter(seen))) == ["blk.0.attn_k.weight", "blk.0.attn_q.weight", "blk.0.attn_v.weight"]
    assert len(seen) == 9
    for names, rows in seen.items():
        inputs = captured.inputs[names[0]]
        late = np.abs(rows.reshape(3, LENGTH, -1)[:, NUM_SKIPPED:])
        np.testing.assert_allclose(late.mean(axis=(0, 1)), inputs.mean_abs, rtol=1e-3, atol=1e-5)


def test_later_layers_see_what_earlier_ones_have_become(qwen3: Path, captured: Activations) -> None:
    tensors = {tensor.name: tensor.data for tensor in gguf.GGUFReader(qwen3).tensors}
    seen: dict[str, np.ndarray] = {}  # type: ignore[type-arg]

    def replace(names: tuple[str, ...], rows: np.ndarray, _: object) -> dict[str, np.ndarray]:  # type: ignore[type-arg]
        seen.update(dict.fromkeys(names, rows))
        return {n: -3 * tensors[n] for n in names if n in ("blk.0.attn_v.weight", "blk.0.ffn_up.weight")}

    walk(qwen3, chunks_of(3), by_node(captured), replace)
    changed = rewrite(qwen3, qwen3.with_name("changed.gguf"), lambda n, v: -3 * v if n in _CHANGED else v)
    expected = capture(changed, chunks_of(3), weights_of(changed))
    for name, rows in seen.items():
        late = np.abs(rows.reshape(3, LENGTH, -1)[:, NUM_SKIPPED:])
        np.testing.assert_allclose(
            late.mean(axis=(0, 1)), expected.inputs[name].mean_abs, rtol=2e-3, atol=1e-5, err_msg=name
        )


_CHANGED = ("blk.0.attn_v.weight", "blk.0.ffn_up.weight")


def test_what_goes_wrong_inside_a_walk_comes_out(qwen3: Path, captured: Activations) -> None:
    def fail(_names: tuple[str, ...], _rows: np.ndarray, _: object) -> dict[str, np.ndarray]:  # type: ignore[type-arg]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        walk(qwen3, chunks_of(1), by_node(captured), fail)
