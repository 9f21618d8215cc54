# Every error has an exit code that was chosen, and every report fits two lines.
from __future__ import annotations

import errno
import inspect
import os
import signal

import pytest

import ingle.models.errors as model_errors
import ingle.quant.errors as quant_errors
import ingle.runtime.errors as engine_errors
from ingle.cli.errors import CliError, InputProblem, Report, Terminated, UsageProblem, describe

CODES = {
    "ModelError": 1,
    "ModelNotFound": 66,
    "BadModelFile": 76,
    "UnsupportedModel": 76,
    "DownloadFailed": 69,
    "HubUnavailable": 69,
    "NoNetwork": 69,
    "NoSuchQuant": 66,
    "NotAuthorised": 77,
    "StoreError": 74,
    "ChatTemplateError": 76,
    "EngineError": 1,
    "ModelLoadError": 76,
    "OutOfMemory": 75,
    "QueueFull": 75,
    "InvalidRequest": 2,
    "PromptTooLong": 2,
    "QuantError": 1,
    "BadRecipe": 2,
    "BadWeights": 76,
    "BadImatrix": 76,
    "BadText": 76,
    "BadActivations": 76,
    "DifferentVocabulary": 2,
}

CLASSES = [
    value
    for module in (model_errors, engine_errors, quant_errors)
    for value in vars(module).values()
    if inspect.isclass(value) and issubclass(value, Exception) and value.__module__ == module.__name__
]


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_code_of_every_error(kind: type[Exception]) -> None:
    error = kind(5000, 512) if kind is engine_errors.PromptTooLong else kind("went wrong", "do this")
    report = describe(error)
    assert report.exit_code == CODES[kind.__name__]
    assert report.message
    assert report.hint


def test_all_codes_are_used() -> None:
    assert {kind.__name__ for kind in CLASSES} == CODES.keys()


@pytest.mark.parametrize(
    ("error", "report"),
    [
        (UsageProblem("no", "so"), Report("no", "so", 2)),
        (InputProblem("no"), Report("no", None, 66)),
        (CliError("no"), Report("no", None, 1)),
        (BrokenPipeError(), Report(None, None, 141)),
        (KeyboardInterrupt(), Report(None, None, 130)),
        (Terminated(signal.SIGTERM), Report(None, None, 143)),
        (MemoryError(), Report("not enough memory", None, 75)),
        (
            OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/x/y"),
            Report("/x/y: No space left on device", "free some space on that disk", 74),
        ),
        (
            PermissionError(errno.EACCES, os.strerror(errno.EACCES), "/x"),
            Report("/x: Permission denied", "check who owns it and its permissions", 74),
        ),
        (FileNotFoundError(errno.ENOENT, "x", "/x"), Report("/x: No such file or directory", None, 66)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_reports(error: BaseException, report: Report) -> None:
    assert describe(error) == report


def test_a_bug_says_that_it_is_one() -> None:
    report = describe(ZeroDivisionError("division\nby zero"))
    assert report.is_bug
    assert report.exit_code == 1
    assert report.message == "unexpected ZeroDivisionError: division by zero"
    assert report.hint is not None
    assert "INGLE_DEBUG" in report.hint


def test_the_word_unexpected_makes_no_bug() -> None:
    assert not describe(CliError("unexpected end of the file")).is_bug
