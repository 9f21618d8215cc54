# An OpenAI-compatible server whose manners the test decides, on a thread of its own.
from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = Callable[["Handler", dict[str, Any]], None]


@dataclass
class FakeServer:
    """`reply` answers each request for a completion; `bodies` are what was asked, `headers` how."""

    reply: Reply
    url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    fake: FakeServer

    def do_GET(self) -> None:
        self._json(200, {"data": [{"id": "fake-model"}]} if self.path == "/v1/models" else {})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.fake.bodies.append(body)
        self.fake.headers.append(dict(self.headers.items()))
        with suppress(OSError):  # a client that has left
            self.fake.reply(self, body)

    def log_message(self, *_: Any) -> None:
        pass

    # -- what replies are made of --

    def start_stream(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True

    def send(self, text: str) -> None:
        self.wfile.write(text.encode())
        self.wfile.flush()

    def event(self, value: Any) -> None:
        self.send(f"data: {value if isinstance(value, str) else json.dumps(value)}\n\n")

    def token(self, text: str) -> None:
        self.event({"choices": [{"index": 0, "delta": {"content": text}}]})

    def end(self, num_tokens: int, num_cached: int = 0) -> None:
        self.event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        usage = {"prompt_tokens": 10, "completion_tokens": num_tokens}
        self.event({"choices": [], "usage": usage | {"prompt_tokens_details": {"cached_tokens": num_cached}}})
        self.event("[DONE]")

    def _json(self, status: int, value: Any) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def refuse(self, status: int, message: str) -> None:
        self._json(status, {"error": {"message": message}})


def polite(handler: Handler, body: dict[str, Any]) -> None:
    """An empty first chunk, thinking, then the rest of the tokens asked for."""
    handler.start_stream()
    handler.event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
    handler.event({"choices": [{"index": 0, "delta": {"reasoning_content": "Hm"}}]})
    for _ in range(body["max_tokens"] - 1):
        handler.token("x")
    handler.end(body["max_tokens"])


@contextmanager
def serving(reply: Reply) -> Iterator[FakeServer]:
    fake = FakeServer(reply)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"fake": fake}))
    server.daemon_threads = True
    fake.url = f"http://127.0.0.1:{server.server_port}/v1"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield fake
    finally:
        fake.released.set()
        server.shutdown()
        thread.join()
        server.server_close()
