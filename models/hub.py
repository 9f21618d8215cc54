# The Hugging Face hub: what a repo holds, a piece of a file, whole files. The only file that imports huggingface_hub.
# This file may not know quantizations, aliases or terminals. Importing it imports nothing heavy.
"""The hub through huggingface_hub's own HTTP session: its token, ``HF_ENDPOINT``, proxies and offline switch apply.

huggingface_hub's download functions are not used: version 2 gives each process a temporary file of its own and deletes
it when the download breaks off, so nothing is ever resumed. The transfer is ours (``hub_transfer``); it leaves the same
files in the same cache, under the same locks.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from ingle.models.errors import HubUnavailable, ModelNotFound, NoNetwork, NotAuthorised
from ingle.models.hub_cache import is_plain_name, is_repo_id
from ingle.models.hub_errors import LONGEST_WAIT_S, RETRY_STATUSES, Asked, explain, is_cut, wait_s
from ingle.models.hub_transfer import Body, Cut, Place, remember_revision, require_room, store
from ingle.models.progress import Progress, Silent

__all__ = ["HubFile", "RepoListing", "download", "list_repo", "missing_bytes", "read_range"]

_WAITS_S: Final = (1.0, 2.0, 4.0)  # before the second, third and fourth try; a Retry-After is obeyed instead
_MAX_PAGES: Final = 1000
_MAX_ANSWER_BYTES: Final = 1 << 26  # of one answer that is no file; a thousand files take some 0.3 MB
_MAX_PLAIN_BYTES: Final = 50_000_000_000  # what the hub serves over plain HTTP (huggingface_hub's constant)

_GIT_ID: Final = re.compile(r"[0-9a-f]{40}")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_TOKEN: Final = re.compile(r"[!-~]+")  # what may stand in a header

_sleep: Callable[[float], None] = time.sleep  # a name of its own, so that tests need not wait


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a repo. `sha256` is there for large files (LFS), `blob_id` (git's, SHA-1 based) for all."""

    name: str
    size_bytes: int
    sha256: str | None
    blob_id: str = ""

    @property
    def etag(self) -> str:
        """The name of its blob in the cache."""
        return self.sha256 or self.blob_id


@dataclass(frozen=True, slots=True)
class RepoListing:
    """A repo at one commit. `revision` is what was asked for (None: main)."""

    repo_id: str
    commit: str
    files: tuple[HubFile, ...]
    licence: str | None
    gated: bool
    revision: str | None = None

    def file(self, name: str) -> HubFile:
        """The file called `name`. Raises ModelNotFound."""
        for file in self.files:
            if file.name == name:
                return file
        raise explain_missing(self, name)


def explain_missing(listing: RepoListing, name: str) -> ModelNotFound:
    """The error for a file that the listing does not have, with the nearest that it has."""
    import difflib

    near = difflib.get_close_matches(name, [file.name for file in listing.files], n=1, cutoff=0.5)
    hint = f"Did you mean {listing.repo_id}/{near[0]}?" if near else "Leave the file out to see what there is."
    return ModelNotFound(f"{listing.repo_id} holds no file {name!r}", hint)


def list_repo(repo_id: str, revision: str | None = None, *, progress: Progress | None = None) -> RepoListing:
    """What the hub says now about `repo_id` at `revision` (branch, tag or commit; None: main).

    Raises ModelNotFound (absent or private, no such revision), NotAuthorised (gated), NoNetwork, HubUnavailable.
    """
    from urllib.parse import quote, urlsplit

    if not is_repo_id(repo_id):
        raise ModelNotFound(f"{repo_id!r} is not the name of a repository", "Write USER/REPO.")
    asked = Asked(_endpoint(), repo_id, revision)
    base = f"{asked.endpoint}/api/models/{repo_id}"
    report = progress or Silent()
    try:
        info = _get(base if revision is None else f"{base}/revision/{quote(revision, safe='')}", asked, report).json()
        commit = info["sha"]
        if not _GIT_ID.fullmatch(commit):
            raise ValueError(commit)
        url = f"{base}/tree/{quote(commit, safe='')}"
        query: str | None = "recursive=True&expand=False"
        files: list[HubFile] = []
        for _ in range(_MAX_PAGES):
            page = _get(f"{url}?{query}", asked, report)
            files += [_file(entry) for entry in page.json() if entry["type"] == "file"]
            following = page.links.get("next", {}).get("url")
            if following is None:
                break
            query = urlsplit(following).query  # of our own address: the token goes nowhere else
        listed = tuple(file for file in files if is_plain_name(file.name))
        return RepoListing(repo_id, commit, listed, _licence(info), bool(info.get("gated")), revision)
    except (KeyError, TypeError, AttributeError, ValueError):
        raise HubUnavailable(
            f"{asked.shown_endpoint} does not answer as a hub does",
            "Check HF_ENDPOINT, and whether a login page of the network stands in between.",
        ) from None


def read_range(listing: RepoListing, name: str, start: int, length: int) -> bytes:
    """Up to `length` bytes of a file from byte `start`, in one request; fewer where the file ends.

    Raises as list_repo does.
    """
    end = min(start + length, listing.file(name).size_bytes)
    if start >= end:
        return b""
    for pause in (*_WAITS_S, None):
        try:
            return _read(listing, name, start, end)
        except Cut as cut:
            if pause is None:
                raise cut.error from None
            _sleep(pause if cut.pause_s is None else cut.pause_s)
    raise AssertionError


def _read(listing: RepoListing, name: str, start: int, end: int) -> bytes:
    with _opened(listing, name, start, end) as body:
        data = bytearray()
        skip = start - body.offset  # a server that knows no ranges begins at 0
        for chunk in body.chunks:
            data += chunk
            if len(data) >= skip + end - start:
                break
    return bytes(data[skip : skip + end - start])


def download(
    listing: RepoListing, names: Sequence[str], *, progress: Progress | None = None, force: bool = False
) -> list[Path]:
    """The paths of `names` in the hub cache, fetched where they are not there; `force`: fetched in any case.

    Each is checked against the listing's size and hash before it is put in its place. What a download that breaks off
    has got stays for the next. Raises as list_repo does, and DownloadFailed (wrong bytes), StoreError (disk).
    """
    report = progress or Silent()
    wanted = [listing.file(name) for name in names]
    for file in wanted:
        if file.size_bytes > _MAX_PLAIN_BYTES:
            raise HubUnavailable(
                f"{file.name} is larger than the 50 GB that the hub serves over plain HTTP",
                f"`hf download {listing.repo_id} {file.name}` fetches it another way, into the same cache.",
            )
    places = [_place(listing, file) for file in wanted]
    require_room(places, force=force)
    paths = [store(place, partial(_opened, listing, place.name), report, _sleep, force=force) for place in places]
    remember_revision(listing.repo_id, listing.revision, listing.commit)
    return paths


def missing_bytes(listing: RepoListing, names: Sequence[str]) -> int:
    """How much `download` would have to fetch: what a download that broke off has left is counted as here."""
    return sum(_place(listing, listing.file(name)).num_missing_bytes() for name in names)


# -- HTTP ----------------------------------------------------------------------------------------------------------


def _endpoint() -> str:
    from huggingface_hub import constants

    return constants.ENDPOINT


def _headers() -> dict[str, str]:
    """The user's token, and our name: huggingface_hub's own headers would tell what else is installed here, after
    asking the hub for a list of programs to look for."""
    from importlib.metadata import version

    from huggingface_hub import constants, get_token

    token = None if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN else get_token()
    if token is not None and not _TOKEN.fullmatch(token):  # an HTTP library's complaint would show it
        raise NotAuthorised(
            "the token for the hub holds characters that no token has",
            "Run `hf auth login` again, or check HF_TOKEN.",
        )
    name = {"User-Agent": f"ingle/{version('ingle')}"}
    return name if token is None else name | {"Authorization": f"Bearer {token}"}


def _get(url: str, asked: Asked, progress: Progress) -> Any:
    """The answer to GET `url`, tried again where the hub is busy. Raises ModelError."""
    from huggingface_hub import constants, get_session, hf_raise_for_status

    waits = iter(_WAITS_S)
    while True:
        try:
            timeout = constants.HF_HUB_ETAG_TIMEOUT
            with get_session().stream("GET", url, headers=_headers(), timeout=timeout) as streamed:
                response = _read_whole(streamed, asked)
            if response.status_code in RETRY_STATUSES:
                pause = next(waits, None)
                if pause is not None and (pause := _patience(response.headers.get, pause)) is not None:
                    progress.note(f"the hub is busy (HTTP {response.status_code}): trying again in {pause:.0f} s")
                    _sleep(pause)
                    continue
            hf_raise_for_status(response)
            return response
        except Exception as error:
            if is_cut(error) and (pause := next(waits, None)) is not None:
                _sleep(pause)
                continue
            raise explain(error, asked) from None


def _patience(headers: Callable[[str], str | None], otherwise: float) -> float | None:
    """How long to wait before asking again; None: longer than anybody would."""
    asked_s = wait_s(headers)
    if asked_s is None:
        return otherwise
    return asked_s if asked_s <= LONGEST_WAIT_S else None


@contextmanager
def _opened(listing: RepoListing, name: str, start: int, end: int | None = None) -> Iterator[Body]:
    """The bytes of a file from `start` on (up to `end`), streamed. Follows redirects; the token stays with the hub.

    Raises Cut where another try may go better, ModelError where it will not. `Body.chunks` raises the same.
    """
    from huggingface_hub import constants, get_session, hf_hub_url, hf_raise_for_status

    asked = Asked(_endpoint(), listing.repo_id, listing.revision, name)
    headers = _headers() | {"Accept-Encoding": "identity"}
    if start or end is not None:
        headers["Range"] = f"bytes={start}-{'' if end is None else end - 1}"
    url = hf_hub_url(listing.repo_id, name, revision=listing.commit, endpoint=asked.endpoint)
    with ExitStack() as stack:
        try:
            response = stack.enter_context(
                get_session().stream("GET", url, headers=headers, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT)
            )
            # What is no file is read here: to name the error, huggingface_hub reads all of it, however much comes.
            hf_raise_for_status(_read_whole(response, asked) if response.is_error else response)
        except Exception as error:
            raise _failure(error, asked) from None
        yield Body(start if response.status_code == 206 else 0, _chunks(response, asked))


def _read_whole(response: Any, asked: Asked) -> Any:
    """A streamed response with its body, as if it had not been streamed. Raises HubUnavailable for an endless one."""
    data = bytearray()
    for chunk in response.iter_bytes():
        data += chunk
        if len(data) > _MAX_ANSWER_BYTES:
            raise HubUnavailable(
                f"{asked.shown_endpoint} answers with more than {_MAX_ANSWER_BYTES >> 20} MiB where a few are usual",
                "Check HF_ENDPOINT: it does not answer as a hub does.",
            )
    how_sent = ("content-encoding", "content-length", "transfer-encoding")
    headers = [(name, value) for name, value in response.headers.multi_items() if name.lower() not in how_sent]
    return type(response)(response.status_code, headers=headers, content=bytes(data), request=response.request)


def _chunks(response: Any, asked: Asked) -> Iterator[bytes]:
    try:
        yield from response.iter_bytes()
    except Exception as error:
        raise _failure(error, asked) from None


def _failure(error: Exception, asked: Asked) -> Exception:
    meant = explain(error, asked)
    response = getattr(error, "response", None)
    if response is not None and response.status_code in RETRY_STATUSES:
        pause_s = wait_s(response.headers.get)
        return meant if pause_s is not None and pause_s > LONGEST_WAIT_S else Cut(meant, pause_s)
    return Cut(meant, None) if isinstance(meant, NoNetwork) else meant


def _place(listing: RepoListing, file: HubFile) -> Place:
    return Place(listing.repo_id, listing.commit, file.name, file.size_bytes, file.sha256, file.blob_id)


def _file(entry: dict[str, Any]) -> HubFile:
    """Raises ValueError and its like for an entry that is not of a hub: hashes become the names of files."""
    lfs = entry.get("lfs")
    size_bytes = int(lfs["size"] if lfs else entry["size"])
    sha256 = lfs["oid"].removeprefix("sha256:").lower() if lfs else None
    if size_bytes < 0 or not _GIT_ID.fullmatch(entry["oid"]) or not (sha256 is None or _SHA256.fullmatch(sha256)):
        raise ValueError(entry["path"])
    return HubFile(str(entry["path"]), size_bytes, sha256, entry["oid"])


def _licence(info: dict[str, Any]) -> str | None:
    card = info.get("cardData") or {}
    said = card.get("license_name") if card.get("license") == "other" else card.get("license")
    if said is None:
        said = next((str(tag)[8:] for tag in info.get("tags") or () if str(tag).startswith("license:")), None)
    return ", ".join(map(str, said)) if isinstance(said, list) else None if said is None else str(said)
