# Files of the hub on their way into its cache: broken off, resumed, altered, refused by the disk.
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ingle.models import hub, hub_cache
from ingle.models.errors import DownloadFailed, NoNetwork, StoreError
from ingle.models.hub import RepoListing
from tests.models.fake_hub import DATA, FakeHub, Fault, Recorder, git_id, sha256


def partial_of(listing: RepoListing, data: bytes = DATA) -> Path:
    return hub_cache.repo_folder(listing.repo_id) / "blobs" / f"{sha256(data)}.incomplete"


def in_library(name: str) -> Path | None:
    """Where huggingface_hub itself finds a file of acme/tiny in the cache."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache("acme/tiny", name, cache_dir=hub_cache.hub_cache_dir())
    return Path(found) if isinstance(found, str) else None


def test_a_download_lands_where_huggingface_hub_looks(fake_hub: FakeHub, tiny: RepoListing) -> None:
    recorder = Recorder()
    paths = hub.download(tiny, ["tiny-Q8_0.gguf", "README.md"], progress=recorder)
    assert [path.read_bytes() for path in paths] == [DATA, b"# Tiny\n"]
    for path, name in zip(paths, ("tiny-Q8_0.gguf", "README.md"), strict=True):
        assert in_library(name) == path
    blobs = hub_cache.repo_folder("acme/tiny") / "blobs"
    assert {path.name for path in blobs.iterdir()} == {sha256(DATA), git_id(b"# Tiny\n")}
    assert [(phase[0], phase[-1]) for phase in recorder.phases] == [(0, 512_000), (0, 7)]
    assert recorder.num_running == 0
    assert fake_hub.ranges() == [None]
    assert hub.missing_bytes(tiny, ["tiny-Q8_0.gguf"]) == 0


def test_a_second_download_asks_for_nothing(fake_hub: FakeHub, tiny: RepoListing) -> None:
    first = hub.download(tiny, ["tiny-Q8_0.gguf"])
    assert hub.download(tiny, ["tiny-Q8_0.gguf"]) == first
    assert len(fake_hub.ranges()) == 1
    assert hub.download(tiny, ["tiny-Q8_0.gguf"], force=True) == first
    assert len(fake_hub.ranges()) == 2


def test_the_same_bytes_in_a_new_commit_are_only_linked(fake_hub: FakeHub, tiny: RepoListing) -> None:
    (first,) = hub.download(tiny, ["tiny-Q8_0.gguf"])
    fake_hub.repos["acme/tiny"].files["README.md"] = b"# Changed\n"
    (second,) = hub.download(hub.list_repo("acme/tiny"), ["tiny-Q8_0.gguf"])
    assert first != second
    assert first.resolve() == second.resolve()
    assert len(fake_hub.ranges()) == 1
    assert in_library("tiny-Q8_0.gguf") == second


def test_a_cut_connection_goes_on_where_it_ended(fake_hub: FakeHub, tiny: RepoListing, waited: list[float]) -> None:
    fake_hub.faults += [Fault("cdn", cut_after=100_000), Fault("cdn", cut_after=50_000)]
    recorder = Recorder()
    (path,) = hub.download(tiny, ["tiny-Q8_0.gguf"], progress=recorder)
    assert path.read_bytes() == DATA
    assert fake_hub.ranges() == [None, "bytes=100000-", "bytes=150000-"]
    assert len(recorder.phases) == 1, "one bar from the beginning to the end"
    assert waited == [], "what brings bytes is gone on with at once"


def test_a_busy_store_in_the_middle(fake_hub: FakeHub, tiny: RepoListing, waited: list[float]) -> None:
    fake_hub.faults += [
        Fault("cdn", cut_after=100_000),
        Fault("resolve", status=429, headers={"Retry-After": "9"}),
        Fault("cdn", status=503),
    ]
    # The first fault of `resolve` meets the first request, before a byte was sent.
    (path,) = hub.download(tiny, ["tiny-Q8_0.gguf"])
    assert path.read_bytes() == DATA
    assert waited == [9.0, 1.0]


def test_patience_ends_and_what_came_is_kept(fake_hub: FakeHub, tiny: RepoListing, waited: list[float]) -> None:
    fake_hub.faults += [Fault("cdn", cut_after=100_000), Fault("cdn", cut_after=0, times=5)]
    with pytest.raises(NoNetwork, match="the connection broke") as caught:
        hub.download(tiny, ["tiny-Q8_0.gguf"])
    assert caught.value.hint == "Try again: what is here is kept."
    assert waited == [1.0, 2.0, 4.0, 8.0]
    assert partial_of(tiny).read_bytes() == DATA[:100_000]
    assert hub.missing_bytes(tiny, ["tiny-Q8_0.gguf"]) == 412_000
    assert in_library("tiny-Q8_0.gguf") is None
    recorder = Recorder()
    (path,) = hub.download(tiny, ["tiny-Q8_0.gguf"], progress=recorder)
    assert path.read_bytes() == DATA
    assert fake_hub.ranges()[-1] == "bytes=100000-"
    assert recorder.phases[0][0] == 100_000
    assert recorder.notes == ["tiny-Q8_0.gguf: 0.1 MB are here, going on from there"]


def test_a_server_that_cannot_go_on(fake_hub: FakeHub, tiny: RepoListing) -> None:
    fake_hub.faults += [Fault("cdn", cut_after=100_000), Fault("cdn", no_ranges=True)]
    recorder = Recorder()
    (path,) = hub.download(tiny, ["tiny-Q8_0.gguf"], progress=recorder)
    assert path.read_bytes() == DATA
    assert [phase[0] for phase in recorder.phases] == [0, 0]
    assert recorder.notes == ["the server cannot send the rest alone: fetching from the beginning"]


def test_wrong_bytes_never_become_a_file(fake_hub: FakeHub, tiny: RepoListing) -> None:
    fake_hub.faults.append(Fault("cdn", wrong_bytes=True))
    with pytest.raises(DownloadFailed, match=r"tiny-Q8_0\.gguf failed verification"):
        hub.download(tiny, ["tiny-Q8_0.gguf"])
    assert not partial_of(tiny).exists()
    assert in_library("tiny-Q8_0.gguf") is None
    assert hub_cache.commit_of("acme/tiny") is None


def test_wrong_bytes_of_a_small_file(fake_hub: FakeHub, tiny: RepoListing) -> None:
    fake_hub.faults.append(Fault("resolve", wrong_bytes=True))
    with pytest.raises(DownloadFailed, match=r"README\.md failed verification"):
        hub.download(tiny, ["README.md"])


def test_a_damaged_rest_is_removed_and_said(fake_hub: FakeHub, tiny: RepoListing) -> None:
    partial = partial_of(tiny)
    partial.parent.mkdir(parents=True)
    partial.write_bytes(b"x" * 100_000)
    recorder = Recorder()
    (path,) = hub.download(tiny, ["tiny-Q8_0.gguf"], progress=recorder)
    assert path.read_bytes() == DATA
    assert fake_hub.ranges() == ["bytes=100000-", None]
    assert recorder.notes[-1] == (
        "what was here of tiny-Q8_0.gguf was damaged and is removed: fetching it from the beginning"
    )


@pytest.mark.parametrize("size", [512_000, 600_000])
def test_a_rest_that_is_whole_or_too_long(fake_hub: FakeHub, tiny: RepoListing, size: int) -> None:
    partial = partial_of(tiny)
    partial.parent.mkdir(parents=True)
    partial.write_bytes((DATA * 2)[:size])
    (path,) = hub.download(tiny, ["tiny-Q8_0.gguf"])
    assert path.read_bytes() == DATA
    assert fake_hub.ranges() == ([] if size == 512_000 else [None])


def test_a_blob_cut_short_by_somebody_else_is_fetched_again(fake_hub: FakeHub, tiny: RepoListing) -> None:
    (path,) = hub.download(tiny, ["tiny-Q8_0.gguf"])
    path.resolve().write_bytes(b"short")
    assert hub.download(tiny, ["tiny-Q8_0.gguf"])[0].read_bytes() == DATA


def test_a_new_version_that_breaks_off_does_not_hide_the_old(fake_hub: FakeHub, tiny: RepoListing) -> None:
    (old,) = hub.download(tiny, ["tiny-Q8_0.gguf"])
    fake_hub.repos["acme/tiny"].files["tiny-Q8_0.gguf"] = DATA[::-1]
    fake_hub.faults += [Fault("cdn", cut_after=1000), Fault("cdn", cut_after=0, times=9)]
    with pytest.raises(NoNetwork):
        hub.download(hub.list_repo("acme/tiny"), ["tiny-Q8_0.gguf"])
    assert in_library("tiny-Q8_0.gguf") == old


def test_an_interrupt_keeps_what_came(fake_hub: FakeHub, tiny: RepoListing) -> None:
    class Interrupting(Recorder):
        def update(self, done_bytes: int) -> None:
            super().update(done_bytes)
            raise KeyboardInterrupt

    recorder = Interrupting()
    with pytest.raises(KeyboardInterrupt):
        hub.download(tiny, ["tiny-Q8_0.gguf"], progress=recorder)
    kept = partial_of(tiny).read_bytes()
    assert kept == DATA[: recorder.phases[0][-1]]
    assert recorder.num_running == 0


# -- the disk ------------------------------------------------------------------------------------------------------


def test_no_room(fake_hub: FakeHub, tiny: RepoListing, monkeypatch: pytest.MonkeyPatch) -> None:
    import errno
    import shutil
    from collections import namedtuple

    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**9, 10**9, 500_000))
    with pytest.raises(StoreError, match="not enough room to download acme/tiny: 1 MB needed, 0 MB free") as caught:
        hub.download(tiny, ["tiny-Q8_0.gguf"])
    assert caught.value.errno == errno.ENOSPC
    assert "HF_HOME" in (caught.value.hint or "")
    assert fake_hub.ranges() == []


def test_a_disk_that_fills_up(fake_hub: FakeHub, tiny: RepoListing) -> None:
    import resource
    import signal

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
        with pytest.raises(StoreError, match="EFBIG"):
            hub.download(tiny, ["tiny-Q8_0.gguf"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert partial_of(tiny).read_bytes() == DATA[:100_000]
    assert hub.download(tiny, ["tiny-Q8_0.gguf"])[0].read_bytes() == DATA
    assert fake_hub.ranges()[-1] == "bytes=100000-"


def test_a_cache_that_may_not_be_written(
    fake_hub: FakeHub, tiny: RepoListing, open_dir: Path, unprivileged: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(open_dir))
    with unprivileged(), pytest.raises(StoreError, match="EACCES") as caught:
        hub.download(tiny, ["tiny-Q8_0.gguf"])
    assert "HF_HOME" in (caught.value.hint or "")


def test_where_links_cannot_be_made(fake_hub: FakeHub, tiny: RepoListing, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError("no privilege")

    monkeypatch.setattr(Path, "symlink_to", refuse)
    (path,) = hub.download(tiny, ["tiny-Q8_0.gguf"])
    assert path.read_bytes() == DATA
    assert not path.is_symlink()
    assert hub.download(tiny, ["tiny-Q8_0.gguf"]) == [path]
    assert len(fake_hub.ranges()) == 1
