# The hub's protocol, with huggingface_hub's real client, against a server of ours.
from __future__ import annotations

import os

import pytest

from ingle.models import hub
from ingle.models.errors import (
    DownloadFailed,
    HubUnavailable,
    ModelError,
    ModelNotFound,
    NoNetwork,
    NotAuthorised,
)
from ingle.models.hub import HubFile, RepoListing
from tests.models.fake_hub import DATA, FakeHub, Fault, Recorder, Repo, git_id, sha256

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


def test_settings_that_allow_no_request(fake_hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "socks9://nowhere")
    with pytest.raises(NoNetwork, match=r"no request to http.* can be made: Unknown scheme for proxy URL"):
        hub.list_repo("acme/tiny")
    monkeypatch.delenv("HTTP_PROXY")
    monkeypatch.setenv("SSL_CERT_FILE", "/nonexistent")
    with pytest.raises(NoNetwork, match="the certificates cannot be read"):
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
    assert waited == [1.0, 2.0]


@pytest.mark.parametrize("token", ["hf_\u00e9cret", "hf_se\x01cret", "hf_se cret"])
def test_a_token_that_cannot_be_one_is_said_and_not_shown(
    fake_hub: FakeHub, monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    from huggingface_hub import constants

    fake_hub.repos["acme/tiny"] = Repo({"a.gguf": b"a"})
    monkeypatch.setenv("HF_TOKEN", token)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", os.devnull)
    with pytest.raises(NotAuthorised, match="characters that no token has") as caught:
        hub.list_repo("acme/tiny")
    assert "cret" not in f"{caught.value.message} {caught.value.hint}"
    assert fake_hub.log == []


def test_a_password_in_the_endpoint_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://user:pa55@127.0.0.1:1")
    with pytest.raises(NoNetwork, match=r"cannot reach http://127\.0\.0\.1:1: ") as caught:
        hub.list_repo("acme/tiny")
    assert "pa55" not in f"{caught.value.message} {caught.value.hint}"


@pytest.mark.parametrize("status", [200, 404])
@pytest.mark.parametrize("where", ["info", "tree"])
def test_an_answer_without_end_is_not_read(
    fake_hub: FakeHub, monkeypatch: pytest.MonkeyPatch, where: str, status: int
) -> None:
    monkeypatch.setattr(hub, "_MAX_ANSWER_BYTES", 10_000)
    fake_hub.repos["acme/tiny"] = Repo({"a.gguf": b"a"})
    fake_hub.faults.append(Fault(where, status=status, body=b" " * 10_001))
    with pytest.raises(HubUnavailable, match="answers with more than"):
        hub.list_repo("acme/tiny")


def test_a_refusal_without_end_is_not_read(
    fake_hub: FakeHub, tiny: hub.RepoListing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "_MAX_ANSWER_BYTES", 10_000)
    fake_hub.faults.append(Fault("cdn", status=403, body=b" " * 10_001))
    with pytest.raises(HubUnavailable, match="answers with more than"):
        hub.download(tiny, ["tiny-Q8_0.gguf"])


def test_the_token_stays_with_the_hub_when_files_lie_elsewhere(fake_hub: FakeHub, tiny: hub.RepoListing) -> None:
    elsewhere = fake_hub.endpoint.replace("127.0.0.1", "localhost")
    location = {"Location": f"{elsewhere}/cdn/{tiny.file('tiny-Q8_0.gguf').sha256}"}
    fake_hub.faults.append(Fault("resolve", status=302, headers=location))
    hub.download(tiny, ["tiny-Q8_0.gguf"])
    assert [request.token for request in fake_hub.requests("resolve")] == ["Bearer hf_test"]
    assert [request.token for request in fake_hub.requests("cdn")] == [None]
