# The errors of this package. A message is one line of what happened, a hint one line of what to do.
# This file may not know how errors are printed nor which exit code each one has: that is the caller's table.
"""Errors raised by ``ingle.models``.

::

    ModelError
    ├── ModelNotFound        no such alias, file, package, repo or revision
    │   └── NoSuchQuant      the repo is there, but not in that quantization
    ├── NotAuthorised        gated, token refused
    ├── BadModelFile         not a GGUF, truncated, corrupt
    │   └── UnsupportedModel a sound file that cannot be used: old format, embedding model, adapter
    ├── DownloadFailed       index unreachable, checksum mismatch
    │   ├── NoNetwork        no connection, proxy, certificate, broken off
    │   └── HubUnavailable   the hub is down, is limiting requests, or is no hub
    ├── StoreError           disk full, folder not writable
    └── ChatTemplateError    the model's template does not parse or refuses the conversation
"""

from __future__ import annotations

import errno
import os


class ModelError(Exception):
    """Something about a model that its user can act on. `message` and `hint` hold no line breaks."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        self.message = one_line(message)
        self.hint = None if hint is None else one_line(hint)
        super().__init__(self.message)


class ModelNotFound(ModelError):
    """The name, path or package does not exist."""


class NoSuchQuant(ModelNotFound):
    """The repo holds no file of the wanted quantization; the hint names those it has."""


class NotAuthorised(ModelError):
    """The hub knows the repo, and does not give it to whoever asks."""


class BadModelFile(ModelError):
    """The file is not a whole, consistent GGUF model."""


class UnsupportedModel(BadModelFile):
    """The file is well formed, but is of a version or a kind that cannot be run here."""


class DownloadFailed(ModelError):
    """The bytes could not be fetched, or were not the expected ones."""


class NoNetwork(DownloadFailed):
    """Nobody could be reached: no connection, a proxy or certificate in between, a connection that broke."""


class HubUnavailable(DownloadFailed):
    """The hub answered, but not with what was asked for: trouble of its own, too many requests, or no hub at all."""


class StoreError(ModelError):
    """The local disk refused: full, read-only, not ours. `errno` is the system's number where there is one."""

    def __init__(self, message: str, hint: str | None = None, *, errno: int | None = None) -> None:
        super().__init__(message, hint)
        self.errno = errno


class ChatTemplateError(ModelError):
    """The chat template does not parse, needs something forbidden, or rejected the messages."""


_ERRNO_HINTS = {
    errno.ENOSPC: "Free some space, or point {home} at a disk with room.",
    errno.EDQUOT: "The disk quota is used up: free some space, or point {home} elsewhere.",
    errno.EACCES: "Check who owns the folder, or point {home} at one you may write to.",
    errno.EPERM: "Check who owns the folder, or point {home} at one you may write to.",
    errno.EROFS: "That file system is read-only: point {home} at one you may write to.",
    errno.ENOTDIR: "Part of that path is a file: remove it, or point {home} elsewhere.",
    errno.EEXIST: "A file stands where a folder is needed: remove it, or point {home} elsewhere.",
}


def store_error(error: OSError, doing: str, home: str = "XDG_CACHE_HOME") -> StoreError:
    """`error` met while `doing` ("create the folder /x"), with the errno named and a hint that fits it.

    `home`: the variable that moves what was being written to another disk.
    """
    number = error.errno
    name = errno.errorcode.get(number, str(number)) if number is not None else type(error).__name__
    reason = os.strerror(number) if number is not None else str(error)
    hint = _ERRNO_HINTS.get(number if number is not None else -1, "Check that disk, or point {home} at another.")
    return StoreError(f"cannot {doing}: {reason} ({name})", hint.format(home=home), errno=number)


def one_line(text: str, limit: int = 400) -> str:
    """`text` with control characters shown as escapes and line breaks as spaces, cut at `limit` characters.

    Names from inside a model file end up in messages; none of them may move the cursor of a terminal.
    """
    flat = " ".join(text.split())
    safe = "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in flat)
    return safe if len(safe) <= limit else safe[: limit - 1] + "…"
