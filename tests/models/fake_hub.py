# A hub on this machine: the part of its HTTP protocol that a download uses, and ways to make it misbehave.
"""``FakeHub`` serves repos from memory to the real huggingface_hub client, logs every request, and plays `Fault`s.

Large files (.gguf, .safetensors) are redirected to ``/cdn/SHA256`` as the hub redirects to its storage; the others come
as they are. Trees come in pages of `page_size` entries.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

LARGE = (".gguf", ".safetensors")


@dataclass
class Repo:
    """One repo at one commit. `branches` are further names of that commit."""

    files: dict[str, bytes]
    licence: str | None = "apache-2.0"
    gated: bool = False  # files are refused, what there is may be seen
    hidden: bool = False  # private: nothing may be seen
    branches: tuple[str, ...] = ("main",)

    @property
    def commit(self) -> str:
        digest = hashlib.sha1(usedforsecurity=False)
        for name, data in sorted(self.files.items()):
            digest.update(name.encode() + data)
        return digest.hexdigest()


@dataclass
class Fault:
    """What to do in place of the answer, `times` times, to a request for `where`: info, tree, resolve or cdn."""

    where: str
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    cut_after: int | None = None  # bytes of the body, then the connection is closed
    hold_after: int | None = None  # bytes of the body, then nothing until `FakeHub.release` is set
    wrong_bytes: bool = False
    no_ranges: bool = False
    body: bytes = b""
    times: int = 1


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    where: str
    range: str | None
    token: str | None


class Recorder:
    """A Progress that remembers, and fails when a phase goes backwards."""

    def __init__(self) -> None:
        self.phases: list[list[int]] = []
        self.notes: list[str] = []
        self.num_running = 0

    def start(self, total_bytes: int | None, label: str, done_bytes: int = 0) -> None:
        self.num_running += 1
        self.phases.append([done_bytes])

    def update(self, done_bytes: int) -> None:
        assert done_bytes >= self.phases[-1][-1]
        self.phases[-1].append(done_bytes)

    def finish(self) -> None:
        self.num_running -= 1

    def note(self, message: str) -> None:
        self.notes.append(message)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def git_id(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


class FakeHub:
    """Runs while in its ``with`` block."""

    def __init__(self, page_size: int = 1000) -> None:
        self.repos: dict[str, Repo] = {}
        self.faults: list[Fault] = []
        self.log: list[Request] = []
        self.page_size = page_size
        self.held = threading.Event()  # a body is being held back now
        self.release = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.daemon_threads = True
        self._server.hub = self  # type: ignore[attr-defined]
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def requests(self, where: str) -> list[Request]:
        return [request for request in self.log if request.where == where]

    def ranges(self) -> list[str | None]:
        """The Range headers of all requests for the bytes of large files."""
        return [request.range for request in self.requests("cdn")]

    def __enter__(self) -> FakeHub:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.release.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def hub(self) -> FakeHub:
        hub = self.server.hub  # type: ignore[attr-defined]
        assert isinstance(hub, FakeHub)
        return hub

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        parts = [unquote(part) for part in url.path.strip("/").split("/")]
        where = "info"
        if parts[0] == "cdn":
            where = "cdn"
        elif "resolve" in parts:
            where = "resolve"
        elif "tree" in parts:
            where = "tree"
        self.hub.log.append(
            Request(self.command, self.path, where, self.headers["Range"], self.headers["Authorization"])
        )
        fault = self._fault(where)
        if fault is not None and fault.status is not None:
            self._send(fault.status, fault.body, dict(fault.headers))
        elif where == "cdn":
            self._bytes(self._by_hash(parts[1]), fault)
        elif where == "resolve":
            self._resolve(parts, fault)
        else:
            self._api(parts, parse_qs(url.query), where)

    def _fault(self, where: str) -> Fault | None:
        for fault in self.hub.faults:
            if fault.where == where and fault.times:
                fault.times -= 1
                return fault
        return None

    def _api(self, parts: list[str], query: dict[str, list[str]], where: str) -> None:
        repo_id, rest = "/".join(parts[2:4]), parts[4:]
        repo = self.hub.repos.get(repo_id)
        if parts[:2] != ["api", "models"] or repo is None or repo.hidden:
            self._refuse(401, "RepoNotFound", "Invalid username or password.")
            return
        revision = rest[1] if rest else "main"
        if revision not in (*repo.branches, repo.commit):
            self._refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
            return
        if where == "info":
            card = {} if repo.licence is None else {"license": repo.licence}
            gated = "auto" if repo.gated else False
            info = {"id": repo_id, "modelId": repo_id, "sha": repo.commit, "private": False, "gated": gated}
            self._json({**info, "cardData": card, "tags": [], "siblings": []})
            return
        start = int(query.get("cursor", ["0"])[0])
        names = sorted(repo.files)
        entries = [self._entry(name, repo.files[name]) for name in names[start : start + self.hub.page_size]]
        following = start + self.hub.page_size
        headers = {}
        if following < len(names):
            url = f"{self.hub.endpoint}/api/models/{repo_id}/tree/{revision}?recursive=True&cursor={following}"
            headers["Link"] = f'<{url}>; rel="next"'
        folders = [{"type": "directory", "path": "folder", "oid": "0" * 40, "size": 0}] if start == 0 else []
        self._json([*folders, *entries], headers)

    def _entry(self, name: str, data: bytes) -> dict[str, Any]:
        entry: dict[str, Any] = {"type": "file", "path": name, "size": len(data), "oid": git_id(data)}
        if name.endswith(LARGE):
            entry["oid"] = git_id(name.encode())  # of the pointer
            entry["lfs"] = {"oid": sha256(data), "size": len(data), "pointerSize": 134}
        return entry

    def _resolve(self, parts: list[str], fault: Fault | None) -> None:
        at = parts.index("resolve")
        repo, name = self.hub.repos.get("/".join(parts[:at])), "/".join(parts[at + 2 :])
        if repo is None or repo.hidden:
            self._refuse(401, "RepoNotFound", "Repository not found")
        elif repo.gated:
            self._refuse(403, "GatedRepo", "Access to model is restricted and you are not in the authorized list.")
        elif name not in repo.files:
            self._refuse(404, "EntryNotFound", "Entry not found")
        elif name.endswith(LARGE):
            data = repo.files[name]
            linked = {
                "X-Repo-Commit": repo.commit,
                "X-Linked-Etag": f'"{sha256(data)}"',
                "X-Linked-Size": str(len(data)),
            }
            self._send(302, b"", {**linked, "Location": f"/cdn/{sha256(data)}?signed=yes"})
        else:
            self._bytes(
                repo.files[name], fault, {"X-Repo-Commit": repo.commit, "ETag": f'"{git_id(repo.files[name])}"'}
            )

    def _by_hash(self, digest: str) -> bytes:
        return next(data for repo in self.hub.repos.values() for data in repo.files.values() if sha256(data) == digest)

    def _bytes(self, data: bytes, fault: Fault | None, headers: Mapping[str, str] | None = None) -> None:
        wanted = self.headers["Range"]
        start, end, status = 0, len(data), 200
        sent = dict(headers or {})
        if wanted is not None and not (fault and fault.no_ranges):
            first, last = wanted.removeprefix("bytes=").split("-")
            start, end, status = int(first), int(last) + 1 if last else len(data), 206
            sent["Content-Range"] = f"bytes {start}-{end - 1}/{len(data)}"
        body = data[start:end]
        if fault is not None and fault.wrong_bytes:
            body = bytes(len(body))
        limit = None if fault is None else fault.cut_after if fault.hold_after is None else fault.hold_after
        if limit is None:
            self._send(status, body, sent)
            return
        self._head(status, len(body), sent)
        self.wfile.write(body[:limit])
        self.wfile.flush()
        if fault is not None and fault.hold_after is not None:
            self.hub.held.set()
            self.hub.release.wait()
        self.close_connection = True

    def _json(self, value: Any, headers: Mapping[str, str] | None = None) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json", **(headers or {})})

    def _refuse(self, status: int, code: str, message: str) -> None:
        self._send(status, json.dumps({"error": message}).encode(), {"X-Error-Code": code, "X-Error-Message": message})

    def _send(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self._head(status, len(body), headers)
        self.wfile.write(body)

    def _head(self, status: int, length: int, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(length))
        self.end_headers()
