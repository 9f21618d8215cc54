# Exception → exit code and the two lines a user reads. The only place where errors become text.
# This file may not know commands; it is imported before anything heavy, so classes are named as text, not imported.
"""Errors at the edge.

    CliError                 one line of what happened, one of what to do, an exit code
    ├── UsageProblem         2   the command line, a setting or a request makes no sense
    ├── InputProblem         66  a file, a conversation or standard input is not there, or not text
    ├── Busy                 75  another process has this conversation
    ├── Undeliverable        74  standard output cannot be written (a full disk)
    ├── Unreachable          69  a server does not answer
    └── BadTranscript        76  a file among the conversations that is none, or one of a later version
    Terminated               SIGTERM or SIGHUP arrived outside an answer (a BaseException, as KeyboardInterrupt is)

Exit codes: 0 done · 1 failure · 2 usage · 66 input or model not found · 69 server unavailable · 74 disk · 75 try again
(memory, busy) · 76 bad file · 77 not authorised · 130 Ctrl-C · 141 closed pipe · 143 terminated.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass

FAILURE = 1
USAGE = 2
NOT_FOUND = 66
UNAVAILABLE = 69
DISK = 74
TRY_AGAIN = 75
BAD_FILE = 76
NOT_AUTHORISED = 77
INTERRUPTED = 130
CLOSED_PIPE = 141
TERMINATED = 143


class CliError(Exception):
    """An error of this package: `str(error)` is what happened, `hint` what to do."""

    exit_code = FAILURE

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class UsageProblem(CliError):
    exit_code = USAGE


class InputProblem(CliError):
    exit_code = NOT_FOUND


class Busy(CliError):
    exit_code = TRY_AGAIN


class Undeliverable(CliError):
    exit_code = DISK


class Unreachable(CliError):
    exit_code = UNAVAILABLE


class BadTranscript(CliError):
    exit_code = BAD_FILE


class Terminated(BaseException):
    """A signal asked the process to end. Not an Exception: nothing on the way out may swallow it."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal_number)
        self.exit_code = 128 + signal_number


# The first class in an error's ancestry that stands here decides.
_CODES: dict[str, int] = {
    "ingle.models.errors.ModelNotFound": NOT_FOUND,
    "ingle.models.errors.NotAuthorised": NOT_AUTHORISED,
    "ingle.models.errors.BadModelFile": BAD_FILE,
    "ingle.models.errors.ChatTemplateError": BAD_FILE,
    "ingle.models.errors.DownloadFailed": UNAVAILABLE,
    "ingle.models.errors.StoreError": DISK,
    "ingle.models.errors.ModelError": FAILURE,
    "ingle.runtime.errors.ModelLoadError": BAD_FILE,
    "ingle.runtime.errors.OutOfMemory": TRY_AGAIN,
    "ingle.runtime.errors.QueueFull": TRY_AGAIN,
    "ingle.runtime.errors.InvalidRequest": USAGE,
    "ingle.runtime.errors.EngineError": FAILURE,
    "ingle.quant.errors.BadText": BAD_FILE,
    "ingle.quant.errors.BadActivations": BAD_FILE,
    "ingle.quant.errors.DifferentVocabulary": USAGE,
    "ingle.quant.errors.BadRecipe": USAGE,
    "ingle.quant.errors.BadWeights": BAD_FILE,
    "ingle.quant.errors.BadImatrix": BAD_FILE,
    "ingle.quant.errors.QuantError": FAILURE,
    "builtins.MemoryError": TRY_AGAIN,
    "builtins.KeyboardInterrupt": INTERRUPTED,
}

_DISK_HINTS: dict[int | None, str] = {
    errno.ENOSPC: "free some space on that disk",
    errno.EDQUOT: "the disk quota is used up: free some space",
    errno.EROFS: "that file system is read-only",
    errno.EACCES: "check who owns it and its permissions",
    errno.EPERM: "check who owns it and its permissions",
}


@dataclass(frozen=True, slots=True)
class Report:
    """What the user is told: at most two lines, and the process's exit code. `message` None: say nothing.

    `is_bug`: nobody foresaw it, so nothing can go on as if it had not happened.
    """

    message: str | None
    hint: str | None
    exit_code: int
    is_bug: bool = False


def describe(error: BaseException) -> Report:
    """The two lines and the exit code for `error`, whatever it is."""
    if isinstance(error, BrokenPipeError):
        return Report(None, None, CLOSED_PIPE)
    if isinstance(error, KeyboardInterrupt):
        return Report(None, None, INTERRUPTED)
    if isinstance(error, Terminated):
        return Report(None, None, error.exit_code)
    if isinstance(error, CliError):
        return Report(str(error), error.hint, error.exit_code)
    for ancestor in type(error).__mro__:
        code = _CODES.get(f"{ancestor.__module__}.{ancestor.__qualname__}")
        if code is not None:
            hint = getattr(error, "hint", None)
            return Report(_one_line(str(error)) or _plain_name(error), hint, code)
    if isinstance(error, OSError):
        return _describe_os_error(error)
    return Report(
        f"unexpected {type(error).__name__}: {_one_line(str(error))}",
        "this is a bug in Ingle; INGLE_DEBUG=1 shows where it happened",
        FAILURE,
        is_bug=True,
    )


def _describe_os_error(error: OSError) -> Report:
    reason = os.strerror(error.errno) if error.errno is not None else str(error)
    where = f"{error.filename}: " if error.filename is not None else ""
    code = NOT_FOUND if isinstance(error, FileNotFoundError | IsADirectoryError | NotADirectoryError) else DISK
    return Report(_one_line(f"{where}{reason}"), _DISK_HINTS.get(error.errno), code)


def _plain_name(error: BaseException) -> str:
    return "not enough memory" if isinstance(error, MemoryError) else type(error).__name__


def _one_line(text: str) -> str:
    return " ".join(text.split())
