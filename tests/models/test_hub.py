# The hub's protocol, with huggingface_hub's real client, against a server of ours.
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ingle.models import hub, hub_cache
from ingle.models.errors import (
    DownloadFailed,
    HubUnavailable,
    ModelError,
    ModelNotFound,
    NoNetwork,
    NotAuthorised,
    StoreError,
)
from ingle.models.hub import HubFile, RepoListing
from tests.models.fake_hub import FakeHub, Fault, Recorder, Repo, git_id, sha256

DATA = bytes(range(256)) * 2000  # 512,000 bytes, any part of which is told from any other


@pytest.fixture
def tiny(fake_hub: FakeHub) -> RepoListing:
    """acme/tiny with one GGUF, listed; nothing of it is here."""
    fake_hub.repos["acme/tiny"] = Repo({"tiny-Q8_0.gguf": DATA, "README.md": b"# Tiny\n"})
    return hub.list_repo("acme/tiny")


def partial_of(listing: RepoListing, data: bytes = DATA) -> Path:
    return hub_cache.repo_folder(listing.repo_id) / "blobs" / f"{sha256(data)}.incomplete"


# -- listings ------------------------------------------------------------------------------------------------------


def test_a_listing(fake_hub: FakeHub) -> None:
    repo = Repo({"b/c-Q4_0.gguf": DATA, "README.md": b"# Tiny\n"}, licence="mit")
    fake_hub.repos["acme/tiny"] = repo
    listing = hub.list_repo("acme/tiny")
    assert listing == RepoListing(
        "acme/tiny",
        repo.commit,
        (
            HubFile("README.md", 7, None, git_id(b"# Tiny\n")),
            HubFile("b/c-Q4_0.gguf", 512_000, sha256(DATA), git_id(b"b/c-Q4_0.gguf")),
        ),
        "mit",
        gated=False,
    )
    assert [request.token for request in fake_hub.log] == ["Bearer hf_test"] * 2


def test_a_tree_of_several_pages(fake_hub: FakeHub) -> None:
    fake_hub.page_size = 2
    fake_hub.repos["acme/tiny"] = Repo({f"{n}.gguf": bytes([n]) for n in range(5)})
    listing = hub.list_repo("acme/tiny")
    assert [file.name for file in listing.files] == ["0.gguf", "1.gguf", "2.gguf", "3.gguf", "4.gguf"]
    assert len(fake_hub.requests("tree")) == 3


def test_the_token_does_not_follow_a_link_to_elsewhere(fake_hub: FakeHub) -> None:
    fake_hub.repos["acme/tiny"] = Repo({"a.gguf": b"a"})
    link = '<http://elsewhere.invalid/api?cursor=1000>; rel="next"'
    fake_hub.faults.append(Fault("tree", status=200, headers={"Link": link}, body=b"[]"))
    assert hub.list_repo("acme/tiny").files == ()  # the second page was asked of the hub itself
    assert fake_hub.log[-1].path.endswith("?cursor=1000")


def test_a_revision(fake_hub: FakeHub) -> None:
    fake_hub.repos["acme/tiny"] = Repo({"a.gguf": b"a"}, branches=("main", "pr/7"))
    assert hub.list_repo("acme/tiny", "pr/7").revision == "pr/7"
    assert fake_hub.log[0].path == "/api/models/acme/tiny/revision/pr%2F7"


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "a\\b.gguf", "a/../../b.gguf"])
def test_names_that_leave_their_folder_are_not_listed(fake_hub: FakeHub, name: str) -> None:
    fake_hub.repos["acme/tiny"] = Repo({name: b"x", "a.gguf": b"a"})
    assert [file.name for file in hub.list_repo("acme/tiny").files] == ["a.gguf"]


@pytest.mark.parametrize(
    "body",
    [
        b"<html>Please log in to the airport's network</html>",
        b"[]",
        b'{"sha": "../../somewhere"}',
        b'{"sha": 7}',
    ],
)
def test_something_that_is_no_hub(fake_hub: FakeHub, body: bytes) -> None:
    fake_hub.faults.append(Fault("info", status=200, body=body))
    with pytest.raises(HubUnavailable, match="does not answer as a hub does"):
        hub.list_repo("acme/tiny")


@pytest.mark.parametrize("oid", ["../../../home/x", "A" * 64, "0" * 63])
def test_hashes_that_are_none(fake_hub: FakeHub, oid: str) -> None:
    fake_hub.repos["acme/tiny"] = Repo({})
    entry = f'[{{"type": "file", "path": "a", "size": 1, "oid": "{"0" * 40}", "lfs": {{"oid": "{oid}", "size": 1}}}}]'
    fake_hub.faults.append(Fault("tree", status=200, body=entry.encode()))
    if oid == "A" * 64:  # hexadecimal digits in capitals are the same hash
        assert hub.list_repo("acme/tiny").files[0].sha256 == "a" * 64
    else:
        with pytest.raises(HubUnavailable, match="does not answer as a hub does"):
            hub.list_repo("acme/tiny")


# -- refusals ------------------------------------------------------------------------------------------------------


def test_absent_and_private_repos_look_the_same(fake_hub: FakeHub) -> None:
    fake_hub.repos["acme/private"] = Repo({}, hidden=True)
    for repo_id in ("acme/absent", "acme/private"):
        with pytest.raises(ModelNotFound, match=f"no repository {repo_id} on the hub, or it is private") as caught:
            hub.list_repo(repo_id)
        assert "hf auth login" in (caught.value.hint or "")


def test_no_such_revision(fake_hub: FakeHub) -> None:
    fake_hub.repos["acme/tiny"] = Repo({})
    with pytest.raises(ModelNotFound, match="acme/tiny has no revision 'v9'"):
        hub.list_repo("acme/tiny", "v9")


def test_gated_files_can_be_listed_and_not_fetched(fake_hub: FakeHub) -> None:
    fake_hub.repos["acme/gated"] = Repo({"a.gguf": b"a"}, gated=True)
    listing = hub.list_repo("acme/gated")
    assert listing.gated
    with pytest.raises(NotAuthorised, match="acme/gated is gated") as caught:
        hub.download(listing, ["a.gguf"])
    assert caught.value.hint == (
        f"Accept it at {fake_hub.endpoint}/acme/gated, then run `hf auth login` with a token of the same account."
    )


@pytest.mark.parametrize(
    ("status", "error", "message"),
    [
        (401, NotAuthorised, "refuses the token"),
        (403, NotAuthorised, "does not allow access"),
        (407, NoNetwork, "proxy"),
        (418, DownloadFailed, "HTTP 418"),
    ],
)
def test_refusals_without_a_name(fake_hub: FakeHub, status: int, error: type[ModelError], message: str) -> None:
    fake_hub.faults.append(Fault("info", status=status))
    with pytest.raises(error, match=message) as caught:
        hub.list_repo("acme/tiny")
    assert type(caught.value) is error
    assert len(fake_hub.log) == 1


def test_a_file_that_is_gone_since_the_listing(fake_hub: FakeHub, tiny: RepoListing) -> None:
    del fake_hub.repos["acme/tiny"].files["tiny-Q8_0.gguf"]
    with pytest.raises(ModelNotFound, match=r"acme/tiny holds no file 'tiny-Q8_0\.gguf'"):
        hub.download(tiny, ["tiny-Q8_0.gguf"])
    with pytest.raises(ModelNotFound, match=r"holds no file 'tiny-Q8\.gguf'") as caught:
        hub.download(tiny, ["tiny-Q8.gguf"])
    assert caught.value.hint == "Did you mean acme/tiny/tiny-Q8_0.gguf?"


# -- trouble that passes -------------------------------------------------------------------------------------------


def test_a_busy_hub_is_asked_again(fake_hub: FakeHub, waited: list[float]) -> None:
    fake_hub.repos["acme/tiny"] = Repo({"a.gguf": b"a"})
    fake_hub.faults += [Fault("info", status=503), Fault("info", status=429, headers={"Retry-After": "7"})]
    recorder = Recorder()
    assert hub.list_repo("acme/tiny", progress=recorder).files[0].name == "a.gguf"
    assert waited == [1.0, 7.0]
    assert recorder.notes == [
        "the hub is busy (HTTP 503): trying again in 1 s",
        "the hub is busy (HTTP 429): trying again in 7 s",
    ]


def test_a_hub_that_stays_in_trouble(fake_hub: FakeHub, waited: list[float]) -> None:
    fake_hub.faults.append(Fault("info", status=502, times=99))
    with pytest.raises(HubUnavailable, match=r"trouble \(HTTP 502\)"):
        hub.list_repo("acme/tiny")
    assert waited == [1.0, 2.0, 4.0]


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ({"Retry-After": "3600"}, "limiting requests from here for another 3600 s"),
        ({"RateLimit": '"api";r=0;t=290'}, "limiting requests from here for another 290 s"),
    ],
)
def test_a_limit_that_lasts_too_long_is_not_waited_for(
    fake_hub: FakeHub, waited: list[float], headers: dict[str, str], message: str
) -> None:
    fake_hub.faults.append(Fault("info", status=429, headers=headers, times=99))
    with pytest.raises(HubUnavailable, match=message):
        hub.list_repo("acme/tiny")
    assert waited == []


def test_nobody_there(monkeypatch: pytest.MonkeyPatch, waited: list[float]) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(NoNetwork, match=r"cannot reach http://127\.0\.0\.1:1"):
        hub.list_repo("acme/tiny")
    assert waited == []


def test_a_proxy_that_is_not_there(fake_hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    with pytest.raises(NoNetwork):
        hub.list_repo("acme/tiny")
    assert fake_hub.log == []


@pytest.mark.parametrize("endpoint", ["ftp://127.0.0.1", "127.0.0.1:1"])
def test_an_endpoint_that_is_no_address(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    with pytest.raises(NoNetwork, match="is not an address of a hub"):
        hub.list_repo("acme/tiny")


def test_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(NoNetwork, match="HF_HUB_OFFLINE"):
        hub.list_repo("acme/tiny")


# -- ranges --------------------------------------------------------------------------------------------------------


def test_a_piece_of_a_file(fake_hub: FakeHub, tiny: RepoListing) -> None:
    assert hub.read_range(tiny, "tiny-Q8_0.gguf", 1000, 50) == DATA[1000:1050]
    assert hub.read_range(tiny, "tiny-Q8_0.gguf", 511_990, 50) == DATA[-10:]
    assert hub.read_range(tiny, "tiny-Q8_0.gguf", 512_000, 50) == b""
    assert fake_hub.ranges() == ["bytes=1000-1049", "bytes=511990-511999"]


def test_a_piece_from_a_server_without_ranges(fake_hub: FakeHub, tiny: RepoListing, waited: list[float]) -> None:
    fake_hub.faults += [Fault("cdn", cut_after=10), Fault("cdn", status=500), Fault("cdn", no_ranges=True)]
    assert hub.read_range(tiny, "tiny-Q8_0.gguf", 1000, 50) == DATA[1000:1050]
    assert waited == [1.0, 1.0]


# -- downloads -----------------------------------------------------------------------------------------------------


def test_a_download_lands_where_huggingface_hub_looks(fake_hub: FakeHub, tiny: RepoListing) -> None:
    from huggingface_hub import try_to_load_from_cache

    recorder = Recorder()
    paths = hub.download(tiny, ["tiny-Q8_0.gguf", "README.md"], progress=recorder)
    assert [path.read_bytes() for path in paths] == [DATA, b"# Tiny\n"]
    for path, name in zip(paths, ("tiny-Q8_0.gguf", "README.md"), strict=True):
        assert try_to_load_from_cache("acme/tiny", name, cache_dir=hub_cache.hub_cache_dir()) == str(path)
        assert hub.cached_file("acme/tiny", name) == path
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
    assert hub.cached_file("acme/tiny", "tiny-Q8_0.gguf") == second


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
    assert hub.cached_file("acme/tiny", "tiny-Q8_0.gguf") is None
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
    assert hub.cached_file("acme/tiny", "tiny-Q8_0.gguf") is None
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
    assert hub.cached_file("acme/tiny", "tiny-Q8_0.gguf") == old


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
