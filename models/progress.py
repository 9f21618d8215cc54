# How a long download tells someone about itself. The someone (a progress bar, a log) lives elsewhere.
# This file may not know terminals.
"""The callback protocol of downloads, and an implementation that says nothing."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Calls arrive on the thread that asked for the download: start, update…, finish; `note` at any time.

    `finish` follows every `start`, also after a failure. `update` never goes backwards within one start.
    """

    def start(self, total_bytes: int | None, label: str, done_bytes: int = 0) -> None:
        """A phase begins, with `done_bytes` there from before. `total_bytes` is None when nobody knows."""

    def update(self, done_bytes: int) -> None:
        """`done_bytes` of the phase are there, counted from its beginning."""

    def finish(self) -> None:
        """The phase is over."""

    def note(self, message: str) -> None:
        """One line for the user, such as that another process is downloading the same file."""


class Silent:
    """A Progress that says nothing."""

    def start(self, total_bytes: int | None, label: str, done_bytes: int = 0) -> None:
        pass

    def update(self, done_bytes: int) -> None:
        pass

    def finish(self) -> None:
        pass

    def note(self, message: str) -> None:
        pass
