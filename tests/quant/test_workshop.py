# What is between statistics and files: what is kept, what is held out, what a budget buys, which draft is taken.
from __future__ import annotations

import itertools
import math
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ingle.models.gguf_info import read_model_info
from ingle.quant.activations import capture, cut
from ingle.quant.calibrate import Calibration, split
from ingle.quant.draft import MAX_DRAFTED, MIN_SAVED, Agreement, choose_draft, expected_gain, gain_by_size, ladder
from ingle.quant.errors import BadRecipe, BadText
from ingle.quant.fold import TensorScale
from ingle.quant.kept import MAX_KEPT, Kept, key_of
from ingle.quant.recipe import choose_types, find_mix, parse_override
from ingle.quant.sensitivity import CANDIDATES, Sensitivities, measure
from ingle.quant.source import Source
from ingle.quant.target import Target, check_reachable, parse_bits, parse_size, recipe_within
from ingle.quant.workshop import Methods, needs_calibration
from ingle.quant.writer import candidate_path, remove_leftovers
from ingle.runtime.config import EngineConfig
from tests.quant.architectures import rewrite, write_model
from tests.tiny_models import BOS, write_llama

CHUNKS = cut(np.random.default_rng(8).integers(3, 300, 6 * 64).tolist(), 64)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "model.gguf", "qwen2")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "ingle" / "quantize"


def test_what_is_kept_comes_back(model: Path) -> None:
    names = [tensor.name for tensor in read_model_info(model).tensors if len(tensor.shape) > 1]
    found = capture(model, CHUNKS, names)
    Kept("a" * 64, "b" * 64).save_activations(found)
    again = Kept("a" * 64, "b" * 64).activations()
    assert again is not None
    assert (again.num_chunks, again.chunk_tokens) == (6, 64)
    assert again.squares.keys() == found.squares.keys()
    for name, stats in found.squares.items():
        assert np.array_equal(again.squares[name].sums, stats.sums)
        assert np.array_equal(again.squares[name].counts, stats.counts)
    for name, one in found.inputs.items():
        assert again.inputs[name].node == one.node
        assert np.array_equal(again.inputs[name].mean_abs, one.mean_abs)
        assert np.array_equal(again.inputs[name].rows.all(), one.rows.all())
    assert again.inputs["blk.0.attn_q.weight"] is again.inputs["blk.0.attn_k.weight"]  # one input, kept once
    assert Kept("a" * 64, "c" * 64).activations() is None


def test_damaged_files_are_as_if_they_were_not_there(cache: Path) -> None:
    kept = Kept("a" * 64, "b" * 64)
    scales = {"x": TensorScale(np.ones(3, np.float32)), "y": TensorScale(None, np.full(2, 2, np.float32))}
    kept.save_scales("Q4_0", scales)
    found = kept.scales("Q4_0")
    assert found is not None
    assert found["x"].columns is None
    assert found["y"].columns is not None
    assert found["y"].columns.tolist() == [2, 2]
    assert kept.scales("Q5_0") is None
    (path,) = cache.rglob("*.npz")
    path.write_bytes(path.read_bytes()[:100])
    assert kept.scales("Q4_0") is None


def test_sensitivities_come_back_and_not_of_another_matrix(cache: Path) -> None:
    kept = Kept("a" * 64, "b" * 64)
    sizes, errors = np.arange(20).reshape(2, 10), np.linspace(0, 1, 20).reshape(2, 10)
    errors[1, 3] = np.inf
    kept.save_sensitivities("k", Sensitivities(("x", "y"), sizes, errors))
    found = kept.sensitivities("k")
    assert found is not None
    assert found.names == ("x", "y")
    assert np.array_equal(found.sizes, sizes)
    assert np.array_equal(found.errors, errors)
    assert kept.sensitivities("j") is None
    (path,) = cache.rglob("*.npz")
    path.write_bytes(path.read_bytes()[:100])
    assert kept.sensitivities("k") is None


def test_scales_are_for_one_importance_matrix_alone() -> None:
    """Values that trade places sum to the same; they are another matrix."""
    one = {"x": np.array([[1, 2, 3]], np.float32), "y": np.array([[4, 5, 6]], np.float32)}
    types = {"x": "Q4_0", "y": "Q8_0"}
    again = {name: one[name].copy() for name in ("y", "x")}
    assert key_of(types, one) == key_of({"y": "Q8_0", "x": "Q4_0"}, again)
    assert key_of({"x": "Q8_0", "y": "Q8_0"}, one) != key_of(types, one)
    for other in (
        {"x": one["x"][:, ::-1], "y": one["y"]},
        {"x": one["y"], "y": one["x"]},
        {"x": one["x"]},
        {"x": one["x"].reshape(3, 1), "y": one["y"]},
    ):
        assert key_of(types, other) != key_of(types, one)


def test_pieces_of_killed_processes_are_removed_and_folders_come_back(cache: Path) -> None:
    kept = Kept("a" * 64, "b" * 64)
    (folder,) = cache.iterdir()
    dead, alive = folder / f"activations.npz.{2**22 + 1}.tmp", folder / "activations.npz.1.tmp"
    for path in (dead, alive):
        path.touch()
    Kept("a" * 64, "b" * 64)
    assert [path.name for path in folder.iterdir()] == [alive.name]
    shutil.rmtree(folder)
    kept.save_scales("Q4_0", {})
    assert kept.scales("Q4_0") == {}
    assert [path.suffix for path in folder.iterdir()] == [".npz"]


def test_an_interrupted_write_leaves_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Kept("a" * 64, "b" * 64)

    def interrupted(*_args: object, **_arrays: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "savez", interrupted)
    with pytest.raises(KeyboardInterrupt):
        kept.save_scales("Q4_0", {})
    assert not [path for path in cache.rglob("*") if path.is_file()]


def test_few_models_are_kept(cache: Path) -> None:
    for number in range(MAX_KEPT + 2):
        Kept(f"{number}" * 64, "b" * 64)
        os.utime(cache / f"{str(number) * 20}-{'b' * 20}", (number, number))
    assert len(list(cache.iterdir())) == MAX_KEPT
    assert (cache / f"{str(MAX_KEPT + 1) * 20}-{'b' * 20}").exists()


def test_one_chunk_in_six_is_held_out(tmp_path: Path) -> None:
    info = read_model_info(write_llama(tmp_path / "model.gguf"))
    tokens = np.arange(100, 100 + 12 * 16, dtype=np.int32) % 300
    parts = split(Calibration(tokens, "a text"), info)
    length = 12 * 16 // 8
    assert [len(chunk) for chunk in (*parts.chunks, *parts.held_out)] == [length] * 8
    assert len(parts.held_out) == 1
    assert parts.held_out[0][1:].tolist() == tokens[3 * length + 1 : 4 * length].tolist()
    assert {int(chunk[0]) for chunk in parts.chunks} == {BOS}
    with pytest.raises(BadText, match="a text: 100 tokens are too few"):
        split(Calibration(tokens[:100], "a text"), info)


def test_what_matters_more_costs_more(model: Path, tmp_path: Path) -> None:
    """A value projection of the first layer, times four: its error matters more. Coarser types cost more."""
    name = "blk.0.attn_v.weight"
    louder = rewrite(model, tmp_path / "louder.gguf", lambda n, values: values * 4 if n == name else values)
    found = []
    for path in (model, louder):
        with Source(path) as source:
            found.append(measure(source, CHUNKS, {}, config=EngineConfig(), progress=lambda done, total: None))
    row = found[0].names.index(name)
    eight, four = CANDIDATES.index("Q8_0"), CANDIDATES.index("Q4_0")
    for one in found:
        assert np.all(one.errors[:, eight] < one.errors[:, four])
        assert np.isinf(one.errors[row, CANDIDATES.index("Q4_K")])  # 64 columns
    shares = [one.errors[row, four] / one.errors[:, four].sum() for one in found]
    assert shares[1] > shares[0]


def test_impossible_targets_are_refused_with_the_nearest_possible(model: Path) -> None:
    """The least there is for these rows of 64 and 96 values: 4.5 bits, which such a target is just enough for."""
    info = read_model_info(model)
    least = sum(t.num_values * 4.5 / 8 if len(t.shape) > 1 else t.num_bytes for t in info.tensors)
    bits = math.ceil(8000 * least / sum(tensor.num_values for tensor in info.tensors)) / 1000
    check_reachable(info, parse_bits(bits), (), num_header_bytes=0)
    with pytest.raises(BadRecipe, match=rf"^4 bits a weight cannot be met: .* would be {bits:.3f} bits a weight$"):
        check_reachable(info, parse_bits(4), (), num_header_bytes=0)
    with pytest.raises(BadRecipe, match=r"^0\.0 MB cannot be met: with the smallest types it would be "):
        check_reachable(info, parse_size("1kB"), (), num_header_bytes=4096)


def test_what_calibration_is_needed_for(model: Path) -> None:
    info = read_model_info(model)
    half, eight, four = (choose_types(info, find_mix(name), has_imatrix=False) for name in ("f16", "q8_0", "q4_0"))
    rounding = Methods(awq=False, gptq=False, importances={})
    assert not any(needs_calibration(recipe, Methods()) for recipe in (half, eight))
    assert not any(needs_calibration(recipe, rounding) for recipe in (half, eight, four))
    assert [needs_calibration(recipe, Methods(gptq=True)) for recipe in (half, eight, four)] == [False, True, True]
    assert needs_calibration(four, Methods(awq=False, gptq=False))  # for the importance matrix
    for wanted in ({"awq": True}, {"gptq": True}, {"gptq": None}):
        assert needs_calibration(four, replace(rounding, **wanted))


def _sensitivities(path: Path) -> Sensitivities:
    names = tuple(t.name for t in read_model_info(path).tensors if len(t.shape) > 1)
    tensors = {t.name: t for t in read_model_info(path).tensors}
    sizes = np.zeros((len(names), len(CANDIDATES)), np.int64)
    errors = np.full(sizes.shape, np.inf)
    for row, name in enumerate(names):
        for type_name, bits, error in (("Q4_0", 4.5, 1.0), ("Q8_0", 8.5, 0.01)):
            col = CANDIDATES.index(type_name)
            sizes[row, col] = tensors[name].num_values * bits / 8
            errors[row, col] = error * (100 if "attn_v" in name else 1)
    return Sensitivities(names, sizes, errors)


def test_a_budget_goes_where_it_is_needed(model: Path) -> None:
    info, found = read_model_info(model), _sensitivities(model)
    smallest = sum(int(size) for size in found.sizes[:, CANDIDATES.index("Q4_0")])
    kept = sum(tensor.num_bytes for tensor in info.tensors if len(tensor.shape) == 1)
    room = smallest + kept + 8192 + 32 * len(info.tensors) + 2048
    recipe = recipe_within(info, Target("x", file_bytes=room), found, (), num_header_bytes=8192)
    types = {plan.name: plan.type for plan in recipe.tensors}
    assert types["blk.0.attn_v.weight"] == types["blk.1.attn_v.weight"] == "Q8_0"
    assert types["blk.0.ffn_up.weight"] == "Q4_0"
    assert types["blk.0.attn_norm.weight"] == "F32"
    assert recipe.mix.name == "x"
    forced = recipe_within(info, parse_bits(9), found, [parse_override("ffn_up=q4_0")], num_header_bytes=0)
    assert forced.bits_per_weight <= 9
    # Rows of 64 values are no blocks of 256: the fallback, as without a target.
    forced = recipe_within(info, parse_bits(9), found, [parse_override("ffn_up=q4_k")], num_header_bytes=0)
    (plan,) = [plan for plan in forced.tensors if plan.name == "blk.0.ffn_up.weight"]
    assert (plan.type, plan.fell_back_from) == ("Q5_0", "Q4_K")
    with pytest.raises(BadRecipe, match="matches 'no_such'"):
        recipe_within(info, parse_bits(9), found, [parse_override("no_such=q4_0")], num_header_bytes=0)
    with pytest.raises(BadRecipe, match="cannot be met"):
        recipe_within(info, Target("x", file_bytes=room - 8192), found, (), num_header_bytes=8192)


def test_sizes_as_typed() -> None:
    assert parse_size("300MB").file_bytes == 300_000_000
    assert parse_size("1.5 gb").file_bytes == 1_500_000_000
    assert parse_size("1KiB").file_bytes == 1024
    assert parse_size("4096").file_bytes == 4096
    for text in ("", "MB", "-3MB", "0", "3 apples", "9" * 400, "9" * 19 + "GB"):
        with pytest.raises(BadRecipe, match=r"no size|^'9{300}"):
            parse_size(text)
    with pytest.raises(BadRecipe, match="cannot be had"):
        parse_bits(0)


def test_a_draft_is_chosen_by_what_the_target_gains() -> None:
    small, middle, large = Agreement("a", 100, 0.60), Agreement("b", 200, 0.75), Agreement("c", 300, 0.76)
    files = [large, small, middle]
    assert choose_draft(files, {"a": 0.2, "b": 0.3, "c": 0.4}) is middle
    assert choose_draft(files, {"a": 0.1, "b": 0.3, "c": 0.4}) is small  # it costs so much less
    assert choose_draft(files, {"a": 0.2, "b": 0.3, "c": 0.3}) is large  # and this no more
    assert choose_draft([Agreement("d", 300, 0.75), middle], {"b": 0.3, "d": 0.3}) is middle


@pytest.mark.parametrize("same_top", [0.0, 0.3, 0.77, 1.0])
@pytest.mark.parametrize("cost", [0.0, 0.05, 0.35, 1.0, 2.0])
def test_the_expected_gain_is_that_of_playing_it_through(same_top: float, cost: float) -> None:
    """Every draft length by its possible outcomes: so many right, then one wrong, each with its probability."""
    lengths = range(1, MAX_DRAFTED + 1)
    outcomes = {
        num: [(same_top**right * (1 - same_top), right + 1) for right in range(num)] + [(same_top**num, num + 1)]
        for num in lengths
    }
    tokens = {num: sum(share * got for share, got in outcomes[num]) for num in lengths}
    best = max(tokens[num] / (1 + cost * num) for num in lengths)
    assert expected_gain(same_top, cost) == pytest.approx(best)


def test_by_size_more_bytes_have_to_be_worth_it() -> None:
    """Agreement and sizes of a 0.5B model that drafts for a 1.5B one: Q4_0 against the most Q4_K_M could give."""
    assert gain_by_size(0.765, 360, 1117) == expected_gain(0.765, 360 / 1117)
    assert gain_by_size(0.765, 360, 1117) > gain_by_size(0.783, 485, 1117)
    assert gain_by_size(0.60, 360, 1117) < gain_by_size(0.783, 485, 1117)


def test_drafts_are_tried_from_the_smallest_on_where_bytes_are_saved(tmp_path: Path) -> None:
    narrow = read_model_info(write_llama(tmp_path / "narrow.gguf"))
    wide = replace(narrow, tensors=tuple(replace(one, shape=tuple(8 * n for n in one.shape)) for one in narrow.tensors))
    names = {}
    for width, info in ((64, narrow), (512, wide)):
        recipes = ladder(info, has_imatrix=True, overrides=())
        for smaller, larger in itertools.pairwise(recipes):
            assert smaller.num_bytes <= (1 - MIN_SAVED) * larger.num_bytes
        names[width] = [recipe.mix.name for recipe in recipes]
    assert names[512][:3] == ["Q2_K", "Q3_K_S", "Q4_0"]
    assert names[64][0] == "Q4_0", "rows of 64 are whole blocks of no K-quant: Q2_K comes down to nearly the same"
    plain, *_ = ladder(narrow, has_imatrix=True, overrides=())
    assert {tensor.type for tensor in plain.tensors} == {"Q4_0", "F32"}
    [own] = {
        tensor.type
        for tensor in ladder(narrow, has_imatrix=True, overrides=[parse_override("ffn_down=q5_0")])[0].tensors
        if "ffn_down" in tensor.name
    }
    assert own == "Q5_0", "what the user wants goes first"


def test_candidates_of_killed_processes_are_removed(tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    ours = candidate_path(out, "awq_gptq")
    assert ours.name == f".out.gguf.{os.getpid()}.awq_gptq.gguf"
    dead = 2**22 + 1  # beyond any process
    left = [f".out.gguf.{dead}.plain.gguf", f"..out.gguf.{dead}.plain.gguf.{dead}.partial", f".out.gguf.{dead}.partial"]
    inner = f"..out.gguf.{dead}.q2_k.gguf.{dead}.awq_gptq.gguf"  # a draft is chosen among files that are chosen
    left += [
        f".out.gguf.{dead}.q2_k.gguf",
        inner,
        f".{inner}.{dead}.partial",
        f"..out.gguf.{dead}.q2_k.gguf.{dead}.partial",
    ]
    others = [f".other.gguf.{dead}.plain.gguf", "out.gguf", ours.name]
    for name in (*left, *others):
        (tmp_path / name).touch()
    remove_leftovers(out)
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == sorted(others)
