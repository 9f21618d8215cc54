# What taking a model away frees, and what it leaves.
from __future__ import annotations

import os
from pathlib import Path

import pytest

from ingle.models import hub_layout, removal
from ingle.models.convert import converted
from ingle.models.convert.cache import converted_dir
from ingle.models.gguf_info import read_model_info
from ingle.models.places import models_dir
from ingle.models.store import Place, Shelf, StoredModel, shelf
from tests.models.hf_directory import write_directory
from tests.models.hub_cache import MODEL, OTHER, HubRepo, names, only, put, split


def take_off(model: StoredModel, found: Shelf) -> removal.Removal:
    steps = removal.steps(model, found)
    removal.remove(model, steps)
    return steps


def test_the_last_file_takes_the_repository_with_it(repo: HubRepo, hub_folder: Path) -> None:
    repo.add("sub/tiny-Q8_0.gguf", MODEL)
    put(repo.folder / "blobs" / f"{repo.blob(MODEL).name}.0123abcd.incomplete", MODEL[:50])
    put(repo.folder / ".no_exist" / ("a" * 40) / "config.json", b"")
    found = shelf()
    steps = take_off(only(found, "acme/tiny-GGUF:Q8_0"), found)
    assert (steps.freed_bytes, steps.kept) == (len(MODEL) + 50, ())
    assert list(hub_folder.iterdir()) == []


def test_what_lies_beside_it_stays(repo: HubRepo) -> None:
    readme = repo.add("README.md", b"hello")
    repo.add("tiny-Q8_0.gguf", MODEL)
    kept = repo.add("tiny-F16.gguf", OTHER)
    found = shelf()
    take_off(only(found, "acme/tiny-GGUF:Q8_0"), found)
    assert names(shelf()) == ["acme/tiny-GGUF:F16"]
    assert (readme.read_bytes(), kept.read_bytes()) == (b"hello", OTHER)
    assert not repo.blob(MODEL).exists()
    assert (repo.folder / "refs" / "main").read_text() == "a" * 40


def test_bytes_of_another_revision_stay_until_that_goes_too(repo: HubRepo) -> None:
    old = repo.add("tiny-Q8_0.gguf", MODEL, commit="b" * 40, ref="v1")
    repo.add("tiny-Q8_0.gguf", MODEL)
    found = shelf()
    steps = take_off(only(found, "acme/tiny-GGUF:Q8_0"), found)
    assert steps.freed_bytes == 0
    assert "revision bbbbbbbb" in steps.kept[0]
    assert old.read_bytes() == MODEL
    assert not (repo.folder / "refs" / "main").exists(), "a ref to a snapshot that is gone says nothing"
    assert (repo.folder / "refs" / "v1").exists()
    found = shelf()
    # With one revision left its files have the short name again.
    assert take_off(only(found, "acme/tiny-GGUF:Q8_0"), found).freed_bytes == len(MODEL)
    assert not repo.folder.exists()


def test_a_hard_link_keeps_the_bytes(repo: HubRepo, tmp_path: Path) -> None:
    repo.add("tiny-Q8_0.gguf", MODEL)
    os.link(repo.blob(MODEL), tmp_path / "elsewhere")
    found = shelf()
    steps = take_off(only(found, "acme/tiny-GGUF:Q8_0"), found)
    assert steps.freed_bytes == 0
    assert "hard link" in steps.kept[0]
    assert (tmp_path / "elsewhere").read_bytes() == MODEL
    assert not repo.folder.exists()


def test_a_link_in_a_folder_of_the_user_keeps_everything(repo: HubRepo, tmp_path: Path) -> None:
    link = repo.add("tiny-Q8_0.gguf", MODEL)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "x.gguf").symlink_to(link)
    found = shelf([tmp_path / "mine"])
    steps = take_off(only(found, "acme/tiny-GGUF:Q8_0"), found)
    assert (steps.paths, steps.freed_bytes) == ((), 0)
    assert "x.gguf of yours" in steps.kept[0]
    assert link.read_bytes() == MODEL


def test_a_folder_of_the_user_that_holds_ours_keeps_nothing(repo: HubRepo, tmp_path: Path) -> None:
    repo.add("tiny-Q8_0.gguf", MODEL)
    found = shelf([tmp_path])
    assert take_off(only(found, "acme/tiny-GGUF:Q8_0"), found).freed_bytes == len(MODEL)


def test_bytes_outside_the_cache_are_not_touched(repo: HubRepo, tmp_path: Path) -> None:
    link = repo.add("tiny-Q8_0.gguf", MODEL)
    link.unlink()
    link.symlink_to(put(tmp_path / "precious.gguf", MODEL + b"x"))
    found = shelf()
    steps = take_off(only(found, "acme/tiny-GGUF:Q8_0"), found)
    assert steps.freed_bytes == 0
    assert (tmp_path / "precious.gguf").read_bytes() == MODEL + b"x"
    assert not link.is_symlink()


def test_a_cache_without_links(repo: HubRepo) -> None:
    put(repo.folder / "snapshots" / ("a" * 40) / "tiny-Q8_0.gguf")
    found = shelf()
    assert take_off(only(found, "acme/tiny-GGUF:Q8_0"), found).freed_bytes == len(MODEL)
    assert not repo.folder.exists()


def test_bad_entries_can_be_taken_away_too(repo: HubRepo) -> None:
    repo.add("tiny-Q8_0.gguf", MODEL)
    repo.blob(MODEL).unlink()
    loose = put(repo.folder / "blobs" / f"{'c' * 64}.incomplete", MODEL[:100])
    found = shelf()
    assert take_off(only(found, "acme/tiny-GGUF:Q8_0"), found).freed_bytes == 0
    assert take_off(only(found, str(loose)), found).freed_bytes == 100
    assert not repo.folder.exists()


class Killed(BaseException):
    """Ends a removal in the middle, as kill -9 would."""


def test_a_process_killed_between_two_steps(repo: HubRepo, monkeypatch: pytest.MonkeyPatch) -> None:
    """After every number of steps the model is whole, or gone with bytes that are listed and can be removed."""
    unlink = Path.unlink
    for num_steps in range(4):
        for number, shard in enumerate(split(2), 1):
            repo.add(f"tiny-Q8_0-0000{number}-of-00002.gguf", shard)
        found = shelf()
        model = only(found, "acme/tiny-GGUF:Q8_0")
        steps = removal.steps(model, found)
        assert len(steps.paths) == 4
        done: list[Path] = []

        def unlink_some(
            path: Path, missing_ok: bool = False, done: list[Path] = done, num_steps: int = num_steps
        ) -> None:
            if len(done) == num_steps:
                raise Killed
            done.append(path)
            unlink(path, missing_ok=missing_ok)

        with monkeypatch.context() as patch:
            patch.setattr(Path, "unlink", unlink_some)
            with pytest.raises(Killed):
                removal.remove(model, steps)
        now = shelf()
        if num_steps == 0:
            assert read_model_info(only(now, "acme/tiny-GGUF:Q8_0").path).split_count == 2
        else:
            assert all(entry.problem for entry in now.models)
        for entry in now.models:
            take_off(entry, shelf())
        assert not repo.folder.exists(), f"after {num_steps} steps"


def test_a_download_under_way_keeps_its_ref(repo: HubRepo) -> None:
    """The library writes the ref first, then the bytes, then the snapshot."""
    repo.add("tiny-Q8_0.gguf", MODEL)
    put(repo.folder / "refs" / "next", b"c" * 40)
    put(repo.folder / "blobs" / f"{'c' * 64}.incomplete", MODEL[:100])
    found = shelf()
    take_off(only(found, "acme/tiny-GGUF:Q8_0"), found)
    assert (repo.folder / "refs" / "next").exists()


def test_ours_goes_with_its_folder(hub_folder: Path) -> None:
    path = put(models_dir() / "pypi" / "some-model-1.0" / "model.gguf")
    put(models_dir().parent / "converted" / "abc" / "X-F16.gguf")
    found = shelf()
    assert take_off(only(found, "pypi:some-model==1.0"), found).freed_bytes == len(MODEL)
    assert not path.parent.exists()
    assert models_dir().exists()
    (model,) = shelf().models
    assert take_off(model, shelf()).freed_bytes == len(MODEL)
    assert list((models_dir().parent / "converted").iterdir()) == []


def test_the_layout_is_what_the_library_reads(repo: HubRepo, hub_folder: Path) -> None:
    """huggingface_hub sees in a cache of ours what we see, before and after."""
    from huggingface_hub import scan_cache_dir

    repo.add("tiny-Q8_0.gguf", MODEL)
    repo.add("tiny-F16.gguf", OTHER)
    (theirs,) = scan_cache_dir(hub_folder).repos
    assert (theirs.repo_id, theirs.size_on_disk) == ("acme/tiny-GGUF", len(MODEL) + len(OTHER))
    found = shelf()
    take_off(only(found, "acme/tiny-GGUF:Q8_0"), found)
    scanned = scan_cache_dir(hub_folder)
    assert scanned.warnings == []
    assert [file.file_name for r in scanned.repos for v in r.revisions for file in v.files] == ["tiny-F16.gguf"]
    (ours,) = hub_layout.repos(hub_folder)
    assert [file.name for file in ours.files] == ["tiny-F16.gguf"]


def test_a_converted_model_goes_with_all_that_was_kept_for_it(tmp_path: Path) -> None:
    directory = write_directory(tmp_path / "Little-1M")
    path = converted(directory)
    (path.parent / ".Little-x.part").write_bytes(b"of a conversion that was killed")
    found = shelf()
    (model,) = found.models
    assert (model.name, model.place) == (str(directory), Place.OURS)
    assert found.find(str(directory)) == [model]
    steps = removal.steps(model, found)
    assert steps.kept == (f"the safetensors it was made from stay, in {directory}",)
    removal.remove(model, steps)
    assert list(converted_dir().iterdir()) == []
    assert (directory / "model.safetensors").is_file()


def test_a_converted_repo_is_called_what_it_is_called_on_the_hub(hub_folder: Path) -> None:
    commit = "a" * 40
    folder = hub_folder / "models--acme--hf"
    directory = write_directory(folder / "snapshots" / commit)
    converted(directory, "f32")
    (unnamed,) = shelf().models
    assert unnamed.name.endswith("-F32.gguf"), "what `main` means is not known, so that its name would mislead"
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(commit)
    found = shelf()
    (model,) = found.models
    assert model.name == "acme/hf:F32"
    assert removal.steps(model, found).kept == (
        f"the safetensors it was made from stay, in {directory}; `hf cache rm model/acme/hf` deletes them",
    )
