# Which models are found and what they are called.
from __future__ import annotations

import os
from pathlib import Path

import pytest

from ingle.models.places import models_dir
from ingle.models.quants import label
from ingle.models.store import Place, Shelf, card_licence, shelf
from tests.models.hub_cache import MODEL, OTHER, HubRepo, names, only, put, split


@pytest.mark.parametrize(
    ("name", "quant"),
    [
        ("m-Q4_K_M.gguf", "Q4_K_M"),
        ("m.iq4_xs.gguf", "IQ4_XS"),
        ("m-BF16.gguf", "BF16"),
        ("m-f16.GGUF", "F16"),
        ("m-UD-Q4_K_XL-00001-of-00002.gguf", "UD-Q4_K_XL"),
        ("m-MXFP4.gguf", "MXFP4"),
        ("Q8_0.gguf", "Q8_0"),
        ("m-135M.gguf", None),
        ("FAQ4.gguf", None),
    ],
)
def test_quant_of_a_name(name: str, quant: str | None) -> None:
    assert label(name) == quant


def test_nothing_anywhere(hub_folder: Path) -> None:
    assert shelf() == Shelf(())


def test_names_of_what_came_in_wheels(hub_folder: Path) -> None:
    put(models_dir() / "pypi" / "some-model-1.0" / "model.gguf")
    put(models_dir() / "pypi" / "other" / "model.gguf")
    put(models_dir() / "pypi" / "other" / ".part.gguf")
    found = shelf()
    assert names(found) == ["pypi:other", "pypi:some-model==1.0"]
    assert {model.place for model in found.models} == {Place.OURS}


def test_names_of_the_hubs(repo: HubRepo) -> None:
    repo.add("tiny-Q8_0.gguf", MODEL)
    repo.add("sub/tiny-Q4_1.gguf", OTHER)
    repo.add("README.md", b"---\nlicense: mit\n---\nlicense: no\n")
    found = shelf()
    assert names(found) == ["acme/tiny-GGUF:Q4_1", "acme/tiny-GGUF:Q8_0"]
    model = only(found, "ACME/tiny-gguf:q8_0")
    assert (model.place, model.repo, model.size_bytes) == (Place.HUB, "acme/tiny-GGUF", len(MODEL))
    assert card_licence(model) == "mit"
    assert len(found.find("acme/tiny-GGUF")) == 2
    assert found.find(str(model.path)) == [model]
    assert found.find(str(repo.blob(MODEL))) == [model], "the blob's own path means it too"


def test_quants_that_two_files_share_are_called_by_file(repo: HubRepo) -> None:
    for name, content in (
        ("a-Q8_0.gguf", MODEL),
        ("b-Q8_0.gguf", OTHER),
        ("mmproj-F16.gguf", b"GGUF"),
        ("c.gguf", b""),
    ):
        repo.add(name, content)
    assert names(shelf()) == [f"acme/tiny-GGUF/{name}.gguf" for name in ("a-Q8_0", "b-Q8_0", "c", "mmproj-F16")]


def test_an_older_revision_is_called_by_its_path(repo: HubRepo) -> None:
    old = repo.add("tiny-Q8_0.gguf", OTHER, commit="b" * 40)
    repo.add("same-F16.gguf", MODEL + b"x", commit="b" * 40)
    repo.add("tiny-Q8_0.gguf", MODEL)
    repo.add("same-F16.gguf", MODEL + b"x")
    assert names(shelf()) == [str(old), "acme/tiny-GGUF:F16", "acme/tiny-GGUF:Q8_0"], "the same bytes once"


def test_shards_are_one_model(repo: HubRepo) -> None:
    for number, content in enumerate(split(2), 1):
        repo.add(f"tiny-Q8_0-0000{number}-of-00002.gguf", content)
    (model,) = shelf().models
    assert model.name == "acme/tiny-GGUF:Q8_0"
    assert [path.name for path in model.files] == [f"tiny-Q8_0-0000{number}-of-00002.gguf" for number in (1, 2)]
    assert model.size_bytes == sum(map(len, split(2)))
    assert model.problem is None
    model.files[1].unlink()
    found = shelf()
    assert only(found, "acme/tiny-GGUF:Q8_0").problem == "shard 2 of 2 is missing"
    assert [m.problem for m in found.models if m.name != "acme/tiny-GGUF:Q8_0"] == [
        "left over: no revision refers to it"
    ]


def test_unfinished_and_left_over_bytes(repo: HubRepo) -> None:
    repo.add("README.md", b"hello")
    put(repo.folder / "blobs" / f"{'c' * 64}.incomplete", MODEL[:100])
    put(repo.folder / "blobs" / ("d" * 64), MODEL)
    put(repo.folder / "blobs" / ("e" * 64), b"no model")
    assert [(m.path.name[0], m.problem) for m in shelf().models] == [
        ("c", "an unfinished download"),
        ("d", "left over: no revision refers to it"),
    ]


def test_a_link_to_nowhere_is_told(repo: HubRepo) -> None:
    repo.add("tiny-Q8_0.gguf", MODEL)
    repo.blob(MODEL).unlink()
    (model,) = shelf().models
    assert (model.size_bytes, model.problem) == (0, "its bytes are missing: the link leads nowhere")


def test_folders_of_the_user(hub_folder: Path, repo: HubRepo, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    put(mine / "deep" / "a.gguf")
    put(mine / ".hidden" / "no.gguf")
    put(mine / "notes.txt")
    (mine / "deep" / "loop").symlink_to(mine)
    (mine / "same.gguf").symlink_to("deep/a.gguf")
    (mine / "pulled.gguf").symlink_to(repo.add("tiny-Q8_0.gguf", OTHER))
    os.mkfifo(mine / "pipe.gguf")
    found = shelf([mine, tmp_path, tmp_path / "absent"])
    assert names(found) == [str(mine / "deep" / "a.gguf"), "acme/tiny-GGUF:Q8_0"], "each file once, where it belongs"
    assert set(found.user_files) >= {mine / "deep" / "a.gguf", mine / "pulled.gguf"}
    assert not any(hub_folder in path.parents for path in found.user_files)
    assert len(found.notes) == 1
    assert "absent" in found.notes[0]


def test_a_search_has_an_end(tmp_path: Path, hub_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ingle.models.store._MAX_ENTRIES", 3)
    monkeypatch.setattr("ingle.models.store._MAX_DEPTH", 1)
    put(tmp_path / "a" / "1" / "2" / "deep.gguf")
    assert names(shelf([tmp_path / "a"])) == []
    for number in range(5):
        put(tmp_path / "b" / f"{number}.gguf", MODEL + bytes([number]))
    found = shelf([tmp_path / "b"])
    assert len(found.models) == 3
    assert "at no more" in found.notes[0]
