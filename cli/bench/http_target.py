# Any server that speaks OpenAI's chat completions, as a target. The standard library's client; no connection is reused.
# This file may not know load or statistics.
"""``HttpTarget``: POST …/chat/completions, streamed. Nothing hangs: a watch closes what is past its time."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from ingle.cli.bench.sse import BadStream, ChunkReader
from ingle.cli.bench.target import Answer, Occupancy
from ingle.cli.errors import Unreachable, UsageProblem

MAX_LINE_BYTES = 2**20
MAX_ERROR_BYTES = 4096
CONNECT_TIMEOUT_S = 10.0
WATCH_EVERY_S = 0.1

_NAMES = {"temp": "temperature", "repeat_penalty": "repetition_penalty"}

_CLOSED = "closed the connection before the answer ended"


class HttpTarget:
    """`model`: the name that requests carry; None: the first that the server lists."""

    def __init__(self, url: str, model: str | None, timeout_s: float, api_key: str | None = None) -> None:
        """Asks the server for its models. Raises UsageProblem for what is no URL, Unreachable for no answer."""
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
            raise UsageProblem(f"--url {url!r} is not the URL of a server", "such as http://127.0.0.1:8080/v1")
        self._is_encrypted = parts.scheme == "https"
        self._host, self._port, self._path = parts.hostname, port, parts.path.rstrip("/")
        self._url = url
        self._timeout_s = timeout_s
        self._headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
        if api_key is not None:
            if not api_key.isascii() or not api_key.isprintable():
                raise UsageProblem("--api-key holds a character that no header can carry")
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._is_stopped = False
        self._takes_ignore_eos = True
        self._open: dict[Answer, socket.socket] = {}
        self._cut: set[Answer] = set()
        self._lock = threading.Lock()
        self._is_closed = threading.Event()
        self.model = self._first_model() if model is None else model
        threading.Thread(target=self._watch, name="ingle-bench-watch", daemon=True).start()

    # -- the target's protocol -----------------------------------------------------------------------------------------

    def ask(self, answer: Answer) -> None:
        answer.sent_s = time.perf_counter()
        connection = self._connection(min(CONNECT_TIMEOUT_S, self._timeout_s))
        try:
            self._exchange(connection, answer)
        except BadStream as error:
            answer.fail(str(error))
        except (OSError, http.client.HTTPException) as error:
            answer.fail(self._reason(answer, error))
        finally:
            with self._lock:
                self._open.pop(answer, None)
                self._cut.discard(answer)
            connection.close()

    def stop(self) -> None:
        self._is_stopped = True

    def occupancy(self) -> list[Occupancy]:
        return []

    def forget(self) -> None:
        """A server's cache is its own affair: drawn prompts do not repeat."""

    def close(self) -> None:
        self._is_closed.set()

    # -- one request ---------------------------------------------------------------------------------------------------

    def _exchange(self, connection: http.client.HTTPConnection, answer: Answer) -> None:
        """Raises BadStream, OSError, HTTPException."""
        response = self._post(connection, answer)
        if response is None:
            return
        if "application/json" in (response.getheader("Content-Type") or ""):
            raise BadStream("answered without streaming")
        reader = ChunkReader()
        while not reader.is_done:
            line = response.readline(MAX_LINE_BYTES + 1)
            now = time.perf_counter()
            if len(line) > MAX_LINE_BYTES:
                raise BadStream(f"sent a line of more than {MAX_LINE_BYTES} bytes")
            if reader.feed(line) if line else reader.flush():
                answer.deliveries_s.append(now)
            if not line:
                break
        answer.finished_s = time.perf_counter()
        answer.num_prompt_tokens = reader.count("prompt_tokens", 0)
        answer.num_output_tokens = reader.count("completion_tokens", reader.num_chunks)
        answer.num_cached_tokens = reader.num_cached_tokens
        if self._is_cut(answer):
            answer.fail("stopped" if self._is_stopped else "timed out")
        elif not reader.is_done and reader.finish_reason is None:
            answer.fail(_CLOSED)
        elif not answer.deliveries_s:
            answer.fail("answered without a token")

    def _post(self, connection: http.client.HTTPConnection, answer: Answer) -> http.client.HTTPResponse | None:
        """Send; the response whose body is to be read, or None where `answer` has failed."""
        body = self._body(answer)
        connection.connect()
        connection.sock.settimeout(self._timeout_s)
        with self._lock:  # of a connection that the server means to close, http.client soon forgets the socket
            self._open[answer] = connection.sock
        connection.request("POST", f"{self._path}/chat/completions", body, self._headers)
        response = connection.getresponse()
        if response.status == 200:
            return response
        said = response.read(MAX_ERROR_BYTES).decode("utf-8", "replace")
        if response.status in (400, 422) and "ignore_eos" in said and self._takes_ignore_eos:
            self._takes_ignore_eos = False  # OpenAI's own servers refuse what they do not know
            connection.close()
            return self._post(connection, answer)
        answer.fail(f"HTTP {response.status} {response.reason}")
        return None

    def _body(self, answer: Answer) -> bytes:
        work = answer.work
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [{"role": message.role, "content": message.content} for message in work.messages],
            "max_tokens": work.max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        body |= {_NAMES.get(name, name): value for name, value in work.sampling.items()}
        if work.is_drawn and self._takes_ignore_eos:
            body["ignore_eos"] = True
        return json.dumps(body).encode()

    def _reason(self, answer: Answer, error: OSError | http.client.HTTPException) -> str:
        """Few words, the same for the same kind of failure, so that they can be counted."""
        if self._is_cut(answer):
            return "stopped" if self._is_stopped else "timed out"
        if isinstance(error, TimeoutError):
            return "timed out"
        if isinstance(error, ConnectionRefusedError):
            return "refused the connection"
        if isinstance(error, http.client.IncompleteRead | ConnectionError):
            return _CLOSED
        if isinstance(error, http.client.HTTPException):
            return "sent what is not HTTP"
        return f"could not be reached: {error.strerror or type(error).__name__}"

    def _is_cut(self, answer: Answer) -> bool:
        with self._lock:
            return answer in self._cut

    def _connection(self, timeout_s: float) -> http.client.HTTPConnection:
        if self._is_encrypted:
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(self._host, self._port, timeout=timeout_s, context=context)
        return http.client.HTTPConnection(self._host, self._port, timeout=timeout_s)

    # -- around them ---------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Cut off connections past their time, and all once `stop` was called: a server that sends a byte now and then
        keeps every other timeout from being one."""
        while not self._is_closed.wait(WATCH_EVERY_S):
            now = time.perf_counter()
            with self._lock:
                for answer, sock in self._open.items():
                    if self._is_stopped or now > answer.intended_s + self._timeout_s:
                        self._cut.add(answer)
                        with suppress(OSError):
                            sock.shutdown(socket.SHUT_RDWR)

    def _first_model(self) -> str:
        """What the server lists first; "default" where it lists nothing."""
        connection = self._connection(CONNECT_TIMEOUT_S)
        try:
            connection.request("GET", f"{self._path}/models", headers=self._headers)
            response = connection.getresponse()
            listed = json.loads(response.read(MAX_LINE_BYTES)) if response.status == 200 else None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "strerror", None) or type(error).__name__
            raise Unreachable(
                f"no server answers at {self._url}: {reason}", "is it running, and the URL right?"
            ) from None
        except ValueError:
            listed = None
        finally:
            connection.close()
        models = listed.get("data") if isinstance(listed, Mapping) else None
        first = models[0] if isinstance(models, list) and models else None
        name = first.get("id") if isinstance(first, Mapping) else None
        return name if isinstance(name, str) else "default"
