# Headers read by ranges: the same answer as from the file, few bytes, and no hang on nonsense.
from __future__ import annotations

import http.server
import struct
import threading
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from ingle.models import remote_header
from ingle.models.errors import BadModelFile, UnsupportedModel
from ingle.models.gguf_info import ModelInfo, read_model_info
from ingle.models.remote_header import RemoteFile, read_remote_model_info
from tests.models.gguf_bytes import string, tiny_model
from tests.tiny_models import write_bert, write_gemma3, write_lfm2, write_llama

Asked = list[tuple[int, int]]


def remote(data: bytes, asked: Asked | None = None, *, name: str = "m.gguf", size: int | None = None) -> RemoteFile:
    def read(start: int, length: int) -> bytes:
        if asked is not None:
            asked.append((start, length))
        return data[start : start + length]

    return RemoteFile(name, len(data) if size is None else size, read)


def same(a: ModelInfo, b: ModelInfo) -> bool:
    """Equal but for the path."""
    return all(getattr(a, name) == getattr(b, name) for name in ModelInfo.__dataclass_fields__ if name != "path")


@pytest.mark.parametrize("write", [write_llama, write_gemma3, write_lfm2])
@pytest.mark.parametrize("window", [16, 1000, 1 << 20])
def test_equals_what_the_file_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: type, window: int) -> None:
    monkeypatch.setattr(remote_header, "FIRST_WINDOW_BYTES", window)
    path = write(tmp_path / "m.gguf")
    found = read_remote_model_info([remote(path.read_bytes())], origin="user/repo")
    assert same(found, read_model_info(path))
    assert found.path == Path("user/repo/m.gguf")


def test_the_window_doubles_and_nothing_is_read_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_header, "FIRST_WINDOW_BYTES", 1000)
    path = write_llama(tmp_path / "m.gguf")
    asked: Asked = []
    info = read_remote_model_info([remote(path.read_bytes(), asked)])
    header_bytes = min(tensor.offset for tensor in info.tensors)
    assert asked[:3] == [(0, 1000), (1000, 1000), (2000, 2000)]
    assert all(start == sum(length for _, length in asked[:i]) for i, (start, _) in enumerate(asked))
    assert sum(length for _, length in asked) < 2 * header_bytes < path.stat().st_size / 2


class Ranges(http.server.BaseHTTPRequestHandler):
    """One file, by ranges; counts the bytes of its answers."""

    data = b""
    sent = 0

    def do_GET(self) -> None:
        first, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
        piece = self.data[int(first) : int(last) + 1]
        self.send_response(206)
        self.send_header("Content-Length", str(len(piece)))
        self.end_headers()
        self.wfile.write(piece)
        type(self).sent += len(piece)

    def log_message(self, *_args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[tuple[str, type[Ranges]]]:
    handler = type("Handler", (Ranges,), {})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{made.server_address[1]}/", handler
        made.shutdown()


def fetch(url: str, start: int, length: int) -> bytes:
    request = urllib.request.Request(url, headers={"Range": f"bytes={start}-{start + length - 1}"})
    with urllib.request.urlopen(request) as response:
        return bytes(response.read())


def test_over_http_only_the_header_is_sent(
    tmp_path: Path, server: tuple[str, type[Ranges]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_header, "FIRST_WINDOW_BYTES", 4096)
    path = write_gemma3(tmp_path / "m.gguf")
    url, handler = server
    handler.data = path.read_bytes()
    found = read_remote_model_info([RemoteFile("m.gguf", len(handler.data), partial(fetch, url))])
    assert same(found, read_model_info(path))
    assert handler.sent < 2 * min(tensor.offset for tensor in found.tensors)


def split(monkeypatch: pytest.MonkeyPatch) -> list[RemoteFile]:
    monkeypatch.setattr(remote_header, "FIRST_WINDOW_BYTES", 64)
    whole = tiny_model()
    half = len(whole.tensors) // 2
    files = []
    for number, tensors in enumerate((whole.tensors[:half], whole.tensors[half:])):
        part = tiny_model()
        part.kv = dict(part.kv) if number == 0 else {}
        part.kv |= {"split.no": ("u16", number), "split.count": ("u16", 2)}
        part.kv |= {"split.tensors.count": ("i32", len(whole.tensors))}
        part.tensors = tensors
        files.append(remote(part.to_bytes(), name=f"m-0000{number + 1}-of-00002.gguf"))
    return files


def test_all_shards_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    files = split(monkeypatch)
    info = read_remote_model_info(files)
    assert info.split_count == 2
    assert info.size_bytes == sum(file.size_bytes for file in files)
    assert [t.name for t in info.tensors] == [t.name for t in tiny_model().tensors]
    assert {t.shard for t in info.tensors} == {0, 1}


def test_a_missing_shard_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadModelFile, match=r"shard 2 of 2 is missing: r/m-00002-of-00002\.gguf"):
        read_remote_model_info(split(monkeypatch)[:1], origin="r")


def test_every_truncation_is_a_bad_model_file(tmp_path: Path) -> None:
    data = tiny_model().to_bytes()
    for length in (0, 3, 4, 30, len(data) // 2, len(data) - 1):
        with pytest.raises(BadModelFile):
            read_remote_model_info([remote(data[:length])])


def test_fewer_bytes_than_the_listing_says(tmp_path: Path) -> None:
    data = tiny_model().to_bytes()
    with pytest.raises(BadModelFile, match="bytes came where"):
        read_remote_model_info([remote(data, size=len(data) + 5)])


def test_a_header_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_header, "FIRST_WINDOW_BYTES", 1 << 12)
    monkeypatch.setattr(remote_header, "MAX_HEADER_BYTES", 1 << 14)
    count = 1 << 16
    array = struct.pack("<IIQ", 9, 8, count) + string("x" * 20) * count
    data = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + string("tokenizer.ggml.tokens") + array
    asked: Asked = []
    with pytest.raises(BadModelFile, match="its header takes more than 16384 bytes, which is absurd"):
        read_remote_model_info([remote(data, asked)])
    assert sum(length for _, length in asked) == 1 << 14


@pytest.mark.parametrize("number", [1 << 40, (1 << 64) - 1])
def test_absurd_numbers_cost_nothing(number: int) -> None:
    asked: Asked = []
    data = b"GGUF" + struct.pack("<IQQ", 3, number, number) + bytes(1 << 21)
    with pytest.raises(BadModelFile, match="absurd number"):
        read_remote_model_info([remote(data, asked)])
    assert asked == [(0, 1 << 20)]


def test_a_string_longer_than_the_file_is_not_waited_for() -> None:
    asked: Asked = []
    data = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1 << 50) + bytes(1 << 21)
    with pytest.raises(BadModelFile, match="claims"):
        read_remote_model_info([remote(data, asked)])
    assert len(asked) == 1


def test_an_embedding_model_is_refused_by_its_header(tmp_path: Path) -> None:
    data = write_bert(tmp_path / "m.gguf").read_bytes()
    with pytest.raises(UnsupportedModel, match=r"r/m\.gguf is an embedding model"):
        read_remote_model_info([remote(data)], origin="r")
    assert read_remote_model_info([remote(data)], require_generative=False).architecture == "bert"


def test_errors_of_the_network_come_through() -> None:
    def read(_start: int, _length: int) -> bytes:
        raise ConnectionResetError("cut")

    with pytest.raises(ConnectionResetError):
        read_remote_model_info([RemoteFile("m.gguf", 10_000, read)])
